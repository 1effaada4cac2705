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

// Thread-safe. Lines are written whole.
class event_log {
 public:
  enum class level { debug, info, warn, error };
  // Empty path: standard error.
  static result<event_log> open(const std::string& path, level lowest);
  event_log(event_log&& other) noexcept;
  event_log(const event_log&) = delete;
  ~event_log();

  using field = std::pair<const char*, std::string>;
  void write(level severity, const char* event, std::initializer_list<field> fields);

 private:
  event_log(int fd, bool owned, level lowest) : fd_(fd), owned_(owned), lowest_(lowest) {}
  int fd_;
  bool owned_;
  level lowest_;
};

// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become \u00xx.
std::string json_quoted(std::string_view text);

}  // namespace pl::store_server
