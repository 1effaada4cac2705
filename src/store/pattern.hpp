// SPDX-License-Identifier: Apache-2.0
// Regular expressions (POSIX extended) that clients send. The C library compiles repetitions by writing them out, with a
// stack and memory in proportion: `.*{10,}{10,}{10,}{10,}` alone ended the process. So what a pattern comes to is counted
// first.
#pragma once

#include <regex.h>

#include <string>
#include <string_view>

#include "status.hpp"

namespace pl::store {

inline constexpr std::size_t kMaxPatternBytes = 1024;
inline constexpr std::size_t kMaxPatternAtoms = 1000;  // characters, sets and groups when all repetitions are written out

class pattern {
 public:
  explicit pattern(const std::string& text);  // empty: matches everything
  ~pattern();
  pattern(const pattern&) = delete;
  pattern& operator=(const pattern&) = delete;

  // EINVAL: no regular expression, with a back-reference, a repetition of what can be empty, or beyond the limits. It then
  // matches nothing.
  const status& good() const noexcept { return good_; }
  bool matches(std::string_view key) const;

 private:
  regex_t regex_{};
  bool compiled_ = false;
  status good_;
};

}  // namespace pl::store
