// SPDX-License-Identifier: Apache-2.0
// Reads as much of a store's folder as possible: the index up to damage and on both sides of it, later changes from the
// log, and values from extents, each with its checksum. Used by check and repair (store_folder.hpp).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/engine/disk.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/index.hpp"
#include "store/engine/manifest.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class salvage {
 public:
  // Opens what can be opened; lost() then lists what is lost as a whole. ENOENT: this is no store. EUCLEAN: nothing of
  // the index can be read.
  static result<std::unique_ptr<salvage>> open(const std::string& folder, disk& files);
  ~salvage();

  const std::vector<pool_info>& pools() const noexcept { return pools_; }
  // Names of the writers of values. A value's writer may be missing.
  const std::map<owner_id, std::string>& owners() const noexcept { return owners_; }
  std::uint64_t extent_file_bytes() const noexcept { return file_bytes_; }
  // Visits each key whose record is good, in no particular order. Adds lost keys to lost().
  status each(const std::function<void(const std::string& full, const value_record& record)>& take);
  // Reads the value in parts of at most kPartBytes and compares the checksum at the end. EBADMSG or EIO: why it is
  // lost.
  status read(const value_record& record, const std::function<status(std::span<const std::byte>)>& take);
  status verify_tables() const { return records_->verify_tables(); }
  void lose(const std::string& full, const std::string& reason);
  void lose_owner(owner_id id);
  const std::vector<std::string>& lost() const noexcept { return lost_; }

  static constexpr std::size_t kPartBytes = std::size_t{4} << 20;

 private:
  salvage(std::string folder, disk& files) : folder_(std::move(folder)), files_(files) {}
  status open_index();
  status repair_manifest();
  status repair_logs();
  status read_log();
  status read_catalogue();
  status open_extents();
  void take_catalogue(std::string_view key, std::string_view raw);
  void report_gap(std::string_view first, std::string_view bound);

  struct later_changes;  // of the log, after the end of replay
  std::string folder_;
  disk& files_;
  std::string index_folder_;             // the folder's own index, or the view
  std::optional<index_view> view_;       // with another manifest; outlives what is opened in it
  std::optional<std::uint64_t> before_;  // as log_scan::before, for a manifest that was cut
  std::unique_ptr<index> records_;
  std::unique_ptr<extents> space_;
  std::uint64_t file_bytes_ = 0;
  std::vector<pool_info> pools_;
  std::map<owner_id, std::string> owners_;
  std::map<std::string, std::optional<std::string>> later_;  // key -> its record, or that it was erased
  std::map<std::string, std::string> doubtful_;              // key -> why
  std::set<pool_id> dropped_;
  std::vector<std::string> lost_;
};

}  // namespace pl::store
