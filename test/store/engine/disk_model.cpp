// SPDX-License-Identifier: Apache-2.0
#include "test/store/engine/disk_model.hpp"

#include <fcntl.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#if defined(__SANITIZE_ADDRESS__)
// RocksDB 7.8 forgets the new memtable when the log that belongs to it cannot be made, on a full disk for example.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:rocksdb::DBImpl::SwitchMemtable\n"; }
#endif

namespace pl::store {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

IOStatus status_of(int error) {
  if (error == 0) return IOStatus::OK();
  if (error == ENOSPC) return IOStatus::NoSpace("the model says so");
  return IOStatus::IOError("the model says so", std::strerror(error));
}

class model_file final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  model_file(disk_model& model, std::string path, std::uint64_t number, std::uint64_t size,
             std::unique_ptr<rocksdb::FSWritableFile> real)
      : FSWritableFileOwnerWrapper(std::move(real)), model_(model), path_(std::move(path)), number_(number), size_(size) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options, IODebugContext* context) override {
    if (const int error = model_.asked("write", path_); error != 0) return status_of(error);
    model_.note({disk_event::kind::write, number_, {}, {}, size_, data.ToString()});
    size_ += data.size();
    return FSWritableFileOwnerWrapper::Append(data, options, context);
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* context) override {
    return Append(data, options, context);
  }
  IOStatus Truncate(std::uint64_t size, const IOOptions& options, IODebugContext* context) override {
    model_.note({disk_event::kind::truncate, number_, {}, {}, size, {}});
    size_ = size;
    return FSWritableFileOwnerWrapper::Truncate(size, options, context);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return note_sync(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return note_sync(); }
  IOStatus RangeSync(std::uint64_t, std::uint64_t, const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Allocate(std::uint64_t, std::uint64_t, const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  IOStatus note_sync() {
    if (const int error = model_.asked("sync", path_); error != 0) return status_of(error);
    model_.note({disk_event::kind::sync, number_, model_.relative(path_), {}, 0, {}});
    return IOStatus::OK();
  }

  disk_model& model_;
  std::string path_;
  std::uint64_t number_;
  std::uint64_t size_;
};

class model_folder final : public rocksdb::FSDirectory {
 public:
  explicit model_folder(disk_model& model) : model_(model) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    model_.note({disk_event::kind::sync_folder, 0, {}, {}, 0, {}});
    return IOStatus::OK();
  }

 private:
  disk_model& model_;
};

class model_files final : public rocksdb::FileSystemWrapper {
 public:
  explicit model_files(disk_model& model) : FileSystemWrapper(rocksdb::FileSystem::Default()), model_(model) {}
  const char* Name() const override { return "model"; }

  IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* made, IODebugContext* context) override {
    return open(path, true, made, [&](auto* real) { return target_->NewWritableFile(path, options, real, context); });
  }
  IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* made, IODebugContext* context) override {
    return open(path, false, made, [&](auto* real) { return target_->ReopenWritableFile(path, options, real, context); });
  }
  IOStatus NewDirectory(const std::string&, const IOOptions&, std::unique_ptr<rocksdb::FSDirectory>* made,
                        IODebugContext*) override {
    *made = std::make_unique<model_folder>(model_);
    return IOStatus::OK();
  }
  IOStatus RenameFile(const std::string& source, const std::string& target, const IOOptions& options,
                      IODebugContext* context) override {
    model_.note({disk_event::kind::rename, 0, model_.relative(source), model_.relative(target), 0, {}});
    return target_->RenameFile(source, target, options, context);
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options, IODebugContext* context) override {
    model_.note({disk_event::kind::remove, 0, model_.relative(path), {}, 0, {}});
    return target_->DeleteFile(path, options, context);
  }
  IOStatus LinkFile(const std::string&, const std::string&, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("the model has no links");
  }
  IOStatus ReuseWritableFile(const std::string&, const std::string&, const rocksdb::FileOptions&,
                             std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return IOStatus::NotSupported("the model reuses no files");
  }

 private:
  template <class Open>
  IOStatus open(const std::string& path, bool create, std::unique_ptr<rocksdb::FSWritableFile>* made,
                const Open& real_open) {
    if (const int error = model_.asked("allocate", path); error != 0) return status_of(error);
    std::unique_ptr<rocksdb::FSWritableFile> real;
    const IOStatus opened = real_open(&real);
    if (!opened.ok()) return opened;
    struct stat now {};
    const std::uint64_t size = !create && ::stat(path.c_str(), &now) == 0 ? static_cast<std::uint64_t>(now.st_size) : 0;
    *made = std::make_unique<model_file>(model_, path, model_.file_number(path, create), size, std::move(real));
    return IOStatus::OK();
  }
  disk_model& model_;
};

