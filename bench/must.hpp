// SPDX-License-Identifier: Apache-2.0
// How a benchmark ends when something fails: with the reason. `die` and `must` end it at once, since threads may still work;
// `need` names the step that failed.
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

template <class T>
T need(result<T> outcome, const char* step) {
  if (outcome) return std::move(*outcome);
  std::printf("FAILED: %s: %s\n", step, outcome.error().message.c_str());
  std::exit(1);
}
inline void need(const status& outcome, const char* step) {
  if (outcome) return;
  std::printf("FAILED: %s: %s\n", step, outcome.error().message.c_str());
  std::exit(1);
}

}  // namespace pl
