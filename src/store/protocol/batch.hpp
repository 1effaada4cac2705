// SPDX-License-Identifier: Apache-2.0
// Lists of requests in the body of one frame (opcode::batch_get and its like), and of their outcomes in the body of the
// answer. Each item has an outcome of its own; the frame's status is 0 unless the frame as a whole is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/wire.hpp"

namespace pl::store_protocol {

inline constexpr std::size_t kMaxBatchItems = 4096;  // of a frame
// Each put and erase takes a number of its own (tail::request_number counts on from the first item's), of which the server
// remembers the last 1024.
inline constexpr std::size_t kMaxBatchChanges = 256;
inline constexpr std::size_t kBatchItemBytes = 35;     // beside key and value
inline constexpr std::size_t kBatchOffsetBytes = 8;    // beside them, of an item in device memory
inline constexpr std::size_t kBatchOutcomeBytes = 37;  // beside text and value

struct batch_item {
  std::string_view key;
  precondition only;
  std::uint32_t user_flags = 0;
  std::uint64_t ttl_ms = 0;  // put: 0: as the pool says
  std::uint64_t room = 0;    // get: at most so many bytes of the value; put from device memory: so many
  std::string_view value;    // put from host memory
  std::uint64_t offset = 0;  // device: of the value's place behind tail::device's
  bool operator==(const batch_item&) const = default;
};

// Whose memory the values lie in. device (flag::device): in memory that the connection has handed over; tail::device names
// it, and the server moves the bytes. Such a frame has no bytes of values, and its head's value_bytes is 0.
enum class batch_memory : std::uint8_t { host, device };

struct batch_outcome {
  std::int32_t status = 0;  // EMSGSIZE: the value does not fit the frame any more: get it by itself
  std::uint64_t version = 0, value_bytes = 0;
  std::uint32_t crc = 0, user_flags = 0;
  durability reached = durability::pool_default;
  bool repeated = false;
  std::string_view text;   // why it failed
  std::string_view value;  // get
  bool operator==(const batch_outcome&) const = default;
};

void append(std::string& body, const batch_item& one, batch_memory memory = batch_memory::host);
void append(std::string& body, const batch_outcome& one);
// All of it but the value: the caller appends that many bytes, which nobody has in one piece.
void append_without_value(std::string& body, const batch_outcome& one, std::size_t value_bytes);
// What they return points into `body`. EPROTO: cut off, or a number without a meaning; EMSGSIZE: more than kMaxBatchItems.
result<std::vector<batch_item>> decode_batch(std::string_view body, batch_memory memory = batch_memory::host);
result<std::vector<batch_outcome>> decode_outcomes(std::string_view body);

}  // namespace pl::store_protocol
