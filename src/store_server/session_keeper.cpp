// SPDX-License-Identifier: Apache-2.0
#include "session_keeper.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace pl::store_server {
namespace {

constexpr std::size_t kMostEarly = 4096;

}  // namespace

void session_keeper::leave(store::session_id id, long pid) {
  const int process = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)) : -1;
  // No such process any more: nobody is left who could write.
  if (process < 0 && (pid <= 0 || errno == ESRCH)) return engine_.close_session(id);
  if (process < 0) return;  // not known: what it was granted stays taken until the server ends
  std::unique_lock hold(lock_);
  const auto found = early_.find(id);
  if (closing_ || (found != early_.end() && found->second == pid)) {
    if (found != early_.end()) early_.erase(found);
    hold.unlock();
    close(process);
    return engine_.close_session(id);
  }
  auto& one = orphans_[id];
  one.pid = pid;
  one.process = std::make_unique<asio::posix::stream_descriptor>(home_, process);
  ++counters_.orphans;
  one.process->async_wait(asio::posix::stream_descriptor::wait_read, [this, id](std::error_code error) {
    if (!error) end(id);
  });
}

void session_keeper::end(store::session_id id) {
  {
    const std::lock_guard hold(lock_);
    if (orphans_.erase(id) == 0) return;
    --counters_.orphans;
  }
  engine_.close_session(id);
}

void session_keeper::take_back(store::session_id id, long pid) {
  {
    const std::lock_guard hold(lock_);
    const auto found = orphans_.find(id);
    if (found == orphans_.end()) {
      // Ids only grow: the oldest of too many belongs to a connection that is long gone, or never was.
      early_[id] = pid;
      if (early_.size() > kMostEarly) early_.erase(early_.begin());
      return;
    }
    if (found->second.pid != pid) return;
  }
  end(id);
}

void session_keeper::clear() {
  std::map<store::session_id, orphan> gone;
  const std::lock_guard hold(lock_);
  closing_ = true;
  gone.swap(orphans_);
}

}  // namespace pl::store_server
