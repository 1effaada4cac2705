// SPDX-License-Identifier: Apache-2.0
#include "test/store/server/history.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"

namespace pl::store_test {
namespace {

class search {
 public:
  explicit search(const std::vector<event>& events) : events_(events) {
    for (std::size_t i = 0; i < events.size(); ++i)
      if (!events[i].unknown) must_ |= std::uint64_t{1} << i;
  }
  // `done`: the events that have been put in order; `state`: what the register holds then.
  bool possible(std::uint64_t done, std::uint64_t state) {
    if ((done & must_) == must_) return true;
    if (!seen_.emplace(done, state).second) return false;
    longest_ = std::max(longest_, __builtin_popcountll(done & must_));
    std::uint64_t first_end = kNever;
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (((done >> i) & 1) == 0 && !events_[i].unknown) first_end = std::min(first_end, events_[i].end_ns);
    for (std::size_t i = 0; i < events_.size(); ++i) {
      std::uint64_t next = state;
      if (((done >> i) & 1) == 0 && events_[i].begin_ns <= first_end && apply(events_[i], next) &&
          possible(done | (std::uint64_t{1} << i), next))
        return true;
    }
    return false;
  }
  int longest() const { return longest_; }

 private:
  // False: a register in this state would not have answered so.
  static bool apply(const event& one, std::uint64_t& state) {
    using kind = event::kind;
    if (one.action == kind::get) return state == one.value;
    bool holds = true;
    if (one.action == kind::put_if_absent) holds = state == 0;
    if (one.action == kind::put_if_value) holds = state == one.expected;
    if (one.action == kind::erase) holds = state != 0;
    if (!one.unknown && holds != one.succeeded) return false;
    if (holds) state = one.action == kind::erase ? 0 : one.value;
    return true;
  }
  const std::vector<event>& events_;
  std::uint64_t must_ = 0;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;
  int longest_ = 0;
};

const char* name_of(event::kind kind) {
  constexpr const char* kNames[] = {"put", "put_if_absent", "put_if_value", "erase", "get"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace

std::string explain_if_impossible(std::vector<event> events) {
  if (events.size() > 64) return "too long a history";
  std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  // Operations without an answer may be left out for gets: they change nothing.
  std::erase_if(events, [](const auto& one) { return one.unknown && one.action == event::kind::get; });
  search tried(events);
  if (tried.possible(0, 0)) return {};
  std::string out = format("no order explains more than %d of these:\n", tried.longest());
  for (const auto& one : events)
    out += format("  %-14s value %llu expected %llu %s [%llu, %llu]\n", name_of(one.action),
                  static_cast<unsigned long long>(one.value), static_cast<unsigned long long>(one.expected),
                  one.unknown     ? "no answer"
                  : one.succeeded ? "yes"
                                  : "no",
                  static_cast<unsigned long long>(one.begin_ns), static_cast<unsigned long long>(one.end_ns));
  return out;
}

}  // namespace pl::store_test