constexpr std::size_t kSectorBytes = 512;

// One file's contents: what is is_synced there, then draws for the rest.
class file_contents {
 public:
  void write(const disk_event& event, bool is_synced, unsigned percent, std::mt19937& random) {
    const std::uint64_t end = event.offset + event.data.size();
    for (std::uint64_t offset = event.offset; offset < end;) {
      const std::uint64_t next = std::min(end, (offset / kSectorBytes + 1) * kSectorBytes);
      if (is_synced || random() % 100 < percent)
        put(offset, std::string_view(event.data).substr(offset - event.offset, next - offset));
      offset = next;
    }
    if (!is_synced && random() % 2 == 0 && data_.size() < end) data_.resize(end);  // the length, without the bytes
  }
  void truncate(std::uint64_t size) { data_.resize(size); }
  std::string& data() { return data_; }

 private:
  void put(std::uint64_t offset, std::string_view bytes) {
    if (data_.size() < offset + bytes.size()) data_.resize(offset + bytes.size());
    data_.replace(offset, bytes.size(), bytes);
  }
  std::string data_;
};

// Different for all models, those of other processes too.
std::string next_boot() {
  static std::atomic<unsigned> made{0};
  return std::to_string(::getpid()) + "." + std::to_string(++made);
}

bool is_name_change(disk_event::kind type) {
  return type == disk_event::kind::create || type == disk_event::kind::rename || type == disk_event::kind::remove;
}

}  // namespace

disk_model::disk_model(std::string root, bool record) : root_(std::move(root) + "/"), record_(record), boot_(next_boot()) {
  env_ = rocksdb::NewCompositeEnv(std::make_shared<model_files>(*this));
}
disk_model::~disk_model() = default;

rocksdb::Env* disk_model::index_env() noexcept { return env_.get(); }

std::string disk_model::relative(const std::string& path) const {
  return path.starts_with(root_) ? path.substr(root_.size()) : path;
}

int disk_model::asked(std::string_view operation, const std::string& path) const {
  return refuse ? refuse(operation, relative(path)) : 0;
}

void disk_model::note(disk_event event) {
  if (!record_) return;
  if (event.type == disk_event::kind::sync && !lie_about.empty() && event.path.find(lie_about) != std::string::npos) return;
  std::lock_guard lock(mutex_);
  if (event.type == disk_event::kind::rename) {
    numbers_[event.target] = numbers_[event.path];
    numbers_.erase(event.path);
  }
  events_.push_back(std::move(event));
}

std::uint64_t disk_model::file_number(const std::string& path, bool create) {
  if (!record_) return 0;
  std::lock_guard lock(mutex_);
  std::uint64_t& number = numbers_[relative(path)];
  if (create || number == 0) {
    number = ++last_number_;
    events_.push_back({disk_event::kind::create, number, relative(path), {}, 0, {}});
  }
  return number;
}

result<int> disk_model::open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) {
  const bool fresh = !std::filesystem::exists(path);
  if (fresh) {
    if (const int error = asked("allocate", path); error != 0) return failure{error, path + ": the model says so"};
  }
  const int file = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC, 0600);
  if (file < 0) return failure{errno, path};
  const std::uint64_t number = file_number(path, fresh);
  if (fresh) {
    if (::ftruncate(file, static_cast<off_t>(size_bytes)) != 0) return failure{errno, path};
    note({disk_event::kind::truncate, number, {}, {}, size_bytes, {}});
    note({disk_event::kind::sync, number, {}, {}, 0, {}});
    note({disk_event::kind::sync_folder, 0, {}, {}, 0, {}});
  }
  std::lock_guard lock(mutex_);
  open_[file] = path;
  return file;
}

result<int> disk_model::open_cached(const std::string& path, std::uint64_t size_bytes) {
  return open_file(path, size_bytes, false);
}

