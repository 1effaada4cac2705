// SPDX-License-Identifier: Apache-2.0
#include "pattern.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "text.hpp"

namespace pl::store {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Where the set that begins at `text[at]` ('[') ends: behind its ']'.
std::size_t behind_set(std::string_view text, std::size_t at) {
  ++at;
  if (at < text.size() && text[at] == '^') ++at;
  for (bool first = true; at < text.size(); first = false) {
    if (text[at] == ']' && !first) return at + 1;
    const char kind = text[at] == '[' && at + 1 < text.size() ? text[at + 1] : '\0';
    if (kind != ':' && kind != '.' && kind != '=') {
      ++at;
      continue;
    }
    const char end[] = {kind, ']', '\0'};
    const auto found = text.find(end, at + 2);
    at = found == std::string_view::npos ? text.size() : found + 2;
  }
  return at;
}

struct repetition {
  std::size_t times = 1;
  bool or_none = false;
  std::size_t behind = 0;
};

// "{3}", "{3,}", "{3,5}", "{,5}" at `at`.
std::optional<repetition> repetition_at(std::string_view text, std::size_t at) {
  const auto number = [&] {
    std::size_t out = 0;
    for (; at < text.size() && is_digit(text[at]); ++at) out = std::min<std::size_t>(out * 10 + (text[at] - '0'), 1u << 20);
    return out;
  };
  ++at;
  const std::size_t least = number();
  std::size_t most = least;
  if (at < text.size() && text[at] == ',') {
    ++at;
    most = at < text.size() && is_digit(text[at]) ? number() : least + 1;  // "or more" is one more, with a star
  }
  if (at >= text.size() || text[at] != '}') return std::nullopt;
  return repetition{std::max<std::size_t>({least, most, 1}), least == 0, at + 1};
}

// Counts what the C library will make of a pattern, and knows which parts can match nothing: repeating such a part makes it
// try all ways to split nothing, for minutes (`b?{0,5}{0,5}+`).
class counter {
 public:
  enum class answer { fine, too_much, repeats_nothing };

  answer atom(bool can_be_empty = false, std::size_t weight = 1) {
    now_.before_is_empty = now_.before_is_empty && now_.last_is_empty;
    now_.last_is_empty = can_be_empty;
    now_.last = weight;
    now_.sum += weight;
    return sized();
  }
  answer again(std::size_t times, bool or_none) {
    if (now_.last > 0 && now_.last_is_empty) return answer::repeats_nothing;
    now_.sum += now_.last * (times - 1);  // both at most 2^20
    now_.last *= times;
    now_.last_is_empty = or_none || now_.last == 0;
    return sized();
  }
  answer bar() {
    now_.some_is_empty = can_be_empty();
    now_.before_is_empty = now_.last_is_empty = true;
    now_.last = 0;
    ++now_.sum;
    return sized();
  }
  void open() { outer_.push_back(std::exchange(now_, group())); }
  answer close() {
    if (outer_.empty()) return atom();  // an ordinary character
    const group inside = now_;
    const bool empty = can_be_empty();
    now_ = outer_.back();
    outer_.pop_back();
    return atom(empty, inside.sum + 1);
  }

 private:
  struct group {
    std::size_t sum = 0, last = 0;  // 0: there is nothing to repeat
    bool before_is_empty = true;    // what stands before the last part of this alternative can be empty,
    bool last_is_empty = true;      // and the last part,
    bool some_is_empty = false;     // and an earlier alternative
  };
  bool can_be_empty() const { return now_.some_is_empty || (now_.before_is_empty && now_.last_is_empty); }
  answer sized() const { return now_.sum <= kMaxPatternAtoms ? answer::fine : answer::too_much; }

  group now_;
  std::vector<group> outer_;
};

// Empty: it may be compiled.
std::string why_not(std::string_view text) {
  if (text.size() > kMaxPatternBytes) return format("it is longer than %zu bytes", kMaxPatternBytes);
  if (text.find('\0') != std::string_view::npos) return "it has a zero byte";
  counter all;
  auto so_far = counter::answer::fine;
  for (std::size_t at = 0; at < text.size() && so_far == counter::answer::fine;) {
    const char c = text[at];
    const char escaped = c == '\\' && at + 1 < text.size() ? text[at + 1] : '\0';
    std::optional<repetition> many;
    if (is_digit(escaped)) return "it has a back-reference";
    if (c == '{') many = repetition_at(text, at);
    if (many) so_far = all.again(many->times, many->or_none);
    else if (c == '(') all.open();
    else if (c == ')') so_far = all.close();
    else if (c == '|') so_far = all.bar();
    else if (c == '+') so_far = all.again(2, false);
    else if (c == '*' || c == '?') so_far = all.again(1, true);
    else
      so_far = all.atom(c == '^' || c == '$' ||
                        (escaped != '\0' && std::string_view("bB<>`'").find(escaped) != std::string_view::npos));
    at = many ? many->behind : c == '[' ? behind_set(text, at) : c == '\\' ? at + 2 : at + 1;
  }
  if (so_far == counter::answer::repeats_nothing) return "it repeats what can be empty, as in (a*)*";
  if (so_far == counter::answer::too_much)
    return format("with its repetitions written out it has more than %zu characters", kMaxPatternAtoms);
  return {};
}

}  // namespace

pattern::pattern(const std::string& text) {
  if (text.empty()) return;
  if (const std::string why = why_not(text); !why.empty()) {
    good_ = failure{EINVAL, "store: regular expression: " + why};
    return;
  }
  const int error = ::regcomp(&regex_, text.c_str(), REG_EXTENDED | REG_NOSUB);
  compiled_ = error == 0;
  if (compiled_) return;
  char said[200];
  ::regerror(error, &regex_, said, sizeof said);
  good_ = failure{EINVAL, std::string("store: regular expression: ") + said};
}

pattern::~pattern() {
  if (compiled_) ::regfree(&regex_);
}

bool pattern::matches(std::string_view key) const {
  if (!compiled_) return good_.ok();
  regmatch_t range{};
  range.rm_eo = static_cast<regoff_t>(key.size());
  return ::regexec(&regex_, key.data(), 1, &range, REG_STARTEND) == 0;  // keys may hold zeros
}

}  // namespace pl::store
