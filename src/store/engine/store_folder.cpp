// SPDX-License-Identifier: Apache-2.0
#include "store/engine/store_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <system_error>

#include "arch/crc32c.hpp"
#include "base/folder_list.hpp"
#include "base/regular_file.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "store/engine/bytes.hpp"
#include "store/engine/commit_mark.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/path_failure.hpp"
#include "store/engine/salvage.hpp"
#include "store/engine/sparse_file.hpp"
#include "store/engine/value_stream.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kArenaBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxInFlight = 256;  // concurrent puts of a repair
constexpr const char* kListName = "backup.list";
constexpr const char* kUnfinishedName = "/unfinished";

engine_options options_of(const std::string& folder, disk* files, bool read_only) {
  engine_options made;
  made.directory = folder;
  made.arena_bytes = made.chunk_bytes = kArenaBytes;
  made.read_only = read_only;
  made.disk_reserve_bytes = 0;
  made.files = files;
  return made;
}

// Keeps a store from opening the folder for writing.
class folder_lock {
 public:
  static result<folder_lock> take(const std::string& folder) {
    const auto file = open_regular_file(folder + "/lock", O_RDONLY);
    if (file.code() == ENOENT) return folder_lock(-1);
    if (!file) return path_failure(folder + "/lock", file.error());
    if (::flock(*file, LOCK_SH | LOCK_NB) == 0) return folder_lock(*file);
    const int error = errno;
    ::close(*file);
    return failure{error == EWOULDBLOCK ? EBUSY : error, "store: " + folder + ": a store has it open; stop it first"};
  }
  folder_lock(folder_lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  folder_lock& operator=(folder_lock&&) = delete;
  ~folder_lock() {
    if (file_ >= 0) ::close(file_);
  }

 private:
  explicit folder_lock(int file) : file_(file) {}
  int file_;
};

status need_folder(const std::string& folder) {
  if (status whole = need_finished(folder); !whole) return whole;
  std::error_code error;
  if (fs::is_directory(folder + "/index", error)) return {};
  if (error && error != std::errc::no_such_file_or_directory)
    return failure{error.value(), "store: " + folder + "/index: " + errno_text(error.value())};
  return failure{ENOENT, "store: " + folder + " does not contain a store"};
}

// A target within the source would become part of it, and be deleted with it.
status need_outside(const std::string& source, const std::string& target) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(target, error);
  if (error) return failure{error.value(), "store: " + target + ": " + error.message()};
  const fs::path outer = fs::weakly_canonical(source, error);
  if (error) return failure{error.value(), "store: " + source + ": " + error.message()};
  if (std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) return {};
  return failure{EINVAL, "store: " + target + " is " + source + " or is inside it: name a directory outside"};
}

