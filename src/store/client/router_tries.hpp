// SPDX-License-Identifier: Apache-2.0
// What a try's outcome means for the next one, and how long tries and the pauses between them are.
#pragma once

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "store/client/operation.hpp"

namespace pl::store_client {

inline constexpr auto kFirstPause = std::chrono::milliseconds(2), kLastPause = std::chrono::milliseconds(100);

// What a try's time allows for.
inline std::chrono::milliseconds time_for(std::uint64_t bytes) {
  constexpr std::uint64_t kSlowestBytesPerMs = 10'000;
  return std::chrono::milliseconds(bytes / kSlowestBytesPerMs);
}

// Nothing is wrong with what was asked: another server, or the same one later, may do it.
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

// Of those: after a silence the connection may be one of those that never end.
inline bool is_about_connection(int code) { return may_pass(code) && code != EREMOTE && code != EAGAIN; }

inline reply failed_reply(int code, std::string text) {
  reply out;
  out.status = code;
  out.text = std::move(text);
  return out;
}

}  // namespace pl::store_client
