// SPDX-License-Identifier: Apache-2.0
// Values that never lie in memory as a whole: they go to their extents and come back one window at a time. A writer or
// reader has two windows, so that one is filled or sent while the disk works on the other. engine::open_writer() and
// engine::open_reader() create them; both must be destroyed before their engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "store/engine/engine.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/pools.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;
constexpr int kMaxStreams = 16;  // writers and readers of an engine; bounds the memory of their windows

// One of kMaxStreams, given back by the destructor.
class stream_slot {
 public:
  explicit stream_slot(std::atomic<int>& open) : open_(open), taken_(open.fetch_add(1) < kMaxStreams) {}
  ~stream_slot() { open_.fetch_sub(1); }
  stream_slot(const stream_slot&) = delete;
  stream_slot& operator=(const stream_slot&) = delete;
  bool taken() const noexcept { return taken_; }

 private:
  std::atomic<int>& open_;
  bool taken_;
};
using stream_slot_ref = std::unique_ptr<stream_slot>;

// Mapped, so that it goes back to the system at once: the allocator's heaps, one for each thread, kept hundreds of
// megabytes of freed windows.
class window_memory {
 public:
  window_memory() = default;
  explicit window_memory(std::size_t bytes);  // is null if there is no memory
  ~window_memory();
  window_memory(window_memory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  window_memory& operator=(window_memory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* get() const noexcept { return memory_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// A value on its way to disk. Only one thread at a time may call room(), filled() and when_room(). A writer that is
// destroyed without a commit leaves nothing behind.
class value_writer : public std::enable_shared_from_this<value_writer> {
 public:
  value_writer(engine::impl& owner, pool_ref pool, std::string full, value_ref made, stream_slot_ref slot);

  // Where the value's next bytes go. Empty if there is no room yet, the value is complete, or the writer failed().
  std::span<std::byte> room();
  // This many bytes of room() now belong to the value.
  void filled(std::uint64_t bytes);
  // Returns true if a thread of the engine will call `callback` once, when there is room or the writer has failed; it
  // must not block. Returns false if room() should be checked again now.
  bool when_room(std::function<void()> callback);
  // The first failure: ENOSPC, EIO, EROFS, ESHUTDOWN.
  status failed() const;
  // Makes the written bytes the key's value, once they are on the medium (as options.level requires). `crc32c` is the
  // writer's and becomes the value's. EINVAL unless all bytes were filled. Otherwise like engine::commit_async. At most
  // once.
  void commit_async(const put_options& options, std::uint32_t crc32c, completion<put_result> done);

 private:
  void submit_window();
  status write_window(std::size_t window, std::uint64_t offset, std::uint64_t size);
  result<std::vector<segment>> extents_for(std::uint64_t offset, std::uint64_t size);
  void window_ended(std::size_t window, status outcome);
  void finish();

  engine::impl& owner_;
  const pool_ref pool_;
  const std::string full_;
  value_ref made_;
  const stream_slot_ref slot_;
  window_memory windows_[2];
  std::mutex growing_;  // guards made_->on_disk until finish()
  mutable std::mutex mutex_;
  std::size_t current_ = 0;
  bool busy_[2] = {false, false};
  std::uint64_t begun_bytes_ = 0, used_bytes_ = 0;  // handed to the disk; in the current window
  std::optional<failure> failed_;
  std::function<void()> callback_;
  struct ending {
    put_options options;
    completion<put_result> done;
  };
  std::optional<ending> ending_;
};

// A range of a value on its way from disk. One next() at a time.
class value_reader : public std::enable_shared_from_this<value_reader> {
 public:
  struct source {
    value_ref stored;                     // lies on disk
    std::shared_ptr<extents::held> kept;  // null: the value owns its extents
  };
  value_reader(engine::impl& owner, pool_ref pool, std::string full, source origin, std::uint64_t offset_bytes,
               std::uint64_t length_bytes, stream_slot_ref slot);

  value_info info() const { return source_.stored->info(); }
  // How many bytes next() returns in all.
  std::uint64_t range_bytes() const noexcept { return end_ - begin_; }
  // The range's next bytes, at most kWindowBytes; empty at its end. They stay valid until the call after the next one.
  // Blocking. A reader of the whole value gets EBADMSG instead of the last window if the checksum is wrong.
  result<std::span<const std::byte>> next();
  // The same on a thread of the engine. `done` must not call next().
  void next_async(completion<std::span<const std::byte>> done);
  // Reads the value once to verify its checksum. Blocking.
  status verify();

 private:
  result<std::span<const std::byte>> read(std::uint64_t offset, std::uint64_t bytes, window_memory& destination);

  engine::impl& owner_;
  const pool_ref pool_;
  const std::string full_;
  const source source_;
  const stream_slot_ref slot_;
  const std::uint64_t begin_, end_;
  std::uint64_t offset_;
  std::uint32_t crc_ = 0;
  window_memory windows_[2];
  std::size_t current_ = 0;
};

}  // namespace pl::store
