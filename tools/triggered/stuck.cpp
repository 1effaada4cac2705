// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/stuck.hpp"

#include <sched.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {
namespace {

// Without another stream at its wait for so long, none will come. The simulated GPU's streams are threads, which a busy
// machine keeps waiting.
constexpr std::uint64_t kSettledNs = 20'000'000, kSettledSimulatedNs = 300'000'000;
constexpr std::uint64_t kReleaseLimitNs = 10'000'000'000;

struct turn {
  std::vector<double> free_ns;  // from the first cancel until the CPU saw the stream idle, for each
  double cancel_ns = 0;         // of all calls of cancel
  int standing = 0;             // streams that were in their wait; others were queued behind them in the hardware
};

using channels = std::vector<std::unique_ptr<triggered::channel>>;

int count_standing(const channels& channel) {
  int out = 0;
  for (const auto& each : channel) out += each->state().reached != 0;
  return out;
}

// Streams share the hardware's queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default), so perhaps not all can come to their
// waits.
int wait_until_settled(const channels& channel, bool is_simulated) {
  const std::uint64_t settled_ns = is_simulated ? kSettledSimulatedNs : kSettledNs;
  int standing = 0;
  for (auto settled_since = monotonic_ns(); monotonic_ns() - settled_since < settled_ns;) {
    const int now = count_standing(channel);
    if (now == static_cast<int>(channel.size())) return now;
    if (now != standing) settled_since = monotonic_ns();
    standing = now;
    sched_yield();
  }
  return standing;
}

turn release_all(const bench_rank& session, const channels& channel,
                 const std::vector<std::unique_ptr<tools::gpu_stream>>& streams) {
  turn out;
  for (std::size_t i = 0; i < channel.size(); ++i)
    static_cast<void>(tools::must(channel[i]->wait_signal(streams[i]->get())));
  out.standing = wait_until_settled(channel, session.cuda().is_simulated);
  for (const auto& stream : streams)
    if (session.cuda().cuStreamQuery(stream->get()) == cu::error_code::success)
      throw tools::tool_failure("a stream passed a wait without a signal");
  out.free_ns.assign(channel.size(), 0);
  const auto begin = monotonic_ns();
  for (const auto& each : channel) each->cancel(ECANCELED);
  out.cancel_ns = static_cast<double>(monotonic_ns() - begin);
  for (std::size_t left = channel.size(); left != 0;) {
    const auto now = monotonic_ns() - begin;
    if (now > kReleaseLimitNs) throw tools::tool_failure(format("%zu streams are still stuck after 10 s", left));
    for (std::size_t i = 0; i < channel.size(); ++i) {
      if (out.free_ns[i] != 0 || session.cuda().cuStreamQuery(streams[i]->get()) != cu::error_code::success) continue;
      out.free_ns[i] = static_cast<double>(monotonic_ns() - begin);
      --left;
    }
  }
  return out;
}

void print_results(const stuck_plan& plan, const std::vector<turn>& all, result_file* file) {
  std::vector<double> each_ns, last_ns;
  std::printf(
      "# %d streams, each in a wait of its own channel; us from the first cancel until the CPU saw the streams idle\n",
      plan.streams);
  std::printf("%6s %10s %12s %12s %12s\n", "repeat", "waiting", "cancel calls", "median", "last");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto facts = summarize(all[i].free_ns);
    each_ns.insert(each_ns.end(), all[i].free_ns.begin(), all[i].free_ns.end());
    last_ns.push_back(facts.max);
    std::printf("%6zu %10d %12.1f %12.1f %12.1f\n", i + 1, all[i].standing, all[i].cancel_ns * 1e-3, facts.p50 * 1e-3,
                facts.max * 1e-3);
    if (file != nullptr)
      file->add_row({{"turn", i + 1},
                     {"streams", plan.streams},
                     {"standing", all[i].standing},
                     {"cancel_calls_ns", all[i].cancel_ns},
                     {"free_ns_p50", facts.p50},
                     {"free_ns_max", facts.max}});
  }
  std::printf(
      "all released: a stream after %.1f us (median), the last after %.1f us (median of the repetitions), %.1f us at most\n",
      summarize(each_ns).p50 * 1e-3, summarize(last_ns).p50 * 1e-3, summarize(last_ns).max * 1e-3);
}

}  // namespace

int run_stuck(bench_rank& session, const stuck_plan& plan, result_file* file) {
  std::vector<std::unique_ptr<tools::gpu_stream>> streams;
  if (session.rank() == 0)
    for (int i = 0; i < plan.streams; ++i) streams.push_back(std::make_unique<tools::gpu_stream>(session.gpu()));
  triggered::channel_options options;
  options.executor = triggered::executor_kind::peer;
  std::vector<turn> all;
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    channels channel;
    for (int i = 0; i < plan.streams; ++i)
      channel.push_back(session.connect(1 - session.rank(), session.new_channel_id(), options));
    session.barrier();
    if (session.rank() == 0) all.push_back(release_all(session, channel, streams));
    session.barrier();
  }
  if (session.rank() == 0) print_results(plan, all, file);
  return tools::kExitOk;
}

}  // namespace pl::async
