// SPDX-License-Identifier: Apache-2.0
// CRC-32C of GPU memory by a short kernel, while the same memory is copied. A kernel reads a value at hundreds of GB/s.
// CPU cores that read what has just arrived over PCIe reached 40 GB/s together, less than the link delivers (H100,
// eight threads).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"

namespace pl::copy {

// One for each context. Thread-safe; one job at a time.
class gpu_checksum {
 public:
  static constexpr std::size_t kAlignment = 16, kMaxBytes = 256u << 20;

  // A checksum in progress. Its memory must not be freed before test() has returned a value, give_up() has returned, or
  // the job is destroyed.
  class job {
   public:
    job() = default;
    job(job&& other) noexcept;
    job& operator=(job&& other) noexcept;
    ~job() { give_up(); }
    bool is_there() const noexcept { return owner_ != nullptr; }
    // The checksum as arch::crc32c computes it, once it is available; the job is then over. Never blocks.
    std::optional<std::uint32_t> test();
    // When this returns, the memory is not read any more. A kernel that has not begun, because others occupy the GPU,
    // never reads it; one that has begun is waited for, for about 0.2 ms at most.
    void give_up() noexcept;

   private:
    friend class gpu_checksum;
    gpu_checksum* owner_ = nullptr;
    std::uint32_t number_ = 0;
    std::uint64_t bytes_ = 0;
  };

  // ENOTSUP: this build has no kernels, or streams cannot write words.
  static result<std::unique_ptr<gpu_checksum>> open(const gpu_context& context);
  // Waits for the kernel.
  ~gpu_checksum();
  gpu_checksum(const gpu_checksum&) = delete;
  gpu_checksum& operator=(const gpu_checksum&) = delete;

  // Checksum of [src, src + bytes) at the time when the stream `after` has finished its work so far (has_after), or
  // now. EINVAL: not a multiple of kAlignment, 0 bytes, or more than kMaxBytes. EBUSY: another job is in progress, or
  // the kernel of a given-up one has not run yet. Otherwise the driver's failure; nothing is in progress then.
  result<job> begin(cu::device_ptr src, std::size_t bytes, cu::stream_t after, bool has_after);

 private:
  struct state;
  explicit gpu_checksum(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
