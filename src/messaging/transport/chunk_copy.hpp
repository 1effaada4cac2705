// SPDX-License-Identifier: Apache-2.0
// A copy between a chunk and a message's memory, which may still be pending.
//
// Owns: the planner's completion while the copy is pending. Its destructor waits for the copy.
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

  // Copies [offset, offset + bytes) of `range`: at once by the CPU if it is host memory or short, else by the planner.
  status begin(messenger_context& context, const memory& range, std::uint64_t offset, void* chunk, std::size_t bytes,
               chunk_direction direction, touch access);
  // Empty while it is pending.
  std::optional<status> test() { return is_pending ? test_pending() : status{}; }

 private:
  std::optional<status> test_pending();
};

}  // namespace pl::messaging
