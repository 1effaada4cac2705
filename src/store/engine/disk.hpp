// SPDX-License-Identifier: Apache-2.0
// The files that large values lie in, as the engine sees them: whole blocks at whole-block offsets, written past the page
// cache, and a sync that says when they are safe. Everything the engine writes goes through here or through index_env(), so
// a test that replaces both sees (and can lose, tear, reorder or refuse) every write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/types.hpp"

namespace rocksdb {
class Env;
}

namespace pl::store {

struct block_io {
  int file = -1;                   // from disk::open_file
  std::uint64_t offset_bytes = 0;  // multiple of kBlockBytes, and so is the size
  std::byte* data = nullptr;       // aligned to kBlockBytes; not written to by write()
  std::uint64_t size_bytes = 0;
};

// Whole blocks of memory that a disk can read and write: for values that share a block in the arena.
class block_buffer {
 public:
  explicit block_buffer(std::size_t blocks)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, std::max<std::size_t>(blocks, 1) * kBlockBytes))) {}
  // Empty: there is no memory.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  std::span<std::byte> block(std::size_t number) const noexcept { return {data_.get() + number * kBlockBytes, kBlockBytes}; }

 private:
  struct release {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, release> data_;
};

// Which of the blocks given to a write hold their bytes already, counted from the front.
class block_gate {
 public:
  virtual ~block_gate() = default;
  // How many are ready. `wait`: more than `passed`, which is less than all of them, or as many: no more will come. Called by
  // the thread that writes.
  virtual std::size_t ready(std::size_t passed, bool wait) = 0;
};

// All calls from any thread; each blocks until what it does is done. Failures carry the errno that the system gave.
class disk {
 public:
  virtual ~disk() = default;
  // Opens `path`. Not read-only: makes it if absent and sees to it that `size_bytes` are allocated (ENOSPC), durably.
  virtual result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) = 0;
  // The same for a file of a few blocks that is written through the page cache: what is written survives the process, and
  // loss of power when sync() has returned.
  virtual result<int> open_cached(const std::string& path, std::uint64_t size_bytes) = 0;
  virtual status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) = 0;
  virtual void close_file(int file) noexcept = 0;
  virtual status write(std::span<const block_io> blocks) = 0;
  // The same for blocks whose bytes are still coming. One that is not ready is not read, and after a failure none is
  // waited for. By default: write() for those that are ready, and again. ECANCELED: some did not come.
  virtual status write_when_ready(std::span<const block_io> blocks, block_gate& gate);
  virtual status read(std::span<const block_io> blocks) = 0;
  // What was written to the file before the call is on the medium after it.
  virtual status sync(int file) = 0;
  // Bytes that the file system of `path` can still give to files.
  virtual result<std::uint64_t> free_bytes(const std::string& path) = 0;
  // Of the file system as a whole.
  virtual result<std::uint64_t> total_bytes(const std::string& path) = 0;
  // Another one after power was lost, when what was not synced may be gone.
  virtual std::string boot_id() = 0;
  // Where the index keeps its files; null: RocksDB's default. Owned by the disk.
  virtual rocksdb::Env* index_env() noexcept { return nullptr; }
};

// The system's files: O_DIRECT through io_uring, many blocks under way at once. Where a file system has no O_DIRECT or the
// kernel no io_uring, the page cache or plain calls are used, and the log says so once.
//
// Staging: what is written is copied first into huge pages, 32 MiB for each of two writes under way (a third does without).
// A virtual machine's disk (virtio) takes memory piece by piece, and pages of 4 KiB that do not happen to lie side by side
// cost it more than the copy does: 128 MiB in such pages were written at 2.1 GB/s, from huge pages at 3.7.
enum class staging : std::uint8_t { by_device, never, always };  // by_device: on virtio
std::unique_ptr<disk> make_system_disk(staging mode = staging::by_device);

}  // namespace pl::store
