// SPDX-License-Identifier: Apache-2.0
#include "store/server/event_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"

namespace pl::store_server {
namespace {

// Whether a regular file ends within a line, which a process wrote that met a full disk. We may not be allowed to read it.
bool ends_within_line(const std::string& path, int fd) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size == 0) return false;
  const int readable = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (readable < 0) return false;
  char last = '\n';
  const bool is_read = pread(readable, &last, 1, facts.st_size - 1) == 1;
  close(readable);
  return is_read && last != '\n';
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t bytes = utf8_printable_bytes(text);
    if (bytes == 0) out += format("\\u%04x", static_cast<unsigned char>(text.front()));
    if (text.front() == '"' || text.front() == '\\') out += '\\';
    out += text.substr(0, bytes);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out += '"';
}

result<event_log> event_log::open(const std::string& path, level lowest) {
  if (path.empty()) return event_log(STDERR_FILENO, {}, lowest);
  const auto fd = open_file(path);
  if (!fd) return fd.error();
  event_log made(*fd, path, lowest);
  made.is_within_line_ = ends_within_line(path, *fd);
  return made;
}

result<int> event_log::open_file(const std::string& path) {
  // A pipe that nobody reads loses lines. It must not stop the store, neither here nor when it is full.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);
  if (fd >= 0) return fd;
  const bool is_unread = errno == ENXIO;
  return failure{errno,
                 format("log file %s: %s", path.c_str(),
                        is_unread ? "it is a FIFO that nobody reads, or a socket: start its reader first, or name a file"
                                  : errno_text(errno).c_str())};
}

status event_log::reopen() {
  if (path_.empty()) return {};
  const auto fd = open_file(path_);
  if (!fd) return fd.error();
  const std::lock_guard hold(line_lock_);
  const bool is_within_line = ends_within_line(path_, *fd);
  const int code = ::dup3(*fd, fd_, O_CLOEXEC) < 0 ? errno : 0;
  close(*fd);
  if (code == 0) is_within_line_ = is_within_line;
  if (code != 0) return failure{code, format("log file %s: %s", path_.c_str(), errno_text(code).c_str())};
  return {};
}

event_log::event_log(event_log&& other) noexcept
    : fd_(other.fd_),
      path_(std::exchange(other.path_, {})),
      lowest_(other.lowest_),
      is_within_line_(other.is_within_line_) {}

event_log::~event_log() {
  if (!path_.empty()) close(fd_);
}

bool event_log::may_warn(std::uint64_t& suppressed) {
  const std::lock_guard hold(lock_);
  const std::uint64_t now = monotonic_ns() / 1'000'000'000;
  if (now != second_) {
    second_ = now;
    warnings_ = 0;
    suppressed = std::exchange(suppressed_, 0);
  }
  if (++warnings_ <= kMaxWarnings) return true;
  ++suppressed_;
  return false;
}

void event_log::write(level severity, const char* event, std::initializer_list<field> fields) {
  if (severity < lowest_) return;
  std::uint64_t suppressed = 0;
  if (severity == level::warn && !may_warn(suppressed)) return;
  if (suppressed != 0) write_line(level::warn, "suppressed", {{"warnings", std::to_string(suppressed)}});
  write_line(severity, event, fields);
}

void event_log::write_line(level severity, const char* event, std::initializer_list<field> fields) {
  constexpr const char* kLevels[] = {"debug", "info", "warn", "error"};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char time[32];
  strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &parts);
  std::string line = format("{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"event\":\"%s\"", time, now.tv_nsec / 1'000'000,
                            kLevels[static_cast<int>(severity)], event);
  for (const auto& [name, value] : fields) line += format(",\"%s\":", name) + json_quoted(value);
  line += "}\n";
  // One write call per line: O_APPEND keeps the lines of several processes apart. A failure to write the log does not
  // stop the store. A disk or pipe that becomes full may take the beginning of a line, which the next line must not
  // continue.
  const std::lock_guard hold(line_lock_);
  if (is_within_line_) line.insert(line.begin(), '\n');
  const ssize_t done = ::write(fd_, line.data(), line.size());
  if (done > 0) is_within_line_ = line[static_cast<std::size_t>(done) - 1] != '\n';
}

}  // namespace pl::store_server
