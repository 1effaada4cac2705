// SPDX-License-Identifier: Apache-2.0
#include "store/engine/record.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "store/engine/bytes.hpp"

namespace pl::store {
namespace {

constexpr std::uint8_t kSmall = 1;
constexpr std::uint8_t kLarge = 2;
constexpr std::uint8_t kOwnedSmall = 3, kOwnedLarge = 4;  // the owner follows the time
constexpr std::uint8_t kPool = 1;  // layout numbers; a later layout that this code does not know is "not a record"
constexpr std::uint8_t kOutcomeWithoutGroup = 1, kOutcome = 2, kOutcomeRemote = 3;

// The durability level of a record: one that callers could ask for, including those of earlier releases.
std::optional<durability> read_level(byte_reader& reader) {
  const auto level = durability_from(reader.number<std::uint8_t>());
  return level == durability::pool_default ? std::nullopt : level;
}

void append_pieces(std::string& out, const std::vector<segment>& pieces) {
  append_number(out, static_cast<std::uint16_t>(pieces.size()));
  for (const segment& piece : pieces) {
    append_number(out, piece.offset_bytes);
    append_number(out, piece.size_bytes);
  }
}

std::optional<std::vector<segment>> read_pieces(byte_reader& reader) {
  const auto count = reader.number<std::uint16_t>();
  if (count > kMaxSegments) return std::nullopt;
  std::vector<segment> pieces(count);
  for (segment& piece : pieces) {
    piece.offset_bytes = reader.number<std::uint64_t>();
    piece.size_bytes = reader.number<std::uint64_t>();
    if (piece.size_bytes == 0 || piece.offset_bytes % kBlockBytes != 0 || piece.size_bytes % kBlockBytes != 0 ||
        piece.size_bytes > kMaxValueBytes || piece.offset_bytes + piece.size_bytes < piece.offset_bytes)
      return std::nullopt;
  }
  return pieces;
}

}  // namespace

std::string encode(const value_record& record) {
  std::string out;
  out.reserve(52 + record.small_value.size() + record.extents.size() * 16);
  const bool is_owned = record.owner != 0;
  append_number(out, record.large() ? (is_owned ? kOwnedLarge : kLarge) : (is_owned ? kOwnedSmall : kSmall));
  append_number(out, static_cast<std::uint8_t>(record.level));
  append_number(out, record.user_flags);
  append_number(out, record.version);
  append_number(out, record.length_bytes);
  append_number(out, record.crc);
  append_number(out, record.written_unix_ns);
  if (is_owned) append_number(out, record.owner);
  if (record.large()) append_pieces(out, record.extents);
  else out.append(record.small_value);
  return out;
}

std::optional<value_record> decode_value(std::string_view bytes) {
  byte_reader reader(bytes);
  value_record record;
  const auto kind = reader.number<std::uint8_t>();
  const auto level = read_level(reader);
  record.user_flags = reader.number<std::uint32_t>();
  record.version = reader.number<version_t>();
  record.length_bytes = reader.number<std::uint64_t>();
  record.crc = reader.number<std::uint32_t>();
  record.written_unix_ns = reader.number<std::int64_t>();
  const bool is_owned = kind == kOwnedSmall || kind == kOwnedLarge;
  if (is_owned) record.owner = reader.number<owner_id>();
  if (!reader.good() || !level || record.length_bytes > kMaxValueBytes || is_owned != (record.owner != 0))
    return std::nullopt;
  record.level = level_of_record(*level);
  if (kind == kSmall || kind == kOwnedSmall) {
    record.small_value = reader.rest();
    if (record.small_value.size() != record.length_bytes) return std::nullopt;
    return record;
  }
  auto pieces = kind == kLarge || kind == kOwnedLarge ? read_pieces(reader) : std::nullopt;
  if (!pieces || pieces->empty() || !reader.good_end()) return std::nullopt;
  std::uint64_t room = 0;
  for (const segment& piece : *pieces) room += piece.size_bytes;
  if (room < record.length_bytes || room - record.length_bytes >= kBlockBytes) return std::nullopt;
  record.extents = std::move(*pieces);
  return record;
}

std::string encode_extents(const std::vector<segment>& extents) {
  std::string out;
  append_pieces(out, extents);
  return out;
}

std::optional<std::vector<segment>> decode_extents(std::string_view bytes) {
  byte_reader reader(bytes);
  auto pieces = read_pieces(reader);
  if (!reader.good_end()) return std::nullopt;
  return pieces;
}

std::string encode(const pool_info& pool) {
  std::string out;
  append_number(out, kPool);
  append_number(out, pool.id);
  append_text(out, pool.name);
  append_number(out, static_cast<std::uint8_t>(pool.options.level));
  append_number(out, pool.options.quota_bytes);
  append_number(out, pool.options.quota_keys);
  append_number(out, static_cast<std::uint8_t>(pool.options.verify_reads));
  append_text(out, pool.options.tags);
  append_number(out, pool.created_unix_ns);
  return out;
}

std::optional<pool_info> decode_pool(std::string_view bytes) {
  byte_reader reader(bytes);
  pool_info pool;
  if (reader.number<std::uint8_t>() != kPool) return std::nullopt;
  pool.id = reader.number<pool_id>();
  pool.name = reader.text();
  const auto level = read_level(reader);
  pool.options.quota_bytes = reader.number<std::uint64_t>();
  pool.options.quota_keys = reader.number<std::uint64_t>();
  const auto verify = reader.number<std::uint8_t>();
  pool.options.tags = reader.text();
  pool.created_unix_ns = reader.number<std::int64_t>();
  if (!reader.good_end() || pool.id == 0 || pool.name.empty() || !level || verify > 1) return std::nullopt;
  pool.options.verify_reads = verify == 1;
  // Reads a level above the highest as the highest.
  pool.options.level = std::min(*level, durability::durable);
  return pool;
}

std::string encode(const pool_counts& counts) {
  std::string out;
  append_number(out, counts.keys);
  append_number(out, counts.bytes);
  return out;
}

std::optional<pool_counts> decode_counts(std::string_view bytes) {
  byte_reader reader(bytes);
  pool_counts counts;
  counts.keys = reader.number<std::uint64_t>();
  counts.bytes = reader.number<std::uint64_t>();
  if (!reader.good_end()) return std::nullopt;
  return counts;
}

std::string encode(const store_format& format) {
  std::string out;
  append_number(out, format.number);
  append_number(out, format.file_bytes);
  append_number(out, format.id_high);
  append_number(out, format.id_low);
  return out;
}

std::optional<store_format> decode_format(std::string_view bytes) {
  byte_reader reader(bytes);
  store_format format;
  format.number = reader.number<std::uint32_t>();
  format.file_bytes = reader.number<std::uint64_t>();
  format.id_high = reader.number<std::uint64_t>();
  format.id_low = reader.number<std::uint64_t>();
  if (!reader.good_end() || format.file_bytes == 0 || format.file_bytes % kBlockBytes != 0) return std::nullopt;
  return format;
}

std::string encode(const request_outcome& outcome) {
  std::string out;
  append_number(out, outcome.is_remote ? kOutcomeRemote : kOutcome);
  append_number(out, outcome.sequence);
  append_number(out, static_cast<std::uint8_t>(outcome.reached));
  append_number(out, outcome.group);
  append_number(out, static_cast<std::uint16_t>(outcome.items.size()));
  for (const auto& item : outcome.items) {
    append_number(out, static_cast<std::int32_t>(item.error));
    append_number(out, item.version);
    append_number(out, item.crc);
  }
  return out;
}

std::optional<request_outcome> decode_outcome(std::string_view bytes) {
  byte_reader reader(bytes);
  request_outcome outcome;
  const auto layout = reader.number<std::uint8_t>();
  if (layout < kOutcomeWithoutGroup || layout > kOutcomeRemote) return std::nullopt;
  outcome.is_remote = layout == kOutcomeRemote;
  outcome.sequence = reader.number<std::uint64_t>();
  const auto level = read_level(reader);
  outcome.group = layout != kOutcomeWithoutGroup ? reader.number<std::uint16_t>() : kAnyGroup;
  const auto count = reader.number<std::uint16_t>();
  if (!level || count > kMaxBatchOperations) return std::nullopt;
  outcome.reached = level_of_record(*level);
  outcome.items.resize(count);
  for (auto& item : outcome.items) {
    item.error = reader.number<std::int32_t>();
    item.version = reader.number<version_t>();
    item.crc = reader.number<std::uint32_t>();
  }
  if (!reader.good_end()) return std::nullopt;
  return outcome;
}

std::string full_key(pool_id pool, std::string_view key) {
  std::string out;
  out.reserve(4 + key.size());
  append_ordered(out, pool);
  out.append(key);
  return out;
}

std::string shown(std::string_view key) {
  constexpr std::size_t kMaxShown = 80;
  std::string out = "'";
  for (const char c : key.substr(0, kMaxShown)) {
    if (c >= 0x20 && c < 0x7f && c != '\'' && c != '\\') out.push_back(c);
    else out += format("\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  out += key.size() > kMaxShown ? "'..." : "'";
  return out;
}

}  // namespace pl::store
