// SPDX-License-Identifier: Apache-2.0
// What a process tells the others of its node about its windows, in shared memory that they map once: from then on a put
// needs nothing of the process, which may sleep, compute or be stopped.
//
//   rows    one for each window, by its number: is it live, and where does its memory lie
//   users   one word for each rank: the window whose private memory it reads or writes at this moment
//
// Rows are written by their owner alone, and read under a sequence lock. A window of private memory ends in this order: its
// row says so, then the owner looks at the users. A user writes its word, then reads the row. With both in one total order
// one of the two sees the other, so no byte is moved behind the end of a window. So it is with GPU memory. Shared memory
// needs no users: its pages live on in whoever has mapped them.
//
// Owns: a file without a name, and its mapping. Threads: the messenger's lock guards each side's calls.
// Errors: errno values of the system, when a table is made or opened.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

struct window_place {
  // shared: the file `fd` of the owner, mapped by every process. owned: the owner's pages at `address`, which others reach
  // through the kernel (process_vm_writev). device: GPU memory at `address` of the owner; the file lists what it lies in
  // (gpu_windows.hpp).
  enum class kind : std::uint32_t { shared = 1, owned = 2, device = 3 };
  kind memory = kind::shared;
  std::int32_t fd = -1;
  std::uint64_t inode = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

class window_table {
 public:
  // For the other processes. A process number does not say that the process is still the same program: the probe does, a
  // random word at an address of its memory.
  struct name {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
    std::uint64_t probe_address = 0, probe_value = 0;
  };
  enum class state : std::uint32_t { absent, live, ended };

  window_table() = default;
  window_table(window_table&& other) noexcept { swap(other); }
  window_table& operator=(window_table&& other) noexcept {
    window_table(std::move(other)).swap(*this);
    return *this;
  }
  ~window_table();
  bool is_open() const noexcept { return shared_ != nullptr; }

  // ---- The owner
  static result<window_table> make(int ranks);
  const name& own_name() const noexcept { return name_; }
  // Nothing is told where a live window has the row already: others then ask by messages.
  void publish(std::uint32_t id, const window_place& place) noexcept;
  void end(std::uint32_t id) noexcept;
  // Whether `rank` moves bytes of the window, which has ended.
  bool is_used_by(int rank, std::uint32_t id) const noexcept;
  // The process that was `rank` has ended, whatever it was at.
  void forget_user(int rank) noexcept {
    if (shared_ != nullptr) user_of(rank).window.store(0, std::memory_order_seq_cst);
  }

  // ---- The others
  static result<window_table> open(const name& file, int ranks);
  state find(std::uint32_t id, window_place& place) const noexcept;
  bool is_live(std::uint32_t id) const noexcept;
  // Between them the memory of a live window stays. False: it has ended, and there is nothing to leave.
  bool enter(int own_rank, std::uint32_t id) noexcept;
  void leave(int own_rank) noexcept;

 private:
  static constexpr std::size_t kRows = 1024;
  struct alignas(64) row {
    std::atomic<std::uint64_t> tag;  // number << 2 | state; 0 while it is written
    std::atomic<std::uint64_t> memory_and_fd, inode, address, bytes;
  };
  struct alignas(64) user {
    std::atomic<std::uint64_t> window;  // 0: none
  };
  struct shared {
    row rows[kRows];
    user users[1];  // one for each rank
  };
  static std::size_t size_for(int ranks) noexcept { return sizeof(shared) + static_cast<std::size_t>(ranks) * sizeof(user); }
  static constexpr std::uint64_t tag_of(std::uint32_t id, state value) noexcept {
    return std::uint64_t{id} << 2 | static_cast<std::uint64_t>(value);
  }
  row& row_of(std::uint32_t id) const noexcept { return shared_->rows[id % kRows]; }
  user& user_of(int rank) const noexcept { return shared_->users[rank]; }
  status map(int fd, int ranks);
  void swap(window_table& other) noexcept;

  unique_fd fd_;
  name name_;
  std::unique_ptr<std::uint64_t> probe_;
  shared* shared_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace pl::messaging
