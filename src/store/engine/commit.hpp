// SPDX-License-Identifier: Apache-2.0
// A unit of work for the committer: operations on keys that belong together, a barrier, the removal of a pool, or the
// outcomes of requests that another store applied.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/engine/pools.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

struct operation {
  enum class kind : std::uint8_t { put, erase, set_flags } type = kind::put;
  std::string full;  // as full_key() makes it
  value_ref made;    // put: complete except for version and time; in memory, and on disk if it is large and not volatile
  condition precondition = condition::none;
  version_t expected_version = 0;
  std::uint32_t user_flags = 0;  // set_flags
  batch_item outcome;
  copy_of copy{};
  // Whether the key keeps its current value, because this operation is a copy of something older.
  bool is_late(bool exists, version_t current) const noexcept { return is_late(type, copy, exists, current); }
  static bool is_late(kind type, const copy_of& copy, bool exists, version_t current) noexcept {
    if (copy.version == 0 || !exists || current == copy.replaces) return false;
    return type == kind::put ? current >= copy.version : current > copy.version;
  }
};

struct commit_unit {
  enum class kind : std::uint8_t { operations, sync, drop_pool, remember } type = kind::operations;
  pool_ref pool;
  std::vector<operation> operations;
  durability level = durability::durable;  // never pool_default
  bool atomic = false;
  request_key request;
  std::vector<std::pair<request_key, request_outcome>> outcomes;  // outcomes to remember
  // For a single large put: its checksum is computed while it is written, and compared with the writer's if there is
  // one.
  bool crc_missing = false;
  // A put that belongs to a long run: it is written to extents with the others, although its length alone would not
  // require that. If there is no room for it, it goes to the log like other small values.
  bool is_of_long_run = false;
  bool is_ordered = false;  // call key_order::leave() once it is with the committer or has failed
  std::optional<std::uint32_t> expected_crc;
  bool is_copy() const noexcept { return !operations.empty() && operations.front().copy.version != 0; }

  // Set when done() is called.
  std::optional<failure> failed;  // of the unit as a whole; each operation also has its own outcome
  bool repeated = false;
  durability reached = durability::volatile_;
  std::function<void(commit_unit&)> done;  // called once; must not block
};
using unit_ref = std::unique_ptr<commit_unit>;

// Whether a key in this state satisfies the condition. The failure names the key.
status check_condition(condition precondition, version_t expected, bool exists, version_t current, std::string_view full);

std::int64_t unix_now_ns() noexcept;

}  // namespace pl::store
