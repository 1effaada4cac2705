// SPDX-License-Identifier: Apache-2.0
// Changes of keys as reported by a watch: the body of the answer to opcode::watch_next.
//
//   client                              server
//   watch(prefix) --------------------> registers it; from now on changes are queued
//   <--------------------------- token
//   watch_next(token) ----------------> answers when something is queued, or after the time in the request
//   <------------------ list of events
//
// A full queue is dropped as a whole, and the next answer begins with an event of kind `lost`. A watch belongs to its
// connection: on another one, or after a restart of the server, its token is EBADF, and changes in between are lost.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/wire.hpp"

namespace pl::store_protocol {

// The first ones have the numbers of store::change.
enum class event_kind : std::uint8_t { put = 1, erased, evicted, expired, lost = 16 };
const char* name_of(event_kind kind) noexcept;

struct watch_event {
  event_kind kind = event_kind::put;
  std::string key;
  std::uint64_t version = 0;      // put: the new version; erased and the like: the version that is gone
  std::uint64_t value_bytes = 0;  // put: size; lost: number of changes, 0 if unknown
  bool operator==(const watch_event&) const = default;
};

inline constexpr std::size_t kWatchEventBytes = 19;  // in addition to the key
inline constexpr std::size_t kMaxWatchAnswerBytes = 64u << 10;
inline constexpr std::uint64_t kMaxWatchWaitMs = 60'000;

void append(std::string& body, const watch_event& one);
// EPROTO: truncated, or an undefined kind.
result<std::vector<watch_event>> decode_events(std::string_view body);

}  // namespace pl::store_protocol