status need_empty(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return failure{error.value(), "store: " + folder + ": " + error.message()};
  if (status whole = need_finished(folder); !whole) return whole;  // the command again, after it was interrupted
  const bool is_empty = fs::is_empty(folder, error);
  if (error) return failure{error.value(), "store: " + folder + ": " + error.message()};
  if (!is_empty) return failure{ENOTEMPTY, "store: " + folder + " is not empty: name another one"};
  fs::permissions(folder, fs::perms::owner_all, error);
  // The mark shows that a process ended before its work was complete, and lets two concurrent processes notice each
  // other.
  const int mark = ::open((folder + kUnfinishedName).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (mark < 0) return failure{errno, "store: " + folder + kUnfinishedName + ": " + errno_text(errno)};
  ::close(mark);
  return {};
}

// Removes everything from a folder that we created. The mark goes last: a process that is killed before leaves a part of a
// store, which must not be opened. It stays if something else does.
void empty(const std::string& folder) {
  const auto files = list_folder(folder);
  bool is_clear = files.ok();
  std::error_code error;
  if (files)
    for (const auto& one : *files)
      if (one.filename() != kUnfinishedName + 1) {
        fs::remove_all(one, error);
        is_clear = is_clear && !error;
      }
  if (is_clear) fs::remove(folder + kUnfinishedName, error);
}

// A full disk of temporary files, or too few descriptors, says nothing about the store: a good one would pass for damaged.
bool is_damage(const status& found) { return !found && !is_shortage_or_full(found.code()); }

status check_values(const std::string& folder, disk& files, folder_report& findings) {
  auto source = salvage::open(folder, files);
  if (!source) {
    const status opened = source.error();
    if (is_damage(opened)) findings.problems.push_back(source.error().message);
    return is_damage(opened) ? status() : opened;
  }
  status shortage;
  status read = (*source)->each([&](const std::string& full, const value_record& record) {
    if (!shortage) return;
    ++findings.keys;
    const status got = (*source)->read(record, [&](std::span<const std::byte> part) {
      findings.bytes_read += part.size();
      return status();
    });
    if (got) ++findings.values_read;
    else if (is_damage(got)) (*source)->lose(full, got.error().message);
    else shortage = got;
  });
  if (!shortage) return shortage;
  if (!read && !is_damage(read)) return read;
  if (status same = (*source)->verify_tables(); !same) {
    if (!is_damage(same)) return same;
    findings.problems.push_back(same.error().message);
  }
  findings.problems.insert(findings.problems.end(), (*source)->lost().begin(), (*source)->lost().end());
  if (!read) findings.problems.push_back(read.error().message);
  return {};
}

status sync_path(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failure{errno, path.string() + ": " + errno_text(errno)};
  const int done = ::fsync(file);
  const int error = errno;
  ::close(file);
  return done == 0 ? status() : status(failure{error, "fsync of " + path.string() + ": " + errno_text(error)});
}

// Makes everything in the folder durable.
status finish(const std::string& folder) {
  if (status done = sync_path(folder); !done) return done;
  if (::unlink((folder + kUnfinishedName).c_str()) != 0)
    return failure{errno, "store: " + folder + kUnfinishedName + ": " + errno_text(errno)};
  return sync_path(folder);
}

// Returns 0, or the errno that kept part of it from being written. A disk that becomes full first takes a part.
int write_all(int file, std::string_view data, off_t offset) {
  while (!data.empty()) {
    const ssize_t done = ::pwrite(file, data.data(), data.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? errno : ENOSPC;
    data.remove_prefix(static_cast<std::size_t>(done));
    offset += done;
  }
  return 0;
}

// The text is durable on return.
status write_text(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return failure{errno, "store: " + path + ": " + errno_text(errno)};
  int error = write_all(file, text, 0);
  if (error == 0 && ::fsync(file) != 0) error = errno;
  ::close(file);
  return error == 0 ? status() : status(failure{error, "store: " + path + ": " + errno_text(error)});
}

// Copies with holes, because extent files are mostly empty. The copy is durable on return.
status copy_sparse(const fs::path& source, const fs::path& target) {
  const auto opened = open_regular_file(source, O_RDONLY);
  if (!opened) return failure{opened.code(), source.string() + ": " + opened.error().message};
  const int input = *opened;
  stop_readahead(input);
  const int out = ::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  status outcome;
  if (out < 0) outcome = failure{errno, target.string() + ": " + errno_text(errno)};
  std::vector<char> part(std::size_t{1} << 20);
  off_t offset = 0;
  while (outcome) {
    offset = find_data(input, offset);
    const ssize_t got = ::pread(input, part.data(), part.size(), offset);
    if (got < 0) outcome = failure{errno, source.string() + ": " + errno_text(errno)};
    if (got <= 0) break;
    const bool is_hole = std::all_of(part.begin(), part.begin() + got, [](char one) { return one == 0; });
    const int error = is_hole ? 0 : write_all(out, {part.data(), static_cast<std::size_t>(got)}, offset);
    if (error != 0) outcome = failure{error, target.string() + ": " + errno_text(error)};
    offset += got;
  }
  if (outcome && (::ftruncate(out, offset) != 0 || ::fsync(out) != 0))
    outcome = failure{errno, target.string() + ": " + errno_text(errno)};
  ::close(input);
  if (out >= 0) ::close(out);
  return outcome;
}

// The store's own files, without the lock, sockets and foreign files.
result<std::vector<fs::path>> files_of(const std::string& folder) {
  std::vector<fs::path> names{"commit.mark", "manifest.copy"}, out;
  for (const char* part : {"index", "extents"}) {
    const std::string path = folder + "/" + part;
    const auto files = list_folder(path);
    if (files.code() == ENOENT) continue;
    if (!files) return path_failure(path, files.error());
    for (const auto& one : *files) {
      const std::string file = one.filename().string();
      if (file != "LOCK" && !file.starts_with("LOG")) names.push_back(fs::path(part) / file);
    }
  }
  for (const fs::path& name : names) {
    const auto known = has_regular_file(folder / name);
    if (!known) return path_failure((folder / name).string(), known.error());
    if (*known) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

status copy_files(const std::string& source, const std::string& target) {
  std::error_code error;
  fs::create_directories(target + "/index", error);
  if (!error) fs::create_directories(target + "/extents", error);
  if (error) return failure{error.value(), "store: " + target + ": " + error.message()};
  const auto files = files_of(source);
  if (!files) return files.error();
  for (const fs::path& name : *files) {
    if (status done = copy_sparse(source / name, target / name); !done)
      return failure{done.code(), "store: " + done.error().message};
  }
  for (const char* name : {"/index", "/extents", ""})
    if (status done = sync_path(target + name); !done) return done;
  return {};
}

// One line per file with name, size and checksum, and the checksum of the list itself.
result<std::string> list_of(const std::string& folder) {
  std::string out;
  const auto files = files_of(folder);
  if (!files) return files.error();
  for (const fs::path& name : *files) {
    const auto one = seal_of(folder, name.string());
    if (!one) return one.error();
    out += format("%08x %llu %s\n", one->crc, static_cast<unsigned long long>(one->size_bytes), name.c_str());
  }
  return out;
}

// A copy of the folder must not pass for the original.
status give_new_identity(const std::string& folder, disk& files) {
  auto opened = index::open({folder + "/index", std::uint64_t{8} << 20, false, files.index_env(), folder + "/commit.mark",
                             &files, true, ~std::uint64_t{0}});
  if (!opened) return opened.error();
  const auto stored = (*opened)->get(family::catalogue, "f");
  auto form = stored && *stored ? decode_format(**stored) : std::nullopt;
  if (!form) return failure{EUCLEAN, "store: " + folder + ": the record of the layout cannot be read"};
  std::random_device random;
  form->id_high = std::uint64_t{random()} << 32 | random();
  rocksdb::WriteBatch batch;
  (*opened)->put(batch, family::catalogue, "f", encode(*form));
  if (status written = (*opened)->write(batch, true); !written) return written;
  const auto free = files.free_bytes(folder);
  return (*opened)->prepare_stop(free ? *free : 0);
}

// Puts values into the new store, many at a time.
class refill {
 public:
  refill(salvage& source, engine& target, repair_report& report, bool with_owners)
      : source_(source), target_(target), report_(report), with_owners_(with_owners) {}

  status make_pools() {
    for (const pool_info& pool : source_.pools()) {
      const auto made = target_.create_pool(pool.name, pool.options);
      if (!made) return made.error();
      pools_[pool.id] = made->id;
    }
    return {};
  }

  status run() {
    status read = source_.each([this](const std::string& full, const value_record& record) {
      if (!outcome_) return;
      // Reads a value to its end first, because only a good value may be put.
      const status good = source_.read(record, [](std::span<const std::byte>) { return status(); });
      if (is_damage(good)) return source_.lose(full, good.error().message);
      outcome_ = good ? put(full, record) : good;
    });
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return in_flight_ == 0; });
    return !read ? read : !outcome_ ? outcome_ : failed_;
  }

 private:
  result<pool_id> pool_for(pool_id old) {
    const auto known = pools_.find(old);
    if (known != pools_.end()) return known->second;
    // The pool's record is lost, its values are not.
    const auto made = target_.create_pool(format("recovered-%u", old), {});
    if (!made) return made.error();
    pools_[old] = made->id;
    return made->id;
  }

  owner_id owner_for(owner_id old) {
    if (old == 0 || !with_owners_) return 0;
    const auto name = source_.owners().find(old);
    if (name != source_.owners().end()) return target_.need_owner(name->second);
    if (nameless_.insert(old).second) source_.lose_owner(old);
    return 0;
  }

  status put(const std::string& full, const value_record& record) {
    const auto pool = pool_for(pool_of(full));
    if (!pool) return pool.error();
    put_options settings;
    settings.level = std::max(record.level, durability::logged);
    settings.user_flags = record.user_flags;
    settings.copy.version = record.version;
    settings.owner = owner_for(record.owner);
    if (record.length_bytes > salvage::kPartBytes) return put_long(*pool, full, record, settings);
    std::vector<std::byte> value;
    const status read = source_.read(record, [&](std::span<const std::byte> part) {
      value.insert(value.end(), part.begin(), part.end());
      return status();
    });
    if (!read) return not_read_again(full, read);
    count_saved(record);
    {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return in_flight_ < kMaxInFlight; });
      ++in_flight_;
    }
    target_.put_async(*pool, key_of(full), value, settings, [this](const result<put_result>& done) {
      const std::lock_guard lock(mutex_);
      if (!done && failed_) failed_ = done.error();
      --in_flight_;
      ended_.notify_all();
    });
    return {};
  }

  // The first read was good, so the disk is failing: the value is lost unless it was only short of something.
  status not_read_again(const std::string& full, const status& read) {
    if (!is_damage(read)) return read;
    source_.lose(full, read.error().message);
    return {};
  }

  void count_saved(const value_record& record) {
    ++report_.saved_keys;
    report_.saved_bytes += record.length_bytes;
  }

  status put_long(pool_id pool, const std::string& full, const value_record& record, const put_options& settings) {
    const auto writer = target_.open_writer(pool, key_of(full), record.length_bytes);
    if (!writer) return writer.error();
    status written;
    status read = source_.read(record, [&](std::span<const std::byte> part) {
      while (!part.empty()) {
        const auto room = (*writer)->room();
        const auto now = part.first(std::min(part.size(), room.size()));
        std::copy(now.begin(), now.end(), room.begin());
        if (!now.empty()) (*writer)->filled(now.size());
        part = part.subspan(now.size());
        if (!now.empty()) continue;
        if (written = (*writer)->failed(); !written) return written;
        std::promise<void> seen;
        if ((*writer)->when_room([&seen] { seen.set_value(); })) seen.get_future().wait();
      }
      return status();
    });
    if (!read) return written ? not_read_again(full, read) : written;
    count_saved(record);
    std::promise<status> answer;
    (*writer)->commit_async(settings, record.crc, [&](const result<put_result>& done) {
      answer.set_value(done ? status() : status(done.error()));
    });
    return answer.get_future().get();
  }

  salvage& source_;
  engine& target_;
  repair_report& report_;
  const bool with_owners_;
  std::set<owner_id> nameless_;
  std::map<pool_id, pool_id> pools_;
  status outcome_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t in_flight_ = 0;
  status failed_;
};

