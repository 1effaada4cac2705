// SPDX-License-Identifier: Apache-2.0
// What is known of MPI's windows beside what MPI knows (docs/design/0016-mpi-windows.md). A window's handle is one of MPI's,
// with the same ranks, error handler, epochs and attributes; what a rank's memory is decides who moves its bytes:
//
//   reach::mpi       host memory: MPI, as without this library. Device memory at the origin has a stand-in
//   reach::direct    device memory that every rank has mapped (window_memory.hpp): the origin alone, before its call returns
//   reach::copied    device memory that some rank cannot map: MPI, on a public copy in host memory (public_copy.hpp)
//
// All ranks know how each rank's memory is reached. Of a dynamic window, device memory is reached as direct targets are, by
// whoever finds it among the attached regions (window_regions.hpp), and other memory by MPI: each operation decides. A
// window of host memory alone is here only after an operation on it had device memory at its origin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>

#include "compat/mpi/guarded.hpp"
#include "compat/mpi/public_copy.hpp"
#include "compat/mpi/staged_operation.hpp"
#include "compat/mpi/window_locks.hpp"
#include "compat/mpi/window_regions.hpp"

namespace pl::mpi {

// Runs the window's error handler on an error, and returns the code.
int raise_on(MPI_Win window, int code);

// For calls with windows of ours.
template <class Work>
int guarded_window(MPI_Win window, Work work) {
  return guarded_with([window](int code) { return raise_on(window, code); }, std::move(work));
}

enum class reach : std::uint8_t { mpi, direct, copied };

struct window_target {
  reach way = reach::mpi;
  MPI_Aint size = 0, unit = 1;
  std::uint64_t pointer = 0;  // direct: in this process; 0 for a window without bytes
  imported_memory memory;
};

class window {
 public:
  window() = default;
  window(const window&) = delete;
  window& operator=(const window&) = delete;

  int ranks() const noexcept { return static_cast<int>(targets.size()); }
  // Null if MPI reaches this rank, or there is no such rank.
  const window_target* direct_target(int target) const noexcept {
    const bool is_rank = target >= 0 && target < ranks();
    return is_rank && targets[static_cast<std::size_t>(target)].way == reach::direct
               ? &targets[static_cast<std::size_t>(target)]
               : nullptr;
  }
  bool has_direct() const noexcept { return locks != nullptr; }
  // Whether epochs at that target concern us: operations there are direct, or may be.
  bool is_ours(int target) const noexcept {
    return is_dynamic() ? target >= 0 && target < ranks() : direct_target(target) != nullptr;
  }
  bool is_dynamic() const noexcept { return regions != nullptr; }
  // Where this process reaches what a rank attached to a dynamic window; an MPI error code.
  int reach_attached(int target, const window_regions::region& attached, std::uint64_t& pointer);

  // ---- Operations of MPI with stand-ins
  void add(std::shared_ptr<staged_operation> made);
  using operations = std::vector<std::shared_ptr<staged_operation>>;
  // Those at `target` (-1: at all) that this process has begun and that no call has ended yet.
  operations begun(int target);
  // MPI has ended these.
  int finish(const operations& ended);
  // MPI has ended those at `target`, or all, and no other thread begins one meanwhile.
  int finish(int target) { return finish(begun(target)); }
  int finish_all() { return finish(-1); }

  // ---- Epochs, as far as targets are direct. Each call is made beside MPI's own of that name.
  // Whether an operation may go to that target now; waits for a lock of lock_all().
  bool enter(int target);
  void fence(int assertion);
  int post(MPI_Group origins);
  int start(MPI_Group targets);
  int complete();
  int wait();
  // Returns false if some origin has not completed.
  bool test();
  // Whether this rank has locked that target, by either call.
  bool has_locked(int target);
  void lock(int kind, int target, int assertion);
  void unlock(int target);
  void lock_all(int assertion);
  void unlock_all();

  // Between device memory and its public copy, if this rank has one.
  int publish();
  int adopt();
  // Collective, as MPI_Win_free, behind which it is called: gives back what the members below own.
  int close();

  // ---- Filled in by the call that makes the window
  MPI_Win handle{};
  std::vector<window_target> targets;  // empty: all are MPI's
  int rank = -1;
  void* base = nullptr;                     // the caller's
  std::unique_ptr<window_locks> locks;      // null: no target is direct
  MPI_Comm comm{};                          // of the same ranks, if there are locks
  MPI_Win shared{};                         // that holds them
  std::unique_ptr<public_copy> copy;        // of this rank's memory
  std::unique_ptr<window_regions> regions;  // null: the window is not dynamic, or nobody can attach device memory
  bool is_separate = false;                 // some rank's memory is copied

 private:
  enum : std::uint8_t { unlocked, locked, unchecked };
  std::vector<int> direct_ranks(MPI_Group group) const;
  void take_lock(int target, bool is_exclusive);

  std::mutex mutex_;
  operations pending_;
  bool in_fence_ = false, in_lock_all_ = false, lock_all_is_checked_ = true;
  std::vector<std::uint8_t> locks_held_;                              // by target; made with the first
  std::vector<int> started_;                                          // direct targets of the access epoch
  std::vector<MPI_Request> exposure_;                                 // of the exposure epoch
  std::map<std::pair<int, std::uint64_t>, imported_memory> imports_;  // attached regions, by rank and serial
};

class window_table {
 public:
  // Whether all windows are MPI's alone. One load.
  bool is_empty() const noexcept { return size_.load(std::memory_order_acquire) == 0; }
  std::shared_ptr<window> find(MPI_Win handle) const;
  // The same; makes one.
  std::shared_ptr<window> find_or_add(MPI_Win handle);
  void add(std::shared_ptr<window> made);
  std::shared_ptr<window> take(MPI_Win handle);

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<window>> windows_;
  std::atomic<std::size_t> size_{0};
};

window_table& windows();

}  // namespace pl::mpi
