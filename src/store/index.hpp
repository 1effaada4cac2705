// SPDX-License-Identifier: Apache-2.0
// RocksDB as the store uses it: four families of keys, one log, results instead of its own status type. The log is replayed
// up to its first torn record (what was synced is before that, what was not may be lost).
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "types.hpp"

namespace pl::store {

enum class family : std::size_t {
  catalogue = 0,  // format, version ceiling, pools, counts
  values = 1,     // full_key -> value_record
  extents = 2,    // full_key -> extents of it, large values only: what start-up reads
  requests = 3,   // client, slot -> request_outcome
};
constexpr std::size_t kFamilies = 4;

class index {
 public:
  struct options {
    std::string folder;
    std::uint64_t cache_bytes = 0;
    bool read_only = false;
    rocksdb::Env* env = nullptr;
  };
  static result<std::unique_ptr<index>> open(const options& how);
  ~index();
  index(const index&) = delete;
  index& operator=(const index&) = delete;

  // All thread-safe; writes are in the order in which they return.
  result<std::optional<std::string>> get(family of, std::string_view key) const;
  // `sync`: on the medium when this returns, with all that was written before. ENOSPC: nothing was done as far as readers
  // see, but the log may hold it until recover() succeeds.
  status write(rocksdb::WriteBatch& batch, bool sync);
  // What was written so far is on the medium.
  status sync();
  // After ENOSPC: makes writing possible again if there is room now. RocksDB itself looks for room every five seconds, and
  // until it has found some this is ENOSPC too.
  status recover();

  void put(rocksdb::WriteBatch& batch, family of, std::string_view key, std::string_view value) const;
  void erase(rocksdb::WriteBatch& batch, family of, std::string_view key) const;
  // [from, until)
  void erase_range(rocksdb::WriteBatch& batch, family of, std::string_view from, std::string_view until) const;

  // Calls `look` for each key in [from, until) in order, until it says false. `until` empty: to the end. A snapshot of the
  // moment. `keep` = false: what is read does not push other things out of the cache.
  status scan(family of, std::string_view from, std::string_view until, bool keep,
              const std::function<bool(std::string_view key, std::string_view value)>& look) const;

 private:
  index() = default;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilies> families_{};
};

// The errno and sentence for what RocksDB says.
failure index_failure(const rocksdb::Status& why, std::string_view what);

}  // namespace pl::store
