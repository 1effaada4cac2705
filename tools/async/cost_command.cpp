// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"
#include "cost.hpp"
#include "options.hpp"
#include "ranks.hpp"
#include "report.hpp"

namespace pl::async {

int run_cost_command(const tools::invocation& call) {
  cost_plan plan;
  tools::common_options common;
  std::int64_t operations = plan.operations, repeats = plan.repeats;
  tools::command_parser parser(call, "What each kind of queued operation costs, on the GPU and in its call.");
  parser.integer("-n,--operations", operations, 1, 250, "of a kind in a row");
  parser.integer("-r,--repeats", repeats, 1, 1000, "turns of each kind");
  parser.common(common);
  if (const auto code = parser.parse()) return *code;
  plan.operations = static_cast<int>(operations);
  plan.repeats = static_cast<int>(repeats);
  tools::report report(call, common, "async");
  const int count = gpu_count();
  const tools::gpu_session gpu(common.gpu, false);
  for (int other = 0; other < count && plan.peer < 0; ++other) {
    int can = 0;
    if (other != gpu.ordinal() && gpu.cuda().cuDeviceCanAccessPeer(&can, gpu.ordinal(), other) == 0 && can != 0)
      plan.peer = other;
  }
  report.describe(&gpu, nullptr, tools::place_thread(common, gpu.bus_id(), gpu.simulated()));
  const int code = run_cost(gpu, plan, &report.file());
  report.write();
  return code;
}

}  // namespace pl::async
