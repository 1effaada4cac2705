// SPDX-License-Identifier: Apache-2.0
// Latency of the CPU's accesses to GPU memory through BAR1.
#include <sched.h>

#include <algorithm>
#include <array>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/mapping_cache.hpp"
#include "copy/planner.hpp"
#include "tools/bandwidth/gpu_copier.hpp"
#include "tools/bandwidth/latency.hpp"
#include "tools/bandwidth/latency_protocol.hpp"
#include "tools/bandwidth/list_order.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMappedBytes = 1u << 20;
constexpr std::uint64_t kBarLineBytes = 128;
constexpr std::uint64_t kMaxBarAccesses = 100'000'000;
constexpr unsigned kWarmUp = 100;
constexpr std::uint64_t kPeerTimeoutNs = 2'000'000'000;  // of either side for the other
constexpr unsigned kFlagSlot = 1'000'002, kAnswerSlot = 1'000'003;

// Device memory of the pool as the CPU reaches it.
class mapped_memory {
 public:
  mapped_memory() : maps_(copy::planner::options_from_environment().maps) {}

  status open(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses) {
    if (gpu < 0 || gpu >= gpus.count())
      return failure{EINVAL, format("BAR latency: no GPU %d: there are %d", gpu, gpus.count())};
    if (accesses == 0 || accesses > kMaxBarAccesses)
      return failure{EINVAL, format("BAR latency: 1 to %llu accesses", static_cast<unsigned long long>(kMaxBarAccesses))};
    const auto memory = pool.get(gpu_place(gpu), kMappedBytes, kFlagSlot, gpu);
    if (!memory) return memory.error();
    device_ = memory->address;
    if (auto ready = gpus.make_current(gpu); !ready) return ready;
    if (auto cleared = gpus.check(gpus.cuda().cuMemsetD8_v2(device_, 0, kMappedBytes), format("GPU %d: cuMemsetD8", gpu));
        !cleared)
      return cleared;
    const auto info = cu::inspect_pointer(gpus.cuda(), device_);
    if (!info) return info.error();
    auto held = maps_.find(gpus.cuda(), *info, device_, kMappedBytes);
    if (!held)
      return failure{held.code(),
                     format("GPU %d: mapping its memory through BAR1 failed: %s", gpu, held.error().message.c_str())};
    map_ = *std::move(held);
    return {};
  }
  std::uint64_t device() const { return device_; }
  arch::mapping_type type() const { return map_.type; }
  template <class Word>
  volatile Word* word_at(std::uint64_t offset) const {
    return reinterpret_cast<volatile Word*>(map_.data + offset);
  }

 private:
  copy::mapping_cache maps_;
  copy::mapping_cache::hold map_;  // ends before the cache
  std::uint64_t device_ = 0;
};

// Calls access(i) for i in [0, kWarmUp + 2 * accesses): untimed, then timed as a whole, then one by one. Ends early and
// without an outcome if an access returns false.
template <class Access>
bool measure_accesses(std::uint64_t accesses, latency_outcome& out, Access&& access) {
  std::uint64_t next = 0;
  for (; next < kWarmUp; ++next)
    if (!access(next)) return false;
  std::uint64_t empty = UINT64_MAX;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t before = ticks_ordered();
    empty = std::min(empty, ticks_ordered() - before);
  }
  const std::uint64_t begin_ns = monotonic_ns();
  for (const std::uint64_t end = next + accesses; next < end; ++next)
    if (!access(next)) return false;
  out.mean_ns = static_cast<double>(monotonic_ns() - begin_ns) / static_cast<double>(accesses);
  out.samples_ns.reserve(accesses);
  for (std::uint64_t i = 0; i < accesses; ++i, ++next) {
    const std::uint64_t before = ticks_ordered();
    if (!access(next)) return false;
    const std::uint64_t taken = ticks_ordered() - before;
    out.samples_ns.push_back(ticks_to_ns(taken - std::min(taken, empty)));
  }
  return true;
}

// Offsets of different lines in random order, so that no access is merged or prefetched.
std::vector<std::uint32_t> offsets_of_lines() {
  auto order = chase_order(kMappedBytes / kBarLineBytes, 1, false);
  for (auto& one : order) one *= kBarLineBytes;
  return order;
}

// The kernel's side of a round trip, and its end however the CPU's side ends.
class echo {
 public:
  echo(gpu_set& gpus, int gpu, const mapped_memory& flag, volatile std::uint32_t* answer)
      : gpus_(gpus), stream_(gpus, gpu), flag_(flag), answer_(answer), gpu_(gpu) {}
  ~echo() { (void)end(); }
  echo(const echo&) = delete;
  echo& operator=(const echo&) = delete;

