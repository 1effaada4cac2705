// SPDX-License-Identifier: Apache-2.0
// Host memory that a GPU reads and writes, and that stays ours when its CUDA context is destroyed.
#pragma once

#include <cstddef>

#include "copy/gpu_context.hpp"
#include "os/unforked_pages.hpp"

namespace pl::copy {

// Pages of our own, registered with CUDA (those of cuMemHostAlloc would be unmapped under a polling CPU when the
// application destroys the context). Zeroed, page-aligned, huge pages if available. Not inherited by forked children,
// where copy-on-write would separate the CPU's view from the GPU's: access there faults, so owners check the process
// epoch first.
class pinned_buffer {
 public:
  pinned_buffer() = default;
  // `bytes` is rounded up to whole pages. ENOMEM, or the driver's reason (locked memory limits).
  static result<pinned_buffer> make(const gpu_context& context, std::size_t bytes);
  pinned_buffer(pinned_buffer&& other) noexcept;
  pinned_buffer& operator=(pinned_buffer&& other) noexcept;
  ~pinned_buffer();

  std::byte* data() const noexcept { return pages_.data(); }
  std::size_t size_bytes() const noexcept { return pages_.size_bytes(); }
  cu::device_ptr device_address() const noexcept { return device_; }

 private:
  void unregister() noexcept;
  gpu_context context_;
  unforked_pages pages_;
  cu::device_ptr device_ = 0;
};

}  // namespace pl::copy
