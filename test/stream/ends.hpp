// SPDX-License-Identifier: Apache-2.0
// One end of a channel between two processes, with its windows.
#pragma once

#include "channel.hpp"
#include "stream_job.hpp"

namespace pl::stream {

inline constexpr std::size_t kBytes = 1 << 20;

// Two windows: what came, and what goes.
struct two_ends {
  test::device_buffer in{kBytes}, out{kBytes};
  std::unique_ptr<channel> to;
  remote_window there;
  int open(const scene& at, const channel_options& options = {}) {
    auto mine = at.by->expose(in.pointer(), kBytes);
    CHECK_OK(mine);
    auto keys = exchange_keys(at, *mine);
    CHECK_OK(keys);
    auto window = at.by->import((*keys)[static_cast<std::size_t>(1 - at.rank)]);
    CHECK_OK(window);
    there = *window;
    auto end = at.by->connect(1 - at.rank, 7, options);
    CHECK_OK(end);
    to = std::move(end).value();
    CHECK_OK(to->ready(kPatience));
    return 0;
  }
};

}  // namespace pl::stream