struct disk_choice {
  explicit disk_choice(disk* given) : own(given == nullptr ? make_system_disk() : nullptr), use(own ? *own : *given) {}
  std::unique_ptr<disk> own;
  disk& use;
};

result<folder_report> check_files(const std::string& folder, disk* files) {
  const auto lock = folder_lock::take(folder);
  if (!lock) return lock.error();
  const disk_choice disks(files);
  folder_report report;
  auto opened = engine::open(options_of(folder, &disks.use, true));
  report.opens = opened.ok();
  if (!opened) {
    if (!is_damage(opened.error())) return opened.error();
    report.problems.push_back(opened.error().message);
  } else {
    // This checks structures only; values are read below, including those that the index does not lead to.
    auto checked = (*opened)->check(false);
    if (!checked && !is_damage(checked.error())) return checked.error();
    if (!checked) report.problems.push_back(checked.error().message);
    else
      for (std::string& one : checked->problems)
        if (one.find("is lost: ") == std::string::npos) report.problems.push_back(std::move(one));
    opened->reset();
  }
  if (status checked = check_values(folder, disks.use, report); !checked) return std::move(checked).error();
  return report;
}

}  // namespace

status need_finished(const std::string& folder) {
  if (::access((folder + kUnfinishedName).c_str(), F_OK) != 0) return {};
  return failure{EUCLEAN, "store: a backup, restore or repair into " + folder +
                              " has not finished, or was interrupted: remove the folder, and repeat it"};
}

