// SPDX-License-Identifier: Apache-2.0
// One line per decision, to stderr. Levels and prefixes follow GDRCopy so that existing filters keep working.
#pragma once

#include <cstdarg>

namespace pl {

enum class log_level { debug = 1, info = 2, warn = 3, error = 4, off = 5 };

// True when a line of this level would be written. Cheap: one atomic load.
bool log_enabled(log_level level) noexcept;

// Overrides the level from the environment (tools' -v). Thread-safe.
void set_log_level(log_level level) noexcept;

// Writes "<PREFIX>: text\n" in one write(2). Preserves errno. Thread-safe.
void log_line(log_level level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

// printf into a std::string is in text.hpp.
}  // namespace pl

#define PL_LOG(level_name, ...)                                      \
  do {                                                               \
    if (::pl::log_enabled(::pl::log_level::level_name)) [[unlikely]] \
      ::pl::log_line(::pl::log_level::level_name, __VA_ARGS__);      \
  } while (0)
