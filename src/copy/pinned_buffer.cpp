// SPDX-License-Identifier: Apache-2.0
#include "copy/pinned_buffer.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kHugePageBytes = 2u << 20;

}  // namespace

result<pinned_buffer> pinned_buffer::make(const gpu_context& context, std::size_t bytes) {
  const std::size_t granule = bytes >= kHugePageBytes ? kHugePageBytes : 4096;
  if (bytes > SIZE_MAX - granule) return failure{ENOMEM, format("%zu bytes of host memory for copies: too many", bytes)};
  pinned_buffer made;
  made.context_ = context;
  made.bytes_ = (bytes + granule - 1) / granule * granule;
  void* const memory = mmap(nullptr, made.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return failure{errno, format("%zu bytes of host memory for copies: %s", made.bytes_, std::strerror(errno))};
  made.data_ = static_cast<std::byte*>(memory);
  madvise(memory, made.bytes_, MADV_DONTFORK);
  madvise(memory, made.bytes_, MADV_HUGEPAGE);
  std::memset(memory, 0, made.bytes_);
  const auto& cuda = *context.cuda;
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  if (const auto rc = cuda.cuMemHostRegister_v2(memory, made.bytes_, kFlags); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("registering %zu bytes of host memory", made.bytes_));
  if (const auto rc = cuda.cuMemHostGetDevicePointer_v2(&made.device_, memory, 0); rc != cu::error_code::success) {
    cuda.cuMemHostUnregister(memory);
    made.device_ = 0;
    return cu::make_error(cuda, rc, "the device address of registered host memory");
  }
  return made;
}

pinned_buffer::pinned_buffer(pinned_buffer&& other) noexcept
    : context_(other.context_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(std::exchange(other.device_, 0)) {}

pinned_buffer& pinned_buffer::operator=(pinned_buffer&& other) noexcept {
  if (this != &other) {
    drop();
    context_ = other.context_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = std::exchange(other.device_, 0);
  }
  return *this;
}

pinned_buffer::~pinned_buffer() { drop(); }

void pinned_buffer::drop() noexcept {
  if (data_ == nullptr) return;
  if (device_ != 0) {
    // Fails if the context is gone, and the registration with it.
    if (auto scope = context_use::enter(context_)) context_.cuda->cuMemHostUnregister(data_);
  }
  munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace pl::copy
