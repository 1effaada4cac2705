// SPDX-License-Identifier: Apache-2.0
#include "test/support/fake_gdrdrv.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/checked_math.hpp"
#include "gdrdrv_ioctl.h"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

int fail_with(int code) {
  errno = code;
  return -1;
}

}  // namespace

int fake_gdrdrv::live_pins() const {
  const std::lock_guard lock(mutex_);
  int count = 0;
  for (const auto& [fd, file] : files_) count += static_cast<int>(file.pins.size());
  return count;
}

int fake_gdrdrv::open(const char* path, int) {
  if (std::strcmp(path, "/dev/gdrdrv") != 0) return fail_with(ENOENT);
  const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const std::lock_guard lock(mutex_);
  if (fd >= 0) files_[fd] = open_file{};
  return fd;
}

int fake_gdrdrv::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = files_.find(fd); found != files_.end()) {
      for (const auto& [handle, pin] : found->second.pins) ::close(pin.memfd);
      files_.erase(found);
    }
  }
  return ::close(fd);
}

int fake_gdrdrv::pin_range(open_file& owner, std::uint64_t address, std::uint64_t size, std::uint64_t& handle) {
  if (pin_refusal_ != 0) return fail_with(pin_refusal_);
  if (address == 0) return fail_with(EINVAL);
  const auto rounded = round_outwards({address, size}, kGpuPageBytes);
  int memfd = -1;
  const auto& cuda = simulated_cuda();
  const current_device context;
  if (!rounded ||
      cuda.cuMemGetHandleForAddressRange(&memfd, rounded->begin, rounded->size_bytes, cu::range_handle_type::dma_buf_fd,
                                         cu::range_flag::sim_offset_in_position) != 0)
    return fail_with(EINVAL);
  handle = owner.next_handle;
  owner.next_handle += rounded->size_bytes / kHostPageBytes;
  const auto offset = static_cast<std::uint64_t>(::lseek(memfd, 0, SEEK_CUR));
  owner.pins[handle] = {memfd, offset, rounded->begin, rounded->size_bytes, address - rounded->begin};
  return 0;
}

template <class Info>
int fake_gdrdrv::describe(open_file& owner, void* argument) {
  auto& info = *static_cast<Info*>(argument);
  const auto found = owner.pins.find(info.handle);
  if (found == owner.pins.end()) return fail_with(EINVAL);
  info.va = found->second.begin;
  info.mapped_size = found->second.bytes;
  info.page_size = static_cast<std::uint32_t>(kGpuPageBytes);
  info.tsc_khz = 2000000;
  info.tm_cycles = 1;
  if constexpr (requires { info.mapping_type; }) {
    info.mapping_type = found->second.type;
  } else {
    info.mapped = found->second.type != 0;
    info.wc_mapping = found->second.type == 1;
  }
  return 0;
}

int fake_gdrdrv::ioctl(int fd, unsigned long request, void* argument) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(fd);
  if (found == files_.end()) return fail_with(ENOTTY);
  open_file& owner = found->second;
  const bool has_v2 = version_ >= GDRDRV_VERSION_WORD(2, 5);
  switch (request) {
    case GDRDRV_IOC_GET_VERSION:
      *static_cast<gdrdrv_get_version*>(argument) = {version_, minimum_api_};
      return 0;
    case GDRDRV_IOC_PIN_BUFFER: {
      auto& p = *static_cast<gdrdrv_pin_buffer*>(argument);
      return pin_range(owner, p.addr, p.size, p.handle);
    }
    case GDRDRV_IOC_PIN_BUFFER_V2: {
      if (!has_v2) return fail_with(ENOTTY);
      auto& p = *static_cast<gdrdrv_pin_buffer_v2*>(argument);
      if (p.flags > GDRDRV_PIN_FORCE_PCIE) return fail_with(EINVAL);
      return pin_range(owner, p.addr, p.size, p.handle);
    }
    case GDRDRV_IOC_UNPIN_BUFFER: {
      const auto pin = owner.pins.find(static_cast<gdrdrv_unpin_buffer*>(argument)->handle);
      if (pin == owner.pins.end()) return fail_with(EINVAL);
      ::close(pin->second.memfd);
      owner.pins.erase(pin);
      return 0;
    }
    case GDRDRV_IOC_GET_CB_FLAG:
      static_cast<gdrdrv_get_cb_flag*>(argument)->flag = 0;
      return 0;
    case GDRDRV_IOC_GET_INFO:
      return describe<gdrdrv_get_info>(owner, argument);
    case GDRDRV_IOC_GET_INFO_V2:
      return version_ >= GDRDRV_VERSION_WORD(2, 4) ? describe<gdrdrv_get_info_v2>(owner, argument) : fail_with(ENOTTY);
    case GDRDRV_IOC_GET_ATTR: {
      if (!has_v2) return fail_with(ENOTTY);
      auto& p = *static_cast<gdrdrv_get_attr*>(argument);
      p.val = p.attr == GDRDRV_ATTR_PERSISTENT ? 1 : 0;
      return 0;
    }
    case GDRDRV_IOC_REQ_MAPPING_TYPE: {
      if (!has_v2) return fail_with(ENOTTY);
      const auto& p = *static_cast<const gdrdrv_req_mapping_type*>(argument);
      if (p.mapping_type > 3) return fail_with(EINVAL);
      return p.mapping_type <= 1 ? 0 : fail_with(EOPNOTSUPP);
    }
    default:
      return fail_with(ENOTTY);
  }
}

void* fake_gdrdrv::mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(fd);
  if (found == files_.end()) return ::mmap(address, size_bytes, protection, flags, fd, offset);
  const auto pin = found->second.pins.find(static_cast<std::uint64_t>(offset) / kHostPageBytes);
  if (pin == found->second.pins.end() || pin->second.mapped != nullptr || pin->second.skew != 0 ||
      size_bytes > pin->second.bytes)
    return errno = EINVAL, MAP_FAILED;
  void* got = ::mmap(address, size_bytes, protection, flags, pin->second.memfd, static_cast<off_t>(pin->second.offset));
  if (got != MAP_FAILED) {
    pin->second.type = 1;
    pin->second.mapped = got;
  }
  return got;
}

int fake_gdrdrv::munmap(void* address, std::size_t size_bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [fd, file] : files_)
      for (auto& [handle, pin] : file.pins)
        if (pin.mapped == address) {
          pin.mapped = nullptr;
          pin.type = 0;
        }
  }
  return ::munmap(address, size_bytes);
}
int fake_gdrdrv::madvise(void* address, std::size_t size_bytes, int advice) {
  return ::madvise(address, size_bytes, advice);
}
result<std::string> fake_gdrdrv::read_text(const char* path) { return failure{ENOENT, path}; }

}  // namespace pl::test
