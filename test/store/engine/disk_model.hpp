// SPDX-License-Identifier: Apache-2.0
// A disk that remembers every write, sync and change of names, of extents and of the index alike, and can say what might be
// left of it after power was lost at any of these moments. It can also refuse to work.
//
// What a crash may leave (the promises of ext4 and XFS, no more):
//   * what was written to a file before its last sync is there;
//   * of what was written since, each sector of 512 bytes may be there or not, independent of order;
//   * changes of names happen in order; those before any sync are there, of later ones some first few;
//   * a file that grew without a sync may have its new length with zeros in it, or not.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/disk.hpp"

namespace pl::store {

struct disk_event {
  enum class kind : std::uint8_t { create, write, truncate, sync, rename, remove, sync_folder } type = kind::write;
  std::uint64_t file = 0;  // number of the file, whatever its name
  std::string path;        // create, rename (from), remove; relative to the root
  std::string target;      // rename
  std::uint64_t offset = 0;
  std::string data;
};

class disk_model final : public disk {
 public:
  // Keeps real files under `root`, without ever syncing them: the model says what is durable.
  explicit disk_model(std::string root, bool record);
  ~disk_model() override;

  result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) override;
  result<int> open_cached(const std::string& path, std::uint64_t size_bytes) override;
  status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) override;
  void close_file(int file) noexcept override;
  status write(std::span<const block_io> blocks) override;
  status read(std::span<const block_io> blocks) override;
  status sync(int file) override;
  result<std::uint64_t> free_bytes(const std::string& path) override;
  result<std::uint64_t> total_bytes(const std::string& path) override;
  std::string boot_id() override { return boot_; }  // each model is a boot of its own
  rocksdb::Env* index_env() noexcept override;

  std::size_t events() const;
  // The files that remain when power is lost before event number `cut`, drawn by `random`: file name -> contents.
  using image = std::map<std::string, std::string>;
  image crash(std::size_t cut, std::mt19937& random) const;

  // Asked before each operation ("write", "sync", "read", "allocate"; path relative to the root): the errno it fails with,
  // 0: none. Set while nothing is under way.
  std::function<int(std::string_view operation, std::string_view path)> refuse;
  // Syncs of files whose path holds this do nothing: a disk that lies. Empty: none.
  std::string lie_about;

  // What free_bytes() and total_bytes() say.
  std::uint64_t free = std::uint64_t{1} << 40, total = std::uint64_t{1} << 40;

  // For the index's file system.
  int asked(std::string_view operation, const std::string& path) const;
  void note(disk_event event);
  std::uint64_t file_number(const std::string& path, bool create);
  std::string relative(const std::string& path) const;

 private:
  const std::string root_;
  const bool record_;
  const std::string boot_;
  mutable std::mutex mutex_;
  std::vector<disk_event> events_;
  std::map<std::string, std::uint64_t> numbers_;  // of the names of now
  std::uint64_t last_number_ = 0;
  std::map<int, std::string> open_;
  std::unique_ptr<rocksdb::Env> env_;
};

// Writes an image to a folder.
void write_image(const disk_model::image& snapshot, const std::string& folder);

}  // namespace pl::store
