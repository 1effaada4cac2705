// SPDX-License-Identifier: Apache-2.0
// What transfers between the arena and a client's device memory share, for one value or many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/engine/types.hpp"
#include "store/server/device_imports.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {

// The engine computes checksums up to this size, as for clients that copy the bytes themselves.
inline constexpr std::uint64_t kUnsummedBytes = 256 << 10;
// With this many threads or more, the checksum threads also take short values and the engine's part of batches; fewer
// threads are busy with checksums.
inline constexpr std::size_t kSeveralThreads = 4;

// The system may take back pages there while the store runs, so they cannot stay pinned for a GPU.
inline const failure kApart{ENOTSUP, "the value does not lie in memory that is shared, which alone is pinned for GPUs"};

// Walks the pieces of the arena where a value lies.
class segment_walk {
 public:
  segment_walk(std::span<const store::segment> segments, std::uint64_t skip) : segments_(segments) { pass(skip); }
  // Calls `take` with offset and length of each piece of the next `bytes`.
  template <class Take>
  void next(std::uint64_t bytes, const Take& take) {
    while (bytes > 0 && index_ < segments_.size()) {
      const auto& one = segments_[index_];
      const std::uint64_t part = std::min(bytes, one.size_bytes - done_);
      if (part > 0) take(one.offset_bytes + done_, part);
      bytes -= part;
      pass(part);
    }
  }

 private:
  void pass(std::uint64_t bytes) {
    done_ += bytes;
    for (; index_ < segments_.size() && done_ >= segments_[index_].size_bytes; ++index_)
      done_ -= segments_[index_].size_bytes;
  }
  std::span<const store::segment> segments_;
  std::size_t index_ = 0;
  std::uint64_t done_ = 0;
};

// The client's memory while the server uses it: from claiming the client's word until the word says "ended", which the
// destructor ensures. Used by the connection's thread.
struct device_claim {
  device_claim() = default;
  device_claim(const device_claim&) = delete;
  device_claim& operator=(const device_claim&) = delete;
  ~device_claim() { end_memory(); }
  // Returns false if the client has taken its memory back.
  bool claim() {
    has_claimed = imports->slots().claim(part.slot, part.ticket);
    return has_claimed;
  }
  void end_memory() {
    if (std::exchange(has_claimed, false)) imports->slots().end(part.slot, part.ticket);
  }

  store_protocol::device_part part;
  std::shared_ptr<device_imports> imports;
  std::shared_ptr<device_memory> memory;
  bool has_claimed = false;
};

template <class Next>
void session::bind_for_device(const std::shared_ptr<device_gpu>& gpu, const std::vector<store::segment>& pieces, Next next) {
  const bool is_bound = std::all_of(pieces.begin(), pieces.end(), [&](const store::segment& each) {
    return gpu->is_bound(each.offset_bytes, each.size_bytes);
  });
  if (is_bound) return next(status{});
  parts_.blocking.post(fair_workers::kind::brief, wire_->other().principal, this,
                       [me = shared_from_this(), gpu, pieces, next = std::move(next)] {
                         status bound;
                         for (const auto& each : pieces)
                           if (bound) bound = gpu->bind(each.offset_bytes, each.size_bytes);
                         me->run_on_home_thread([bound, next] { next(bound); });
                       });
}

}  // namespace pl::store_server