result<folder_report> check_folder(const std::string& folder, disk* files) {
  if (status usable = need_folder(folder); !usable) return std::move(usable).error();
  return check_files(folder, files);
}

result<repair_report> repair_folder(const std::string& folder, const std::string& target, disk* files, bool with_owners) {
  if (status usable = need_folder(folder); !usable) return std::move(usable).error();
  const auto lock = folder_lock::take(folder);
  if (!lock) return lock.error();
  if (status apart = need_outside(folder, target); !apart) return std::move(apart).error();
  if (status room = need_empty(target); !room) return std::move(room).error();
  const disk_choice disks(files);
  auto source = salvage::open(folder, disks.use);
  if (!source) return empty(target), source.error();
  engine_options settings = options_of(target, &disks.use, false);
  settings.extent_file_bytes = (*source)->extent_file_bytes();
  auto made = engine::open(settings);
  if (!made) return empty(target), made.error();
  repair_report report;
  refill transfer(**source, **made, report, with_owners);
  status done = transfer.make_pools();
  if (done) done = transfer.run();
  if (done) done = (*made)->close();
  made->reset();
  if (done) done = finish(target);
  if (!done) {
    empty(target);
    return std::move(done).error();
  }
  report.lost = (*source)->lost();
  return report;
}

result<folder_report> backup_folder(const std::string& folder, const std::string& target, disk* files) {
  if (status usable = need_folder(folder); !usable) return std::move(usable).error();
  const auto lock = folder_lock::take(folder);
  if (!lock) return lock.error();
  if (status apart = need_outside(folder, target); !apart) return std::move(apart).error();
  if (status room = need_empty(target); !room) return std::move(room).error();
  const auto give_up = [&](const failure& reason) {
    empty(target);
    return reason;
  };
  if (status copied = copy_files(folder, target); !copied) return give_up(copied.error());
  auto report = check_files(target, files);
  if (!report) return give_up(report.error());
  if (!report->is_good())
    return give_up({EUCLEAN, "store: " + folder + " is damaged, and a copy of it would be no backup: " +
                                 report->problems.front() + "; `store check` lists all of it"});
  const auto list = list_of(target);
  if (!list) return give_up(list.error());
  const std::string sealed = *list + format("%08x\n", arch::crc32c(list->data(), list->size()));
  if (status done = write_text(target + "/" + kListName, sealed); !done) return give_up(done.error());
  if (status done = finish(target); !done) return give_up(done.error());
  return report;
}

