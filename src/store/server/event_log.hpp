// SPDX-License-Identifier: Apache-2.0
// The server's log, for programs and people: one JSON object per line, {"time":..., "level":..., "event":..., fields}.
#pragma once

#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace pl::store_server {

// Thread-safe. Lines are written whole; of one that a full disk cuts off, the beginning stays as a line of its own. Clients
// can cause any number of warnings, so their rate is limited; the next second's log says how many were dropped.
class event_log {
 public:
  static constexpr unsigned kMaxWarnings = 200;  // per second
  enum class level { debug, info, warn, error };
  // An empty path means standard error.
  static result<event_log> open(const std::string& path, level lowest);
  event_log(event_log&& other) noexcept;
  event_log(const event_log&) = delete;
  ~event_log();

  using field = std::pair<const char*, std::string>;
  void write(level severity, const char* event, std::initializer_list<field> fields);
  // Continues in the file that now has the path, for log rotation; no line is lost or split. On an error the open file
  // stays in use. Does nothing for standard error.
  status reopen();

 private:
  event_log(int fd, std::string path, level lowest) : fd_(fd), path_(std::move(path)), lowest_(lowest) {}
  static result<int> open_file(const std::string& path);
  bool may_warn(std::uint64_t& suppressed);
  void write_line(level severity, const char* event, std::initializer_list<field> fields);
  int fd_;            // the number stays the same when another file is opened
  std::string path_;  // empty: we do not own the file
  level lowest_;
  std::mutex lock_;  // guards what follows
  std::uint64_t second_ = 0, suppressed_ = 0;
  unsigned warnings_ = 0;        // in the current second
  std::mutex line_lock_;         // guards what follows
  bool is_within_line_ = false;  // the file ends with the beginning of a line
};

// `text` as a JSON string, with quotes. Bytes that are not UTF-8 become \u00xx.
std::string json_quoted(std::string_view text);

}  // namespace pl::store_server
