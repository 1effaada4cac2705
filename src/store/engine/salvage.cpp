// SPDX-License-Identifier: Apache-2.0
#include "store/engine/salvage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "arch/crc32c.hpp"
#include "base/folder_list.hpp"
#include "base/regular_file.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "store/engine/commit_mark.hpp"
#include "store/engine/index_log.hpp"
#include "store/engine/path_failure.hpp"
#include "store/engine/recovery.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t kCatalogueId = 0, kValuesId = 1;  // RocksDB's numbers of the families, in order of creation
constexpr std::size_t kMaxLost = 100'000;

struct block_free {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

// Sector by sector, with zeros for those that cannot be read.
std::string readable_parts(const std::string& path) {
  constexpr std::size_t kSector = 512;
  std::string out;
  struct stat about {};
  const auto file = open_regular_file(path, O_RDONLY);
  if (!file) return out;
  if (::fstat(*file, &about) == 0) out.resize(static_cast<std::size_t>(about.st_size));
  for (std::size_t begin = 0; begin < out.size(); begin += kSector)
    (void)!::pread(*file, out.data() + begin, std::min(kSector, out.size() - begin), static_cast<off_t>(begin));
  ::close(*file);
  return out;
}

}  // namespace

// Changes after the end of replay replace what replay found; those in damaged batches make their keys doubtful.
struct salvage::later_changes final : batch_visitor {
  explicit later_changes(salvage& owner) : target(owner) {}
  void put(std::uint32_t family, std::string_view key, std::string_view value) override {
    if (family == kCatalogueId && !is_damaged) target.take_catalogue(key, value);
    if (family != kValuesId || key.size() < 5) return;
    if (is_damaged) return doubt(key);
    target.later_[std::string(key)] = std::string(value);
    target.doubtful_.erase(std::string(key));
  }
  void erase(std::uint32_t family, std::string_view key) override {
    if (family != kValuesId || key.size() < 5) return;
    if (is_damaged) return doubt(key);
    target.later_[std::string(key)] = std::nullopt;
    target.doubtful_.erase(std::string(key));
  }
  void erase_range(std::uint32_t family, std::string_view first, std::string_view) override {
    if (family == kValuesId && first.size() == 4 && !is_damaged) target.dropped_.insert(pool_of(first));
  }
  void doubt(std::string_view key) {
    target.doubtful_[std::string(key)] = "a damaged change of the index's log (" + place + ") put or erased it";
    target.later_.erase(std::string(key));
  }
  salvage& target;
  bool is_damaged = false;
  std::string place;
};

salvage::~salvage() = default;

result<std::unique_ptr<salvage>> salvage::open(const std::string& folder, disk& files) {
  std::unique_ptr<salvage> made(new salvage(folder, files));
  made->index_folder_ = folder + "/index";
  if (status opened = made->open_index(); !opened) return std::move(opened).error();
  if (status read = made->read_catalogue(); !read) return std::move(read).error();
  if (status read = made->read_log(); !read) return std::move(read).error();
  if (status opened = made->open_extents(); !opened) return std::move(opened).error();
  return made;
}

status salvage::open_index() {
  std::error_code error;
  const bool is_there = fs::is_directory(index_folder_, error);
  if (error && error != std::errc::no_such_file_or_directory)
    return failure{error.value(), "store: " + index_folder_ + ": " + errno_text(error.value())};
  if (!is_there) return failure{ENOENT, "store: " + folder_ + " does not contain a store: it has no index"};
  if (status regular = need_regular_files(index_folder_); !regular) return regular;
  if (status mended = repair_manifest(); !mended) return mended;
  if (status mended = repair_logs(); !mended) return mended;
  index::options settings;
  settings.folder = index_folder_;
  settings.cache_bytes = std::uint64_t{8} << 20;
  settings.read_only = true;
  settings.env = files_.index_env();
  auto opened = index::open(settings);
  if (!opened) return std::move(opened).error();
  records_ = std::move(*opened);
  return {};
}

// CURRENT and the manifest describe the index. If they are not those of the clean stop, the copy from that stop is
// used. Without a copy, the whole part of the manifest that CURRENT names is used, or of the newest one.
status salvage::repair_manifest() {
  const auto mark = commit_mark::read(folder_ + "/commit.mark");
  const auto copy = read_manifest_copy(folder_ + "/manifest.copy");
  const auto newest = read_newest_manifest(index_folder_);
  std::string name, bytes;
  if (mark && mark->is_clean && copy && (!newest || newest->name <= copy->name)) {
    name = copy->name, bytes = copy->bytes;
  } else {
    const auto current = read_current_manifest(index_folder_);
    const bool has_current = current && current->whole_bytes > 0;
    if ((has_current && current->end == manifest_file::ending::whole) || (!has_current && !newest)) return {};
    const manifest_file& best = has_current ? *current : *newest;
    name = best.name, bytes = best.whole_part();
    before_ = best.last_sequence;
  }
  auto view = index_view::make(index_folder_, "", name, bytes);
  if (!view) return view.error();
  view_.emplace(std::move(*view));
  index_folder_ = view_->path();
  return {};
}

