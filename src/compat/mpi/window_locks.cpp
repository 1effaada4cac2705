// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/window_locks.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "compat/mpi/robust_mutex.hpp"

namespace pl::mpi {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Process numbers mean something within it only.
std::uint64_t own_names() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace

std::size_t window_locks::bytes_for(int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  return aligned(n * sizeof(target_state)) + aligned(n * sizeof(process)) + aligned(n * n * sizeof(holding));
}

void window_locks::format(void* memory, int ranks) noexcept {
  std::memset(memory, 0, bytes_for(ranks));
  auto* const states = static_cast<target_state*>(memory);
  for (int i = 0; i < ranks; ++i) {
    make_robust(states[i].guard);
    make_robust(states[i].elements);
  }
}

window_locks::window_locks(void* memory, int ranks, int rank) noexcept
    : states_(static_cast<target_state*>(memory)), ranks_(ranks), rank_(rank), watches_(static_cast<std::size_t>(ranks)) {
  const auto n = static_cast<std::size_t>(ranks);
  auto* place = static_cast<std::byte*>(memory) + aligned(n * sizeof(target_state));
  processes_ = reinterpret_cast<process*>(place);
  holders_ = reinterpret_cast<holding*>(place + aligned(n * sizeof(process)));
  processes_[rank] = {static_cast<std::int32_t>(getpid()), own_names()};
}

bool window_locks::has_ended(int rank) noexcept {
  const process& other = processes_[rank];
  if (other.names == 0 || other.names != processes_[rank_].names) return false;  // nobody tells
  const std::lock_guard held(mutex_);
  auto& watch = watches_[static_cast<std::size_t>(rank)];
  if (!watch) watch = process_end(other.pid);
  return watch.has_ended();
}

bool window_locks::try_lock(int target, bool is_exclusive) noexcept {
  const robust_lock row(state_of(target).guard);
  for (int other = 0; other < ranks_; ++other) {
    holding& one = held(target, other);
    if (one == holding::none || (one == holding::shared && !is_exclusive)) continue;
    if (!has_ended(other)) return false;
    one = holding::none;
  }
  held(target, rank_) = is_exclusive ? holding::exclusive : holding::shared;
  return true;
}

void window_locks::unlock(int target) noexcept {
  const robust_lock row(state_of(target).guard);
  held(target, rank_) = holding::none;
}

window_locks::element_lock::element_lock(window_locks& owner, int target) noexcept
    : mutex_(&owner.state_of(target).elements) {
  lock_robust(*mutex_);
}

}  // namespace pl::mpi
