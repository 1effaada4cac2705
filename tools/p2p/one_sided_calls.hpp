// SPDX-License-Identifier: Apache-2.0
// Windows of a library that is compared, and the calls on them: what the one-sided OSU programs measure. The target calls
// nothing while its window is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// Used by one thread. Each call throws tools::tool_failure when the library refuses.
class one_sided_calls {
 public:
  virtual ~one_sided_calls() = default;
  // Collective. This rank's window: zeroed host memory that the library allocates.
  virtual void* open_window(std::size_t bytes) = 0;
  // Collective. A window of this rank's GPU memory, which stays the caller's. Where the library has such.
  virtual void open_window_on(void* memory, std::size_t bytes);
  // Collective. Nobody uses the windows any more.
  virtual void close_window() = 0;

  // The memory must stay untouched until flush() returns: all that began before is complete at the target then.
  virtual void put(const void* data, std::size_t bytes, memory_kind kind, int peer, std::size_t offset) = 0;
  virtual void get(void* data, std::size_t bytes, memory_kind kind, int peer, std::size_t offset) = 0;
  virtual void flush(int peer) = 0;
  // Complete on return.
  virtual std::uint64_t fetch_add(int peer, std::size_t offset, std::uint64_t operand) = 0;
  virtual std::uint64_t compare_swap(int peer, std::size_t offset, std::uint64_t compare, std::uint64_t operand) = 0;
};

}  // namespace pl::p2p
