// SPDX-License-Identifier: Apache-2.0
// A window's epochs at direct targets. Operations there are complete when their calls return, so what remains is when
// they may begin, and that a target learns of their end.
#include <thread>

#include "base/clock.hpp"
#include "compat/mpi/windows.hpp"

namespace pl::mpi {
namespace {

constexpr int kPosted = 1, kCompleted = 2;  // tags of empty messages
constexpr std::uint64_t kAwakeNs = 200'000;

// Other ranks may need progress of our MPI while we wait for them.
void let_mpi_progress(MPI_Comm comm) {
  int flag = 0;
  PMPI_Iprobe(MPI_ANY_SOURCE, kPosted, comm, &flag, MPI_STATUS_IGNORE);
}

}  // namespace

std::vector<int> window::direct_ranks(MPI_Group group) const {
  int n = 0;
  PMPI_Group_size(group, &n);
  std::vector<int> all(static_cast<std::size_t>(n)), members(all.size());
  for (int i = 0; i < n; ++i) all[static_cast<std::size_t>(i)] = i;
  MPI_Group own;
  PMPI_Comm_group(comm, &own);
  PMPI_Group_translate_ranks(group, n, all.data(), own, members.data());
  PMPI_Group_free(&own);
  return members;
}

bool window::enter(int target) {
  const auto index = static_cast<std::size_t>(target);
  {
    const std::lock_guard held(mutex_);
    if (in_fence_ || (!locks_held_.empty() && locks_held_[index] != unlocked)) return true;
    for (const int one : started_)
      if (one == target) return true;
    if (!in_lock_all_) return false;
    locks_held_.resize(targets.size(), unlocked);
    if (!lock_all_is_checked_) return true;
  }
  take_lock(target, false);
  return true;
}

void window::fence(int assertion) {
  PMPI_Barrier(comm);
  const std::lock_guard held(mutex_);
  in_fence_ = (assertion & MPI_MODE_NOSUCCEED) == 0;
}

int window::post(MPI_Group origins) {
  {
    const std::lock_guard held(mutex_);
    in_fence_ = false;
  }
  if (!is_ours(rank)) return MPI_SUCCESS;
  const auto members = direct_ranks(origins);
  std::vector<MPI_Request> made(2 * members.size(), request_null());
  for (std::size_t i = 0; i < members.size(); ++i) {
    int code = PMPI_Irecv(nullptr, 0, byte_type(), members[i], kCompleted, comm, &made[2 * i]);
    if (code == MPI_SUCCESS) code = PMPI_Isend(nullptr, 0, byte_type(), members[i], kPosted, comm, &made[2 * i + 1]);
    if (code != MPI_SUCCESS) return code;
  }
  const std::lock_guard held(mutex_);
  exposure_ = std::move(made);
  return MPI_SUCCESS;
}

int window::start(MPI_Group group) {
  std::vector<int> reached;
  for (const int one : direct_ranks(group))
    if (is_ours(one)) {
      if (const int code = PMPI_Recv(nullptr, 0, byte_type(), one, kPosted, comm, MPI_STATUS_IGNORE); code != MPI_SUCCESS)
        return code;
      reached.push_back(one);
    }
  const std::lock_guard held(mutex_);
  in_fence_ = false;
  started_ = std::move(reached);
  return MPI_SUCCESS;
}

int window::complete() {
  std::vector<int> reached;
  {
    const std::lock_guard held(mutex_);
    reached = std::move(started_);
    started_.clear();
  }
  for (const int one : reached)
    if (const int code = PMPI_Send(nullptr, 0, byte_type(), one, kCompleted, comm); code != MPI_SUCCESS) return code;
  return MPI_SUCCESS;
}

int window::wait() {
  std::vector<MPI_Request> exposed;
  {
    const std::lock_guard held(mutex_);
    exposed = std::move(exposure_);
    exposure_.clear();
  }
  return PMPI_Waitall(static_cast<int>(exposed.size()), exposed.data(), MPI_STATUSES_IGNORE);
}

bool window::test() {
  const std::lock_guard held(mutex_);
  int flag = 1;
  if (!exposure_.empty()) PMPI_Testall(static_cast<int>(exposure_.size()), exposure_.data(), &flag, MPI_STATUSES_IGNORE);
  return flag != 0;
}

void window::take_lock(int target, bool is_exclusive) {
  const std::uint64_t begin_ns = monotonic_ns();
  while (!locks->try_lock(target, is_exclusive)) {
    let_mpi_progress(comm);
    if (monotonic_ns() - begin_ns > kAwakeNs) std::this_thread::sleep_for(std::chrono::microseconds(50));
    else std::this_thread::yield();
  }
  const std::lock_guard held(mutex_);
  locks_held_.resize(targets.size(), unlocked);
  locks_held_[static_cast<std::size_t>(target)] = locked;
}

bool window::has_locked(int target) {
  const std::lock_guard held(mutex_);
  if (in_lock_all_) return true;
  return is_ours(target) && !locks_held_.empty() && locks_held_[static_cast<std::size_t>(target)] != unlocked;
}

void window::lock(int kind, int target, int assertion) {
  {
    const std::lock_guard held(mutex_);
    in_fence_ = false;
  }
  if (!is_ours(target)) return;
  if ((assertion & MPI_MODE_NOCHECK) == 0) return take_lock(target, kind == MPI_LOCK_EXCLUSIVE);
  const std::lock_guard held(mutex_);
  locks_held_.resize(targets.size(), unlocked);
  locks_held_[static_cast<std::size_t>(target)] = unchecked;
}

void window::unlock(int target) {
  const std::lock_guard held(mutex_);
  if (!is_ours(target) || locks_held_.empty()) return;
  auto& one = locks_held_[static_cast<std::size_t>(target)];
  if (one == locked) locks->unlock(target);
  one = unlocked;
}

void window::lock_all(int assertion) {
  const std::lock_guard held(mutex_);
  in_fence_ = false;
  in_lock_all_ = true;
  lock_all_is_checked_ = (assertion & MPI_MODE_NOCHECK) == 0;
}

void window::unlock_all() {
  {
    const std::lock_guard held(mutex_);
    in_lock_all_ = false;
  }
  for (int target = 0; target < ranks(); ++target) unlock(target);
}

}  // namespace pl::mpi
