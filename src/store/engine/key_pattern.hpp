// SPDX-License-Identifier: Apache-2.0
// Regular expressions from clients (POSIX extended, and \w \d \s \b). RE2 runs them because its time grows only with
// pattern and key, whereas a backtracking engine takes hours for `(a+)+b`. The expanded size of a pattern is checked
// before it is compiled.
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
// The literal prefix of every key that the pattern can match: "run7/" for "^run7/.*". Empty if the pattern has none. A
// search then visits only these keys.
std::string literal_prefix_of(std::string_view pattern_text);

inline constexpr std::size_t kMaxPatternAtoms = 1000;  // characters, sets and groups after all repetitions are expanded

class pattern {
 public:
  explicit pattern(const std::string& text);  // an empty text matches everything
  ~pattern();
  pattern(const pattern&) = delete;
  pattern& operator=(const pattern&) = delete;

  // EINVAL if it is no regular expression, has a back-reference, repeats something that can match nothing, or exceeds
  // the limits. Such a pattern matches nothing.
  const status& good() const noexcept { return good_; }
  bool matches(std::string_view key) const;

 private:
  std::unique_ptr<re2::RE2> program_;
  status good_;
};

}  // namespace pl::store
