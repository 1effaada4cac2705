// SPDX-License-Identifier: Apache-2.0
// Lists of requests in the body of one frame (opcode::batch_get and the like), and of their outcomes in the body of the
// answer. Each item has its own outcome; the frame's status is 0 unless the frame as a whole is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/wire.hpp"

namespace pl::store_protocol {

inline constexpr std::size_t kMaxBatchItems = 4096;  // in a frame
// Each put and erase takes a number of its own (counted up from tail::request_number, which is the first item's), of
// which the server remembers the last 1024.
inline constexpr std::size_t kMaxBatchChanges = 256;
inline constexpr std::size_t kBatchItemBytes = 35;     // in addition to key and value
inline constexpr std::size_t kBatchOffsetBytes = 8;    // in addition to these, for an item in device memory
inline constexpr std::size_t kBatchOutcomeBytes = 37;  // in addition to text and value

struct batch_item {
  std::string_view key;
  precondition only;
  std::uint32_t user_flags = 0;
  std::uint64_t ttl_ms = 0;  // put; 0: as the pool says
  std::uint64_t room = 0;    // get: maximum size of the value; put from device memory: its size
  std::string_view value;    // put from host memory
  std::uint64_t offset = 0;  // device: where the value lies, relative to tail::device's offset
  bool operator==(const batch_item&) const = default;
};

// Whose memory the values are in. device (flag::device): memory that the connection has handed over. tail::device names
// it, and the server moves the bytes. Such a frame contains no bytes of values, and its head's value_bytes is 0.
enum class batch_memory : std::uint8_t { host, device };

struct batch_outcome {
  std::int32_t status = 0;  // EMSGSIZE: the value does not fit into the frame; get it alone
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
// Appends everything but the value. The caller appends that many bytes, which may not be contiguous.
void append_without_value(std::string& body, const batch_outcome& one, std::size_t value_bytes);
// The results point into `body`. EPROTO: the body is truncated or has an invalid number. EMSGSIZE: more than
// kMaxBatchItems.
result<std::vector<batch_item>> decode_batch(std::string_view body, batch_memory memory = batch_memory::host);
result<std::vector<batch_outcome>> decode_outcomes(std::string_view body);

}  // namespace pl::store_protocol
