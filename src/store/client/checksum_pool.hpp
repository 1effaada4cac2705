// SPDX-License-Identifier: Apache-2.0
// Threads that compute the checksums of a value's parts while later parts still arrive from the GPU: one core reads
// about 12 GB/s, and the link delivers more than 50. They also copy and sum parts between host memories, and share the
// work on the values of a batch.
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

#include "base/bounded_queue.hpp"
#include "copy/completion.hpp"

namespace pl::store_client {

// A part of a value that is moved into the arena, or from it into host memory. One copy delivers several parts. `given`
// belongs to the thread that drives the connection; `crc` is valid once `summed` is true (acquire).
struct value_part {
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  std::byte* destination = nullptr;  // if set, summing copies the bytes there (crc32c_copy)
  bool non_temporal = false;
  std::function<void()> task;  // if set, the part runs this instead of summing; must not throw
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
  // Starts at most `threads`. 0: half of the CPUs, but at most 8, which are enough for one link.
  explicit checksum_pool(unsigned threads = 0) : most_threads_(threads) {}
  ~checksum_pool() { end(); }
  checksum_pool(const checksum_pool&) = delete;
  checksum_pool& operator=(const checksum_pool&) = delete;
  // Starts the threads, for callers that cannot wait until the first use. EAGAIN if none can be started.
  status prepare();
  // Ends the threads once every part given has been summed. Later parts are summed by the thread that gives them.
  void end();
  // Announces that `parts` parts follow soon, so that threads wake up in time.
  void call(std::size_t parts);
  // Queues parts that have arrived. If no thread can be started, sums them in this call.
  void give(std::span<const std::shared_ptr<value_part>> parts);
  // Runs a task on one of the threads, or in this call.
  void give(std::function<void()> task);
  // Sums one waiting part in the calling thread. Returns false if none waits.
  bool help();
  // 0 until they are started.
  std::size_t thread_count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // Whether a thread is polling right now, so that it takes the next part at once.
  bool is_searching() const noexcept { return searching_.load(std::memory_order_relaxed) != 0; }
  // Whether no thread is awake: waking one takes 50 us or more in a virtual machine.
  bool is_asleep() const noexcept { return asleep_.load(std::memory_order_relaxed) == thread_count(); }
  // Whether more parts wait than there are threads.
  bool is_behind() const noexcept { return waiting_.size() > thread_count(); }

  // The size of the next copy of a value with `left` bytes to go. Long copies are efficient, because the link idles for
  // 4 to 10 us between two copies. The last copies are short, because the checksum is ready only when the last part is
  // summed. Sizes shrink no faster than the threads can sum.
  static std::uint64_t copy_bytes(std::uint64_t left) noexcept;
  // The unit of summing, small enough that all threads share the work of one copy.
  static constexpr std::uint64_t kPartBytes = 1 << 20;

 private:
  using part_ref = std::shared_ptr<value_part>;
  static void sum(value_part& part);
  status start();
  void want(std::size_t parts);
  void work();
  void queue(part_ref part);
  part_ref take();
  part_ref find_part();
  bool has_parts() const noexcept;
  bool is_another_wanted() const noexcept;
  void wake_another();
  const unsigned most_threads_;
  bounded_queue<part_ref, 256> waiting_;
  alignas(64) std::atomic<unsigned> searching_{0};  // awake, but without a part
  alignas(64) std::atomic<unsigned> wanted_{0};     // how many should be awake
  std::atomic<unsigned> asleep_{0};                 // changed under lock_, like called_
  std::atomic<unsigned> called_{0};                 // sleeping threads that have been told to wake up
  std::atomic<std::size_t> count_{0};               // number of threads
  std::atomic<std::size_t> left_over_count_{0};
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<part_ref> left_over_;  // parts that found the queue full; guarded by lock_
  std::vector<std::thread> threads_;
  bool closing_ = false;
};

}  // namespace pl::store_client
