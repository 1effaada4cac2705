// SPDX-License-Identifier: Apache-2.0
// The space on disk of large values: preallocated files of one size, side by side in one linear address space (file n
// is [n * file_bytes, (n+1) * file_bytes)). The files do not record which parts are used; at start the index's records
// define it.
//
// A piece is reused only when nothing can lead to it any more:
//   * no record that might come back after a crash names it (release_after_sync waits for the log's next sync), and
//   * no reader that found it in a record is still reading (readers announce themselves; pieces wait for older ones).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "store/engine/disk.hpp"
#include "store/engine/space_map.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class extents {
 public:
  struct options {
    std::string folder;
    std::uint64_t file_bytes = 0;     // multiple of kBlockBytes
    std::uint64_t limit_bytes = 0;    // of all files; 0: none
    std::uint64_t reserve_bytes = 0;  // what the file system must keep free
    bool read_only = false;
    std::function<status()> check_folder{};  // called before a file is created by its name; may be empty
  };
  // Opens the existing files. All space in them is free until take().
  static result<std::unique_ptr<extents>> open(options settings, disk& files);
  ~extents();
  extents(const extents&) = delete;
  extents& operator=(const extents&) = delete;

  // At start only: a record names this piece. EUCLEAN if it lies outside of the files or overlaps another record's
  // piece.
  status take(const segment& piece);
  // At start only: whether there is a file for this piece. If not, take_lost() keeps its place from being reused.
  bool has_file(const segment& piece) const;
  status take_lost(const segment& piece);
  // Why a value in these pieces cannot be read: its file is missing, truncated or cannot be opened. Nothing if it is
  // there.
  std::optional<std::string> why_lost(std::span<const segment> pieces) const;

  // Allocates whole blocks for a value; creates a new file if the existing ones have no room (blocking). ENOSPC.
  result<std::vector<segment>> allocate(std::uint64_t size_bytes, std::size_t max_pieces = kMaxSegments);
  // ENOSPC if this many bytes do not fit now, even with all files that may be added.
  status has_room(std::uint64_t size_bytes) const;
  // Precondition: no record names the pieces, none ever did, or the record that replaced theirs is durable.
  void release(std::vector<segment> pieces);
  // For pieces whose record was replaced, but not durably yet.
  void release_after_sync(std::vector<segment> pieces);
  // The log was synced up to this point. `parked` is what parked() returned before the sync began.
  void synced(std::uint64_t parked);
  std::uint64_t parked() const;

  // Holds back every release until it is destroyed.
  class reading {
   public:
    explicit reading(extents& owner);
    ~reading();
    reading(const reading&) = delete;
    reading& operator=(const reading&) = delete;

   private:
    extents& owner_;
    std::uint64_t epoch_;
  };

  // Keeps the pieces of one record from being reused without holding back others, for long reads. Must be made under a
  // `reading` that began before the record was read.
  class held {
   public:
    held(extents& owner, std::vector<segment> pieces);
    ~held();
    held(const held&) = delete;
    held& operator=(const held&) = delete;

   private:
    extents& owner_;
    std::vector<segment> pieces_;
  };

  // Where the pieces lie in files, for disk::write and disk::read with `memory`. The caller owns the memory, in the
  // value's order: each span is aligned to a block and a multiple of a block long, except for the last, where the rest
  // of its block is used too.
  std::vector<block_io> blocks(std::span<const segment> pieces, std::span<const std::span<std::byte>> memory) const;
  // Syncs each file that these pieces lie in once.
  status sync(std::span<const segment> pieces);
  disk& files() noexcept { return files_; }

  std::uint64_t total_bytes() const;
  std::uint64_t used_bytes() const;

 private:
  extents(options settings, disk& files);
  std::string path_of(std::uint64_t number) const;
  status add_file(std::uint64_t number);
  status open_found(std::uint64_t number);
  bool may_add(std::uint64_t number) const;
  status grow();
  void really_release(std::vector<segment>& pieces);
  void release_unread();
  void make_free(const std::vector<segment>& pieces);
  int file_of(std::uint64_t offset) const;

  struct waiting {
    std::uint64_t number = 0;  // parked: order of parking; unread: the epoch before which readers may know the pieces
    std::vector<segment> pieces;
  };

  options options_;
  disk& files_;
  std::mutex growing_;
  mutable std::mutex mutex_;
  space_map space_;
  std::vector<int> open_;  // by file number; -1: not open
  struct lost_piece {
    std::uint64_t size_bytes = 0;
    bool has_file = false;  // its bytes were cut off, but its place can be reused
  };
  std::map<std::uint64_t, lost_piece> lost_;  // by offset: pieces that records name and no file holds
  // by file number: the size that a truncated file had when it was opened
  std::map<std::uint64_t, std::uint64_t> cut_at_;
  std::map<std::uint64_t, std::string> cannot_open_;  // by number
  std::vector<waiting> parked_, unread_;
  std::uint64_t parkings_ = 0;
  std::uint64_t epoch_ = 1;
  std::multiset<std::uint64_t> readers_;
  struct hold {
    unsigned readers = 0;
    std::uint64_t freed_bytes = 0;  // size of the piece if it was released meanwhile
  };
  std::map<std::uint64_t, hold> holds_;  // by offset: pieces are released as they were recorded
};

}  // namespace pl::store
