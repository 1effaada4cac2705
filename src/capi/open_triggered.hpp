// SPDX-License-Identifier: Apache-2.0
// A C stream context: its core, and the objects behind its numbers.
#pragma once

#include <peerlane/triggered.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "capi/capi_call.hpp"
#include "capi/open_table.hpp"
#include "capi/slot_table.hpp"
#include "collectives/stream_collectives.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "triggered/context.hpp"
#include "triggered/mem_ops.hpp"

namespace pl {

struct open_triggered {
  ~open_triggered();
  const cu::driver_table* cuda = nullptr;
  std::unique_ptr<messaging::bootstrap> bootstrap;
  std::unique_ptr<triggered::context> context;
  // Destroyed before the context.
  slot_table<std::unique_ptr<collectives::stream_collectives>> collectives;
  slot_table<std::unique_ptr<triggered::channel>> channels;
  std::mutex channel_ends;  // a wait on the CPU holds its channel before the channel can be taken out of the table
  slot_table<std::unique_ptr<triggered::mem_ops>> batches;
  slot_table<std::unique_ptr<triggered::window_key>> exposed;
  slot_table<std::unique_ptr<triggered::remote_window>> remote;
};

}  // namespace pl

struct peerlane_triggered : pl::open_slot<pl::open_triggered> {};

namespace pl {

// The context, or null with `code` and the thread's last error set: EINVAL; EACCES in a forked child.
open_triggered* triggered_of(peerlane_triggered_t handle, int& code) noexcept;

// A caller's limit, bounded so that it fits into nanoseconds; negative: practically unlimited.
inline std::chrono::milliseconds limit_of(std::int64_t timeout_ms) noexcept {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);
  return timeout_ms < 0 ? kForEver : std::min(kForEver, std::chrono::milliseconds(timeout_ms));
}

inline cu::stream_t cuda_stream(void* given) noexcept { return static_cast<cu::stream_t>(given); }

// Common entry of the calls of a context: with_open() of `act(open_triggered&)`.
template <class Act>
int with_triggered(peerlane_triggered_t handle, Act&& act) {
  return with_open(handle, triggered_of, act);
}

}  // namespace pl
