// SPDX-License-Identifier: Apache-2.0
#include "store/server/orphaned_sessions.hpp"

#include <poll.h>

namespace pl::store_server {
namespace {

constexpr std::size_t kMaxEarly = 4096;
constexpr auto kRetryPause = std::chrono::seconds(1);

}  // namespace

void orphaned_sessions::leave(store::session_id id, long pid, account_share memory) {
  if (!stays(id, pid, memory)) engine_.close_session(id);
}

bool orphaned_sessions::stays(store::session_id id, long pid, account_share& memory) {
  if (pid <= 0) return false;
  const bool holds = engine_.holds_memory(id);
  const std::lock_guard hold(lock_);
  const auto early = early_.find(id);
  const bool is_taken_back = early != early_.end() && early->second == pid;
  if (is_taken_back) early_.erase(early);
  if (is_taken_back || closing_ || !holds) return false;
  const auto process = processes_.try_emplace(pid).first;
  if (!process->second.ended && !watch(pid, process->second)) {
    if (process->second.sessions.empty()) processes_.erase(process);  // otherwise the next retry ends them
    return false;
  }
  process->second.sessions.emplace(id, std::move(memory));
  ++counters_.orphans;
  return true;
}

bool orphaned_sessions::watch(long pid, left_process& one) {
  if (!one.process) one.process = process_end(static_cast<pid_t>(pid));
  if (one.process.descriptor() < 0) {
    if (one.process.has_ended()) return false;  // no process is left that could write
    retry_later();                              // out of descriptors, or a filter refuses pidfds
    return true;
  }
  one.ended = std::make_unique<asio::posix::stream_descriptor>(home_, one.process.release_descriptor());
  await_end(pid, *one.ended);
  return true;
}

// Checks again after a wakeup, which may be spurious: memory that a live process can write must not be reused.
void orphaned_sessions::await_end(long pid, asio::posix::stream_descriptor& process) {
  process.async_wait(asio::posix::stream_descriptor::wait_read, [this, pid](std::error_code error) {
    if (error) return;
    {
      const std::lock_guard hold(lock_);
      const auto found = processes_.find(pid);
      if (found == processes_.end() || !found->second.ended) return;
      pollfd is_over{found->second.ended->native_handle(), POLLIN, 0};
      if (poll(&is_over, 1, 0) <= 0) return await_end(pid, *found->second.ended);
    }
    end(pid);
  });
}

// Precondition: the lock is held.
void orphaned_sessions::retry_later() {
  if (closing_ || std::exchange(retrying_, true)) return;
  retry_->expires_after(kRetryPause);
  retry_->async_wait([this](std::error_code error) {
    if (error) return;
    std::vector<long> gone;
    {
      const std::lock_guard hold(lock_);
      retrying_ = false;
      for (auto& [pid, one] : processes_)
        if (!one.ended && !watch(pid, one)) gone.push_back(pid);
    }
    for (const long pid : gone) end(pid);
  });
}

void orphaned_sessions::end(long pid) {
  std::map<store::session_id, account_share> gone;
  {
    const std::lock_guard hold(lock_);
    const auto found = processes_.find(pid);
    if (found == processes_.end()) return;
    gone = std::move(found->second.sessions);
    processes_.erase(found);
  }
  close_all(std::move(gone));
}

void orphaned_sessions::close_all(std::map<store::session_id, account_share> sessions) {
  for (const auto& [id, memory] : sessions) {
    engine_.close_session(id);
    --counters_.orphans;
  }
}

void orphaned_sessions::take_back(store::session_id id, long pid) {
  std::map<store::session_id, account_share> gone;
  {
    const std::lock_guard hold(lock_);
    const auto process = processes_.find(pid);
    if (process != processes_.end()) {
      if (auto one = process->second.sessions.extract(id)) gone.insert(std::move(one));
      if (process->second.sessions.empty()) processes_.erase(process);
    }
    if (gone.empty()) {
      // Ids grow, so if there are too many, the oldest belongs to a connection that closed long ago or never opened.
      early_[id] = pid;
      if (early_.size() > kMaxEarly) early_.erase(early_.begin());
    }
  }
  close_all(std::move(gone));
}

void orphaned_sessions::clear() {
  processes gone;
  const std::lock_guard hold(lock_);
  closing_ = true;
  retry_.reset();
  gone.swap(processes_);
}

}  // namespace pl::store_server
