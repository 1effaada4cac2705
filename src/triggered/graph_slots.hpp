// SPDX-License-Identifier: Apache-2.0
// Captured puts and waits. The values of a graph's memory operations are fixed at capture, so they cannot count launches.
// There are two solutions, depending on how the waiting end waits (channel_options::wait):
//
// Counted operations, if a kernel waits. Kernels count in words of their own GPU, and everything else works as outside of
// graphs. An operation is one kernel node. Any number of operations may be captured, and no word is ever reset.
//
//   put:   n = ++graph_puts, wait own graph_released >= n - depth (if there is a depth), data, peer's graph_signal = n
//   wait:  n = ++graph_waits, wait own graph_signal >= n
//   release (only if the peer has a depth): peer's graph_released = ++graph_releases
//
// Slots, if the front end waits. Each captured operation has its own flag and ack, with the values 0 and 1.
//
//   put  in slot k: wait own ack[k] >= 1, ack[k] = 0, data, peer's flag[k] = 1
//   wait in slot k: at[k] = waiting, wait own flag[k] >= 1
//   release:        at[k] = nowhere, own flag[k] = 0, peer's ack[k] = 1
//
// Captured wait n of one end waits for captured put n of the other. Both ends count, and both use slot (n - 1) % 64 for n. A
// slot is in use until the graph of its capture and all executables instantiated from it are destroyed.
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
// ENOTSUP: the stream is being captured, but the driver (before CUDA 12.3) cannot report the graph.
result<capture> capture_of(const cu::driver_table& cuda, cu::stream_t stream);

// Values of host_words::graph_wait_place. The stream writes all except `seen`. The CPU replaces `waiting` by `seen`, so that
// it recognises a wait that it has already found.
namespace graph_place {
enum : std::uint64_t { nowhere = 0, waiting = 1, seen = 2, past = 3 };  // past: only if the CPU cannot read the flag
}

// The slots of one channel. Thread-safe. Graphs keep it alive, and may outlive the channel.
class graph_slots : public std::enable_shared_from_this<graph_slots> {
 public:
  enum class direction : std::uint8_t { put = 0, wait = 1 };
  static int slot_of(std::uint64_t number) noexcept { return static_cast<int>((number - 1) % kGraphSlots); }

  // Takes the number of the next captured put or wait, from 1. ENOSPC: its slot is in use. The first call for a capture
  // makes its graph hold the slots.
  result<std::uint64_t> take(const cu::driver_table& cuda, direction dir, const capture& capture_state);
  // The same for a counted operation, which needs no slot.
  result<std::uint64_t> count_one(const cu::driver_table& cuda, direction dir, const capture& capture_state);
  // Gives back the number taken last, because the operation could not be queued.
  void undo(direction dir);
  void undo_count(direction dir);
  // EINVAL: wait `number` does not belong to this capture, or was already released in it.
  status release(std::uint64_t number, const capture& capture_state);
  std::uint64_t count(direction dir) const;
  // True: a graph with operations of this channel can still be launched.
  bool is_any_held() const noexcept { return held_.load(std::memory_order_acquire) != 0; }
  // Number of captured waits without a release in their graph. Such a graph works only once.
  std::vector<std::uint64_t> unreleased() const;

  // Proxy thread only. A captured wait in which a stream has been for `limit_ns`.
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
