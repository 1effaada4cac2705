// SPDX-License-Identifier: Apache-2.0
// The server's log: one JSON object a line, {"time":..., "level":..., "event":..., fields}. For programs as for people.
#pragma once

#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace pl::store_server {

// Thread-safe. Lines are written whole. Clients can cause as many warnings as they like, so of these only so many are
// written in a second, and how many were not is said in the next.
class event_log {
 public:
  static constexpr unsigned kMaxWarnings = 200;  // in a second
  enum class level { debug, info, warn, error };
  // Empty path: standard error.
  static result<event_log> open(const std::string& path, level lowest);
  event_log(event_log&& other) noexcept;
  event_log(const event_log&) = delete;
  ~event_log();

  using field = std::pair<const char*, std::string>;
  void write(level severity, const char* event, std::initializer_list<field> fields);
  // Goes on in the file that has the path now, for who moves the log aside; a line is in the one or the other. An error
  // leaves the file that is open. Standard error: nothing.
  status reopen();

 private:
  event_log(int fd, std::string path, level lowest) : fd_(fd), path_(std::move(path)), lowest_(lowest) {}
  static result<int> open_file(const std::string& path);
  bool may_warn(std::uint64_t& suppressed);
  void write_line(level severity, const char* event, std::initializer_list<field> fields);
  int fd_;            // its number stays when the file is another one
  std::string path_;  // empty: the file is not ours
  level lowest_;
  std::mutex lock_;  // of what follows
  std::uint64_t second_ = 0, suppressed_ = 0;
  unsigned warnings_ = 0;  // in this second
};

// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become \u00xx.
std::string json_quoted(std::string_view text);

}  // namespace pl::store_server
