// SPDX-License-Identifier: Apache-2.0
// What the index stores, as bytes. Decoding accepts exactly what encoding makes; anything else is "not a record".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/bytes.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

// The record of a key: the value itself if it is small, else where it lies.
struct value_record {
  version_t version = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t crc = 0;
  std::uint32_t user_flags = 0;
  std::int64_t written_unix_ns = 0;
  durability level = durability::durable;
  owner_id owner = 0;            // who wrote it; 0: nobody, or an earlier release
  std::vector<segment> extents;  // large values
  std::string_view small_value;  // else; points into what was decoded
  bool large() const noexcept { return !extents.empty(); }
};

std::string encode(const value_record& record);
std::optional<value_record> decode_value(std::string_view bytes);
// The record of a large key among the extents: what of it start-up needs.
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

// Records of values say who wrote them. A store becomes so with the first owner that puts a value, and earlier releases,
// which would take such records for damaged ones, refuse it by its number.
inline constexpr std::uint32_t kFormatWithOwners = 2;
struct store_format {
  std::uint32_t number = 1;  // of this layout
  bool is_known() const noexcept { return number == 1 || number == kFormatWithOwners; }
  std::uint64_t file_bytes = 0;
  std::uint64_t id_high = 0, id_low = 0;  // random, of this store
};
std::string encode(const store_format& format);
std::optional<store_format> decode_format(std::string_view bytes);

// What a remembered request did: one entry an operation.
inline constexpr std::uint16_t kAnyGroup = 0xffff;  // from before groups: goes with whichever is forgotten
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
  // Another store said so (engine::remember_requests), nothing was done here: the effect came, or comes, in another way.
  // Enough to answer the client that asks again, but not to leave a copy of the change out, which may have been on its way.
  bool is_remote = false;
};
std::string encode(const request_outcome& outcome);
std::optional<request_outcome> decode_outcome(std::string_view bytes);

// Keys of the index: pool id in byte order, then the key itself, so that a pool's keys are neighbours in their own order.
std::string full_key(pool_id pool, std::string_view key);
inline pool_id pool_of(std::string_view full) { return full.size() < 4 ? 0 : read_ordered(full); }
inline std::string_view key_of(std::string_view full) { return full.substr(4); }

// A key for people: printable characters as they are, others as \xNN, shortened.
std::string shown(std::string_view key);

}  // namespace pl::store
