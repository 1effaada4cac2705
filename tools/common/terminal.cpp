// SPDX-License-Identifier: Apache-2.0
#include "tools/common/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/env.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"

namespace pl::tools {
namespace {

constexpr std::size_t kPlainWidth = 100, kMinWidth = 40;

struct verdict_word {
  const char* text;
  colour shade;
};
constexpr verdict_word kVerdicts[] = {
    {"good (", colour::good},     {"suspicious (", colour::warning}, {"slow (", colour::bad},
    {"bad (", colour::bad},       {"WRONG DATA", colour::bad},       {"&&&& PASSED", colour::good},
    {"&&&& FAILED", colour::bad}, {"&&&& WAIVED", colour::warning},
};

const char* escape(colour shade) {
  switch (shade) {
    case colour::good:
      return "\033[32m";
    case colour::warning:
      return "\033[33m";
    case colour::bad:
      return "\033[1;31m";
    case colour::title:
      return "\033[1m";
    case colour::none:
      break;
  }
  return "";
}

}  // namespace

bool has_colour() {
  const env_value no_colour = env_read("NO_COLOR");
  if (no_colour.is_set && !no_colour.text.empty()) return false;
  return isatty(STDOUT_FILENO) != 0 && env_read("TERM").text != "dumb";
}

std::string paint(colour shade, const std::string& text) {
  if (shade == colour::none || text.empty() || !has_colour()) return text;
  return escape(shade) + text + "\033[0m";
}

std::string without_controls(const std::string& text, text_kind kind) {
  const bool is_text = is_utf8(text);
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    std::size_t bytes = utf8_printable_bytes(rest);
    if (bytes > 1 && !is_text) bytes = 0;
    if (rest.front() == '\n') out += kind == text_kind::message ? "\n" : "\\n";
    else if (rest.front() == '\\' && kind == text_kind::name) out += "\\\\";
    else if (bytes == 0) out += format("\\x%02x", static_cast<unsigned char>(rest.front()));
    else out += rest.substr(0, bytes);
    rest.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

std::string paint_verdicts(const std::string& text) {
  if (!has_colour()) return text;
  std::string out;
  for (std::size_t offset = 0; offset < text.size();) {
    const auto* const found = std::find_if(std::begin(kVerdicts), std::end(kVerdicts), [&](const verdict_word& one) {
      return text.compare(offset, std::char_traits<char>::length(one.text), one.text) == 0;
    });
    if (found == std::end(kVerdicts)) {
      out += text[offset++];
      continue;
    }
    std::string word = found->text;
    if (word.ends_with(" (")) word = text.substr(offset, std::min(text.find(')', offset), text.size() - 1) + 1 - offset);
    out += escape(found->shade) + word + "\033[0m";
    offset += word.size();
  }
  return out;
}

std::size_t text_width() {
  std::size_t width = kPlainWidth;
  if (const auto given = parse_integer(env_read("COLUMNS").text); given && *given > 0)
    width = static_cast<std::size_t>(*given);
  else if (winsize size{}; ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width = size.ws_col;
  return std::max(width, kMinWidth);
}

std::string wrap(const std::string& text, std::size_t indent, std::size_t width) {
  std::string out;
  std::size_t column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (out.empty()) {
      out = word;
    } else if (column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ') + word;
      column = indent;
    } else {
      out += " " + word;
      ++column;
    }
    column += word.size();
  }
  return out;
}

}  // namespace pl::tools