status disk_model::write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) {
  const std::string path = [&] {
    std::lock_guard lock(mutex_);
    return open_[file];
  }();
  if (const int error = asked("write", path); error != 0) return failure{error, path + ": the model says so"};
  note({disk_event::kind::write, file_number(path, false), {}, {}, offset_bytes, std::string(bytes)});
  if (::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes)) != static_cast<ssize_t>(bytes.size()))
    return failure{errno, path};
  return {};
}

void disk_model::close_file(int file) noexcept {
  ::close(file);
  std::lock_guard lock(mutex_);
  open_.erase(file);
}

status disk_model::write(std::span<const block_io> blocks) {
  for (const block_io& block : blocks) {
    const std::string path = [&] {
      std::lock_guard lock(mutex_);
      return open_[block.file];
    }();
    if (const int error = asked("write", path); error != 0) return failure{error, path + ": the model says so"};
    note({disk_event::kind::write,
          file_number(path, false),
          {},
          {},
          block.offset_bytes,
          record_ ? std::string(reinterpret_cast<const char*>(block.data), block.size_bytes) : std::string()});
    if (::pwrite(block.file, block.data, block.size_bytes, static_cast<off_t>(block.offset_bytes)) !=
        static_cast<ssize_t>(block.size_bytes))
      return failure{errno, path};
  }
  return {};
}

status disk_model::read(std::span<const block_io> blocks) {
  for (const block_io& block : blocks) {
    if (const int error = asked("read", "extents"); error != 0) return failure{error, "the model says so"};
    if (::pread(block.file, block.data, block.size_bytes, static_cast<off_t>(block.offset_bytes)) !=
        static_cast<ssize_t>(block.size_bytes))
      return failure{EIO, "short read"};
  }
  return {};
}

status disk_model::sync(int file) {
  const std::string path = [&] {
    std::lock_guard lock(mutex_);
    return open_[file];
  }();
  if (const int error = asked("sync", path); error != 0) return failure{error, path + ": the model says so"};
  note({disk_event::kind::sync, file_number(path, false), relative(path), {}, 0, {}});
  return {};
}

result<std::uint64_t> disk_model::free_bytes(const std::string& path) {
  if (const int error = asked("free", path); error == ENOSPC) return std::uint64_t{0};
  return free;
}

result<std::uint64_t> disk_model::total_bytes(const std::string&) { return total; }

std::size_t disk_model::events() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

disk_model::image disk_model::crash(std::size_t cut, std::mt19937& random) const {
  std::lock_guard lock(mutex_);
  cut = std::min(cut, events_.size());
  std::map<std::uint64_t, std::size_t> synced;  // file -> its last sync
  std::size_t names_until = 0;
  for (std::size_t i = 0; i < cut; ++i) {
    if (events_[i].type == disk_event::kind::sync) synced[events_[i].file] = i;
    if (events_[i].type == disk_event::kind::sync || events_[i].type == disk_event::kind::sync_folder) names_until = i;
  }
  names_until += random() % (cut - names_until + 1);
  // Nothing, everything, or anything of what was not synced.
  constexpr unsigned kPercents[] = {0, 100, 50, 90, 10};
  const unsigned percent = kPercents[random() % std::size(kPercents)];

  std::map<std::string, std::uint64_t> names;
  std::map<std::uint64_t, file_contents> files;
  for (std::size_t i = 0; i < cut; ++i) {
    const disk_event& event = events_[i];
    if (is_name_change(event.type) && i >= names_until) continue;
    const auto last = synced.find(event.file);
    const bool is_synced = last != synced.end() && i < last->second;
    switch (event.type) {
      case disk_event::kind::create:
        names[event.path] = event.file;
        break;
      case disk_event::kind::remove:
        names.erase(event.path);
        break;
      case disk_event::kind::rename:
        names[event.target] = names[event.path];
        names.erase(event.path);
        break;
      case disk_event::kind::write:
        files[event.file].write(event, is_synced, percent, random);
        break;
      case disk_event::kind::truncate:
        if (is_synced || random() % 2 == 0) files[event.file].truncate(event.offset);
        break;
      case disk_event::kind::sync:
      case disk_event::kind::sync_folder:
        break;
    }
  }
  image made;
  for (const auto& [name, number] : names) made[name] = files[number].data();
  return made;
}

void write_image(const disk_model::image& snapshot, const std::string& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/extents");
  std::filesystem::create_directories(folder + "/index");
  for (const auto& [name, data] : snapshot) {
    std::ofstream file(folder + "/" + name, std::ios::binary);
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
  }
}

}  // namespace pl::store
