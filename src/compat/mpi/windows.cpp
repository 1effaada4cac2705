// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/windows.hpp"

namespace pl::mpi {

window_table& windows() {
  static auto* const table = new window_table;  // never destroyed, as the request table
  return *table;
}

std::shared_ptr<window> window_table::find(MPI_Win handle) const {
  if (is_empty()) return nullptr;
  const std::shared_lock held(mutex_);
  const auto found = windows_.find(number_of(handle));
  return found == windows_.end() ? nullptr : found->second;
}

std::shared_ptr<window> window_table::find_or_add(MPI_Win handle) {
  if (auto found = find(handle)) return found;
  const std::unique_lock held(mutex_);
  auto& place = windows_[number_of(handle)];
  if (place == nullptr) {
    place = std::make_shared<window>();
    place->handle = handle;
  }
  size_.store(windows_.size(), std::memory_order_release);
  return place;
}

void window_table::add(std::shared_ptr<window> made) {
  const std::unique_lock held(mutex_);
  windows_[number_of(made->handle)] = std::move(made);
  size_.store(windows_.size(), std::memory_order_release);
}

std::shared_ptr<window> window_table::take(MPI_Win handle) {
  if (is_empty()) return nullptr;
  const std::unique_lock held(mutex_);
  const auto found = windows_.find(number_of(handle));
  if (found == windows_.end()) return nullptr;
  auto out = std::move(found->second);
  windows_.erase(found);
  size_.store(windows_.size(), std::memory_order_release);
  return out;
}

int raise_on(MPI_Win window, int code) {
  if (code != MPI_SUCCESS) PMPI_Win_call_errhandler(window, code);
  return code;
}

void window::add(std::shared_ptr<staged_operation> made) {
  const std::lock_guard held(mutex_);
  pending_.push_back(std::move(made));
}

window::operations window::begun(int target) {
  const std::lock_guard held(mutex_);
  operations out;
  for (const auto& one : pending_)
    if (target < 0 || one->target == target) out.push_back(one);
  return out;
}

// Two threads may end the same operation, and neither may return before its result is stored: so it is forgotten last.
int window::finish(const operations& ended) {
  int code = MPI_SUCCESS;
  for (const auto& one : ended)
    if (const int failed = one->finish(); failed != MPI_SUCCESS) code = failed;
  const std::lock_guard held(mutex_);
  std::erase_if(pending_, [](const auto& one) { return one->is_finished(); });
  return code;
}

namespace {

int code_of(const status& done) { return done ? MPI_SUCCESS : report_buffer("the public copy of a window", done.error()); }

}  // namespace

int window::publish() { return copy == nullptr ? MPI_SUCCESS : code_of(copy->publish()); }
int window::adopt() { return copy == nullptr ? MPI_SUCCESS : code_of(copy->adopt()); }

int window::reach_attached(int target, const window_regions::region& attached, std::uint64_t& pointer) {
  if (target == rank) return pointer = attached.bytes.begin, MPI_SUCCESS;
  const std::lock_guard held(mutex_);
  const std::pair key{target, attached.serial};
  if (const auto known = imports_.find(key); known != imports_.end()) return pointer = known->second.pointer(), MPI_SUCCESS;
  // Also the time to give back what was detached.
  std::erase_if(imports_, [&](const auto& one) {
    const auto& [owner, serial] = one.first;
    return owner == target && !regions->has(target, serial);
  });
  auto opened = imported_memory::open(attached.memory, 0);
  if (!opened) return report_buffer("device memory that another rank attached to a window", opened.error());
  pointer = opened->pointer();
  imports_.emplace(key, std::move(*opened));
  return MPI_SUCCESS;
}

int window::close() {
  targets.clear();
  imports_.clear();
  regions.reset();
  copy.reset();
  if (locks == nullptr) return MPI_SUCCESS;
  locks.reset();
  const int code = PMPI_Win_free(&shared);
  const int freed = PMPI_Comm_free(&comm);
  return code == MPI_SUCCESS ? freed : code;
}

}  // namespace pl::mpi
