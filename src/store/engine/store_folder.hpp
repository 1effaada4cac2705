// SPDX-License-Identifier: Apache-2.0
// Operations on the folder of a stopped store: check, repair, backup and restore. All are blocking, refuse a folder
// that a store has open (EBUSY), and never change the folder that they read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

class disk;

// EUCLEAN if the folder is the target of a backup, restore or repair that has not ended. Each of these marks its target
// first and removes the mark last, so that nobody serves part of a store.
status need_finished(const std::string& folder);

struct folder_report {
  std::uint64_t keys = 0, values_read = 0, bytes_read = 0;
  std::vector<std::string> problems;  // one sentence each; those about a value name pool and key
  bool opens = false;                 // whether a store would serve the folder as it is
  bool is_good() const noexcept { return opens && problems.empty(); }
};

// Reads everything: the mark and seals, the index's log and tables, and every value.
result<folder_report> check_folder(const std::string& folder, disk* files = nullptr);

struct repair_report {
  std::uint64_t saved_keys = 0, saved_bytes = 0;
  std::vector<std::string> lost;  // one sentence each: keys, ranges of keys, changes in the log
};
// Creates a new store at `target`, which is absent or empty and not within `folder` (EINVAL), from all values whose
// record and bytes are good. Keys keep pool, version and user flags. The new store has an identity of its own and
// remembers no requests. A key is left out, and named, if its value is damaged or a damaged change touched it. Without
// owners, the values are nobody's, and releases from before quotas of principals can open the new store too.
result<repair_report> repair_folder(const std::string& folder, const std::string& target, disk* files = nullptr,
                                    bool with_owners = true);

// Copies a good folder to `target`, which is absent or empty and not within it (EINVAL), with a list of checksums, then
// reads the copy as check_folder() does. EUCLEAN if the folder is damaged; nothing is left at `target`.
result<folder_report> backup_folder(const std::string& folder, const std::string& target, disk* files = nullptr);
// Restores a backup to `target`, which is absent or empty and not within it (EINVAL): compares its files with their
// list, copies them, reads all values, and gives the store a new identity, so that a cluster does not mistake it for
// the original folder.
result<folder_report> restore_folder(const std::string& backup, const std::string& target, disk* files = nullptr);

}  // namespace pl::store
