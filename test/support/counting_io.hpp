// SPDX-License-Identifier: Apache-2.0
// device_io that counts what is open and mapped, and can let the k-th call fail: the failure sweep's tool.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "os/device_io.hpp"

namespace pl::test {

class counting_io final : public device_io {
 public:
  explicit counting_io(device_io& next) : next_(next) {}

  // The call number `step` (0-based, counted from now) fails with `code`; releasing calls (close, munmap, MAP_FIXED
  // PROT_NONE replacements, the ioctls that free, unmap and unpin) are not counted: a kernel does not fail those. Negative:
  // none fails.
  void fail_at(int step, int code) {
    step_.store(step);
    code_.store(code);
    fired_.store(false);
  }
  bool fired() const { return fired_.load(); }

  int open_descriptors() const;
  std::size_t mapped_bytes() const;

  int open(const char* path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override;
  int munmap(void* address, std::size_t size_bytes) override;
  int madvise(void* address, std::size_t size_bytes, int advice) override;
  result<std::string> read_text(const char* path) override { return next_.read_text(path); }

 private:
  bool fails();
  void forget(void* address, std::size_t size_bytes);
  device_io& next_;
  std::atomic<int> step_{-1};
  std::atomic<int> code_{0};
  std::atomic<bool> fired_{false};
  mutable std::mutex mutex_;
  std::set<int> descriptors_;
  std::map<char*, std::size_t> ranges_;  // page-exact, non-overlapping
};

}  // namespace pl::test
