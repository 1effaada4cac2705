// SPDX-License-Identifier: Apache-2.0
// The files of large values as the engine sees them: whole blocks at block-aligned offsets, written past the page
// cache, and a sync that says when they are safe. Every write of the engine goes through this class or through
// index_env(), so a test that replaces both can see, lose, tear, reorder or refuse every write.
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
  std::byte* data = nullptr;       // aligned to kBlockBytes; write() does not modify it
  std::uint64_t size_bytes = 0;
};

// Whole blocks of memory for disk I/O, for values that share a block in the arena.
class block_buffer {
 public:
  explicit block_buffer(std::size_t blocks)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, std::max<std::size_t>(blocks, 1) * kBlockBytes))) {}
  // False if the allocation failed.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  std::span<std::byte> block(std::size_t number) const noexcept { return {data_.get() + number * kBlockBytes, kBlockBytes}; }

 private:
  struct release {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, release> data_;
};

// Tells a write which of its blocks, counted from the front, already hold their bytes.
class block_gate {
 public:
  virtual ~block_gate() = default;
  // Returns how many blocks are ready. With `wait`, blocks until there are more than `passed` (which is less than all
  // of them); returning `passed` then means that no more will come. Called by the thread that writes.
  virtual std::size_t ready(std::size_t passed, bool wait) = 0;
};

// All calls may be made from any thread, and each blocks until its work is done. Failures carry the system's errno.
class disk {
 public:
  virtual ~disk() = default;
  // Opens `path`. Unless `read_only`, creates it if absent and durably allocates `size_bytes` (ENOSPC).
  virtual result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) = 0;
  // The same for a file of a few blocks that is written through the page cache. What is written survives the end of the
  // process, and a loss of power once sync() has returned.
  virtual result<int> open_cached(const std::string& path, std::uint64_t size_bytes) = 0;
  virtual status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) = 0;
  virtual void close_file(int file) noexcept = 0;
  virtual status write(std::span<const block_io> blocks) = 0;
  // The same for blocks whose bytes are still arriving. A block is read only once it is ready, and after a failure none
  // is waited for. The default calls write() for the blocks that are ready, and repeats. ECANCELED if some did not
  // come.
  virtual status write_when_ready(std::span<const block_io> blocks, block_gate& gate);
  virtual status read(std::span<const block_io> blocks) = 0;
  // Everything written to the file before the call is on the medium when it returns.
  virtual status sync(int file) = 0;
  // Bytes that the file system of `path` can still allocate to files.
  virtual result<std::uint64_t> free_bytes(const std::string& path) = 0;
  // Size of the whole file system.
  virtual result<std::uint64_t> total_bytes(const std::string& path) = 0;
  // Changes whenever power may have been lost, and with it what was not synced.
  virtual std::string boot_id() = 0;
  // Where the index keeps its files. Null means RocksDB's default. The disk owns it.
  virtual rocksdb::Env* index_env() noexcept { return nullptr; }
};

// The system's files: O_DIRECT through io_uring, with many blocks in flight. If a file system has no O_DIRECT or the
// kernel no io_uring, this uses the page cache or plain calls, and logs that once.
//
// Staging: data to be written is first copied into huge pages, 32 MiB for each of two concurrent writes (a third does
// without). A virtual machine's disk (virtio) takes memory in physically contiguous pieces, and scattered pages of 4
// KiB cost it more than the copy does: it wrote 128 MiB at 2.1 GB/s from such pages, and at 3.7 GB/s from huge pages.
enum class staging : std::uint8_t { by_device, never, always };  // by_device: only on virtio
std::unique_ptr<disk> make_system_disk(staging mode = staging::by_device);

}  // namespace pl::store
