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
  proxy = 2,  // X: the stream rings, the proxy thread sends
  dma = 3,    // D: a copy engine moves what the stream posts; no CPU takes part
};
const char* name_of(executor_kind kind) noexcept;

// A window of the peer, as this process knows it.
struct remote_window {
  std::uint32_t id = 0;    // in its owner
  std::int32_t rank = -1;  // its owner
  std::uint64_t bytes = 0;
  cu::device_ptr address = 0;  // where this GPU reaches it; 0: it cannot
};

struct put_request {
  cu::device_ptr source = 0;
  std::size_t bytes = 0;  // 0: only the signal
  const remote_window* window = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t sequence = 0;  // what the peer's signal word becomes
  std::uint64_t released = 0;  // wait until the peer has released so many; 0: do not wait
  int slot = -1;               // of a put that is captured, instead of both counts; -1: it is not
  bool is_counted = false;     // captured, and its kernel counts
  std::uint64_t depth = 0;     // of a counted one
};

// Of one channel. Calls come from the channel's thread, with the context current. Each queues on the stream and returns;
// a refusal leaves what was queued before it.
class executor {
 public:
  virtual ~executor() = default;
  virtual executor_kind kind() const noexcept = 0;
  // EAGAIN: too much is under way on this stream; nothing was queued.
  virtual status put(cu::stream_t stream, const put_request& request) = 0;
  // The peer's ack word becomes `sequence`.
  virtual status acknowledge(cu::stream_t stream, std::uint64_t sequence) = 0;
  // Whether put() takes slots and counted puts. If so, acknowledge_slot() sets our flag of the slot back, then the peer's
  // graph_ack to 1, and acknowledge_counted() counts a release on the GPU.
  virtual bool can_be_captured() const noexcept { return false; }
  virtual status acknowledge_slot(cu::stream_t, int) { return failure{ENOTSUP, "not by this executor"}; }
  virtual status acknowledge_counted(cu::stream_t) { return failure{ENOTSUP, "not by this executor"}; }
  // A wait was queued: a message may come for which nobody was awake.
  virtual void wait_queued() {}
  // Lines for diag(), two spaces indented; from any thread.
  virtual std::string report() const { return {}; }
};

}  // namespace pl::triggered
