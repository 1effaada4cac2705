// SPDX-License-Identifier: Apache-2.0
// The index's write-ahead log as bytes, for what RocksDB's replay does not report. Replay ends at the first damaged
// record, whether that is the log's torn end or a flipped bit in the middle. This scan also finds the records after it,
// and what they say about how far the log had been synced.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

// Each batch carries how far the log was synced before it, so any later record proves that earlier damage is not a torn
// end.
std::string stamp_of(std::uint64_t synced);

// One record of a log: a batch of changes.
struct log_batch {
  std::string place;  // "000012.log at 4711"
  std::uint64_t first_sequence = 0;
  std::uint32_t changes = 0;
  std::string_view bytes;      // RocksDB's write batch
  bool is_damaged = false;     // its checksum is wrong, so the numbers above may be wrong too
  bool is_behind_gap = false;  // replay does not get this far
  std::uint64_t end_sequence() const { return first_sequence + changes - (changes == 0 ? 0 : 1); }
};

struct log_findings {
  std::uint64_t last_sequence = 0;                    // no change is missing up to this one; 0 if there are none
  std::uint64_t missing_from = 0, missing_until = 0;  // the first gap before a readable batch; 0 if there is none
  std::uint64_t synced = 0;                           // the maximum of the stamps of all readable batches, if requested
  std::string damage;                                 // the first damage: "000012.log at 4711: ..."; empty if there is none
  bool is_whole() const noexcept { return damage.empty() && missing_from == 0; }
};

struct log_scan {
  std::string folder;
  std::uint64_t first_log = 0;  // earlier logs hold only what is already in the tables
  bool stamps = false;
  std::optional<std::uint64_t> before{};  // the last change that is in the tables: the first log must follow it
  // May be empty. Also called for damaged batches whose header is readable.
  std::function<void(const log_batch&)> each;
};
// Reads the logs of the folder in their order. EIO and the like if a log cannot be read.
result<log_findings> scan_logs(const log_scan& scan);

// The records of a file in the log's format up to the first broken one. The manifest has the same format.
struct log_prefix {
  std::size_t whole_bytes = 0;           // where the last whole record ends
  std::optional<std::size_t> broken_at;  // the first broken fragment; empty if at most zeros follow
  // Sectors of the broken fragment are zero or past the end of the file, as after a loss of power before a sync. A
  // wrong byte does not count as torn.
  bool is_torn = false;
};
log_prefix read_records(std::string_view bytes, const std::function<void(std::string_view record)>& each);

// Receives a batch's changes as calls, up to the first unreadable one. Returns false if there was one.
struct batch_visitor {
  virtual ~batch_visitor() = default;
  virtual void put(std::uint32_t family, std::string_view key, std::string_view value) = 0;
  virtual void erase(std::uint32_t family, std::string_view key) = 0;
  virtual void erase_range(std::uint32_t family, std::string_view first, std::string_view end) = 0;
  virtual void stamp(std::uint64_t /*synced*/) {}
};
bool visit_batch(std::string_view bytes, batch_visitor& visitor);

}  // namespace pl::store
