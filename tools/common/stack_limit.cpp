// SPDX-License-Identifier: Apache-2.0
#include "tools/common/stack_limit.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/text.hpp"

namespace pl::tools {
namespace {

// RocksDB and the servers' code have frames of up to 150 KiB, several deep; a server starts with 128 KiB in all.
constexpr rlim_t kStackBytes = 1u << 20, kMinStackBytes = 512u << 10;

rlimit stack_limit() noexcept {
  rlimit now{};
  if (getrlimit(RLIMIT_STACK, &now) != 0) now.rlim_cur = now.rlim_max = RLIM_INFINITY;
  return now;
}

}  // namespace

void raise_stack_limit() noexcept {
  rlimit now = stack_limit();
  if (now.rlim_cur >= kStackBytes) return;
  now.rlim_cur = std::min(now.rlim_max, kStackBytes);
  setrlimit(RLIMIT_STACK, &now);  // the kernel grows the first thread's stack up to the limit of that moment
  pthread_attr_t threads;
  if (pthread_getattr_default_np(&threads) != 0) return;
  std::size_t bytes = 0;
  if (pthread_attr_getstacksize(&threads, &bytes) == 0 && bytes < kStackBytes &&
      pthread_attr_setstacksize(&threads, kStackBytes) == 0)
    pthread_setattr_default_np(&threads);
  pthread_attr_destroy(&threads);
}

status check_stack_limit() {
  const rlim_t bytes = stack_limit().rlim_cur;
  if (bytes >= kMinStackBytes) return {};
  return failure{ENOMEM, format("a stack may have %s and the store needs %s: raise the limit (ulimit -s)",
                                format_size(bytes).c_str(), format_size(kMinStackBytes).c_str())};
}

}  // namespace pl::tools
