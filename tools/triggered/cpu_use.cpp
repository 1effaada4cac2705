// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/cpu_use.hpp"

#include <sys/resource.h>

namespace pl::async {

cpu_use cpu_use::now() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return {seconds(use.ru_utime) + seconds(use.ru_stime), static_cast<std::uint64_t>(use.ru_nvcsw)};
}

}  // namespace pl::async
