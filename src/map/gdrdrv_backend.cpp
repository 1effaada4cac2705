// SPDX-License-Identifier: Apache-2.0
// Client of the gdrdrv kernel module, stock 2.0 to 2.6 or ours: pin, map and unpin are its ioctls and mmap.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gdrdrv_ioctl.h"
#include "map/backend.hpp"
#include "os/faulting_range.hpp"
#include "os/unique_fd.hpp"

namespace pl {
namespace {

constexpr std::uint32_t kOldestVersion = GDRDRV_VERSION_WORD(2, 0);
constexpr std::uint32_t kInfoV2Version = GDRDRV_VERSION_WORD(2, 4);
constexpr std::uint32_t kPinV2Version = GDRDRV_VERSION_WORD(2, 5);
constexpr std::uint32_t kOurApiVersion = GDRDRV_VERSION_WORD(2, 6);
constexpr int kKernelEnotsupp = 524;  // leaks from nvidia.ko through stock gdrdrv; our driver answers EOPNOTSUPP

class gdrdrv_pin final : public pinned_memory {
 public:
  gdrdrv_pin(device_io& io, int fd, std::uint32_t version, address_range range, int ordinal)
      : pinned_memory("gdrdrv", range, ordinal), io_(io), fd_(fd), version_(version) {}
  ~gdrdrv_pin() override {
    if (!is_held_) return;
    gdrdrv_unpin_buffer params{handle_};
    io_.ioctl(fd_, GDRDRV_IOC_UNPIN_BUFFER, &params);
  }
  // The module's handle of the pin, to be released at the end. 0 is a valid handle.
  void hold(std::uint64_t handle) noexcept {
    handle_ = handle;
    is_held_ = true;
  }

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) override {
    if (auto s = request_type(wanted); !s) return s.error();
    const auto offset = static_cast<off_t>(handle_ * kHostPageBytes);
    void* address = io_.mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
    if (address == MAP_FAILED) {
      const int code = errno;
      return failure{code,
                     format("gdrdrv: mmap of %s failed: %s", format_size(size_bytes).c_str(), errno_text(code).c_str())};
    }
    cpu_view view{address, size_bytes, arch::mapping_type::none};
    // Our driver and the stock one already refuse inheritance; asking again costs nothing and covers others.
    if (io_.madvise(address, size_bytes, MADV_DONTFORK) != 0) return undo(view, errno, "madvise(MADV_DONTFORK)");
    auto type = mapped_type();
    if (!type) return undo(view, type.code(), "asking for the mapping type");
    if (*type == arch::mapping_type::none) return undo(view, EAGAIN, "publishing the mapping");
    if (wanted != arch::mapping_type::none && *type != wanted)
      return undo(view, EINVAL, "getting the requested mapping type");
    view.type = *type;
    return view;
  }

  void unmap(const cpu_view& view, unmapping mode) noexcept override {
    if (mode == unmapping::forgotten) leave_faulting_range(io_, view.address, view.size_bytes);
    else io_.munmap(view.address, view.size_bytes);
  }

  result<bool> revoked() override {
    gdrdrv_get_cb_flag params{handle_, 0, 0};
    if (io_.ioctl(fd_, GDRDRV_IOC_GET_CB_FLAG, &params) != 0)
      return failure{errno, "gdrdrv: asking for the callback flag failed: " + errno_text(errno)};
    return params.flag != 0;
  }

 private:
  failure undo(const cpu_view& view, int code, const char* step) {
    io_.munmap(view.address, view.size_bytes);
    return failure{code, format("gdrdrv: %s failed: %s", step, errno_text(code).c_str())};
  }

  status request_type(arch::mapping_type wanted) {
    if (version_ < kPinV2Version) return {};  // verified afterwards
    gdrdrv_req_mapping_type params{handle_, static_cast<std::uint32_t>(wanted), 0};
    if (io_.ioctl(fd_, GDRDRV_IOC_REQ_MAPPING_TYPE, &params) == 0) return {};
    const int code = errno;
    return failure{code, format("gdrdrv refuses mapping type %d: %s", static_cast<int>(wanted), errno_text(code).c_str())};
  }

  result<arch::mapping_type> mapped_type() {
    if (version_ >= kInfoV2Version) {
      gdrdrv_get_info_v2 info{};
      info.handle = handle_;
      if (io_.ioctl(fd_, GDRDRV_IOC_GET_INFO_V2, &info) != 0) return failure{errno, ""};
      return static_cast<arch::mapping_type>(info.mapping_type);
    }
    gdrdrv_get_info info{};
    info.handle = handle_;
    if (io_.ioctl(fd_, GDRDRV_IOC_GET_INFO, &info) != 0) return failure{errno, ""};
    if (info.mapped == 0) return arch::mapping_type::none;
    return info.wc_mapping != 0 ? arch::mapping_type::wc : arch::mapping_type::cached;
  }

