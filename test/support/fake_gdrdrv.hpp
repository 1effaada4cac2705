// SPDX-License-Identifier: Apache-2.0
// The gdrdrv kernel module as user space sees it, in any version from 2.0 to 2.6, over the simulated GPU's memory:
// ioctl numbers, struct sizes, handles as mmap offsets, version gates and errno values of the stock module.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "os/device_io.hpp"

namespace pl::test {

class fake_gdrdrv final : public device_io {
 public:
  explicit fake_gdrdrv(unsigned major = 2, unsigned minor = 6) : version_((major << 16) | minor) {}

  int live_pins() const;
  void set_minimum_api(std::uint32_t word) { minimum_api_ = word; }
  void refuse_pins(int code) { pin_refusal_ = code; }  // an errno; 0: none

  int open(const char* path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override;
  int munmap(void* address, std::size_t size_bytes) override;
  int madvise(void* address, std::size_t size_bytes, int advice) override;
  result<std::string> read_text(const char* path) override;

 private:
  struct pin_record {
    int memfd;
    std::uint64_t offset, begin, bytes, skew;
    std::uint32_t type = 0;
    void* mapped = nullptr;
  };
  struct open_file {
    std::map<std::uint64_t, pin_record> pins;
    std::uint64_t next_handle = 0;
  };
  int pin_range(open_file& owner, std::uint64_t address, std::uint64_t size, std::uint64_t& handle);
  template <class Info>
  int describe(open_file& owner, void* argument);
  std::uint32_t version_;
  std::uint32_t minimum_api_ = 0x20000;
  int pin_refusal_ = 0;
  mutable std::mutex mutex_;
  std::map<int, open_file> files_;
};

}  // namespace pl::test
