// SPDX-License-Identifier: Apache-2.0
// RocksDB's manifest as bytes: which tables and logs the index has. RocksDB syncs each record before it acts on it, and
// CURRENT names no manifest that is not synced. So a loss of power can tear only what follows the last synced record,
// and without that end the index is as it was before: its tables and logs are still there.
//
// RocksDB refuses some torn ends and silently accepts others, as it does any truncated file. So each start checks for
// itself (recovery.hpp). None of these functions is thread-safe for one folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/engine/types.hpp"

namespace pl::store {

// Returns nothing if the file cannot be read.
std::optional<std::string> file_bytes(const std::string& path);

struct manifest_file {
  enum class ending : std::uint8_t { whole, torn, damaged };
  std::string name, bytes;
  ending end = ending::whole;
  std::size_t whole_bytes = 0;  // up to the end of the last whole record
  std::size_t broken_at = 0;    // offset of the first broken record
  // The last change that is in the tables. Empty if the layout of the records is unknown.
  std::optional<std::uint64_t> last_sequence;
  std::uint64_t last_family = 0;  // the highest number of a column family
  std::string_view whole_part() const { return std::string_view(bytes).substr(0, whole_bytes); }
};
// The manifest that CURRENT names. EUCLEAN if there is none.
result<manifest_file> read_current_manifest(const std::string& index_folder);
result<manifest_file> read_manifest(const std::string& index_folder, const std::string& name);
// The newest manifest in the folder, whatever CURRENT says. ENOENT if none holds a record.
result<manifest_file> read_newest_manifest(const std::string& index_folder);

// Replaces a torn manifest by its whole part, durably and atomically. Returns the path where the original was kept.
result<std::string> cut_manifest(const std::string& index_folder, const manifest_file& torn);

// A folder of links to the files of an index, with another manifest. The destructor removes it.
class index_view {
 public:
  // Creates the folder at `path`, or a temporary one if `path` is empty.
  static result<index_view> make(const std::string& index_folder, std::string path, const std::string& manifest_name,
                                 std::string_view manifest_bytes);
  index_view(index_view&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  index_view& operator=(index_view&&) = delete;
  ~index_view();
  const std::string& path() const noexcept { return path_; }

 private:
  explicit index_view(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace pl::store