// RocksDB opens no index of which a log cannot be read to its end. It is given a copy of such a log, in which what the disk
// does not give is damaged.
status salvage::repair_logs() {
  std::vector<std::string> names;
  const auto files = list_folder(index_folder_);
  if (!files) return path_failure(index_folder_, files.error());
  for (const auto& file : *files) {
    if (file.extension() != ".log") continue;
    const auto bytes = read_whole_file(file.string());
    if (is_shortage(bytes.code())) return path_failure(file.string(), bytes.error());  // no damage
    if (!bytes) names.push_back(file.filename().string());
  }
  if (names.empty()) return {};
  if (!view_) {
    const auto current = read_current_manifest(index_folder_);
    if (!current) return current.error();
    auto view = index_view::make(index_folder_, "", current->name, current->bytes);
    if (!view) return view.error();
    view_.emplace(std::move(*view));
  }
  for (const std::string& name : names) {
    const std::string copy = view_->path() + "/" + name;
    const std::string bytes = readable_parts(copy);
    std::error_code error;
    fs::remove(copy, error);  // a link
    if (status written = write_whole_file(copy, bytes); !written) return path_failure(copy, written.error());
  }
  index_folder_ = view_->path();
  return {};
}

status salvage::read_log() {
  const auto mark = commit_mark::read(folder_ + "/commit.mark");
  const std::uint64_t reached = records_->last_sequence();
  later_changes changes(*this);
  // Earlier logs hold only what is already in the tables. RocksDB removes them in any order, so a gap between them
  // means nothing.
  log_scan scan{index_folder_, records_->first_log(), true, before_, {}};
  scan.each = [&](const log_batch& batch) {
    if (!batch.is_damaged && batch.end_sequence() <= reached) return;
    changes.is_damaged = batch.is_damaged;
    changes.place = batch.place;
    visit_batch(batch.bytes, changes);
  };
  const auto logs = scan_logs(scan);
  if (!logs) return logs.error();
  const std::uint64_t need = std::max(logs->synced, mark ? mark->required(files_.boot_id()) : 0);
  // The torn end of a log: no client got an answer for these changes.
  if (reached >= need && (logs->missing_from == 0 || logs->missing_from > need)) {
    doubtful_.clear();
    if (logs->missing_from != 0) later_.clear();
    return {};
  }
  const std::uint64_t first_missing = logs->missing_from != 0 ? logs->missing_from : reached + 1;
  const std::uint64_t last_missing = logs->missing_from != 0 ? logs->missing_until : need;
  lost_.push_back(
      format("changes %llu to %llu of the index's log (%s): keys that they put or erased, and that are not named "
             "below, are as before them",
             static_cast<unsigned long long>(first_missing), static_cast<unsigned long long>(last_missing),
             logs->damage.empty() ? "its end is missing" : logs->damage.c_str()));
  return {};
}

void salvage::take_catalogue(std::string_view key, std::string_view raw) {
  if (key.size() == 5 && key[0] == 'o') owners_[read_ordered(key.substr(1))] = raw;
  if (key.size() != 5 || key[0] != 'p') return;
  auto pool = decode_pool(raw);
  if (!pool) {
    lost_.push_back(format("the settings of pool %u: its record is damaged", read_ordered(key.substr(1))));
    return;
  }
  std::erase_if(pools_, [&](const pool_info& one) { return one.id == pool->id; });
  pools_.push_back(std::move(*pool));
}

status salvage::read_catalogue() {
  const auto stored = records_->get(family::catalogue, "f");
  const auto form = stored && *stored ? decode_format(**stored) : std::nullopt;
  if (!form) return failure{EUCLEAN, "store: " + folder_ + ": the index's first record, of the layout, cannot be read"};
  if (!form->is_known())
    return failure{
        ENOTSUP, format("store: %s has format %u, this program knows %u", folder_.c_str(), form->number, kFormatWithOwners)};
  file_bytes_ = form->file_bytes;
  status scanned = records_->scan(family::catalogue, "", "", false, [&](std::string_view key, std::string_view raw) {
    take_catalogue(key, raw);
    return true;
  });
  if (is_shortage_or_full(scanned.code())) return scanned;
  if (!scanned) lost_.push_back("settings of pools: " + scanned.error().message);
  return {};
}