  device_io& io_;
  int fd_;
  std::uint32_t version_;
  std::uint64_t handle_ = 0;
  bool is_held_ = false;
};

class gdrdrv_backend final : public backend {
 public:
  gdrdrv_backend(const backend_environment& environment, unique_fd fd, std::uint32_t version)
      : io_(*environment.io), cuda_(environment.cuda), fd_(std::move(fd)), version_(version) {
    persistent_ = attribute(GDRDRV_ATTR_PERSISTENT);
    force_pcie_ = attribute(GDRDRV_ATTR_FORCE_PCIE);
  }
  const char* name() const noexcept override { return "gdrdrv"; }
  bool persistent() const noexcept override { return persistent_; }
  bool supports_force_pcie() const noexcept override { return force_pcie_; }
  std::uint32_t driver_version_word() const noexcept override { return version_; }
  int descriptor() const noexcept override { return fd_.get(); }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    // The module only checks page ranges; the exact check (and the message for a bad pointer) is here.
    int ordinal = -1;
    if (request.range.begin == 0 || request.range.size_bytes == 0)
      return failure{EINVAL, "address or size is 0: nothing to pin"};
    if (request.rule == range_rule::exact) {
      auto plan = plan_request(request);
      if (!plan) return plan.error();
      ordinal = plan->device_ordinal;
    }
    const auto rounded = round_outwards(request.range, kGpuPageBytes);
    if (!rounded) return failure{EINVAL, "address plus size overflows"};
    auto pin = std::make_unique<gdrdrv_pin>(io_, fd_.get(), version_, *rounded, ordinal);
    // The rounded range, which the module would pin anyway: it refuses to map a pin that starts within a granule.
    std::uint64_t handle = 0;
    if (const int code = call_pin(*rounded, request.force_pcie, handle); code != 0) return explain(request, code);
    pin->hold(handle);
    return std::unique_ptr<pinned_memory>(std::move(pin));
  }

 private:
  bool attribute(std::uint32_t attribute) {
    if (version_ < kPinV2Version) return false;
    gdrdrv_get_attr params{attribute, 0};
    return io_.ioctl(fd_.get(), GDRDRV_IOC_GET_ATTR, &params) == 0 && params.val != 0;
  }

  int call_pin(address_range range, bool force_pcie, std::uint64_t& handle) {
    if (version_ >= kPinV2Version) {
      gdrdrv_pin_buffer_v2 params{range.begin, range.size_bytes, force_pcie ? std::uint32_t{GDRDRV_PIN_FORCE_PCIE} : 0u, 0,
                                  0};
      if (io_.ioctl(fd_.get(), GDRDRV_IOC_PIN_BUFFER_V2, &params) != 0) return errno;
      handle = params.handle;
      return 0;
    }
    if (force_pcie) return EINVAL;
    gdrdrv_pin_buffer params{range.begin, range.size_bytes, 0, 0, 0, 0};
    if (io_.ioctl(fd_.get(), GDRDRV_IOC_PIN_BUFFER, &params) != 0) return errno;
    handle = params.handle;
    return 0;
  }

  result<pin_plan> plan_request(const pin_request& request) {
    auto cuda = driver_of(cuda_);
    if (!cuda) return cuda.error();
    return plan_pin(**cuda, request.range, kGpuPageBytes, request.rule);
  }

  // The module answers with a bare number; CUDA usually knows the reason.
  failure explain(const pin_request& request, int code) {
    if (code == kKernelEnotsupp || code == EOPNOTSUPP)
      return failure{ENOTSUP, request.force_pcie
                                  ? "the NVIDIA driver cannot force a mapping through BAR1 here: it needs persistent pins, "
                                    "which MIG and vGPU refuse; map without that flag"
                                  : "the NVIDIA driver refuses to share this GPU's memory with modules (MIG, vGPU or a GPU "
                                    "without GPUDirect RDMA)"};
    if (code == ENOMEM) return failure{ENOMEM, "BAR1 is full: release mappings or pin smaller ranges"};
    auto plan = plan_request(request);
    if (!plan) return failure{code, plan.error().message};
    return failure{
        code, format("gdrdrv refuses to pin 0x%llx + %llu bytes: %s", static_cast<unsigned long long>(request.range.begin),
                     static_cast<unsigned long long>(request.range.size_bytes), errno_text(code).c_str())};
  }

  device_io& io_;
  const cu::driver_table* cuda_;
  unique_fd fd_;
  std::uint32_t version_;
  bool persistent_ = false;
  bool force_pcie_ = false;
};

}  // namespace

result<std::unique_ptr<backend>> open_gdrdrv_backend(const backend_environment& environment) {
  if (env_read("GDRCOPY_USE_DMABUF_MMAP").text == "1") return failure{ENODEV, "switched off by GDRCOPY_USE_DMABUF_MMAP=1"};
  device_io& io = *environment.io;
  const int fd = io.open("/dev/gdrdrv", O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    const int code = errno;
    const char* hint = code == EACCES ? "no permission: chmod 666 /dev/gdrdrv as root"
                                      : "the module is not loaded (it is not needed either)";
    return failure{code, format("/dev/gdrdrv cannot be opened (%s): %s", errno_text(code).c_str(), hint)};
  }
  unique_fd owner(io, fd);
  gdrdrv_get_version version{};
  if (io.ioctl(fd, GDRDRV_IOC_GET_VERSION, &version) != 0)
    return failure{errno, "/dev/gdrdrv does not answer the version question: " + errno_text(errno)};
  if (version.gdrdrv_version < kOldestVersion)
    return failure{ENOTSUP, format("gdrdrv %u.%u is too old: 2.0 or newer is needed", version.gdrdrv_version >> 16,
                                   version.gdrdrv_version & 0xffff)};
  if (version.minimum_gdr_api_version > kOurApiVersion)
    return failure{ENOTSUP, "the loaded gdrdrv requires a newer library"};
  return std::unique_ptr<backend>(new gdrdrv_backend(environment, std::move(owner), version.gdrdrv_version));
}

}  // namespace pl
