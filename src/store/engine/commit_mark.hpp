// SPDX-License-Identifier: Apache-2.0
// How far the index's log was written and synced, kept outside of the log: DIR/commit.mark. Recovery that ends before this
// point has lost acknowledged changes, which the log alone cannot tell from its torn end.
//
// The file has two slots that are written in turns, so one damaged slot leaves the state before. Notes go through the page
// cache: they are exact after the process dies, and at most one second old after loss of power.
// A clean stop is a state of its own: it seals the index's files by size and checksum.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/disk.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

// A file of the index as a clean stop left it.
struct file_seal {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc = 0;
  bool operator==(const file_seal&) const = default;
};
// Of the file as it is now. ENOENT.
result<file_seal> seal_of(const std::string& folder, const std::string& name);

struct mark_state {
  std::uint64_t generation = 0;
  bool is_clean = false;         // stopped cleanly, `files` is complete
  std::string boot;              // disk::boot_id() of the writer
  std::uint64_t written = 0;     // sequence number of the index that was written ...
  std::uint64_t synced = 0;      // ... and that was on the medium, at least
  std::vector<file_seal> files;  // of a clean stop: CURRENT, the manifest, logs that hold something
  // Up to where recovery must come: all that was written if the system has run on since, else all that was synced.
  std::uint64_t required(const std::string& boot_now) const {
    return !boot.empty() && boot == boot_now ? std::max(written, synced) : synced;
  }
  const file_seal* find(std::string_view name) const;
};
std::string encode(const mark_state& state);
std::optional<mark_state> decode_mark(std::string_view slot);

class commit_mark {
 public:
  static constexpr std::size_t kSlotBytes = 4096;
  // The newest good state. Nothing: no file, or no good slot in it (a store of an earlier release, or damage).
  static std::optional<mark_state> read(const std::string& path);
  // Makes the file if it is absent; `first` is durable when this returns.
  static result<std::unique_ptr<commit_mark>> open(const std::string& path, disk& files, mark_state first);
  ~commit_mark();
  commit_mark(const commit_mark&) = delete;
  commit_mark& operator=(const commit_mark&) = delete;

  // Both only grow. Durable by a later sync(), which note() itself does once in a while if `synced` grew.
  status note(std::uint64_t written, std::uint64_t synced);
  std::uint64_t synced() const;
  // Whether sync() would make more durable than is.
  bool is_dirty() const;
  status sync();
  // Durable when this returns, in both slots. ENAMETOOLONG: the list is longer than a slot; the mark stays unclean.
  status seal(std::vector<file_seal> sealed);

 private:
  commit_mark(disk& files, int file, mark_state now) : files_(files), file_(file), now_(std::move(now)) {}
  status write_locked();
  status sync_locked();

  disk& files_;
  const int file_;
  mutable std::mutex mutex_;
  mark_state now_;
  std::uint64_t durable_synced_ = 0;
  std::uint64_t synced_at_ns_ = 0;
};

}  // namespace pl::store
