// SPDX-License-Identifier: Apache-2.0
// The state of a channel that the proxy thread shares. It outlives a closed channel until no stream of either end can
// access its words any more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "triggered/channel.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/graph_slots.hpp"
#include "triggered/shm_put_queue.hpp"

namespace pl::triggered {

struct channel_core {
  channel_core(word_pool& pool, unsigned word_index, int peer_rank, std::uint32_t number, const channel_options& wanted)
      : words(&pool), index(word_index), peer(peer_rank), id(number), options(wanted) {}

  word_pool* const words;
  const unsigned index;
  const int peer;
  const std::uint32_t id;
  const channel_options options;
  const std::shared_ptr<graph_slots> graph = std::make_shared<graph_slots>();
  // Set by ready(). Where an end waits by kernels, its captured operations are counted.
  bool waits_by_kernel = false, peer_waits_by_kernel = false;
  std::uint32_t peer_depth = 0;
  std::uint32_t incarnation = 0;  // counts the channels with this id and peer; the same at both ends

  // Fewer than kTargets, so that no target is overwritten while a wait for it is queued.
  static constexpr unsigned kMaxQueued = 1000;

  // Queued by the channel's thread.
  std::atomic<std::uint64_t> puts{0}, waits{0};
  std::atomic<std::uint64_t> releases{0};                     // sequence of the last one
  std::atomic<executor_kind> kind{executor_kind::automatic};  // automatic: not ready yet
  std::atomic<bool> is_closed{false};                         // by its owner
  std::atomic<bool> is_peer_closed{false};                    // by the peer, or the peer is gone

  // The peer's last put when it closed its end without an error: all puts up to it arrive, and none follows.
  static constexpr std::uint64_t kOpen = ~std::uint64_t{0};
  std::atomic<std::uint64_t> peer_last_put{kOpen};
  bool has_peer_left() const noexcept { return peer_last_put.load(std::memory_order_acquire) != kOpen; }
  bool can_come(std::uint64_t sequence) const noexcept { return sequence <= peer_last_put.load(std::memory_order_acquire); }

  std::atomic<bool> are_slots_free{true};  // streams may be released from waiting for a staging slot (executor X)

  // The first error wins and stays.
  std::atomic<int> error{0};
  bool fail(int code, const std::string& cause) {
    const std::lock_guard lock(mutex);
    if (error.load(std::memory_order_relaxed) != 0) return false;
    reason = cause;
    error.store(code, std::memory_order_release);
    return true;
  }
  std::string failure_reason() const {
    const std::lock_guard lock(mutex);
    return reason;
  }

  // Set by ready(), before a kernel may write executor_error.
  std::function<std::string()> explain_error;
  int executor_error() const noexcept { return static_cast<int>(__atomic_load_n(&host().executor_error, __ATOMIC_ACQUIRE)); }

  host_words& host() const noexcept { return words->host(index); }
  std::uint64_t reached() const noexcept { return __atomic_load_n(&host().reached, __ATOMIC_ACQUIRE); }
  // Waits that streams have passed; a read of GPU memory where that is mapped.
  std::uint64_t passed() const noexcept;
  // The sequence that wait `number` waits for; kept for waits that a stream may still be in.
  std::uint64_t target(std::uint64_t number) const noexcept {
    return targets[number % kTargets].load(std::memory_order_relaxed);
  }
  void set_target(std::uint64_t number, std::uint64_t sequence) noexcept {
    targets[number % kTargets].store(sequence, std::memory_order_relaxed);
  }
  // Holds the progress words of the streams instead of host_words (executor X on one node).
  std::atomic<const shm_queue_memory*> shm_queue{nullptr};
  std::uint64_t sent() const noexcept {
    if (const auto* const shared = shm_queue.load(std::memory_order_acquire))
      return __atomic_load_n(&shared->doorbell, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&host().sent, __ATOMIC_ACQUIRE);
  }
  // The sequence of the last release that a stream has passed.
  std::uint64_t released() const noexcept {
    const auto* const shared = shm_queue.load(std::memory_order_acquire);
    return __atomic_load_n(shared != nullptr ? &shared->consumed : &host().consumed, __ATOMIC_ACQUIRE);
  }
  // No stream has pending work of this channel, except for a poisoned wait that ends within microseconds, and no graph that
  // may be launched has any.
  bool is_quiet() const noexcept {
    return !graph->is_any_held() && released() == releases.load(std::memory_order_acquire) &&
           reached() == waits.load(std::memory_order_acquire) && sent() == puts.load(std::memory_order_acquire);
  }

  // Whether a stream is inside a captured wait whose signal has not arrived.
  bool is_waiting_in(unsigned slot) const noexcept {
    const auto state = __atomic_load_n(&host().graph_wait_place[slot], __ATOMIC_ACQUIRE);
    if (state != graph_place::waiting && state != graph_place::seen) return false;
    return !words->is_mapped() || words->load(index, offsetof(gpu_words, graph_flag) + slot * sizeof state) == 0;
  }

  // Whether a stream may wait for a release without a word that shows it.
  bool may_wait_unseen() const noexcept {
    const bool is_slotted = graph->is_any_held() && !(waits_by_kernel && peer_waits_by_kernel);
    return is_slotted || (!words->is_mapped() && (graph->is_any_held() || sent() != puts.load(std::memory_order_acquire)));
  }

  // The put that a stream has reached and for which the peer has no room; 0: none, or the CPU cannot read it.
  std::uint64_t held_put() const noexcept;

  // Writes poison(code) to every word on which a stream of this end may wait. Any thread. Repeated while streams are not
  // quiet, because a late write of the peer may overwrite the poison with a count.
  void poison_words(int code) const noexcept;

  // Proxy thread only. A counted captured wait, or put, in which a stream has been for `limit_ns`; 0: none.
  std::uint64_t find_stuck_counted_wait(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  std::uint64_t find_stuck_counted_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  struct place {
    std::uint64_t sequence = 0, seen_ns = 0;  // the last value, and when it was first seen (monotonic)
  };
  place counted_wait, counted_put;
  // Proxy thread only. A put that has been held for `limit_ns`; 0: none.
  std::uint64_t find_stuck_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  std::uint64_t held_put_seen = 0, held_put_since = 0;  // the held put seen last, and since when (monotonic ns)
  std::uint64_t wait_seen = 0;                          // the wait in which a stream was last seen to stand
  std::uint64_t wait_since = 0;                         // monotonic ns, 0: it does not stand
  std::uint64_t quiet_since = 0;                        // the same, of is_quiet() after closing

 private:
  static constexpr std::size_t kTargets = 1024;
  std::array<std::atomic<std::uint64_t>, kTargets> targets{};
  mutable std::mutex mutex;
  std::string reason;
};

}  // namespace pl::triggered
