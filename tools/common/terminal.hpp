// SPDX-License-Identifier: Apache-2.0
// What a terminal can show: colours for verdicts, and its width. Off a terminal everything stays plain text.
#pragma once

#include <cstddef>
#include <string>

namespace pl::tools {

enum class colour { none, good, warning, bad, title };

// Standard output is a terminal that is not dumb, and NO_COLOR is not set (https://no-color.org).
bool has_colour();

// The text in the colour where has_colour(), else as it is.
std::string paint(colour shade, const std::string& text);

// The same for the verdict words of a finished text ("good (98 %)", "slow (60 %)", "WRONG DATA", "PASSED", "FAILED").
std::string paint_verdicts(const std::string& text);

enum class text_kind { message, name };

// Names may hold any byte, and say nothing to the terminal: what is no UTF-8, and control characters, become \xNN. A message
// may have several lines; in a name, a backslash is doubled and an end of line is \n.
std::string without_controls(const std::string& text, text_kind kind = text_kind::message);

// Columns: COLUMNS, else the terminal's, else 100. At least 40.
std::size_t text_width();

// `text` in lines of at most `width` columns, all but the first indented by `indent` blanks; a longer word gets its own
// line.
std::string wrap(const std::string& text, std::size_t indent, std::size_t width);

}  // namespace pl::tools
