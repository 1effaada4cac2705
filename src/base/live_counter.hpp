// SPDX-License-Identifier: Apache-2.0
// Counters that another process can read while this one runs (`peerlane top`), in a file of shared memory. Off unless
// PEERLANE_STATISTICS=1; a counter then costs one load and one branch that is always predicted.
//
// The file: <folder>/peerlane-statistics-<uid>-<pid>-<n>, folder PEERLANE_STATISTICS_FOLDER (default /dev/shm), mode 0600. n
// counts the libraries of one process that carry this code. Little endian, version 1; python/peerlane/top.py reads it:
//
//   header, 256 bytes                                       entry, 64 bytes, from byte header_bytes on
//     0  char[8]  "PEERLANE"                                  0  u64      what threads without a block of their own counted
//     8  u32      version, 1                                  8  u32      0: a total that only grows, 1: a level
//    12  u32      header_bytes                               12  u32      0
//    16  u32      entry_bytes                                16  char[48] name, ends with NUL
//    20  u32      entries
//    24  u32      process id                               block, block_bytes, from byte blocks_at on
//    28  u32      0                                           0  u64[]    what one thread counted, in the entries' order
//    32  u64      start of the process (field 22 of /proc/<pid>/stat); 40: u64 inode of its pid namespace; 48: u64 creation
//                 time of the file, ns since 1970; 56: char[64] name of the program, ends with NUL
//   120  u32      blocks
//   124  u32      blocks_at
//   128  u32      block_bytes
//
// The value of an entry is the sum of its own and of its numbers in all blocks, modulo 2^64; it changes at any time. A block
// is for one thread, which needs no locked instruction to count there: one would also empty the write-combining buffers of
// an unfenced write. The next thread goes on with the block of one that has ended. Entries keep their place; a later library
// may have more of them and others. Another layout gets another version. The process removes its file
// when it ends; `peerlane top` removes the file of a killed process.
#pragma once

#include <atomic>
#include <cstdint>

namespace pl {

enum class live_kind : std::uint32_t { total = 0, level = 1 };

// An object of static storage duration: it stays in a list until its library is unloaded.
class live_counter {
 public:
  // `name`: static, at most 47 characters, "layer.what", for pairs "copy.<way>.count" and "copy.<way>.bytes".
  explicit live_counter(const char* name, live_kind kind = live_kind::total) noexcept;
  live_counter(const live_counter&) = delete;
  live_counter& operator=(const live_counter&) = delete;

  // Thread-safe. Relaxed: the numbers order nothing.
  void add(std::int64_t more = 1) noexcept {
    if (number_.load(std::memory_order_relaxed) >= 0) [[unlikely]]
      count(static_cast<std::uint64_t>(more));
  }

 private:
  friend struct live_file;
  void count(std::uint64_t more) noexcept;

  std::atomic<int> number_{-1};  // of its entry; -1: nothing is published
  const char* const name_;
  const live_kind kind_;
  live_counter* const next_;
};

// A count of items and of their bytes.
struct live_pair {
  live_pair(const char* count_name, const char* bytes_name) noexcept : count(count_name), bytes(bytes_name) {}
  void add(std::uint64_t size_bytes, std::size_t times = 1) noexcept {
    count.add(static_cast<std::int64_t>(times));
    bytes.add(static_cast<std::int64_t>(size_bytes));
  }
  live_counter count, bytes;
};

// Called when something is opened (a session, a planner, a job): the first call of a process reads the environment and
// creates the file if it is wanted. Failures are logged and do not affect what is being opened. A forked child starts
// without a file and may create its own. Returns true if the numbers of this process can be read.
bool publish_live_counters();

}  // namespace pl
