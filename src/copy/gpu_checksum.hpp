// SPDX-License-Identifier: Apache-2.0
// CRC-32C of GPU memory by a short kernel, while the same memory is copied. A kernel reads a value at hundreds of GB/s; CPU
// cores that read what has just come over PCIe reached 40 GB/s together, less than the link brings (H100, eight threads).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"

namespace pl::copy {

// One for a context. Thread-safe; one job at a time.
class gpu_checksum {
 public:
  static constexpr std::size_t kAlignment = 16, kMaxBytes = 256u << 20;

  // A checksum under way. Its memory must not be freed before test() has answered, give_up() has returned, or the job is
  // gone.
  class job {
   public:
    job() = default;
    job(job&& other) noexcept;
    job& operator=(job&& other) noexcept;
    ~job() { give_up(); }
    bool is_there() const noexcept { return owner_ != nullptr; }
    // The checksum, as arch::crc32c gives it, once it is there; the job is then over. Never blocks.
    std::optional<std::uint32_t> test();
    // The memory is not read any more when this returns. A kernel that has not begun, because others fill the GPU, never
    // reads it; one that has begun is waited for, some 0.2 ms at most.
    void give_up() noexcept;

   private:
    friend class gpu_checksum;
    gpu_checksum* owner_ = nullptr;
    std::uint32_t number_ = 0;
    std::uint64_t bytes_ = 0;
  };

  // ENOTSUP: no kernels in this build, or no words written by streams.
  static result<std::unique_ptr<gpu_checksum>> open(const gpu_context& context);
  // Waits for the kernel.
  ~gpu_checksum();
  gpu_checksum(const gpu_checksum&) = delete;
  gpu_checksum& operator=(const gpu_checksum&) = delete;

  // Of [src, src + bytes) as it is when the stream `after` has done what it was given so far (has_after), or now.
  // EINVAL: not a multiple of kAlignment, 0 bytes or more than kMaxBytes. EBUSY: another job is under way, or a given-up
  // one's kernel has still to pass. Else the driver's failure; nothing is under way then.
  result<job> begin(cu::device_ptr src, std::size_t bytes, cu::stream_t after, bool has_after);

 private:
  struct state;
  explicit gpu_checksum(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
