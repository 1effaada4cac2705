// SPDX-License-Identifier: Apache-2.0
// Captured puts and waits. The values of a graph's memory operations are those of the moment of capture, so what is
// captured cannot count. Two forms, by how the end that waits does it (channel_options::wait):
//
// Counted, where a kernel waits: kernels count by themselves, in words of their own GPU, and everything else is as outside
// of graphs. An operation is one kernel node; any number may be captured, and nothing is ever set back.
//
//   put:   n = ++graph_puts, wait own graph_released >= n - depth (if there is a depth), data, peer's graph_signal = n
//   wait:  n = ++graph_waits, wait own graph_signal >= n
//   release (only if the peer has a depth): peer's graph_released = ++graph_releases
//
// Slots, where the front end waits: each captured operation has a flag and an ack for itself that are 0 and 1.
//
//   put  in slot k: wait own ack[k] >= 1, ack[k] = 0, data, peer's flag[k] = 1
//   wait in slot k: at[k] = waiting, wait own flag[k] >= 1
//   release:        at[k] = nowhere, own flag[k] = 0, peer's ack[k] = 1
//
// Captured put n of one end meets captured wait n of the other: both count, and both give n the slot (n - 1) % 64. A slot
// is in use until the graph that it was captured into and whatever was instantiated from that are destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "triggered/flag_words.hpp"

namespace pl::triggered {

struct capture {
  std::uint64_t id = 0;  // of this process; 0: the stream is not being captured
  cu::graph_t graph = nullptr;
};
// ENOTSUP: captured, and the driver (before CUDA 12.3) cannot tell into which graph.
result<capture> capture_of(const cu::driver_table& cuda, cu::stream_t stream);

// host_words::graph_at. The stream writes all but `seen`, which the CPU puts in the place of `waiting` to know a wait again.
namespace graph_place {
enum : std::uint64_t { nowhere = 0, waiting = 1, seen = 2, past = 3 };  // past: only where the CPU cannot read the flag
}

// Of one channel. Thread-safe. Graphs hold it, and may outlive the channel.
class graph_slots : public std::enable_shared_from_this<graph_slots> {
 public:
  enum class direction : std::uint8_t { put = 0, wait = 1 };
  static int slot_of(std::uint64_t number) noexcept { return static_cast<int>((number - 1) % kGraphSlots); }

  // The number of the next captured put or wait, from 1. ENOSPC: its slot is in use. The first one of a capture makes the
  // graph hold its slots.
  result<std::uint64_t> take(const cu::driver_table& cuda, direction dir, const capture& capture_state);
  // A counted one: no slot.
  result<std::uint64_t> count_one(const cu::driver_table& cuda, direction dir, const capture& capture_state);
  // The one taken last could not be queued: its number is the next one's again.
  void undo(direction dir);
  void undo_count(direction dir);
  // EINVAL: wait `number` is not of this capture, or has been released in it.
  status release(std::uint64_t number, const capture& capture_state);
  std::uint64_t count(direction dir) const;
  // Some graph may still be launched.
  bool is_any_held() const noexcept { return held_.load(std::memory_order_acquire) != 0; }
  // Captured waits whose slot is held but not released in their graph: such a graph works once.
  std::vector<std::uint64_t> unreleased() const;

  // Service thread only: a captured wait in which a stream has stood for `limit_ns`.
  std::optional<std::uint64_t> find_stuck(const word_pool& words, unsigned index, std::uint64_t now_ns,
                                          std::uint64_t limit_ns);

 private:
  struct slot {
    std::uint64_t capture_id = 0;  // 0: free
    std::uint64_t number = 0;
    bool is_released = false;
  };
  struct keeper;
  status keep(const cu::driver_table& cuda, const capture& capture_state);
  void drop(std::uint64_t capture_id);

  mutable std::mutex mutex_;
  std::array<std::array<slot, kGraphSlots>, 2> slots_;  // by direction
  std::array<std::uint64_t, 2> counts_{};
  std::vector<std::uint64_t> kept_;                         // captures that have a user object
  std::atomic<unsigned> held_{0};                           // slots, and captures that count
  std::vector<std::uint64_t> counting_;                     // captures with counted operations
  std::array<std::uint64_t, kGraphSlots> waiting_since_{};  // proxy thread only
};

}  // namespace pl::triggered
