// SPDX-License-Identifier: Apache-2.0
// How a benchmark ends when something fails: with the reason, and at once, since threads may still work.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/status.hpp"

namespace pl {

[[noreturn]] inline void die(const std::string& reason) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, reason.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

template <class T>
T must(result<T> got) {
  if (!got) die(got.error().message);
  return *std::move(got);
}
inline void must(const status& done) {
  if (!done) die(done.error().message);
}

}  // namespace pl
