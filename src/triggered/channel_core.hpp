// SPDX-License-Identifier: Apache-2.0
// What the service thread sees of a channel. Shared: a channel that was closed lives on here until no stream of either end
// can touch its words any more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "triggered/channel.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/graph_slots.hpp"
#include "triggered/shm_put_queue.hpp"

namespace pl::stream {

struct channel_core {
  channel_core(word_pool& pool, unsigned word_index, int peer_rank, std::uint32_t number, const channel_options& wanted)
      : words(&pool), index(word_index), peer(peer_rank), id(number), options(wanted) {}

  word_pool* const words;
  const unsigned index;
  const int peer;
  const std::uint32_t id;
  const channel_options options;
  const std::shared_ptr<graph_slots> graph = std::make_shared<graph_slots>();
  // Settled by ready(). Where an end waits by kernels, its captured operations count.
  bool waits_by_kernel = false, peer_waits_by_kernel = false;
  std::uint32_t peer_depth = 0;
  std::uint32_t incarnation = 0;  // the how manieth of this id and peer; the same at both ends

  static constexpr unsigned kMostQueued =
      1000;  // fewer than kTargets: no target is written over while a wait for it is queued

  // Queued by the channel's thread.
  std::atomic<std::uint64_t> puts{0}, waits{0};
  std::atomic<std::uint64_t> releases{0};                     // what the last one said
  std::atomic<executor_kind> kind{executor_kind::automatic};  // automatic: not ready yet
  std::atomic<bool> is_closed{false};                         // by its owner
  std::atomic<bool> is_closed_there{false};                   // by the peer, or the peer is gone

  // What the peer had put when it closed its end in good order: all of it has arrived or will, and more never comes.
  static constexpr std::uint64_t kOpen = ~std::uint64_t{0};
  std::atomic<std::uint64_t> last_put_there{kOpen};
  bool has_peer_left() const noexcept { return last_put_there.load(std::memory_order_acquire) != kOpen; }
  bool can_come(std::uint64_t sequence) const noexcept { return sequence <= last_put_there.load(std::memory_order_acquire); }

  std::atomic<bool> are_slots_free{true};  // streams may be let go from waiting for a staging slot (executor X)

  // The first error wins and stays.
  std::atomic<int> error{0};
  bool fail(int code, const std::string& why) {
    const std::lock_guard lock(mutex);
    if (error.load(std::memory_order_relaxed) != 0) return false;
    reason = why;
    error.store(code, std::memory_order_release);
    return true;
  }
  std::string why() const {
    const std::lock_guard lock(mutex);
    return reason;
  }

  host_words& host() const noexcept { return words->host(index); }
  std::uint64_t reached() const noexcept { return __atomic_load_n(&host().reached, __ATOMIC_ACQUIRE); }
  // Waits that streams have got past; a read of GPU memory where that is mapped.
  std::uint64_t passed() const noexcept;
  // What wait `number` waits for; kept for those that a stream may stand in.
  std::uint64_t target(std::uint64_t number) const noexcept {
    return targets[number % kTargets].load(std::memory_order_relaxed);
  }
  void set_target(std::uint64_t number, std::uint64_t sequence) noexcept {
    targets[number % kTargets].store(sequence, std::memory_order_relaxed);
  }
  // Where the streams say how far they are instead of the host words (executor X on one node).
  std::atomic<const lane_memory*> lane{nullptr};
  std::uint64_t sent() const noexcept {
    if (const auto* const shared = lane.load(std::memory_order_acquire))
      return __atomic_load_n(&shared->doorbell, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&host().sent, __ATOMIC_ACQUIRE);
  }
  // What the last release said that a stream has come past.
  std::uint64_t released() const noexcept {
    const auto* const shared = lane.load(std::memory_order_acquire);
    return __atomic_load_n(shared != nullptr ? &shared->consumed : &host().consumed, __ATOMIC_ACQUIRE);
  }
  // No stream has work of this channel before it, but for a wait that is poisoned and will be looked at within microseconds,
  // and no graph has that may be launched.
  bool is_quiet() const noexcept {
    return !graph->is_any_held() && released() == releases.load(std::memory_order_acquire) &&
           reached() == waits.load(std::memory_order_acquire) && sent() == puts.load(std::memory_order_acquire);
  }

  // Of a captured wait: come to it, and what it waits for is not here.
  bool is_standing_in(unsigned slot) const noexcept {
    const auto place = __atomic_load_n(&host().graph_at[slot], __ATOMIC_ACQUIRE);
    if (place != graph_place::waiting && place != graph_place::seen) return false;
    return !words->is_mapped() || words->load(index, offsetof(gpu_words, graph_flag) + slot * sizeof place) == 0;
  }

  // A stream may stand before a put for a release without a word that tells.
  bool may_stand_unseen() const noexcept {
    const bool is_slotted = graph->is_any_held() && !(waits_by_kernel && peer_waits_by_kernel);
    return is_slotted || (!words->is_mapped() && (graph->is_any_held() || sent() != puts.load(std::memory_order_acquire)));
  }

  // The put that a stream has come to and that its peer has not made room for; 0: none, or the CPU cannot know.
  std::uint64_t held_put() const noexcept;

  // Every word on which a stream of ours may wait becomes poison(code). Any thread; again and again while streams are not
  // quiet, because a late write of the peer may put a count there.
  void poison_words(int code) const noexcept;

  // Service thread only. A captured wait that counts and in which a stream has stood for `limit_ns`, or such a put; 0: none.
  std::uint64_t find_stuck_counted_wait(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  std::uint64_t find_stuck_counted_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  struct place {
    std::uint64_t sequence = 0, since = 0;  // seen last, and since when (monotonic ns)
  };
  place counted_wait, counted_put;
  // Service thread only. A put that has been held for `limit_ns`; 0: none.
  std::uint64_t find_stuck_put(std::uint64_t now_ns, std::uint64_t limit_ns) noexcept;
  std::uint64_t put_stood_at = 0, put_stood_since = 0;  // the held put seen last, and since when (monotonic ns)
  std::uint64_t stood_at = 0;                           // the wait in which a stream was last seen to stand
  std::uint64_t stood_since = 0;                        // monotonic ns, 0: it does not stand
  std::uint64_t quiet_since = 0;                        // the same, of is_quiet() after closing

 private:
  static constexpr std::size_t kTargets = 1024;
  std::array<std::atomic<std::uint64_t>, kTargets> targets{};
  mutable std::mutex mutex;
  std::string reason;
};

}  // namespace pl::stream
