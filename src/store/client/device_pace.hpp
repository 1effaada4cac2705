// SPDX-License-Identifier: Apache-2.0
// How a caller waits for a store that moves its GPU memory: short transfers by polling; long ones by a sleep that ends
// shortly before the transfer does, as the last one of that size took, and polling from there on.
//
// Guarded by the client's lock.
#pragma once

#include <array>
#include <chrono>
#include <thread>

#include "store/client/operation.hpp"

namespace pl::store_client {

class device_pace {
 public:
  explicit device_pace(unsigned cpus = std::thread::hardware_concurrency());

  // How long a caller polls at first. The link takes 0.3 ms for 16 MiB, and the frames of a batch follow each other
  // within that time. Waking a sleeping caller takes 10 us, in a system call of the thread that should start the next
  // transfer.
  std::chrono::microseconds spin(unsigned usual_us) const;

  // The request for `one` is being sent: sets when its caller sleeps.
  void begins(operation& one, unsigned usual_us);
  // The answer to `one` has come. Learns from it if it was long.
  void ended(const operation& one);
  static bool is_sleep_due(const operation& one, clock::time_point now) {
    return now + kLeastSleep < one.expected.sleep_until;
  }

  // Below this, polling for the whole time costs little.
  static constexpr std::uint64_t kLongBytes = 32 << 20;

 private:
  static constexpr auto kLeastSleep = std::chrono::microseconds(50);
  double& ns_per_byte(const operation& one) { return ns_per_byte_[one.method == operation::kind::put_device ? 1 : 0]; }
  const bool has_few_cpus_;              // polling would take the CPU from the store
  std::array<double, 2> ns_per_byte_{};  // of the last long get and put; 0: none yet
};

}  // namespace pl::store_client
