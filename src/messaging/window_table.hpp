// SPDX-License-Identifier: Apache-2.0
// The windows of a process, described in shared memory that the other processes of the node map once. After that, a put
// needs nothing of the target process, which may sleep, compute or be stopped.
//
//   rows    one for each window, by its number: whether it is live, and where its memory is
//   users   one word for each rank: the window whose private memory the rank currently reads or writes
//
// Only the owner writes rows, and readers use a sequence lock. To end a window of private memory, the owner marks its row as
// ended and then checks the users. A user writes its word and then reads the row. All of this is in one total order, so one
// of the two sees the other, and no byte is moved after the end of a window. GPU memory works in the same way. Shared memory
// needs no users, because its pages stay valid in every process that has mapped them.
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
  // What the other processes need. A process id does not prove that the process still runs the same program. The probe does:
  // a random word at an address of its memory.
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
  // Publishes a window. Does nothing if another live window uses the row: others then use messages.
  void publish(std::uint32_t id, const window_place& place) noexcept;
  void end(std::uint32_t id) noexcept;
  // Whether `rank` still moves bytes of a window that has ended.
  bool is_used_by(int rank, std::uint32_t id) const noexcept;
  // The process of `rank` has ended: clears its word.
  void forget_user(int rank) noexcept {
    if (shared_ != nullptr) user_of(rank).window.store(0, std::memory_order_seq_cst);
  }

  // ---- The others
  static result<window_table> open(const name& file, int ranks);
  state find(std::uint32_t id, window_place& place) const noexcept;
  bool is_live(std::uint32_t id) const noexcept;
  // The memory of a live window stays valid between enter() and leave(). False: the window has ended; do not call leave().
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
