// SPDX-License-Identifier: Apache-2.0
// DIR/commit.mark: how far the index's log was written and synced, kept outside of the log. If recovery ends before
// this point, acknowledged changes are lost; the log alone cannot tell that from its own torn end.
//
// The file has two slots that are written alternately, so that a damaged slot leaves the previous state. Notes go
// through the page cache: they are exact after the process dies, and at most one second old after a loss of power. A
// clean stop is a state of its own, which seals the index's files by size and checksum.
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
// The seal of the file as it is now. ENOENT if there is none.
result<file_seal> seal_of(const std::string& folder, const std::string& name);

struct mark_state {
  std::uint64_t generation = 0;
  bool is_clean = false;         // the store stopped cleanly, and `files` is complete
  std::string boot;              // disk::boot_id() of the writer
  std::uint64_t written = 0;     // sequence number up to which the index was written
  std::uint64_t synced = 0;      // sequence number up to which it is at least on the medium
  std::vector<file_seal> files;  // after a clean stop: CURRENT, the manifest, and the logs that hold something
  // How far recovery must get: everything that was written if the system has not restarted since, otherwise everything
  // that was synced.
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
  // Returns the newest good state, or nothing if there is no file or no good slot (a store of an earlier release, or
  // damage).
  static std::optional<mark_state> read(const std::string& path);
  // Creates the file if it is absent. `first` is durable when this returns.
  static result<std::unique_ptr<commit_mark>> open(const std::string& path, disk& files, mark_state first);
  ~commit_mark();
  commit_mark(const commit_mark&) = delete;
  commit_mark& operator=(const commit_mark&) = delete;

  // Notes both numbers, which only grow. They become durable with the next sync(), which note() itself runs once in a
  // while if `synced` has grown.
  status note(std::uint64_t written, std::uint64_t synced);
  std::uint64_t synced() const;
  // Whether sync() would make anything more durable.
  bool is_dirty() const;
  status sync();
  // Writes the seal to both slots; it is durable when this returns. ENAMETOOLONG if the list does not fit a slot; the
  // mark then stays unclean.
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
