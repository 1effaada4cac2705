// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/shared_segment.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::mpi {

result<shared_segment> shared_segment::map(int fd, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return failure{errno, format("mapping %zu shared bytes for messages: %s", bytes, std::strerror(errno))};
  madvise(memory, bytes, MADV_DONTFORK);
  shared_segment out;
  out.data_ = static_cast<std::byte*>(memory);
  out.bytes_ = bytes;
  return out;
}

result<shared_segment> shared_segment::map_received(int fd, std::size_t bytes) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !cannot_shrink(fd) || bytes == 0 || static_cast<std::uint64_t>(info.st_size) < bytes)
    return failure{EPROTO, "another process sent memory whose size it could still change, or that is too short"};
  return map(fd, bytes);
}

shared_segment::shared_segment(shared_segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      context_(other.context_),
      is_tried_(other.is_tried_),
      is_pinned_(std::exchange(other.is_pinned_, false)) {}

shared_segment& shared_segment::operator=(shared_segment&& other) noexcept {
  if (this == &other) return *this;
  drop();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = other.bytes_;
  context_ = other.context_;
  is_tried_ = other.is_tried_;
  is_pinned_ = std::exchange(other.is_pinned_, false);
  return *this;
}

void shared_segment::pin(const copy::gpu_context& context) noexcept {
  if (std::exchange(is_tried_, true)) return;
  auto scope = copy::context_use::enter(context);
  if (!scope) return;
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  is_pinned_ = context.cuda->cuMemHostRegister_v2(data_, bytes_, kFlags) == cu::error_code::success;
  context_ = context;
}

void shared_segment::drop() noexcept {
  if (data_ == nullptr) return;
  // Fails when the context is gone, and the registration with it.
  if (is_pinned_)
    if (auto scope = copy::context_use::enter(context_)) context_.cuda->cuMemHostUnregister(data_);
  munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace pl::mpi
