// SPDX-License-Identifier: Apache-2.0
// Was what concurrent clients saw of one key possible? A checker after Wing and Gong: it looks for an order of the
// operations that respects real time (what ended before another began stands before it) and in which each answer is the one
// that a single register would have given.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace pl::store_test {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// One operation on one key. Values are numbers, each put once; 0 is "no such key".
struct event {
  enum class kind { put, put_if_absent, put_if_value, erase, get } action = kind::get;
  std::uint64_t value = 0;     // put*: what was put; get: what was seen
  std::uint64_t expected = 0;  // put_if_value
  bool succeeded = true;       // false: the condition did not hold (put_if_*), no such key (erase)
  bool unknown = false;        // no answer: it may have happened at any time from begin_ns on, or never
  std::uint64_t begin_ns = 0, end_ns = kNever;
};

// Empty: possible. Else what is not, in words. At most 64 events.
std::string explain_if_impossible(std::vector<event> events);

}  // namespace pl::store_test
