// SPDX-License-Identifier: Apache-2.0
#include "os/process_end.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pl {
namespace {

#ifndef SYS_pidfd_open
constexpr long SYS_pidfd_open = 434;  // headers before Linux 5.3; one number for all machines
#endif

struct process_facts {
  bool is_known = false, is_dead = false;
  std::uint64_t start = 0;
};

// Fields 3 and 22 of its stat; the name in field 2 may contain blanks and brackets.
process_facts facts_of(pid_t process) noexcept {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(process));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t got = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (got <= 0) return {};
  text[got] = '\0';
  const char* position = std::strrchr(text, ')');
  if (position == nullptr || position[1] != ' ') return {};
  const char state = position[2];
  for (int field = 2; field < 22 && position != nullptr; ++field) position = std::strchr(position + 1, ' ');
  if (position == nullptr) return {};
  return {true, state == 'Z' || state == 'X', std::strtoull(position + 1, nullptr, 10)};
}

}  // namespace

process_end::process_end(pid_t process) noexcept : process_(process) {
  if (process <= 0) return;
  fd_ = unique_fd(real_device_io(), static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (fd_) return;
  was_gone_ = errno == ESRCH;
  start_ = facts_of(process).start;
}

bool process_end::has_ended() const noexcept {
  if (process_ <= 0) return false;
  if (fd_) {
    pollfd one{fd_.get(), POLLIN, 0};
    return poll(&one, 1, 0) > 0 && (one.revents & POLLIN) != 0;
  }
  if (was_gone_ || (kill(process_, 0) != 0 && errno == ESRCH)) return true;
  const process_facts now = facts_of(process_);  // unknown if there is no /proc, or it hides other users
  return now.is_known && (now.is_dead || (start_ != 0 && now.start != start_));
}

}  // namespace pl
