// SPDX-License-Identifier: Apache-2.0
// RocksDB's manifest as bytes: which tables and logs the index has. RocksDB syncs each record before it acts on it, and
// CURRENT names no manifest that is not synced. So loss of power may tear what follows the last synced record and nothing
// else, and without that end the index is as it was before: tables and logs of then are still there.
//
// RocksDB refuses some torn ends, and takes others, and any file that is cut off, without a word. So starts look for
// themselves (recovery.hpp). None of these functions is thread-safe for one folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/engine/types.hpp"

namespace pl::store {

// Nothing: it cannot be read.
std::optional<std::string> file_bytes(const std::string& path);

struct manifest_file {
  enum class ending : std::uint8_t { whole, torn, damaged };
  std::string name, bytes;
  ending end = ending::whole;
  std::size_t whole_bytes = 0;  // until the end of the last whole record
  std::size_t broken_at = 0;    // not of a whole one
  // The last change that lies in tables. Nothing: the records are of a layout that is not known.
  std::optional<std::uint64_t> last_sequence;
  std::uint64_t last_family = 0;  // the highest number of a family
  std::string_view whole_part() const { return std::string_view(bytes).substr(0, whole_bytes); }
};
// The one that CURRENT names. EUCLEAN: there is none.
result<manifest_file> read_current_manifest(const std::string& index_folder);
result<manifest_file> read_manifest(const std::string& index_folder, const std::string& name);
// The newest in the folder, whatever CURRENT says. ENOENT: none holds a record.
result<manifest_file> read_newest_manifest(const std::string& index_folder);

// Replaces a torn manifest by its whole part, durably, at once or not at all. Returns where the file as it was lies.
result<std::string> cut_manifest(const std::string& index_folder, const manifest_file& torn);

// A folder of links to the files of an index with another manifest; gone with the object.
class index_view {
 public:
  // `path`: made anew. Empty: a temporary folder.
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
