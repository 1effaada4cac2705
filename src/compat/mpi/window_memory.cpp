// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/window_memory.hpp"

#include <cerrno>
#include <utility>

#include "compat/mpi/device_memory.hpp"
#include "copy/gpu_context.hpp"
#include "cuda/pointer.hpp"

namespace pl::mpi {
namespace {

failure not_exported(const cu::driver_table& cuda, cu::result_t rc, const char* action) {
  return {ENOTSUP, cu::make_error(cuda, rc, action).message};
}

// The context in which this process opens memory of others.
result<copy::gpu_context> context_for(const cu::driver_table& cuda, std::uint64_t own_memory) {
  if (own_memory != 0) {
    auto info = cu::inspect_pointer(cuda, own_memory);
    if (!info) return info.error();
    return copy::find_context(cuda, info->device_ordinal, info->context);
  }
  cu::context_t current = nullptr;
  cu::device_t device = 0;
  if (cuda.cuCtxGetCurrent(&current) != cu::error_code::success || current == nullptr ||
      cuda.cuCtxGetDevice(&device) != cu::error_code::success)
    return copy::find_context(cuda, 0, nullptr);
  return copy::find_context(cuda, device, current);
}

}  // namespace

result<exported_memory> export_memory(address_range bytes) {
  auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  auto info = cu::inspect_pointer(**cuda, bytes.begin);
  if (!info) return info.error();
  if (!info->allocation.contains(bytes)) return failure{EINVAL, "the window leaves its allocation of device memory"};
  if ((*cuda)->cuIpcGetMemHandle == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcGetMemHandle"};
  auto use = cu::context_scope::enter(**cuda, info->device_ordinal, info->context);
  if (!use) return use.error();
  exported_memory out;
  out.offset = bytes.begin - info->allocation.begin;
  if (const auto rc = (*cuda)->cuIpcGetMemHandle(&out.handle, info->allocation.begin); rc != cu::error_code::success)
    return not_exported(**cuda, rc, "exporting device memory to other processes");
  return out;
}

result<imported_memory> imported_memory::open(const exported_memory& exported, std::uint64_t own_memory) {
  if (!driver_is_there()) return failure{ENOTSUP, "this process does not use CUDA"};
  auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  if ((*cuda)->cuIpcOpenMemHandle_v2 == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcOpenMemHandle"};
  auto context = context_for(**cuda, own_memory);
  if (!context) return context.error();
  auto use = copy::context_use::enter(*context);
  if (!use) return use.error();
  constexpr unsigned kLazyPeerAccess = 1;
  imported_memory out;
  if (const auto rc = (*cuda)->cuIpcOpenMemHandle_v2(&out.base_, exported.handle, kLazyPeerAccess);
      rc != cu::error_code::success)
    return not_exported(**cuda, rc, "opening another process's device memory");
  out.offset_ = exported.offset;
  out.device_ordinal_ = context->device_ordinal;
  out.context_ = context->handle;
  return out;
}

imported_memory::imported_memory(imported_memory&& other) noexcept
    : base_(std::exchange(other.base_, 0)),
      offset_(other.offset_),
      device_ordinal_(other.device_ordinal_),
      context_(other.context_) {}

imported_memory& imported_memory::operator=(imported_memory&& other) noexcept {
  if (this == &other) return *this;
  close();
  base_ = std::exchange(other.base_, 0);
  offset_ = other.offset_;
  device_ordinal_ = other.device_ordinal_;
  context_ = other.context_;
  return *this;
}

void imported_memory::close() noexcept {
  if (base_ == 0) return;
  auto cuda = cu::driver();
  if (!cuda) return;
  if (auto use = cu::context_scope::enter(**cuda, device_ordinal_, context_)) (*cuda)->cuIpcCloseMemHandle(base_);
  base_ = 0;
}

}  // namespace pl::mpi
