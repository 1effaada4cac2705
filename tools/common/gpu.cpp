// SPDX-License-Identifier: Apache-2.0
#include "tools/common/gpu.hpp"

#include <cstdio>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "measure/machine.hpp"
#include "tools/common/gpu_choice.hpp"

namespace pl::tools {

void print_gpu_lines(const cu::driver_table& cuda) {
  int count = 0;
  cuda.cuDeviceGetCount(&count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cu::device_t device = 0;
    char name[256] = "unknown";
    int domain = 0, bus = 0, slot = 0;
    cuda.cuDeviceGet(&device, ordinal);
    cuda.cuDeviceGetName(name, sizeof name, device);
    cuda.cuDeviceGetAttribute(&domain, cu::device_attribute::pci_domain_id, device);
    cuda.cuDeviceGetAttribute(&bus, cu::device_attribute::pci_bus_id, device);
    cuda.cuDeviceGetAttribute(&slot, cu::device_attribute::pci_device_id, device);
    std::printf("GPU id:%d; name: %s; Bus id: %04x:%02x:%02x\n", ordinal, name, static_cast<unsigned>(domain),
                static_cast<unsigned>(bus), static_cast<unsigned>(slot));
  }
}

gpu_session::gpu_session(int ordinal, bool announce) : ordinal_(ordinal) {
  must(choose_gpu());
  print_header_if_simulated();
  cuda_ = must(cu::driver());
  if (auto ready = cu::initialize(*cuda_); !ready)
    throw tool_failure(format("no GPU answers: %s", ready.error().message.c_str()));
  if (announce) print_gpu_lines(*cuda_);
  int count = 0;
  check(cuda_->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 0) throw tool_failure(format("no GPU answers: the driver sees no GPU. %s", kNoRealGpuAdvice));
  if (ordinal >= count)
    throw tool_failure(format("there is no GPU %d: this process sees %d, numbered from 0 (CUDA_VISIBLE_DEVICES limits them)",
                              ordinal, count));
  if (announce) std::printf("selecting device %d\n", ordinal);
  check(cuda_->cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  check(cuda_->cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  make_current();
}

gpu_session::~gpu_session() {
  if (context_ != nullptr) cuda_->cuDevicePrimaryCtxRelease_v2(device_);
}

std::string gpu_session::bus_id() const { return pci_bus_id(*cuda_, ordinal_); }

int gpu_session::attribute(int attribute_id) const {
  int value = 0;
  return cuda_->cuDeviceGetAttribute(&value, attribute_id, device_) == cu::error_code::success ? value : 0;
}

void gpu_session::make_current() const { check(cuda_->cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }
void gpu_session::synchronize() const { check(cuda_->cuCtxSynchronize(), "cuCtxSynchronize"); }

void gpu_session::check(cu::result_t code, const std::string& description) const {
  if (code != cu::error_code::success) throw tool_failure(cu::make_error(*cuda_, code, description).message);
}

// ---- device memory ---------------------------------------------------------------------------------------------------

device_memory::device_memory(const gpu_session& gpu, std::uint64_t size_bytes, alloc_kind kind) : gpu_(&gpu), kind_(kind) {
  const auto rounded = checked_align_up(size_bytes, kGpuPageBytes);
  if (size_bytes == 0 || !rounded)
    throw tool_failure(format("an allocation of %llu bytes is not possible", static_cast<unsigned long long>(size_bytes)));
  size_bytes_ = *rounded;
  try {
    if (kind == alloc_kind::cu_mem_alloc) {
      // cuMemAlloc hands out parts of larger blocks, aligned to less than a GPU page: allocate one page more, align by hand.
      gpu.check(gpu.cuda().cuMemAlloc_v2(&base_, size_bytes_ + kGpuPageBytes - 1),
                format("cuMemAlloc of %s", format_size(size_bytes_).c_str()));
      aligned_ = *checked_align_up(base_, kGpuPageBytes);
    } else {
      allocate_pieces();
    }
    // Makes CUDA's own copies wait for their data, so that what they bring is what the mapping shows. Some drivers do not
    // take it for cuMemCreate memory; the tools synchronise by themselves where it matters.
    int enabled = 1;
    const auto rc = gpu.cuda().cuPointerSetAttribute(&enabled, cu::pointer_attribute::sync_memops, aligned_);
    if (rc != cu::error_code::not_supported) gpu.check(rc, "cuPointerSetAttribute(SYNC_MEMOPS)");
  } catch (...) {
    free();
    throw;
  }
}

void device_memory::allocate_pieces() {
  const auto& cuda = gpu_->cuda();
  if (cuda.cuMemCreate == nullptr) throw tool_failure("this driver has no cuMemCreate: use -a cuMemAlloc");
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.location = {cu::location_type::device, gpu_->device()};
  prop.flags.gpu_direct_rdma_capable = 1;
  std::size_t granularity = 0;
  gpu_->check(cuda.cuMemGetAllocationGranularity(&granularity, &prop, cu::granularity::minimum),
              "cuMemGetAllocationGranularity");
  reserved_bytes_ = (size_bytes_ + granularity - 1) / granularity * granularity;
  gpu_->check(cuda.cuMemAddressReserve(&base_, reserved_bytes_, kGpuPageBytes, 0, 0), "cuMemAddressReserve");
  gpu_->check(cuda.cuMemCreate(&physical_, reserved_bytes_, &prop, 0),
              format("cuMemCreate of %s", format_size(reserved_bytes_).c_str()));
  gpu_->check(cuda.cuMemMap(base_, reserved_bytes_, 0, physical_, 0), "cuMemMap");
  const cu::access_desc access{{cu::location_type::device, gpu_->device()}, cu::access_flags::read_write};
  gpu_->check(cuda.cuMemSetAccess(base_, reserved_bytes_, &access, 1), "cuMemSetAccess");
  aligned_ = base_;
}

device_memory::device_memory(device_memory&& other) noexcept
    : gpu_(other.gpu_),
      kind_(other.kind_),
      size_bytes_(other.size_bytes_),
      base_(std::exchange(other.base_, 0)),
      aligned_(other.aligned_),
      reserved_bytes_(other.reserved_bytes_),
      physical_(std::exchange(other.physical_, 0)) {}

void device_memory::free() {
  const auto& cuda = gpu_->cuda();
  if (const auto base = std::exchange(base_, 0); base != 0) {
    if (kind_ == alloc_kind::cu_mem_alloc) {
      cuda.cuMemFree_v2(base);
    } else {
      if (aligned_ != 0) cuda.cuMemUnmap(base, reserved_bytes_);
      cuda.cuMemAddressFree(base, reserved_bytes_);
    }
  }
  if (const auto physical = std::exchange(physical_, 0); physical != 0) cuda.cuMemRelease(physical);
}

// ---- host memory and streams -------------------------------------------------------------------------------------------

host_memory::host_memory(const gpu_session& gpu, std::uint64_t size_bytes) : gpu_(gpu), size_bytes_(size_bytes) {
  constexpr unsigned kFlags = cu::host_alloc_flag::portable | cu::host_alloc_flag::device_map;
  gpu.check(gpu.cuda().cuMemHostAlloc(&data_, size_bytes, kFlags),
            format("cuMemHostAlloc of %s", format_size(size_bytes).c_str()));
  if (const auto rc = gpu.cuda().cuMemHostGetDevicePointer_v2(&device_address_, data_, 0); rc != cu::error_code::success) {
    gpu.cuda().cuMemFreeHost(data_);
    gpu.check(rc, "cuMemHostGetDevicePointer");
  }
}

host_memory::~host_memory() { gpu_.cuda().cuMemFreeHost(data_); }

gpu_stream::gpu_stream(const gpu_session& gpu) : gpu_(gpu) {
  gpu.check(gpu.cuda().cuStreamCreate(&stream_, cu::stream_flag::non_blocking), "cuStreamCreate");
}

gpu_stream::~gpu_stream() { gpu_.cuda().cuStreamDestroy_v2(stream_); }

}  // namespace pl::tools
