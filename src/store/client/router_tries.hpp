// SPDX-License-Identifier: Apache-2.0
// What the outcome of an attempt means for the next one, and how long attempts and the pauses between them are.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <string>
#include <utility>

#include "store/client/operation.hpp"

namespace pl::store_client {

inline constexpr auto kFirstPause = std::chrono::milliseconds(2), kLastPause = std::chrono::milliseconds(100);

// The time that an attempt gets.
inline std::chrono::milliseconds time_for(std::uint64_t bytes) {
  constexpr std::uint64_t kSlowestBytesPerMs = 10'000;
  return std::chrono::milliseconds(bytes / kSlowestBytesPerMs);
}

// At least 1, because 0 would mean no limit of its own.
inline int milliseconds_until(std::chrono::steady_clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 1, INT_MAX));
}

// Whether the request itself may be fine: another server, or the same one later, may accept it.
inline bool may_pass(int code) {
  switch (code) {
    case EREMOTE:
    case EAGAIN:
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPIPE:
    case ETIMEDOUT:
    case ESHUTDOWN:
    case ECANCELED:
      return true;
    default:
      return false;
  }
}

// Whether such a failure concerns the connection: after a silence it may be one that never ends.
inline bool is_about_connection(int code) { return may_pass(code) && code != EREMOTE && code != EAGAIN; }

inline reply failed_reply(int code, std::string text) {
  reply out;
  out.status = code;
  out.text = std::move(text);
  return out;
}

}  // namespace pl::store_client
