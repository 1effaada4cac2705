// SPDX-License-Identifier: Apache-2.0
// Threads that compute checksums of pieces of a value while its later pieces are still on their way from the GPU: one core
// reads about 12 GB/s, the link brings more than 50.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "completion.hpp"

namespace pl::store_client {

// A piece of a value on its way into the arena. `given` belongs to the thread that drives the connection; `crc` is valid
// once `summed` is true (acquire).
struct value_part {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;
  copy::completion copied;
  bool given = false;
  std::uint32_t crc = 0;
  std::atomic<bool> summed{false};
};

// Thread-safe. Threads are made at the first use. To wake one that sleeps takes some 50 us of the waker's in a virtual
// machine, as long as 2 MiB take to arrive. So whoever gives parts wakes the first alone, before the first part is there;
// each that has one wakes the next; and one that has had one looks for another, for kLooksUs, before it sleeps.
class checksum_crew {
 public:
  checksum_crew() = default;
  // Every part given has been summed.
  ~checksum_crew();
  checksum_crew(const checksum_crew&) = delete;
  checksum_crew& operator=(const checksum_crew&) = delete;
  // Parts will be given soon.
  void call();
  void give(std::shared_ptr<value_part> part);
  // Sums one part that no thread has begun with, here. False: there is none.
  bool help();

  // How long the next part of a value should be of which so many bytes are left. Long ones cost few calls; the last ones are
  // short, because the time from the last byte's arrival to the checksum is that of summing the last part.
  static std::uint64_t part_bytes(std::uint64_t left) noexcept;

 private:
  static void sum(value_part& part);
  void start();
  void work();
  std::shared_ptr<value_part> take();
  std::shared_ptr<value_part> look_for_one();
  void wake_another();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<value_part>> waiting_;
  std::atomic<std::size_t> given_{0};  // waiting_.size(), to be looked at without the lock
  std::atomic<unsigned> looking_{0};   // awake, without a part
  unsigned asleep_ = 0;                // guarded by lock_, as the two below
  unsigned called_ = 0;                // of the sleeping, told to get up
  std::vector<std::thread> threads_;
  bool closing_ = false;
};

}  // namespace pl::store_client
