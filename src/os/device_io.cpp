// SPDX-License-Identifier: Apache-2.0
#include "os/device_io.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/text.hpp"

namespace pl {
namespace {

class kernel_io final : public device_io {
 public:
  int open(const char* path, int flags) override { return ::open(path, flags); }
  int close(int fd) override { return ::close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override { return ::ioctl(fd, request, argument); }
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override {
    return ::mmap(address, size_bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t size_bytes) override { return ::munmap(address, size_bytes); }
  int madvise(void* address, std::size_t size_bytes, int advice) override { return ::madvise(address, size_bytes, advice); }
  result<std::string> read_text(const char* path) override {
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return failure{errno, format("cannot open %s", path)};
    std::string text;
    char buffer[4096];
    ssize_t got = 0;
    constexpr std::size_t kTextLimitBytes = 1 << 20;  // procfs and sysfs entries are far smaller
    while (text.size() < kTextLimitBytes && (got = ::read(fd, buffer, sizeof buffer)) > 0)
      text.append(buffer, static_cast<std::size_t>(got));
    const int read_errno = errno;
    ::close(fd);
    if (got < 0) return failure{read_errno, format("cannot read %s", path)};
    return text;
  }
};

std::atomic<device_io*> g_default{nullptr};

}  // namespace

void device_io::clear_event(int fd) {
  pollfd asked{fd, POLLIN, 0};
  poll(&asked, 1, 0);
}

device_io& real_device_io() {
  static kernel_io* io = new kernel_io;  // never destroyed: mappings may be released during process exit
  return *io;
}

device_io& default_device_io() {
  device_io* io = g_default.load(std::memory_order_acquire);
  return io != nullptr ? *io : real_device_io();
}

void set_default_device_io_for_tests(device_io* io) { g_default.store(io, std::memory_order_release); }

}  // namespace pl
