// SPDX-License-Identifier: Apache-2.0
#include "sim/object.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "base/env.hpp"
#include "base/file_limit.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "sim/board_file.h"

namespace pl::sim {
namespace {

// The memfd's name tells an importer, in whatever process, which board the memory lies on.
constexpr char kNamePrefix[] = "peerlane-sim:";

// All live objects by handle. Entries go when the object goes.
struct object_registry {
  std::mutex mutex;
  std::map<unsigned, object*> live;
  unsigned last = 0x5c000000;
};

object_registry& objects() {
  static auto* const instance = new object_registry;
  return *instance;
}

std::byte* map_view(int fd, std::size_t bytes) {
  void* view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return view == MAP_FAILED ? nullptr : static_cast<std::byte*>(view);
}

// A new descriptor of so much zeroed memory, or -1.
int open_memory(const std::string& board_file, const device& gpu, std::size_t bytes) {
  const int fd = board_file.empty() ? memfd_create(format("%s%d", kNamePrefix, gpu.physical).c_str(), MFD_CLOEXEC)
                                    : open(board_file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  board_alloc wanted{bytes};
  const file_limit_as_error during_growth;
  const int rc = board_file.empty() ? ftruncate(fd, static_cast<off_t>(bytes)) : ioctl(fd, BOARD_IOC_ALLOC, &wanted);
  if (rc == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

std::shared_ptr<object> object::create(device& gpu, std::size_t bytes, result_t& reason) {
  reason = code::out_of_memory;
  std::size_t used = gpu.used_bytes.load();
  do {
    if (bytes > gpu.memory_bytes || used > gpu.memory_bytes - bytes) return nullptr;
  } while (!gpu.used_bytes.compare_exchange_weak(used, used + bytes));
  const std::string board_file = env_read("PEERLANE_SIM_BOARD_FILE").text;
  const int fd = open_memory(board_file, gpu, bytes);
  std::byte* view = fd >= 0 ? map_view(fd, bytes) : nullptr;
  if (view == nullptr) {
    gpu.used_bytes -= bytes;
    if (fd >= 0) close(fd);
    return nullptr;
  }
  reason = code::success;
  return std::shared_ptr<object>(new object(fd, bytes, view, gpu.ordinal, &gpu, !board_file.empty()));
}

std::shared_ptr<object> object::adopt(int fd, std::size_t bytes, int device_ordinal) {
  struct stat info {};
  std::byte* view = nullptr;
  if (bytes != 0 && fstat(fd, &info) == 0 && static_cast<std::size_t>(info.st_size) >= bytes) view = map_view(fd, bytes);
  if (view == nullptr) {
    close(fd);
    return nullptr;
  }
  return std::shared_ptr<object>(new object(fd, bytes, view, device_ordinal, nullptr, false));
}

object::object(int fd, std::size_t bytes, std::byte* view, int device_ordinal, device* charged, bool is_board_file)
    : fd_(fd),
      bytes_(bytes),
      view_(view),
      device_ordinal_(device_ordinal),
      charged_(charged),
      is_board_file_(is_board_file) {
  object_registry& all = objects();
  const std::lock_guard lock(all.mutex);
  handle_ = ++all.last;
  all.live[handle_] = this;
}

object::~object() {
  {
    object_registry& all = objects();
    const std::lock_guard lock(all.mutex);
    all.live.erase(handle_);
  }
  munmap(view_, bytes_);
  close(fd_);
  if (charged_ != nullptr) charged_->used_bytes -= bytes_;
}

int object::reopen() const {
  if (is_board_file_) return -1;  // it would be another object
  return open(format("/proc/self/fd/%d", fd_).c_str(), O_RDWR | O_CLOEXEC);
}

void object::bind(device_ptr address, std::size_t bytes, std::size_t offset) const {
  board_bind request{address, bytes, offset};
  if (is_board_file_ && ioctl(fd_, BOARD_IOC_BIND, &request) != 0)
    PL_LOG(error, "sim: the board file does not take 0x%llx + %zu bytes", static_cast<unsigned long long>(address), bytes);
}

void object::unbind(device_ptr address, std::size_t bytes) const {
  board_unbind request{address, bytes};
  if (is_board_file_ && ioctl(fd_, BOARD_IOC_UNBIND, &request) != 0)
    PL_LOG(error, "sim: the board file did not have 0x%llx + %zu bytes", static_cast<unsigned long long>(address), bytes);
}

device* device_of_descriptor(int fd) {
  char name[128] = {};
  if (readlink(format("/proc/self/fd/%d", fd).c_str(), name, sizeof name - 1) < 0) return nullptr;
  int physical = -1;
  if (std::sscanf(name, "/memfd:peerlane-sim:%d", &physical) != 1) return nullptr;
  for (auto& d : devices())
    if (d.physical == physical) return &d;
  return nullptr;
}

unsigned client_handle() { return 0xc1d00000u | (static_cast<unsigned>(getpid()) & 0xffffu); }

object_ref find_object(unsigned client, unsigned handle) {
  if (client != client_handle()) return nullptr;
  object_registry& all = objects();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(handle);
  return found == all.live.end() ? nullptr : found->second->weak_from_this().lock();
}

// For tests of resource-manager code: the memory behind (hClient, hObject) as a new descriptor, -1 if there is none.
PL_SIM_EXPORT int peerlaneSimObjectFd(unsigned client, unsigned handle) {
  if (client != client_handle()) return -1;
  object_registry& all = objects();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(handle);
  return found == all.live.end() ? -1 : fcntl(found->second->fd(), F_DUPFD_CLOEXEC, 0);
}

// Its size, 0 if there is none.
PL_SIM_EXPORT unsigned long long peerlaneSimObjectBytes(unsigned client, unsigned handle) {
  if (client != client_handle()) return 0;
  object_registry& all = objects();
  const std::lock_guard lock(all.mutex);
  const auto found = all.live.find(handle);
  return found == all.live.end() ? 0 : found->second->bytes();
}

}  // namespace pl::sim
