// SPDX-License-Identifier: Apache-2.0
// Threads that compute the checksums of a value's parts while later parts still arrive from the GPU: one core reads about
// 12 GB/s, the link delivers more than 50. They also copy and sum parts between host memories, and share out the work on
// the values of a batch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "copy/completion.hpp"

namespace pl::store_client {

// A part of a value that moves into the arena, or out of it into host memory. One copy brings several parts. `given` belongs
// to the thread that drives the connection; `crc` is valid once `summed` is true (acquire).
struct value_part {
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  std::byte* destination = nullptr;  // if set, summing copies the bytes there (crc32c_copy)
  bool past_cache = false;
  std::function<void()> task;  // if set, this is done, and nothing is summed; it throws nothing
  std::shared_ptr<copy::completion> copied;
  bool given = false;
  std::uint32_t crc = 0;
  std::atomic<bool> summed{false};
};

// Thread-safe. The first use starts the threads. Waking a sleeping thread costs the waker about 50 us in a virtual machine,
// the time in which 2 MiB arrive. So the producer wakes one thread only, before the first part arrives; each woken thread
// wakes the next; and all threads poll for a while before they sleep again.
class checksum_pool {
 public:
  // `threads` at most; 0: half of the CPUs, at most 8.
  explicit checksum_pool(unsigned threads = 0) : most_threads_(threads) {}
  // Waits until every part given has been summed.
  ~checksum_pool();
  checksum_pool(const checksum_pool&) = delete;
  checksum_pool& operator=(const checksum_pool&) = delete;
  // Starts the threads, for whom it is too late at the first use. EAGAIN: none can be started.
  status prepare();
  // Announces that `parts` parts follow soon, so that threads wake up in time.
  void call(std::size_t parts);
  // Queues parts that have arrived; sums them in this call where no thread can be started.
  void give(std::span<const std::shared_ptr<value_part>> parts);
  // Sums one waiting part in the calling thread. False: none waits, or another thread is just taking one.
  bool help();
  // 0 until they are started.
  std::size_t thread_count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // Whether more parts wait than there are threads.
  bool is_behind() const noexcept { return given_.load(std::memory_order_relaxed) > thread_count(); }

  // The size of the next copy of a value with `left` bytes to go. Long copies are cheap, because the link idles for 4 to
  // 10 us between two. The last copies are short, because the checksum is ready only when the last part is summed; sizes
  // shrink no faster than the threads sum.
  static std::uint64_t copy_bytes(std::uint64_t left) noexcept;
  // The unit of summing, small enough that all threads share the work of one copy.
  static constexpr std::uint64_t kPartBytes = 1 << 20;

 private:
  static void sum(value_part& part);
  status start();
  void want(std::size_t parts);
  void work();
  std::shared_ptr<value_part> take();
  std::shared_ptr<value_part> find_part();
  bool is_another_wanted();
  void wake_another();
  const unsigned most_threads_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<value_part>> waiting_;
  std::atomic<std::size_t> given_{0};   // waiting_.size(), to be looked at without the lock
  std::atomic<unsigned> searching_{0};  // awake, without a part
  std::atomic<unsigned> wanted_{0};     // so many should be awake; changed under lock_
  unsigned asleep_ = 0;                 // guarded by lock_, as the two below
  unsigned called_ = 0;                 // of the sleeping, told to get up
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> count_{0};  // of them
  bool closing_ = false;
};

}  // namespace pl::store_client
