// SPDX-License-Identifier: Apache-2.0
#include "test/support/scarce_threads.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <climits>
#include <cstring>

namespace {

thread_local int t_left = INT_MAX;
std::atomic<int> g_left{INT_MAX};

// The library has its C++ library inside, so it calls from there.
bool is_of_simulator(const void* caller) {
  Dl_info found{};
  return dladdr(caller, &found) != 0 && std::strstr(found.dli_fname, "libcuda.so") != nullptr;
}

bool has_one_left(const void* caller) {
  const bool is_limited = t_left != INT_MAX || g_left.load() != INT_MAX;
  if (!is_limited || is_of_simulator(caller)) return true;
  if (t_left != INT_MAX && t_left-- <= 0) return t_left = 0, false;
  if (g_left.load() != INT_MAX && g_left-- <= 0) return g_left = 0, false;
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* value) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return has_one_left(__builtin_return_address(0)) ? real(thread, attributes, body, value) : EAGAIN;
}

namespace pl::test {

scarce_threads::scarce_threads(int left, limited scope) {
  if (scope == limited::callers) t_left = left;
  else g_left = left;
}

scarce_threads::~scarce_threads() {
  t_left = INT_MAX;
  g_left = INT_MAX;
}

}  // namespace pl::test
