// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "arguments.hpp"
#include "commands.hpp"
#include "ranks.hpp"
#include "stencil.hpp"
#include "text.hpp"

namespace pl::async {
namespace {

constexpr int kMostRanks = 16, kMostPoints = 16384;

void take_grid(stencil_plan& plan, const std::string& text) {
  char rest = 0;
  if (std::sscanf(text.c_str(), "%dx%d%c", &plan.gx, &plan.gy, &rest) != 2 || plan.gx < 1 || plan.gy < 1 ||
      plan.gx > kMostRanks || plan.gy > kMostRanks || plan.gx * plan.gy < 2 || plan.gx * plan.gy > kMostRanks)
    throw tools::tool_failure(
        format("--grid: \"%s\" is not COLUMNSxROWS of 2 to %d ranks, as 2x1", text.c_str(), kMostRanks));
}

void take_most_square(stencil_plan& plan, int ranks) {
  plan.gy = static_cast<int>(std::sqrt(ranks));
  while (ranks % plan.gy != 0) --plan.gy;
  plan.gx = ranks / plan.gy;
}

}  // namespace

int run_stencil_command(const tools::invocation& call) {
  stencil_plan plan;
  rank_plan ranks;
  std::string arms = "normal,peer", sizes = "256", grid, gpus;
  std::int64_t steps = plan.steps, batch = plan.batch, repeats = plan.repeats, processes = 2;
  tools::command_parser parser(call, "5-point Jacobi over blocks of several ranks, the halos exchanged by several ways.");
  parser.text("--arms", arms, "comma-separated: normal, peer, peer-kernel, proxy (as of pingpong)");
  parser.text("-n,--points", sizes, "points along an edge of each rank's block, comma-separated, 2 to 16384");
  parser.integer("-p,--ranks", processes, 2, kMostRanks, "ranks, in the most square grid; they share the GPUs in turn");
  parser.text("--grid", grid, "columns x rows of ranks, as 2x1 or 1x2 (instead of -p)");
  parser.integer("-i,--steps", steps, 2, 1'000'000, "steps of a turn; large blocks make fewer");
  parser.integer("-b,--batch", batch, 1, 80, "steps queued at once");
  parser.integer("-r,--repeats", repeats, 1, 1000, "turns of each arm");
  parser.text("--gpus", gpus, "ordinals of the ranks' GPUs, comma-separated");
  parser.common(ranks.common, false);
  if (const auto code = parser.parse()) return *code;
  plan.arms.clear();
  for (const auto& word : split_list(arms)) plan.arms.push_back(arm_of(word));
  plan.sizes = integers_in("--points", sizes, 2, kMostPoints);
  if (grid.empty()) take_most_square(plan, static_cast<int>(processes));
  else take_grid(plan, grid);
  if (!gpus.empty()) ranks.gpus = integers_in("--gpus", gpus, 0, 1023);
  plan.steps = static_cast<int>(steps);
  plan.batch = static_cast<int>(batch);
  plan.repeats = static_cast<int>(repeats);
  ranks.ranks = plan.gx * plan.gy;
  ranks.window_bytes = stencil_window_bytes(*std::max_element(plan.sizes.begin(), plan.sizes.end()));
  return run_ranks(call, ranks, [&](station& at, result_file* file) { return run_stencil(at, plan, file); });
}

}  // namespace pl::async