  status start(cu::function_t kernel, std::uint64_t answer, std::uint64_t rounds) {
    if (auto opened = stream_.open(); !opened) return opened;
    std::uint64_t flag = flag_.device();
    std::uint64_t time_limit_ns = kPeerTimeoutNs;
    std::array<void*, 4> parameters{&flag, &answer, &rounds, &time_limit_ns};
    const auto rc = gpus_.cuda().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream_.get(), parameters.data(), nullptr);
    if (auto launched = gpus_.check(rc, format("GPU %d: launch of the echo kernel", gpu_)); !launched) return launched;
    is_running_ = true;
    if (!has_answered(protocol::kReady))
      return failure{ETIMEDOUT, format("GPU %d: the echo kernel did not start within 2 s: end other programs on it", gpu_)};
    return {};
  }
  bool call(std::uint64_t round) {
    const auto value = static_cast<std::uint32_t>(protocol::kFirstRound + round);
    store(value);
    return has_answered(value);
  }
  // Precondition: not within a call. The kernel has left when this returns.
  status end() {
    if (!is_running_) return {};
    is_running_ = false;
    store(protocol::kAbort);
    if (auto ready = gpus_.make_current(gpu_); !ready) return ready;
    return gpus_.check(gpus_.cuda().cuStreamSynchronize(stream_.get()), format("GPU %d: the echo kernel", gpu_));
  }

 private:
  void store(std::uint32_t value) {
    *flag_.word_at<std::uint32_t>(0) = value;
    arch::publish_to_device(flag_.type());
  }
  bool has_answered(std::uint32_t value) const {
    constexpr unsigned kSpins = 10'000;  // far more than a round trip; then the CPU is yielded, and the clock is read
    for (unsigned spins = 0; spins < kSpins; ++spins)
      if (__atomic_load_n(answer_, __ATOMIC_ACQUIRE) == value) return true;
    const std::uint64_t begin_ns = monotonic_ns();
    while (monotonic_ns() - begin_ns < kPeerTimeoutNs) {
      if (__atomic_load_n(answer_, __ATOMIC_ACQUIRE) == value) return true;
      sched_yield();
    }
    return false;
  }
  gpu_set& gpus_;
  owned_stream stream_;
  const mapped_memory& flag_;
  volatile std::uint32_t* const answer_;
  const int gpu_;
  bool is_running_ = false;
};

}  // namespace

result<latency_outcome> run_bar_load(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses) {
  mapped_memory memory;
  if (auto opened = memory.open(gpus, pool, gpu, accesses); !opened) return opened.error();
  const auto offsets = offsets_of_lines();
  latency_outcome out;
  measure_accesses(accesses, out, [&](std::uint64_t i) {
    (void)*memory.word_at<std::uint64_t>(offsets[i % offsets.size()]);
    arch::order_after_reads(memory.type());
    return true;
  });
  return out;
}

result<latency_outcome> run_bar_store(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses) {
  mapped_memory memory;
  if (auto opened = memory.open(gpus, pool, gpu, accesses); !opened) return opened.error();
  const auto offsets = offsets_of_lines();
  latency_outcome out;
  measure_accesses(accesses, out, [&](std::uint64_t i) {
    *memory.word_at<std::uint64_t>(offsets[i % offsets.size()]) = i;
    arch::publish_to_device(memory.type());
    return true;
  });
  return out;
}

result<latency_outcome> run_bar_round_trip(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses) {
  mapped_memory memory;
  if (auto opened = memory.open(gpus, pool, gpu, accesses); !opened) return opened.error();
  const auto kernel = gpus.kernel(gpu, "bandwidth_echo");
  if (!kernel) return kernel.error();
  const auto answer = pool.get(host_place(), sizeof(std::uint32_t), kAnswerSlot, gpu);
  if (!answer) return answer.error();
  auto* const answer_word = reinterpret_cast<volatile std::uint32_t*>(answer->host);
  __atomic_store_n(answer_word, 0u, __ATOMIC_RELEASE);
  echo other_side(gpus, gpu, memory, answer_word);
  const std::uint64_t rounds = kWarmUp + 2 * accesses;
  if (auto started = other_side.start(*kernel, answer->address, rounds); !started) return started.error();
  latency_outcome out;
  const bool is_complete = measure_accesses(accesses, out, [&](std::uint64_t i) { return other_side.call(i); });
  if (auto ended = other_side.end(); !ended) return ended.error();
  if (!is_complete)
    return failure{ETIMEDOUT, format("GPU %d: no answer to a store through BAR1 within 2 s: run `peerlane sanity`", gpu)};
  return out;
}

}  // namespace pl::bandwidth
