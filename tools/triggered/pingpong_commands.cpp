// SPDX-License-Identifier: Apache-2.0
// pingpong and economy: the same exchange, for its time and for what it takes of the CPUs.
#include <algorithm>

#include "tools/common/word_list.hpp"
#include "tools/triggered/arguments.hpp"
#include "tools/triggered/commands.hpp"
#include "tools/triggered/pingpong.hpp"
#include "tools/triggered/ranks.hpp"

namespace pl::async {
namespace {

constexpr const char* kArmsHelp =
    "comma-separated: normal (CPU between all steps), hostfn (host functions in the stream), peer (the GPU's front end), "
    "peer-kernel (peer, with waits by a polling kernel), proxy (a CPU thread), proxy-kernel, dma (a DMA channel), graph "
    "(peer "
    "in a CUDA graph of a batch), graph-kernel (the same with kernels that count), graph-dma (dma in a graph), graph-loop, "
    "graph-loop-dma (graphs with a loop: one launch for a whole repetition)";

constexpr int kMaxBatch = 4096;

class exchange_options {
 public:
  explicit exchange_options(tools::command_parser& parser, std::string arms) : arms_(std::move(arms)) {
    parser.text("--arms", "LIST", arms_, kArmsHelp);
    parser.text("-s,--sizes", "SIZE,...", sizes_, "message sizes in bytes, comma-separated; K and M are allowed");
    parser.text("-k,--kernel", "MICROSECONDS,...", kernels_, "busy times of the kernel in us, comma-separated");
    parser.integer("-i,--iterations", iterations_, 10, 10'000'000, "round trips of each arm and case");
    parser.integer("-b,--batch", batch_, 1, kMaxBatch, "iterations queued at once; without graphs 80 at most");
    parser.integer("--unroll", unroll_, 0, kMaxBatch, "iterations of one graph (0: as many as -b says)");
    parser.integer("-r,--repeats", repeats_, 1, 1000, "repetitions into which the iterations of an arm are divided");
    parser.text("--gpus", "N,...", gpus_, "ordinals of the ranks' GPUs, comma-separated");
    parser.text("--netns", "LIST", networks_,
                "network namespaces of the ranks, to emulate two hosts (scripts/two_hosts.sh makes them)");
    parser.common(ranks.common, false);
  }

  void make_smaller(const tools::command_parser& parser) {
    tools::smaller_run smaller(parser);
    smaller.number("--iterations", iterations_, 1000);
  }

  void take() {
    plan.contenders.clear();
    for (const auto& word : tools::split_list(arms_)) plan.contenders.push_back({arm_of(word)});
    plan.sizes = sizes_in("--sizes", sizes_);
    plan.kernel_ns = times_in("--kernel", kernels_);
    if (!gpus_.empty()) ranks.gpus = integers_in("--gpus", gpus_, 0, 1023);
    if (!networks_.empty()) ranks.networks = tools::split_list(networks_);
    plan.iterations = static_cast<int>(iterations_);
    plan.batch = static_cast<int>(batch_);
    plan.unroll = static_cast<int>(unroll_);
    plan.repeats = static_cast<int>(std::min(repeats_, iterations_));
    ranks.window_bytes = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  }

  int run(const tools::invocation& call) const {
    return run_ranks(call, ranks, [&](bench_rank& session, result_file* file) {
      if (file != nullptr) {
        file->set_parameter("iterations", plan.iterations);
        file->set_parameter("batch", plan.batch);
        file->set_parameter("unroll", plan.unroll);
        file->set_parameter("repeats", plan.repeats);
        const bool is_network = ranks.context.messages.path == messaging::messenger_options::path_t::network;
        file->set_parameter("path", is_network ? "network" : "auto");
        file->set_parameter("hosts", ranks.networks.empty() ? 1 : 2);
      }
      return run_pingpong(session, plan, file);
    });
  }

  pingpong_plan plan;
  rank_plan ranks;

 private:
  std::string arms_, sizes_ = "128", kernels_ = "0", gpus_, networks_;
  std::int64_t iterations_ = plan.iterations, batch_ = plan.batch, unroll_ = plan.unroll, repeats_ = plan.repeats;
};

}  // namespace

int run_pingpong_command(const tools::invocation& call) {
  tools::command_parser parser(call, "Measures round trips of receive, kernel, send between two GPUs with several methods.");
  exchange_options options(parser, "normal,peer,peer-kernel");
  if (const auto code = parser.parse()) return *code;
  options.make_smaller(parser);
  options.take();
  return options.run(call);
}

int run_economy_command(const tools::invocation& call) {
  tools::command_parser parser(
      call, "Measures the CPU use of the ping-pong, with threads that spin (performance) and threads that sleep (economy).");
  exchange_options options(parser, "peer");
  if (const auto code = parser.parse()) return *code;
  options.make_smaller(parser);
  options.take();
  std::vector<contender> both;
  for (const auto& one : options.plan.contenders)
    for (const auto mode : {triggered::run_mode::performance, triggered::run_mode::economy})
      both.push_back({one.kind, mode});
  options.plan.contenders = std::move(both);
  options.plan.has_modes = true;
  return options.run(call);
}

}  // namespace pl::async
