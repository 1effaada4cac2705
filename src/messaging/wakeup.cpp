// SPDX-License-Identifier: Apache-2.0
#include "messaging/wakeup.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/text.hpp"

namespace pl::messaging {
namespace {

failure no_descriptor(const char* step) {
  const int code = errno;
  return failure{code, format("a descriptor to wait for messages: %s failed: %s", step, errno_text(code).c_str())};
}

// A full pipe, or a counter at its maximum, is already readable.
void write_to(const unique_fd& fd, const void* bytes, std::size_t count) noexcept {
  while (write(fd.get(), bytes, count) < 0 && errno == EINTR) {}
}

}  // namespace

result<wakeup::name> wakeup::make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return no_descriptor("pipe2");
  read_end_ = unique_fd(real_device_io(), ends[0]);
  write_end_ = unique_fd(real_device_io(), ends[1]);
  struct stat info {};
  if (fstat(ends[1], &info) != 0) return no_descriptor("fstat");
  return name{ends[1], info.st_ino};
}

// A peer may ring while this process closes: then the pipe has no reader, and the write must not raise SIGPIPE. So it
// is opened for reading, too.
bool wakeup::doorbell::ring() noexcept {
  if (!fd_) {
    const auto path = format("/proc/%d/fd/%d", static_cast<int>(pid_), pipe_.fd);
    unique_fd opened(real_device_io(), ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    // The number may name another file by now.
    if (!opened || fstat(opened.get(), &info) != 0 || info.st_ino != pipe_.inode || !S_ISFIFO(info.st_mode)) return false;
    fd_ = std::move(opened);
  }
  write_to(fd_, "", 1);
  return true;
}

result<int> wakeup::descriptor(std::span<const int> others) {
  if (epoll_) return epoll_.get();
  unique_fd made(real_device_io(), epoll_create1(EPOLL_CLOEXEC));
  if (!made) return no_descriptor("epoll_create1");
  const auto add = [&](int fd) {
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.fd = fd;
    return epoll_ctl(made.get(), EPOLL_CTL_ADD, fd, &wanted) == 0;
  };
  if (!read_end_)
    if (auto pipe = make_pipe(); !pipe) return std::move(pipe).error();
  if (!add(read_end_.get())) return no_descriptor("epoll_ctl");
  for (const int each : others)
    if (!add(each)) return no_descriptor("epoll_ctl");
  epoll_ = std::move(made);
  return epoll_.get();
}

void wakeup::watch(int fd) noexcept {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = fd;
  if (epoll_) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted);
}

void wakeup::drain() noexcept {
  std::array<char, 512> bytes;
  while (read(read_end_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {}
}

void wakeup::wake_owner() noexcept {
  waiters_ &= ~static_cast<unsigned>(kOwner);
  write_to(write_end_, "", 1);
}

result<int> wakeup::user_descriptor() {
  if (!user_) user_ = unique_fd(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!user_) return no_descriptor("eventfd");
  return user_.get();
}

status wakeup::arm_user() {
  std::uint64_t count = 0;
  while (read(user_.get(), &count, sizeof count) < 0 && errno == EINTR) {}
  if (std::exchange(seen_by_user_, events_) != events_) return something_happened();
  waiters_ |= kUser;
  return {};
}

void wakeup::wake() noexcept {
  const std::uint64_t one = 1;
  const unsigned woken = std::exchange(waiters_, 0u);
  if ((woken & kOwner) != 0) write_to(write_end_, "", 1);
  if ((woken & kUser) != 0) write_to(user_, &one, sizeof one);
  if ((woken & kThreads) != 0) happened_.notify_all();
}

failure wakeup::something_happened() {
  return {EBUSY, "something has happened since the last look: test your operations, and arm again before you sleep"};
}

}  // namespace pl::messaging
