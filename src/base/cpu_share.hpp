// SPDX-License-Identifier: Apache-2.0
// The default number of threads of a pool.
#pragma once

#include <algorithm>
#include <thread>

namespace pl {

// One thread for every two CPUs, since the application needs CPUs too; within [least, most].
inline unsigned half_of_cpus(unsigned least, unsigned most) noexcept {
  return std::clamp(std::thread::hardware_concurrency() / 2, least, most);
}

}  // namespace pl
