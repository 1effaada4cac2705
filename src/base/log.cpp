// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/c_numbers.hpp"
#include "base/env.hpp"

namespace pl {
namespace {

constexpr int kUnread = -1;
std::atomic<int> g_level{kUnread};

// A program may be started without standard error (`2>&-`). Its number then belongs to a file or socket that was opened
// later, and a line would be written into it.
bool g_has_standard_error = true;

[[gnu::constructor(101)]] void look_for_standard_error() { g_has_standard_error = fcntl(STDERR_FILENO, F_GETFD) >= 0; }

// GDRCopy semantics: GDRCOPY_ENABLE_LOGGING enables logging, GDRCOPY_LOG_LEVEL (default 4) filters. PEERLANE_LOG takes
// precedence over both. Without any of them nothing is printed.
int level_from_environment() {
  const env_value own = env_read("PEERLANE_LOG");
  if (own.is_set) return static_cast<int>(own.integer);
  if (!env_read("GDRCOPY_ENABLE_LOGGING").is_set) return static_cast<int>(log_level::off);
  return static_cast<int>(env_read("GDRCOPY_LOG_LEVEL").integer);
}

const char* prefix(log_level level) {
  switch (level) {
    case log_level::debug:
      return "DBG:  ";
    case log_level::info:
      return "INFO: ";
    case log_level::warn:
      return "WARN: ";
    default:
      return "ERR:  ";
  }
}

}  // namespace

bool log_enabled(log_level level) noexcept {
  int current = g_level.load(std::memory_order_relaxed);
  if (current == kUnread) [[unlikely]] {
    current = level_from_environment();
    int expected = kUnread;
    if (!g_level.compare_exchange_strong(expected, current)) current = expected;
  }
  return static_cast<int>(level) >= current;
}

void set_log_level(log_level level) noexcept { g_level.store(static_cast<int>(level)); }

void log_line(log_level level, const char* format, ...) noexcept {
  if (!g_has_standard_error) return;
  const int saved_errno = errno;
  char line[1024];
  int used = std::snprintf(line, sizeof line, "%s", prefix(level));
  const c_numbers during_print;
  va_list args;
  va_start(args, format);
  const int body = std::vsnprintf(line + used, sizeof line - static_cast<std::size_t>(used) - 1, format, args);
  va_end(args);
  if (body > 0) used += body;
  if (used > static_cast<int>(sizeof line) - 2) used = static_cast<int>(sizeof line) - 2;
  line[used++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(used));
  errno = saved_errno;
}

}  // namespace pl
