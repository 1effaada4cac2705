// SPDX-License-Identifier: Apache-2.0
// The transport of a benchmark's messages: ranks that send and receive with tags. Each compared library has one
// implementation; the loops know only this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pl::p2p {

enum class memory_kind {
  host,
  device,
  managed_host,    // managed memory, last touched by the CPU
  managed_device,  // managed memory, last touched by the GPU
};

inline bool needs_gpu(memory_kind kind) { return kind != memory_kind::host; }

// A pending operation; what the word means is the transport's business. Valid until waitall has taken it.
struct request {
  std::uintptr_t word = 0;
};

class collective_calls;
class one_sided_calls;

// Used by one thread. Every call throws tools::tool_failure when the library refuses or the peer is lost.
class transport {
 public:
  virtual ~transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;  // name and version, for results

  // The memory must stay untouched (send) or unread (receive) until waitall returns.
  virtual request isend(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) = 0;
  virtual request irecv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) = 0;
  virtual void waitall(std::span<request> pending) = 0;

  virtual void send(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) {
    request one = isend(data, size_bytes, kind, peer, tag);
    waitall({&one, 1});
  }
  virtual void recv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) {
    request one = irecv(data, size_bytes, kind, peer, tag);
    waitall({&one, 1});
  }

  // Collective calls: every rank, in the same order.
  virtual void barrier() = 0;
  virtual std::vector<double> all_gather(double mine) = 0;  // by rank

  // The library's collectives. tools::tool_failure: it has none.
  virtual collective_calls& collectives();
  // The same, its windows.
  virtual one_sided_calls& one_sided();

  // The protocol for each size, for --show-plan; lines, or a sentence why the library does not tell.
  virtual std::string plan() const { return library() + " does not tell its protocols\n"; }
};

double sum_over_ranks(transport& world, double mine);

// all_gather for libraries that have only messages: each rank sends to each, with a tag of its own. Returns only after
// all have arrived, so it is a barrier too.
inline constexpr int kCollectiveTag = 9000;
std::vector<double> gather_by_messages(transport& world, double mine);

}  // namespace pl::p2p
