// SPDX-License-Identifier: Apache-2.0
// What is done with the folder of a stopped store: looking for damage, saving what is good, copying it and bringing a copy
// back. All blocking; all refuse a folder that a store has open (EBUSY), and none changes the folder that it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

class disk;

// EUCLEAN: the folder is the target of a backup, restore or repair that has not ended. Each of these marks its target first
// and takes the mark away last, so that nobody serves a part of a store.
status need_finished(const std::string& folder);

struct folder_report {
  std::uint64_t keys = 0, values_read = 0, bytes_read = 0;
  std::vector<std::string> problems;  // one sentence each; those of a value name pool and key
  bool opens = false;                 // whether a store would serve it as it is
  bool is_good() const noexcept { return opens && problems.empty(); }
};

// Reads everything: mark and seals, the index's log and tables, every value.
result<folder_report> check_folder(const std::string& folder, disk* files = nullptr);

struct repair_report {
  std::uint64_t saved_keys = 0, saved_bytes = 0;
  std::vector<std::string> lost;  // one sentence each: keys, ranges of keys, changes of the log
};
// Makes a new store at `target`, which is absent or empty and not within `folder` (EINVAL), of all values whose record and
// bytes are good. Keys keep pool, version and user flags; the new store has an identity of its own and remembers no
// requests. A key is left out, and named, if its value is damaged or a damaged change touched it. Without owners the values
// are nobody's, and releases from before quotas of principals open the new store, too.
result<repair_report> repair_folder(const std::string& folder, const std::string& target, disk* files = nullptr,
                                    bool with_owners = true);

// Copies a good folder to `target`, which is absent or empty and not within it (EINVAL), with a list of checksums; then
// reads the copy as check_folder() does. EUCLEAN: it is damaged; nothing is left at `target`.
result<folder_report> backup_folder(const std::string& folder, const std::string& target, disk* files = nullptr);
// Brings a backup to `target`, which is absent or empty and not within it (EINVAL): compares its files with their list,
// copies them, reads all values, and gives the store a new identity, so that a cluster does not take it for the folder that
// it was.
result<folder_report> restore_folder(const std::string& backup, const std::string& target, disk* files = nullptr);

}  // namespace pl::store
