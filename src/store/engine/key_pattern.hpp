// SPDX-License-Identifier: Apache-2.0
// Regular expressions (POSIX extended, \w \d \s \b besides) that clients send. RE2 runs them: its time grows with pattern
// and key alone, where an engine that tries one way after the other takes hours for `(a+)+b`. What a pattern comes to is
// counted before it is compiled.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace re2 {
class RE2;
}

namespace pl::store {

inline constexpr std::size_t kMaxPatternBytes = 1024;
// What every key begins with in which the pattern is found: "run7/" of "^run7/.*". Empty where the pattern's beginning says
// nothing of it. A search then looks at these keys alone.
std::string literal_prefix_of(std::string_view pattern_text);

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
  std::unique_ptr<re2::RE2> program_;
  status good_;
};

}  // namespace pl::store
