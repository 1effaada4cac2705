// SPDX-License-Identifier: Apache-2.0
#include "triggered/channel_core.hpp"

#include <cstddef>

namespace pl::triggered {

std::uint64_t channel_core::held_put() const noexcept {
  const auto put = __atomic_load_n(&host().put_reached, __ATOMIC_ACQUIRE);
  if (put <= sent() || !words->is_mapped()) return 0;
  const auto released = words->load(index, offsetof(gpu_words, ack));
  return static_cast<std::int64_t>(released - (put - options.depth)) < 0 ? put : 0;
}

std::uint64_t channel_core::find_stuck_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept {
  if (options.depth == 0) return 0;
  const auto put = __atomic_load_n(&host().put_reached, __ATOMIC_ACQUIRE);
  if (put != held_put_seen) {
    held_put_seen = put;
    held_put_since = now_ns;
    return 0;
  }
  if (now_ns - held_put_since < limit_ns) return 0;
  return held_put();
}

namespace {

// The value of `reached` if it has been the same for `limit_ns`; else 0.
std::uint64_t stays(const std::uint64_t& reached, channel_core::place& seen, std::uint64_t now_ns,
                    std::uint64_t limit_ns) noexcept {
  const auto now = __atomic_load_n(&reached, __ATOMIC_ACQUIRE);
  if (now != seen.sequence) {
    seen = {now, now_ns};
    return 0;
  }
  return now_ns - seen.seen_ns < limit_ns ? 0 : now;
}

}  // namespace

std::uint64_t channel_core::find_stuck_counted_wait(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept {
  const auto wait = stays(host().graph_reached, counted_wait, now_ns, limit_ns);
  if (wait == 0 || !words->is_mapped()) return 0;
  const auto signal = words->load(index, offsetof(gpu_words, graph_signal));
  return static_cast<std::int64_t>(signal - wait) < 0 ? wait : 0;
}

std::uint64_t channel_core::find_stuck_counted_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept {
  const auto put = stays(host().graph_put_reached, counted_put, now_ns, limit_ns);
  if (put == 0 || !words->is_mapped()) return 0;
  const auto released = words->load(index, offsetof(gpu_words, graph_released));
  return static_cast<std::int64_t>(released - (put - options.depth)) < 0 ? put : 0;
}

}  // namespace pl::triggered
