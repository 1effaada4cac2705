// SPDX-License-Identifier: Apache-2.0
// Retries channel calls that return EAGAIN while the channel is full.
#pragma once

#include <cerrno>
#include <ctime>

#include "base/clock.hpp"
#include "base/status.hpp"

namespace pl::async {

// Calls `queue` until it succeeds, because what is queued already makes room; no longer than a stream could be stuck.
template <class Queue>
status queue_when_room(const Queue& queue) {
  constexpr std::uint64_t kMaxNs = 20'000'000'000;
  const timespec while_others_go_on{0, 20'000};
  for (const auto begin = monotonic_ns();;) {
    const auto done = queue();
    if (done) return {};
    if (done.code() != EAGAIN || monotonic_ns() - begin > kMaxNs) return done.error();
    nanosleep(&while_others_go_on, nullptr);
  }
}

}  // namespace pl::async
