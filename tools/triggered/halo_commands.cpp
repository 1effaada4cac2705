// SPDX-License-Identifier: Apache-2.0
// stencil and multigrid: fields over blocks.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.hpp"
#include "tools/common/word_list.hpp"
#include "tools/triggered/arguments.hpp"
#include "tools/triggered/commands.hpp"
#include "tools/triggered/halo_run.hpp"
#include "tools/triggered/multigrid_block.hpp"
#include "tools/triggered/multigrid_field.hpp"
#include "tools/triggered/ranks.hpp"
#include "tools/triggered/stencil_block.hpp"

namespace pl::async {
namespace {

constexpr int kMaxRanks = 16, kMaxPoints = 16384, kMaxMultigridPoints = 8192;

void take_grid(halo_plan& plan, const std::string& text) {
  char rest = 0;
  if (std::sscanf(text.c_str(), "%dx%d%c", &plan.gx, &plan.gy, &rest) != 2 || plan.gx < 1 || plan.gy < 1 ||
      plan.gx > kMaxRanks || plan.gy > kMaxRanks || plan.gx * plan.gy < 2 || plan.gx * plan.gy > kMaxRanks)
    throw tools::tool_failure(
        format("--grid: \"%s\" is not COLUMNSxROWS of 2 to %d ranks, as 2x1", text.c_str(), kMaxRanks));
}

void take_most_square(halo_plan& plan, int ranks) {
  plan.gy = static_cast<int>(std::sqrt(ranks));
  while (ranks % plan.gy != 0) --plan.gy;
  plan.gx = ranks / plan.gy;
}

class halo_options {
 public:
  halo_options(tools::command_parser& parser, halo_plan defaults, const char* points_help) : plan(std::move(defaults)) {
    parser.text(
        "--arms", "LIST", arms_,
        "arms, comma-separated: normal, peer, peer-kernel, proxy, proxy-kernel, dma, device, graph-kernel (as in pingpong)");
    parser.text("-n,--points", "N,...", sizes_, points_help);
    parser.integer("-p,--ranks", processes_, 2, kMaxRanks, "ranks, in the most square grid; GPUs are assigned round robin");
    parser.text("--grid", "COLUMNSxROWS", grid_, "columns x rows of ranks, for example 2x1 or 1x2 (instead of -p)");
    parser.integer("-i,--steps", steps_, 2, 1'000'000,
                   format("%ss in a repetition; fewer with large blocks", plan.step.c_str()).c_str());
    parser.integer("-b,--batch", batch_, 1, 80, format("%ss queued at once", plan.step.c_str()).c_str());
    parser.integer("-r,--repeats", repeats_, 1, 1000, "repetitions of each arm, interleaved");
    parser.text("--gpus", "N,...", gpus_, "ordinals of the ranks' GPUs, comma-separated");
    parser.common(ranks_.common, false);
  }

  // The simulated GPU computes each point on the CPU.
  void make_smaller(const tools::command_parser& parser, std::int64_t steps) {
    tools::smaller_run smaller(parser);
    smaller.text("--points", sizes_, "64");
    smaller.number("--steps", steps_, steps);
    smaller.number("--repeats", repeats_, 2);
  }

  void take(int most_points) {
    plan.arms.clear();
    for (const auto& word : tools::split_list(arms_)) plan.arms.push_back(arm_of(word));
    plan.sizes = integers_in("--points", sizes_, 2, most_points);
    if (grid_.empty()) take_most_square(plan, static_cast<int>(processes_));
    else take_grid(plan, grid_);
    if (!gpus_.empty()) ranks_.gpus = integers_in("--gpus", gpus_, 0, 1023);
    plan.steps = static_cast<int>(steps_);
    plan.batch = static_cast<int>(batch_);
    plan.repeats = static_cast<int>(repeats_);
    ranks_.ranks = plan.gx * plan.gy;
    ranks_.window_bytes = halo_window_bytes(*std::max_element(plan.sizes.begin(), plan.sizes.end()));
  }

  int run(const tools::invocation& call) const {
    return run_ranks(call, ranks_, [&](bench_rank& session, result_file* file) { return run_halos(session, plan, file); });
  }

  halo_plan plan;

 private:
  rank_plan ranks_;
  std::string arms_ = "normal,peer", sizes_ = "256", grid_, gpus_;
  std::int64_t steps_ = plan.steps, batch_ = plan.batch, repeats_ = plan.repeats, processes_ = 2;
};

}  // namespace

int run_stencil_command(const tools::invocation& call) {
  halo_plan plan;
  plan.title = "5-point Jacobi";
  plan.make = [](bench_rank& session, const block_place& place) { return std::make_unique<stencil_block>(session, place); };
  tools::command_parser parser(
      call, "Runs 5-point Jacobi over blocks of several ranks and exchanges the halos with several methods.");
  halo_options options(parser, plan, "points along an edge of each rank's block, comma-separated, 2 to 16384");
  if (const auto code = parser.parse()) return *code;
  options.make_smaller(parser, 60);
  options.take(kMaxPoints);
  return options.run(call);
}

int run_multigrid_command(const tools::invocation& call) {
  halo_plan plan;
  plan.step = "cycle";
  plan.title = "Poisson by V(2,2)-cycles";
  plan.make = [](bench_rank& session, const block_place& place) {
    return std::make_unique<multigrid_block>(session, place);
  };
  plan.steps = 100;
  plan.batch = 2;
  tools::command_parser parser(call,
                               "Solves Poisson's equation by multigrid V-cycles over blocks of several ranks and exchanges "
                               "the halos of each level with several methods.");
  halo_options options(parser, plan, "points along an edge of each rank's block, comma-separated: powers of two, 2 to 8192");
  if (const auto code = parser.parse()) return *code;
  options.make_smaller(parser, 10);
  options.take(kMaxMultigridPoints);
  for (const int n : options.plan.sizes)
    if (!is_multigrid_size(n)) throw tools::tool_failure(format("--points: %d is not a power of two", n));
  return options.run(call);
}

}  // namespace pl::async
