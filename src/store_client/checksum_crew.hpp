// SPDX-License-Identifier: Apache-2.0
// Threads that compute checksums of pieces of a value while its later pieces are still on their way from the GPU: one core
// reads about 12 GB/s, the link brings more than 50.
#pragma once

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

// A piece of a value on its way into the arena. `arrived` and `given` belong to the thread that drives the connection; `crc`
// is valid once `summed` is true (acquire).
struct value_part {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;
  copy::completion copied;
  bool given = false;
  std::uint32_t crc = 0;
  std::atomic<bool> summed{false};
};

// Thread-safe. Threads are made at the first use.
class checksum_crew {
 public:
  checksum_crew() = default;
  // Every part given has been summed.
  ~checksum_crew();
  checksum_crew(const checksum_crew&) = delete;
  checksum_crew& operator=(const checksum_crew&) = delete;
  void give(std::shared_ptr<value_part> part);
  // Sums one part that no thread has begun with, here. False: there is none.
  bool help();

  // How long the next part of a value should be of which so many bytes are left. Long ones cost few calls; the last ones are
  // short, because the time from the last byte's arrival to the checksum is that of summing the last part.
  static std::uint64_t part_bytes(std::uint64_t left) noexcept;

 private:
  static void sum(value_part& part);
  void work();
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<value_part>> waiting_;
  std::vector<std::thread> threads_;
  bool closing_ = false;
};

}  // namespace pl::store_client
