// SPDX-License-Identifier: Apache-2.0
// Threads that compute checksums of pieces of a value while its later pieces are still on their way from the GPU: one core
// reads about 12 GB/s, the link brings more than 50. And that copy and sum pieces between host memories.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "copy/completion.hpp"

namespace pl::store_client {

// A piece of a value on its way into the arena, or out of it into host memory. Several come by one copy. `given` belongs to
// the thread that drives the connection; `crc` is valid once `summed` is true (acquire).
struct value_part {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;
  std::byte* to = nullptr;  // set: they are copied there on summing (crc32c_copy)
  bool past_cache = false;
  std::shared_ptr<copy::completion> copied;
  bool given = false;
  std::uint32_t crc = 0;
  std::atomic<bool> summed{false};
};

// Thread-safe. Threads are made at the first use. To wake one that sleeps takes some 50 us of the waker's in a virtual
// machine, as long as 2 MiB take to arrive. So whoever gives parts wakes one alone, before the first part is there; each
// that gets up wakes the next; and all look for parts for a while before they sleep again.
class checksum_crew {
 public:
  checksum_crew() = default;
  // Every part given has been summed.
  ~checksum_crew();
  checksum_crew(const checksum_crew&) = delete;
  checksum_crew& operator=(const checksum_crew&) = delete;
  // So many parts will be given, the first of them soon.
  void call(std::size_t parts);
  // What has arrived.
  void give(std::span<const std::shared_ptr<value_part>> parts);
  // Sums one part that no thread has begun with, here. False: there is none.
  bool help();

  // How much the next copy of a value should bring of which so many bytes are left. Long ones cost little: between two
  // copies the link rests for 4 to 10 us. The last ones are short, because the checksum is ready when what they brought is
  // summed, and get shorter no faster than the crew sums.
  static std::uint64_t copy_bytes(std::uint64_t left) noexcept;
  // What is summed in one go, so that all can take part in what one copy has brought.
  static constexpr std::uint64_t kPartBytes = 1 << 20;

 private:
  static void sum(value_part& part);
  void start();
  void want(std::size_t parts);
  void work();
  std::shared_ptr<value_part> take();
  std::shared_ptr<value_part> look_for_one();
  bool is_another_wanted();
  void wake_another();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<value_part>> waiting_;
  std::atomic<std::size_t> given_{0};  // waiting_.size(), to be looked at without the lock
  std::atomic<unsigned> looking_{0};   // awake, without a part
  std::atomic<unsigned> wanted_{0};    // so many should be awake; changed under lock_
  unsigned asleep_ = 0;                // guarded by lock_, as the two below
  unsigned called_ = 0;                // of the sleeping, told to get up
  std::vector<std::thread> threads_;
  bool closing_ = false;
};

}  // namespace pl::store_client
