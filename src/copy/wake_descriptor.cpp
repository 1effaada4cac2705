// SPDX-License-Identifier: Apache-2.0
#include "copy/wake_descriptor.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.hpp"

namespace pl::copy {

result<std::shared_ptr<wake_descriptor>> wake_descriptor::open() {
  std::shared_ptr<wake_descriptor> made(new wake_descriptor);
  made->set_ = epoll_create1(EPOLL_CLOEXEC);
  made->clock_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  made->signal_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made->set_ < 0 || made->clock_ < 0 || made->signal_ < 0)
    return failure{errno, format("no descriptor to wait for a copy with (%s): raise the limit of open files (ulimit -n), or "
                                 "test the copy instead",
                                 errno_text(errno).c_str())};
  for (const int fd : {made->clock_, made->signal_})
    if (auto watched = made->watch(fd); !watched) return watched.error();
  return made;
}

wake_descriptor::~wake_descriptor() {
  for (const int fd : {set_, clock_, signal_})
    if (fd >= 0) close(fd);
}

status wake_descriptor::watch(int fd) {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  if (epoll_ctl(set_, EPOLL_CTL_ADD, fd, &wanted) == 0) return {};
  return failure{errno, format("a descriptor of a copy cannot be waited for: %s", errno_text(errno).c_str())};
}

void wake_descriptor::unwatch(int fd) noexcept { epoll_ctl(set_, EPOLL_CTL_DEL, fd, nullptr); }

void wake_descriptor::tick(std::uint64_t period_ns) noexcept {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const timespec period{static_cast<time_t>(period_ns / kSecond), static_cast<long>(period_ns % kSecond)};
  const itimerspec wanted{period, period};
  timerfd_settime(clock_, 0, &wanted, nullptr);
}

void wake_descriptor::signal() noexcept { (void)eventfd_write(signal_, 1); }

void wake_descriptor::clear() noexcept {
  std::uint64_t ignored = 0;
  for (const int fd : {clock_, signal_})
    if (read(fd, &ignored, sizeof ignored) < 0) continue;  // it was not signalled
}

}  // namespace pl::copy
