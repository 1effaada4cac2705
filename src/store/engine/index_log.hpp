// SPDX-License-Identifier: Apache-2.0
// The index's write-ahead log as bytes: what RocksDB's replay does not say. Its replay ends at the first damaged record,
// whether that is the torn end of the log or a flipped bit in the middle; here the records behind it are found, too, and
// what they say of how far the log had been synced.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

// Each batch carries how far the log was synced before it, so that any later record convicts an earlier damage.
std::string stamp_of(std::uint64_t synced);

// One record of a log: a batch of changes.
struct log_batch {
  std::string place;  // "000012.log at 4711"
  std::uint64_t first_sequence = 0;
  std::uint32_t changes = 0;
  std::string_view bytes;      // RocksDB's write batch
  bool is_damaged = false;     // its checksum is wrong: the numbers above may be, too
  bool is_behind_gap = false;  // replay does not come so far
  std::uint64_t end_sequence() const { return first_sequence + changes - (changes == 0 ? 0 : 1); }
};

struct log_findings {
  std::uint64_t last_sequence = 0;                    // until which no change is missing; 0: there are none
  std::uint64_t missing_from = 0, missing_until = 0;  // the first gap before a readable batch; 0: none
  std::uint64_t synced = 0;                           // what the stamps of all readable batches say, if asked for
  std::string damage;                                 // the first: "000012.log at 4711: ..."; empty: none
  bool is_whole() const noexcept { return damage.empty() && missing_from == 0; }
};

struct log_scan {
  std::string folder;
  std::uint64_t first_log = 0;  // older ones hold nothing that is not in the tables
  bool stamps = false;
  std::optional<std::uint64_t> before{};  // the last change that lies in tables: the first log has to follow it
  // May be empty. Called for damaged batches whose head is readable, too.
  std::function<void(const log_batch&)> each;
};
// Reads the logs of the folder in their order. EIO and the like: a log cannot be read.
result<log_findings> scan_logs(const log_scan& scan);

// The records of a file in the log's format up to the first that is not whole; the manifest has that format, too.
struct log_prefix {
  std::size_t whole_bytes = 0;           // where the last whole record ends
  std::optional<std::size_t> broken_at;  // the first fragment that is not whole; nothing: only zeros follow, if anything
  // Sectors of the broken fragment hold zeros, or are behind the end of the file, as when power is lost before they are
  // synced. A wrong byte is another matter.
  bool is_torn = false;
};
log_prefix read_records(std::string_view bytes, const std::function<void(std::string_view record)>& each);

// A batch's changes as calls; what cannot be read ends it, with what was read told before. False: it ended so.
struct batch_visitor {
  virtual ~batch_visitor() = default;
  virtual void put(std::uint32_t family, std::string_view key, std::string_view value) = 0;
  virtual void erase(std::uint32_t family, std::string_view key) = 0;
  virtual void erase_range(std::uint32_t family, std::string_view first, std::string_view end) = 0;
  virtual void stamp(std::uint64_t /*synced*/) {}
};
bool visit_batch(std::string_view bytes, batch_visitor& visitor);

}  // namespace pl::store
