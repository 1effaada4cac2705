// SPDX-License-Identifier: Apache-2.0
#include "copy/pinned_buffer.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"

namespace pl::copy {
result<pinned_buffer> pinned_buffer::make(const gpu_context& context, std::size_t bytes) {
  auto pages = unforked_pages::make(bytes);
  if (!pages) return pages.error();
  pinned_buffer made;
  made.context_ = context;
  made.pages_ = *std::move(pages);
  std::byte* const memory = made.pages_.data();
  const auto& cuda = *context.cuda;
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  if (const auto rc = cuda.cuMemHostRegister_v2(memory, made.size_bytes(), kFlags); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("registering %zu bytes of host memory", made.size_bytes()));
  if (const auto rc = cuda.cuMemHostGetDevicePointer_v2(&made.device_, memory, 0); rc != cu::error_code::success) {
    cuda.cuMemHostUnregister(memory);
    made.device_ = 0;
    return cu::make_error(cuda, rc, "the device address of registered host memory");
  }
  return made;
}

pinned_buffer::pinned_buffer(pinned_buffer&& other) noexcept
    : context_(other.context_), pages_(std::move(other.pages_)), device_(std::exchange(other.device_, 0)) {}

pinned_buffer& pinned_buffer::operator=(pinned_buffer&& other) noexcept {
  if (this != &other) {
    unregister();
    context_ = other.context_;
    pages_ = std::move(other.pages_);
    device_ = std::exchange(other.device_, 0);
  }
  return *this;
}

pinned_buffer::~pinned_buffer() { unregister(); }

void pinned_buffer::unregister() noexcept {
  if (device_ == 0) return;
  // Fails if the context is gone, and the registration with it.
  if (auto scope = context_use::enter(context_)) context_.cuda->cuMemHostUnregister(pages_.data());
}

}  // namespace pl::copy
