// SPDX-License-Identifier: Apache-2.0
#include "store/engine/manifest.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/folder_list.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "store/engine/index_log.hpp"
#include "store/engine/path_failure.hpp"
#include "store/engine/record.hpp"
#include "store/engine/recovery.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "MANIFEST-";

// Little-endian groups of seven bits.
std::optional<std::uint64_t> take_number(std::string_view& bytes) {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto one = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    number |= std::uint64_t{one & 0x7fu} << shift;
    if (one < 0x80) return number;
  }
  return std::nullopt;
}

// RocksDB's field numbers (db/version_edit.h), in the order in which it writes them.
enum field : std::uint64_t {
  kComparator = 1,
  kLogNumber = 2,
  kNextFile = 3,
  kLastSequence = 4,
  kPrevLogNumber = 9,
  kMinLogNumber = 10,
  kFamily = 200,
  kFamilyAdded = 201,
  kMaxFamily = 203,
  kDatabaseId = 8193,
};

// Reads the leading fields of a record, up to the first of another kind.
void read_fields(std::string_view record, manifest_file& manifest) {
  while (const auto tag = take_number(record)) {
    const auto value = take_number(record);  // or the length of a text
    if (!value) return;
    switch (*tag) {
      case kLastSequence:
        manifest.last_sequence = std::max(value, manifest.last_sequence);
        break;
      case kFamily:
      case kMaxFamily:
        manifest.last_family = std::max(*value, manifest.last_family);
        break;
      case kComparator:
      case kDatabaseId:
      case kFamilyAdded:
        if (*value > record.size()) return;
        record.remove_prefix(*value);
        break;
      case kLogNumber:
      case kNextFile:
      case kPrevLogNumber:
      case kMinLogNumber:
        break;
      default:
        return;
    }
  }
}

failure file_failure(const std::string& path) { return failure{errno, "store: " + path + ": " + errno_text(errno)}; }

status write_durably(const std::string& path, std::string_view bytes) {
  const auto opened = open_regular_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!opened) return path_failure(path, opened.error());
  const int file = *opened;
  status done;
  while (!bytes.empty() && done) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) done = file_failure(path);
    else bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  if (done && ::fsync(file) != 0) done = file_failure("fsync of " + path);
  ::close(file);
  return done;
}

status sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return file_failure(path);
  status done = ::fsync(folder) == 0 ? status() : status(file_failure("fsync of " + path));
  ::close(folder);
  return done;
}

}  // namespace

std::optional<std::string> file_bytes(const std::string& path) {
  auto bytes = need_regular_file(path) ? read_whole_file(path) : failure{ENOTSUP, "it is no regular file"};
  if (!bytes) return std::nullopt;
  return std::move(*bytes);
}

result<manifest_file> read_manifest(const std::string& index_folder, const std::string& name) {
  auto bytes = file_bytes(index_folder + "/" + name);
  if (!bytes) return failure{ENOENT, "store: " + index_folder + "/" + name + " is missing or cannot be read"};
  manifest_file made;
  made.name = name;
  made.bytes = std::move(*bytes);
  const log_prefix prefix = read_records(made.bytes, [&made](std::string_view record) { read_fields(record, made); });
  made.whole_bytes = prefix.whole_bytes;
  made.broken_at = prefix.broken_at.value_or(made.bytes.size());
  if (prefix.broken_at) made.end = prefix.is_torn ? manifest_file::ending::torn : manifest_file::ending::damaged;
  if (made.whole_bytes == 0) made.end = manifest_file::ending::damaged;  // its first records were synced
  return made;
}

result<manifest_file> read_current_manifest(const std::string& index_folder) {
  auto name = file_bytes(index_folder + "/CURRENT");
  const bool is_name = name && name->starts_with(kPrefix) && name->ends_with('\n') && name->find('/') == std::string::npos;
  if (!is_name) return failure{EUCLEAN, "store: " + index_folder + "/CURRENT names no manifest" + kDamageAdvice};
  name->pop_back();
  auto made = read_manifest(index_folder, *name);
  if (!made)
    return failure{EUCLEAN,
                   "store: " + index_folder + "/CURRENT names " + shown(*name) + ", which is missing" + kDamageAdvice};
  return made;
}

result<manifest_file> read_newest_manifest(const std::string& index_folder) {
  std::vector<std::string> names;
  const auto files = list_folder(index_folder);
  if (!files) return path_failure(index_folder, files.error());
  for (const auto& file : *files) {
    const std::string name = file.filename().string();
    if (name.starts_with(kPrefix)) names.push_back(name);
  }
  std::sort(names.rbegin(), names.rend());
  for (const std::string& name : names) {
    auto one = read_manifest(index_folder, name);
    if (one && one->whole_bytes > 0) return one;
  }
  return failure{ENOENT, "store: " + index_folder + " holds no manifest"};
}

result<std::string> cut_manifest(const std::string& index_folder, const manifest_file& torn) {
  const std::string folder = fs::path(index_folder).parent_path().string();
  const std::string path = index_folder + "/" + torn.name, aside = folder + "/" + torn.name + ".torn";
  const std::string fresh = folder + "/manifest.new";
  if (status kept = write_durably(aside, torn.bytes); !kept) return std::move(kept).error();
  if (status written = write_durably(fresh, torn.whole_part()); !written) return std::move(written).error();
  if (::rename(fresh.c_str(), path.c_str()) != 0) return file_failure(path);
  for (const std::string& changed : {folder, index_folder})
    if (status synced = sync_folder(changed); !synced) return std::move(synced).error();
  return aside;
}

result<index_view> index_view::make(const std::string& index_folder, std::string path, const std::string& manifest_name,
                                    std::string_view manifest_bytes) {
  std::error_code error;
  if (path.empty()) {
    const fs::path parent = fs::temp_directory_path(error);
    if (error)
      return failure{error.value(), "store: no folder for temporary files (" + error.message() +
                                        "): let TMPDIR name one, or unset it for /tmp"};
    path = (parent / "peerlane-index-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return file_failure(path);
  } else {
    fs::remove_all(path, error);  // left by a start that was killed
    fs::create_directory(path, error);
    if (error) return failure{error.value(), "store: " + path + ": " + error.message()};
  }
  index_view made(path);
  const auto files = list_folder(index_folder);
  if (!files) return path_failure(index_folder, files.error());
  for (const auto& file : *files) {
    const std::string name = file.filename().string();
    if (name == "CURRENT" || name == "LOCK" || name == manifest_name) continue;
    fs::create_symlink(fs::absolute(file), path + "/" + name, error);
    if (error) break;
  }
  if (error) return failure{error.value(), "store: " + path + ": " + error.message()};
  if (status written = write_durably(path + "/" + manifest_name, manifest_bytes); !written)
    return std::move(written).error();
  if (status written = write_durably(path + "/CURRENT", manifest_name + "\n"); !written) return std::move(written).error();
  return made;
}

index_view::~index_view() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace pl::store
