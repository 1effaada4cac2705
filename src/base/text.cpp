// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <cctype>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/c_numbers.hpp"
#include "base/checked_math.hpp"

namespace pl {

c_numbers::c_numbers() noexcept {
  // One that the C library already has, so nothing is allocated.
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  before_ = uselocale(c_locale);
}

std::string format(const char* pattern, ...) {
  const c_numbers during_print;
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string out(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  return out;
}

namespace {

struct parsed_digits {
  std::uint64_t value = 0;
  std::size_t consumed = 0;
};

std::optional<parsed_digits> parse_digits(std::string_view text) {
  unsigned base = 10;
  std::size_t position = 0;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    base = 16;
    position = 2;
  }
  const std::size_t first = position;
  std::uint64_t value = 0;
  for (; position < text.size(); ++position) {
    const int c = std::tolower(static_cast<unsigned char>(text[position]));
    unsigned digit = 0;
    if (c >= '0' && c <= '9') digit = static_cast<unsigned>(c - '0');
    else if (base == 16 && c >= 'a' && c <= 'f') digit = static_cast<unsigned>(c - 'a' + 10);
    else break;
    const auto scaled = checked_mul(value, base);
    const auto next = scaled ? checked_add(*scaled, digit) : std::nullopt;
    if (!next) return std::nullopt;
    value = *next;
  }
  if (position == first) return std::nullopt;
  return parsed_digits{value, position};
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto digits = parse_digits(text);
  if (!digits) return std::nullopt;
  std::string suffix;
  for (const char c : text.substr(digits->consumed))
    suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  unsigned shift = 0;
  if (suffix.empty() || suffix == "b") shift = 0;
  else if (suffix == "k" || suffix == "kb" || suffix == "kib") shift = 10;
  else if (suffix == "m" || suffix == "mb" || suffix == "mib") shift = 20;
  else if (suffix == "g" || suffix == "gb" || suffix == "gib") shift = 30;
  else return std::nullopt;
  return checked_mul(digits->value, std::uint64_t{1} << shift);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const bool negative = !text.empty() && text[0] == '-';
  const auto body = negative ? text.substr(1) : text;
  const auto digits = parse_digits(body);
  if (!digits || digits->consumed != body.size()) return std::nullopt;
  if (digits->value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  const auto value = static_cast<std::int64_t>(digits->value);
  return negative ? -value : value;
}

std::string format_size(std::uint64_t size_bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (size_bytes != 0 && size_bytes % 1024 == 0 && unit < 4) {
    size_bytes /= 1024;
    ++unit;
  }
  return format("%llu %s", static_cast<unsigned long long>(size_bytes), kUnits[unit]);
}

std::string errno_text(int code) {
  const char* name = strerrorname_np(code);
  const char* words = strerrordesc_np(code);
  // Wherever they occur, a user can do the same about them.
  const char* next = code == EMFILE   ? ": raise the limit of open files, ulimit -n"
                     : code == ENFILE ? ": raise the host's limit of open files, sysctl fs.file-max"
                                      : "";
  return format("%s (%s%s)", name != nullptr ? name : "unknown errno", words != nullptr ? words : "no description", next);
}

std::string plural(std::uint64_t count, const std::string& noun, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? noun : many.empty() ? noun + "s" : many);
}

}  // namespace pl
