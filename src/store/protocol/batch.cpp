// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/batch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"

namespace pl::store_protocol {
namespace {

failure cut_off(const char* list) {
  return {EPROTO, std::string("store protocol: a list of ") + list + " is cut off or contains unknown data"};
}

// The fixed part of an item. A batch has thousands of items, and appending number by number to a string took longer
// than everything else in a frame.
template <std::size_t kMaxBytes>
class fixed_fields {
 public:
  template <class T>
  void add(T value) noexcept {
    static_assert(sizeof value <= 8);
    std::memcpy(bytes_ + used_, &value, sizeof value);
    used_ += sizeof value;
  }
  // Adds a short text after it in the same way.
  bool add_text(std::string_view text) noexcept {
    if (text.size() > kTextBytes) return false;
    std::memcpy(bytes_ + used_, text.data(), text.size());
    used_ += text.size();
    return true;
  }
  void append_to(std::string& body) const { body.append(bytes_, used_); }

 private:
  static constexpr std::size_t kTextBytes = 64;
  char bytes_[kMaxBytes + kTextBytes];
  std::size_t used_ = 0;
};

}  // namespace

void append(std::string& body, const batch_item& one, batch_memory memory) {
  fixed_fields<kBatchItemBytes + kBatchOffsetBytes> fields;
  fields.add(static_cast<std::uint16_t>(one.key.size()));
  fields.add(static_cast<std::uint8_t>(one.only.kind));
  fields.add(one.only.version);
  fields.add(one.user_flags);
  fields.add(one.ttl_ms);
  fields.add(one.room);
  fields.add(static_cast<std::uint32_t>(one.value.size()));
  if (memory == batch_memory::device) fields.add(one.offset);
  const bool has_key = fields.add_text(one.key);
  fields.append_to(body);
  if (!has_key) body += one.key;
  body += one.value;
}

void append_without_value(std::string& body, const batch_outcome& one, std::size_t value_bytes) {
  fixed_fields<kBatchOutcomeBytes> fields;
  fields.add(static_cast<std::uint32_t>(one.status));
  fields.add(one.version);
  fields.add(one.value_bytes);
  fields.add(one.crc);
  fields.add(one.user_flags);
  fields.add(static_cast<std::uint8_t>(one.reached));
  fields.add(static_cast<std::uint8_t>(one.repeated));
  fields.add(static_cast<std::uint16_t>(one.text.size()));
  fields.add(static_cast<std::uint32_t>(value_bytes));
  fields.append_to(body);
  body += one.text;
}

void append(std::string& body, const batch_outcome& one) {
  append_without_value(body, one, one.value.size());
  body += one.value;
}

result<std::vector<batch_item>> decode_batch(std::string_view body, batch_memory memory) {
  std::vector<batch_item> out;
  // Only without bytes of values does the body's length roughly tell how many items there are.
  if (memory == batch_memory::device)
    out.reserve(std::min(body.size() / (kBatchItemBytes + kBatchOffsetBytes), kMaxBatchItems));
  for (byte_reader reader(body); !reader.at_end();) {
    if (out.size() == kMaxBatchItems)
      return failure{EMSGSIZE, format("store protocol: a batch has at most %zu items", kMaxBatchItems)};
    batch_item one;
    const auto key_bytes = reader.number<std::uint16_t>();
    const auto kind = reader.number<std::uint8_t>();
    one.only.version = reader.number<std::uint64_t>();
    one.user_flags = reader.number<std::uint32_t>();
    one.ttl_ms = reader.number<std::uint64_t>();
    one.room = reader.number<std::uint64_t>();
    const auto value_bytes = reader.number<std::uint32_t>();
    if (memory == batch_memory::device) one.offset = reader.number<std::uint64_t>();
    one.key = reader.take(key_bytes);
    one.value = reader.take(value_bytes);
    const bool has_bytes = memory == batch_memory::device && value_bytes != 0;
    if (!reader.ok() || has_bytes || kind > static_cast<std::uint8_t>(condition::if_version)) return cut_off("requests");
    one.only.kind = static_cast<condition>(kind);
    out.push_back(one);
  }
  return out;
}

result<std::vector<batch_outcome>> decode_outcomes(std::string_view body) {
  std::vector<batch_outcome> out;
  constexpr std::size_t kUsualItems = 256;
  out.reserve(std::min(body.size() / kBatchOutcomeBytes, kUsualItems));
  for (byte_reader reader(body); !reader.at_end();) {
    batch_outcome one;
    one.status = static_cast<std::int32_t>(reader.number<std::uint32_t>());
    one.version = reader.number<std::uint64_t>();
    one.value_bytes = reader.number<std::uint64_t>();
    one.crc = reader.number<std::uint32_t>();
    one.user_flags = reader.number<std::uint32_t>();
    const auto level = store::durability_from(reader.number<std::uint8_t>());
    one.repeated = reader.number<std::uint8_t>() != 0;
    const auto text_bytes = reader.number<std::uint16_t>();
    const auto value_bytes = reader.number<std::uint32_t>();
    one.text = reader.take(text_bytes);
    one.value = reader.take(value_bytes);
    if (!reader.ok() || !level) return cut_off("outcomes");
    one.reached = *level;
    out.push_back(one);
  }
  return out;
}

}  // namespace pl::store_protocol
