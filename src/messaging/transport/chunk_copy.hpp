// SPDX-License-Identifier: Apache-2.0
// An asynchronous copy between a chunk and the memory of a message.
//
// Owns: the planner's completion while the copy is pending; the destructor waits for it.
// Threads: the messenger's lock guards all calls. Errors: the planner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "copy/completion.hpp"
#include "messaging/memory_access.hpp"

namespace pl::messaging {

struct messenger_context;

enum class chunk_direction : std::uint8_t { to_chunk, from_chunk };

struct chunk_copy {
  copy::completion pending;
  bool is_pending = false;

  // Copies bytes [offset, offset + bytes) of `range`. The CPU copies host memory and short ranges before this returns; the
  // planner starts all other copies. The chunk and the memory must stay valid until test() returns a status.
  status begin(messenger_context& context, const memory& range, std::uint64_t offset, void* chunk, std::size_t bytes,
               chunk_direction direction, touch access);
  // The result of the copy; empty while it is pending.
  std::optional<status> test() { return is_pending ? test_pending() : status{}; }

 private:
  std::optional<status> test_pending();
};

}  // namespace pl::messaging
