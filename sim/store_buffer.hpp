// SPDX-License-Identifier: Apache-2.0
// Delayed visibility: the buffer for stores that were issued but are not visible yet.
//
// With PEERLANE_SIM_DELAY, what a stream's kernels, copies and memory operations store to another device or to the host is
// held back and becomes visible later and in another order, as far as hardware may do that. What the rules of ordering
// force (docs/simulated-gpu.md) drains the buffer first, so code that leaves out a fence or a flag can be seen to be wrong.
// Memory of the writer's own device is never delayed. A held store is invisible to everybody, other processes included,
// because it has not been made; only its own device looks into the buffer before it reads.
//
// Without the setting each hook costs one relaxed load. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/address_space.hpp"

namespace pl::sim {

// How long a store is held back, about, in microseconds; 0: not at all. Kernels read it too, so it is a plain word.
extern std::uint32_t g_store_delay_us;
inline bool stores_are_delayed() { return __atomic_load_n(&g_store_delay_us, __ATOMIC_RELAXED) != 0; }
void set_store_delay(std::uint32_t us);

// Memory that stores of a device reach over a link: that of another device, or the host's.
inline bool is_remote(const object_ref& memory, int device) {
  return memory == nullptr || memory->device_ordinal() != device;
}

// Author of a store: one thread of a block, or all threads of the block after a barrier.
struct store_author {
  static constexpr unsigned kAll = ~0u;
  std::uint64_t block = 0;
  unsigned thread = kAll;
};

class store_buffer : public std::enable_shared_from_this<store_buffer> {
 public:
  // `is_fifo`: stores become visible in their order (a network adapter's path to one target); else in any.
  store_buffer(int device, bool is_fifo) : device_(device), is_fifo_(is_fifo) {}

  int device() const { return device_; }
  void hold(std::byte* destination, const void* source, std::size_t bytes, object_ref keep, store_author author = {});
  // All stores become visible before this returns, in an order of their own unless one overlaps another.
  void drain();
  // The same for what `author` has stored or has met at a barrier: a fence.
  void drain_of(store_author author);
  // The threads of a block have met.
  void join_block(std::uint64_t block);
  // Everything, if a held store lies in the range: the device reads what it wrote.
  void drain_if_overlapping(const std::byte* data, std::size_t bytes);
  // Some of the stores, or none. False if nothing is left.
  bool drain_some();
  // For the thread that drains in the background: true if it need not come back until the next hold().
  bool forget_if_empty();

 private:
  struct store {
    std::byte* destination;
    std::vector<std::byte> bytes;
    object_ref keep;
    store_author author;
    bool overlaps(const std::byte* data, std::size_t length) const {
      return destination < data + length && data < destination + bytes.size();
    }
  };
  void drain_one_locked(std::size_t index);
  void drain_locked();

  const int device_;
  const bool is_fifo_;
  std::mutex mutex_;
  std::vector<store> held_;
  bool is_known_ = false;  // to the thread that drains
};

// The buffer of the stream that the calling thread is working for, for the length of the scope.
class writer_scope {
 public:
  explicit writer_scope(const std::shared_ptr<store_buffer>& buffer);
  ~writer_scope();
  writer_scope(const writer_scope&) = delete;
  writer_scope& operator=(const writer_scope&) = delete;

 private:
  const std::shared_ptr<store_buffer>* before_;
};
std::shared_ptr<store_buffer> current_writer();  // null outside a stream's work

// Stores of the current stream so far are visible before what follows: what the start of an operation, the default barrier
// of a written value, a recorded event and a host function have in common.
void order_stores();
// Before the device of the current stream reads a range: what it has itself stored there arrives.
void observe(const std::byte* data, std::size_t bytes, int device);
// What network adapters have sent to a device arrives; device < 0: to every device.
void flush_network_writes(int device);
// Called before memory is freed.
void settle_all_stores();

// Stores bytes so that each aligned word changes at once.
void store_words(std::byte* destination, const std::byte* source, std::size_t bytes);

}  // namespace pl::sim
