// SPDX-License-Identifier: Apache-2.0
// What the index stores, as bytes. Decoding accepts exactly what encoding produces; anything else is "not a record".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/bytes.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

// The record of a key: the value itself if it is small, otherwise where it lies.
struct value_record {
  version_t version = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t crc = 0;
  std::uint32_t user_flags = 0;
  std::int64_t written_unix_ns = 0;
  durability level = durability::durable;
  owner_id owner = 0;            // who wrote it; 0: nobody, or an earlier release
  std::vector<segment> extents;  // large values
  std::string_view small_value;  // other values; points into the decoded bytes
  bool large() const noexcept { return !extents.empty(); }
};

std::string encode(const value_record& record);
std::optional<value_record> decode_value(std::string_view bytes);
// The record of a large key in the extents family: only what start-up needs.
std::string encode_extents(const std::vector<segment>& extents);
std::optional<std::vector<segment>> decode_extents(std::string_view bytes);

std::string encode(const pool_info& pool);  // without keys and bytes
std::optional<pool_info> decode_pool(std::string_view bytes);

struct pool_counts {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;
};
std::string encode(const pool_counts& counts);
std::optional<pool_counts> decode_counts(std::string_view bytes);

// Whether records of values name their owner. A store switches to this format with the first put of an owner. Earlier
// releases would take such records for damage, so the format number makes them refuse the store.
inline constexpr std::uint32_t kFormatWithOwners = 2;
struct store_format {
  std::uint32_t number = 1;  // of this layout
  bool is_known() const noexcept { return number == 1 || number == kFormatWithOwners; }
  std::uint64_t file_bytes = 0;
  std::uint64_t id_high = 0, id_low = 0;  // random, identifies this store
};
std::string encode(const store_format& format);
std::optional<store_format> decode_format(std::string_view bytes);

// What a remembered request did, with one entry per operation.
inline constexpr std::uint16_t kAnyGroup = 0xffff;  // of records from before groups: forgotten with any group
struct request_outcome {
  std::uint64_t sequence = 0;
  durability reached = durability::pool_default;
  std::uint16_t group = 0;  // request_key::group
  struct item {
    int error = 0;
    version_t version = 0;
    std::uint32_t crc = 0;
  };
  std::vector<item> items;
  // The outcome was reported by another store (engine::remember_requests); nothing was done here, and the change itself
  // arrives separately. This is enough to answer a client that asks again, but no reason to skip a copy of the change,
  // which may still be on its way.
  bool is_remote = false;
};
std::string encode(const request_outcome& outcome);
std::optional<request_outcome> decode_outcome(std::string_view bytes);

// Keys of the index: the pool id in byte order, then the key, so that a pool's keys are adjacent and in their own
// order.
std::string full_key(pool_id pool, std::string_view key);
inline pool_id pool_of(std::string_view full) { return full.size() < 4 ? 0 : read_ordered(full); }
inline std::string_view key_of(std::string_view full) { return full.substr(4); }

// A key for messages: printable characters as they are, others as \xNN, shortened.
std::string shown(std::string_view key);

}  // namespace pl::store
