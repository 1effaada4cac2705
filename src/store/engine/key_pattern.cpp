// SPDX-License-Identifier: Apache-2.0
#include "store/engine/key_pattern.hpp"

#include <re2/re2.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace pl::store {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the position after the ']' of the set that begins at `position` with '['.
std::size_t behind_set(std::string_view text, std::size_t position) {
  ++position;
  if (position < text.size() && text[position] == '^') ++position;
  for (bool first = true; position < text.size(); first = false) {
    if (text[position] == ']' && !first) return position + 1;
    const char kind = text[position] == '[' && position + 1 < text.size() ? text[position + 1] : '\0';
    if (kind != ':' && kind != '.' && kind != '=') {
      ++position;
      continue;
    }
    const char end[] = {kind, ']', '\0'};
    const auto found = text.find(end, position + 2);
    position = found == std::string_view::npos ? text.size() : found + 2;
  }
  return position;
}

struct repetition {
  std::size_t times = 1;
  bool or_none = false;
  std::size_t behind = 0;
};

// Parses "{3}", "{3,}", "{3,5}" or "{,5}" at `position`.
std::optional<repetition> repetition_at(std::string_view text, std::size_t position) {
  const auto number = [&] {
    std::size_t out = 0;
    for (; position < text.size() && is_digit(text[position]); ++position)
      out = std::min<std::size_t>(out * 10 + (text[position] - '0'), 1u << 20);
    return out;
  };
  ++position;
  const std::size_t min_count = number();
  std::size_t max_count = min_count;
  if (position < text.size() && text[position] == ',') {
    ++position;
    max_count =
        // "or more" is one more repetition with a star
        position < text.size() && is_digit(text[position]) ? number() : min_count + 1;
  }
  if (position >= text.size() || text[position] != '}') return std::nullopt;
  return repetition{std::max<std::size_t>({min_count, max_count, 1}), min_count == 0, position + 1};
}

constexpr std::int64_t kMaxProgramBytes = 4 << 20;  // memory of RE2, including the states that it caches

// Computes a pattern's length with all repetitions expanded, and which of its parts can match nothing.
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
    bool before_is_empty = true;    // what precedes the last part of this alternative can match nothing
    bool last_is_empty = true;      // so can the last part
    bool some_is_empty = false;     // so can an earlier alternative
  };
  bool can_be_empty() const { return now_.some_is_empty || (now_.before_is_empty && now_.last_is_empty); }
  answer sized() const { return now_.sum <= kMaxPatternAtoms ? answer::fine : answer::too_much; }

  group now_;
  std::vector<group> outer_;
};

// Translates a pattern for RE2, or says why it cannot. Constructs that the two dialects read differently are rewritten
// or refused.
result<std::string> translate(std::string_view text) {
  const auto refuse = [](std::string reason) { return failure{EINVAL, "store: regular expression: " + std::move(reason)}; };
  if (text.size() > kMaxPatternBytes) return refuse(format("it is longer than %zu bytes", kMaxPatternBytes));
  if (text.find('\0') != std::string_view::npos) return refuse("it has a zero byte");
  counter all;
  auto so_far = counter::answer::fine;
  std::string out;
  for (std::size_t position = 0; position < text.size() && so_far == counter::answer::fine;) {
    const char c = text[position];
    const char escaped = c == '\\' && position + 1 < text.size() ? text[position + 1] : '\0';
    std::optional<repetition> many;
    if (is_digit(escaped)) return refuse("it has a back-reference");
    if (escaped != '\0' && std::string_view("<>`'").find(escaped) != std::string_view::npos)
      return refuse(format("\\%c is not supported: use \\b, ^ or $", escaped));
    if (c == '{') {
      many = repetition_at(text, position);
      if (!many) return refuse("a { begins no repetition: write \\{ for the character");
    }
    if (many) so_far = all.again(many->times, many->or_none);
    else if (c == '(') all.open();
    else if (c == ')') so_far = all.close();
    else if (c == '|') so_far = all.bar();
    else if (c == '+') so_far = all.again(2, false);
    else if (c == '*' || c == '?') so_far = all.again(1, true);
    else so_far = all.atom(c == '^' || c == '$' || escaped == 'b' || escaped == 'B');
    const std::size_t next = many        ? many->behind
                             : c == '['  ? behind_set(text, position)
                             : c == '\\' ? position + 2
                                         : position + 1;
    const std::string_view part = text.substr(position, next - position);
    if (c == '[' && (part.find("[.") != std::string_view::npos || part.find("[=") != std::string_view::npos))
      return refuse("[. .] and [= =] are not supported");
    for (std::size_t i = 0; i < part.size(); ++i) {
      out += part[i];
      if (c == '[' && part[i] == '\\') out += '\\';      // an ordinary character there
      if (many && i == 0 && part[1] == ',') out += '0';  // "{,5}"
    }
    position = next;
  }
  if (so_far == counter::answer::repeats_nothing) return refuse("it repeats something that can be empty, as in (a*)*");
  if (so_far == counter::answer::too_much)
    return refuse(format("with its repetitions written out it has more than %zu characters", kMaxPatternAtoms));
  return out;
}

}  // namespace

std::string literal_prefix_of(std::string_view text) {
  // Another alternative may begin differently, also within a group, so any bar rules a prefix out.
  if (!text.starts_with('^') || text.find('|') != std::string_view::npos) return {};
  text.remove_prefix(1);
  constexpr std::string_view kSpecial = ".[](){}*+?^$\\";
  const std::size_t end = std::min(text.find_first_of(kSpecial), text.size());
  std::string out(text.substr(0, end));
  // The last character may be optional.
  const bool is_optional = end < text.size() && std::string_view("*?{").find(text[end]) != std::string_view::npos;
  if (is_optional && !out.empty()) out.pop_back();
  return out;
}

pattern::pattern(const std::string& text) {
  if (text.empty()) return;
  const auto translated = translate(text);
  if (!translated) {
    good_ = translated.error();
    return;
  }
  RE2::Options settings;
  settings.set_encoding(RE2::Options::EncodingLatin1);  // keys are bytes
  settings.set_posix_syntax(true);
  settings.set_perl_classes(true);
  settings.set_word_boundary(true);
  settings.set_one_line(true);
  settings.set_dot_nl(true);
  settings.set_log_errors(false);
  settings.set_max_mem(kMaxProgramBytes);
  auto made = std::make_unique<RE2>(*translated, settings);
  if (!made->ok()) good_ = failure{EINVAL, "store: regular expression: " + made->error()};
  else program_ = std::move(made);
}

pattern::~pattern() = default;

bool pattern::matches(std::string_view key) const {
  if (!program_) return good_.ok();
  return RE2::PartialMatch(re2::StringPiece(key.data(), key.size()), *program_);
}

}  // namespace pl::store
