// SPDX-License-Identifier: Apache-2.0
// How the bytes and words of a channel reach its peer. The waiting side is the same for all executors: a word in the
// waiter's own GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "triggered/remote_memory.hpp"

namespace pl::triggered {

inline constexpr std::size_t kOneWarpBytes = 512;  // a 16-byte access of each thread

enum class executor_kind : std::uint32_t {
  automatic = 0,
  peer = 1,   // P: from GPU to GPU, no CPU takes part
  proxy = 2,  // X: the stream rings a doorbell, the proxy thread sends
  dma = 3,    // D: the stream posts, a copy engine moves the bytes; no CPU takes part
};
const char* name_of(executor_kind kind) noexcept;

// A window of the peer, as this process knows it.
struct remote_window {
  std::uint32_t id = 0;    // in its owner
  std::int32_t rank = -1;  // its owner
  std::uint64_t bytes = 0;
  cu::device_ptr address = 0;  // for this GPU; 0: it cannot access the window
};

struct put_request {
  cu::device_ptr source = 0;
  std::size_t bytes = 0;  // 0: only the signal
  const remote_window* window = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t sequence = 0;  // the new value of the peer's signal word
  std::uint64_t released = 0;  // wait until the peer has released this many puts; 0: do not wait
  int slot = -1;               // of a captured put that uses slots instead of both counts; -1: none
  bool is_counted = false;     // captured, and its kernel counts by itself
  std::uint64_t depth = 0;     // of a counted one
};

// The executor of one channel. The channel's thread makes the calls, with the context current. Each call queues work on the
// stream and returns. An error may leave work on the stream that the call had already queued.
class executor {
 public:
  virtual ~executor() = default;
  virtual executor_kind kind() const noexcept = 0;
  // EAGAIN: too much is in progress on this stream; nothing was queued.
  virtual status put(cu::stream_t stream, const put_request& request) = 0;
  // Sets the peer's ack word to `sequence`.
  virtual status acknowledge(cu::stream_t stream, std::uint64_t sequence) = 0;
  // Whether put() accepts slots and counted puts. If so, acknowledge_slot() resets our flag of the slot and sets the peer's
  // graph_ack to 1, and acknowledge_counted() counts a release on the GPU.
  virtual bool can_be_captured() const noexcept { return false; }
  virtual status acknowledge_slot(cu::stream_t, int) { return failure{ENOTSUP, "not by this executor"}; }
  virtual status acknowledge_counted(cu::stream_t) { return failure{ENOTSUP, "not by this executor"}; }
  // Called after a wait was queued: wakes the proxy thread if it must be awake to notice the awaited operation.
  virtual void wait_queued() {}
  // Lines for diag(), indented by two spaces. Any thread.
  virtual std::string report() const { return {}; }
};

}  // namespace pl::triggered
