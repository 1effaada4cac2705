// SPDX-License-Identifier: Apache-2.0
#include "rm/simulated_device_io.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/text.hpp"
#include "rm/simulated_calls.hpp"

namespace pl::rm {
namespace {

class simulated_io final : public device_io {
 public:
  explicit simulated_io(const simulated_calls& calls) : calls_(calls) {}
  int open(const char* path, int flags) override { return calls_.open(path, flags); }
  int close(int fd) override { return calls_.close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override { return calls_.ioctl(fd, request, argument); }
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override {
    return calls_.mmap(address, size_bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t size_bytes) override { return calls_.munmap(address, size_bytes); }
  int madvise(void* address, std::size_t size_bytes, int advice) override {
    return calls_.madvise(address, size_bytes, advice);
  }
  void clear_event(int fd) override { calls_.clear_event(fd); }
  result<std::string> read_text(const char* path) override {
    char buffer[4096];
    const ssize_t length = calls_.read_text(path, buffer, sizeof buffer);
    if (length >= 0) return std::string(buffer, std::min(sizeof buffer, static_cast<std::size_t>(length)));
    if (errno == EXDEV) return real_device_io().read_text(path);
    return failure{errno, format("cannot open %s", path)};
  }

 private:
  const simulated_calls& calls_;
};

}  // namespace

device_io* simulated_device_io(const cu::driver_table& cuda) {
  if (!cuda.is_simulated || cuda.library == nullptr) return nullptr;
  const auto ask = reinterpret_cast<simulated_calls_function>(dlsym(cuda.library, kSimulatedCallsSymbol));
  const simulated_calls* const calls = ask != nullptr ? ask() : nullptr;
  if (calls == nullptr || calls->version != simulated_calls::kVersion) return nullptr;
  static simulated_io* const io = new simulated_io(*calls);  // one libcuda in a process; mappings outlive static objects
  return io;
}

}  // namespace pl::rm
