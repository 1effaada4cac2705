// SPDX-License-Identifier: Apache-2.0
// Changes of keys as a watch tells them: the body of the answer to opcode::watch_next.
//
//   client                              server
//   watch(prefix) --------------------> notes it down; from now on changes are queued
//   <--------------------------- token
//   watch_next(token) ----------------> answers when something is queued, or when the time that the request gives is over
//   <------------------ list of events
//
// A queue that is full is dropped as a whole, and the next answer begins with an event of kind `lost`. A watch belongs to
// its connection: on another one, or after a restart of the server, its token is EBADF, and what happened meanwhile is not
// known.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/wire.hpp"

namespace pl::store_protocol {

// The first ones as store::change numbers them.
enum class event_kind : std::uint8_t { put = 1, erased, evicted, expired, lost = 16 };
const char* name_of(event_kind kind) noexcept;

struct watch_event {
  event_kind kind = event_kind::put;
  std::string key;
  std::uint64_t version = 0;      // put: the new one; erased and its like: the one that went
  std::uint64_t value_bytes = 0;  // put; lost: how many changes, 0: not known
  bool operator==(const watch_event&) const = default;
};

inline constexpr std::size_t kWatchEventBytes = 19;  // beside the key
inline constexpr std::size_t kMaxWatchAnswerBytes = 64u << 10;
inline constexpr std::uint64_t kMaxWatchWaitMs = 60'000;

void append(std::string& body, const watch_event& one);
// EPROTO: cut off, or a kind without a meaning.
result<std::vector<watch_event>> decode_events(std::string_view body);

}  // namespace pl::store_protocol