status salvage::open_extents() {
  auto opened = extents::open({folder_ + "/extents", file_bytes_, 0, 0, true}, files_);
  if (!opened) return std::move(opened).error();
  space_ = std::move(*opened);
  return {};
}

void salvage::lose(const std::string& full, const std::string& reason) {
  if (lost_.size() >= kMaxLost) return;
  std::string name = format("%u", pool_of(full));
  for (const pool_info& pool : pools_)
    if (pool.id == pool_of(full)) name = shown(pool.name);
  lost_.push_back("pool " + name + ", key " + shown(key_of(full)) + ": " + reason);
}

void salvage::lose_owner(owner_id id) {
  lost_.push_back(format("the name of owner %u, which has no record: its values are saved, and count for no principal", id));
}

// Reports the unreadable keys between two readable ones. The second record of large values names those keys.
void salvage::report_gap(std::string_view first, std::string_view bound) {
  const auto name = [](std::string_view full) { return full.size() < 5 ? std::string("the first") : shown(key_of(full)); };
  lost_.push_back("keys after " + name(first) + " and before " + (bound.empty() ? "the end" : name(bound)) +
                  ": a table of the index is damaged");
  (void)records_->scan(family::extents, first, bound, false, [&](std::string_view full, std::string_view) {
    if (full != first && !later_.contains(std::string(full))) lose(std::string(full), "its record is in a damaged table");
    return true;
  });
}

status salvage::each(const std::function<void(const std::string&, const value_record&)>& take) {
  const auto take_one = [&](const std::string& full, std::string_view raw) {
    if (const auto reason = doubtful_.find(full); reason != doubtful_.end()) return;
    const auto record = decode_value(raw);
    if (!record) return lose(full, "its record is damaged");
    take(full, *record);
  };
  const auto visit = [&](std::string_view full, std::string_view raw) {
    if (!later_.contains(std::string(full)) && !dropped_.contains(pool_of(full))) take_one(std::string(full), raw);
    return true;
  };
  std::string last;
  const status scanned = records_->scan(family::values, "", "", false, [&](std::string_view full, std::string_view raw) {
    last = full;
    return visit(full, raw);
  });
  if (is_shortage_or_full(scanned.code())) return scanned;  // no damage, and reading again may succeed
  if (!scanned) {
    // Reads backwards from the end to the damage, to find where reading can continue.
    std::string next;
    (void)records_->scan_back(family::values, last, [&](std::string_view full, std::string_view) {
      next = full;
      return true;
    });
    if (!next.empty()) (void)records_->scan(family::values, next, "", false, visit);
    report_gap(last, next);
    lost_.push_back(scanned.error().message);
  }
  for (const auto& [full, raw] : later_)
    if (raw) take_one(full, *raw);
  for (const auto& [full, reason] : doubtful_) lose(full, reason);
  return {};
}

status salvage::read(const value_record& record, const std::function<status(std::span<const std::byte>)>& take) {
  std::uint32_t crc = 0;
  if (!record.large()) {
    const auto bytes = std::as_bytes(std::span(record.small_value));
    crc = arch::crc32c(bytes.data(), bytes.size());
    if (crc != record.crc) return failure{EBADMSG, "its value in the index has another checksum"};
    return bytes.empty() ? status() : take(bytes);
  }
  for (const segment& piece : record.extents)
    if (!space_->has_file(piece)) return failure{EBADMSG, "its extent file is missing"};
  const std::unique_ptr<std::byte, block_free> memory(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kPartBytes)));
  std::uint64_t left = record.length_bytes;
  for (const segment& piece : record.extents) {
    for (std::uint64_t offset = 0; offset < piece.size_bytes && left > 0;) {
      const segment part{piece.offset_bytes + offset, std::min<std::uint64_t>(piece.size_bytes - offset, kPartBytes)};
      const std::span<std::byte> room(memory.get(), part.size_bytes);
      if (status got = files_.read(space_->blocks({&part, 1}, {&room, 1})); !got)
        return failure{is_shortage_or_full(got.code()) ? got.code() : EBADMSG,
                       "its extents cannot be read: " + got.error().message};
      const auto bytes = room.first(std::min(left, part.size_bytes));
      crc = arch::crc32c(bytes.data(), bytes.size(), crc);
      if (status taken = take(bytes); !taken) return taken;
      left -= bytes.size();
      offset += part.size_bytes;
    }
  }
  if (left != 0 || crc != record.crc) return failure{EBADMSG, "its value in the extents has another checksum"};
  return {};
}

}  // namespace pl::store