result<folder_report> restore_folder(const std::string& backup, const std::string& target, disk* files) {
  if (status whole = need_finished(backup); !whole) return std::move(whole).error();
  if (status regular = need_regular_file(backup + "/" + kListName); !regular)
    return path_failure(backup + "/" + kListName, regular.error());
  const auto said = read_whole_file(backup + "/" + kListName);
  if (said.code() == ENOENT) return failure{ENOENT, "store: " + backup + " is not a backup: it has no " + kListName};
  if (!said) return path_failure(backup + "/" + kListName, said.error());
  const auto now = list_of(backup);
  if (!now) return now.error();
  if (*said != *now + format("%08x\n", arch::crc32c(now->data(), now->size())))
    return failure{EUCLEAN, "store: the files of " + backup + " are not those of its " + kListName +
                                ": the backup is damaged; take another one, or `store repair` it"};
  if (status apart = need_outside(backup, target); !apart) return std::move(apart).error();
  if (status room = need_empty(target); !room) return std::move(room).error();
  const auto give_up = [&](const failure& reason) {
    empty(target);
    return reason;
  };
  if (status copied = copy_files(backup, target); !copied) return give_up(copied.error());
  auto report = check_files(target, files);
  if (!report) return give_up(report.error());
  if (!report->is_good())
    return give_up({EUCLEAN, "store: " + backup + ": the restored copy is damaged: " + report->problems.front()});
  const disk_choice disks(files);
  if (status named = give_new_identity(target, disks.use); !named) return give_up(named.error());
  if (status done = finish(target); !done) return give_up(done.error());
  return report;
}

}  // namespace pl::store
