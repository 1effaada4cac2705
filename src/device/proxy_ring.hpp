// SPDX-License-Identifier: Apache-2.0
// A ring whose posts the CPU carries out, where DMA channels cannot be had: kernels write the same segments, into pinned
// host memory, and a thread hands them to CUDA as copies and words of one stream. So everything is in order, and a put takes
// as long as the thread's next look and CUDA's copy.
//
// The counts lie in GPU memory, where kernels take tickets by atomics; CUDA's stream writes how far it is.
//
// Thread-safe but for close(), which must not run beside refill().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"
#include "dma/device_ring.hpp"
#include "dma/kernel_ring.hpp"

namespace pl::device {

class proxy_ring final : public dma::kernel_ring {
 public:
  // Whether [address, address + bytes) may be read and written: memory of a window.
  using memory_check = std::function<bool(std::uint64_t address, std::uint64_t bytes)>;

  // ENOTSUP: CUDA has no stream memory operations here; ENOMEM; EINVAL: the options.
  static result<std::unique_ptr<proxy_ring>> open(const copy::gpu_context& context, const dma::device_ring_options& options,
                                                  memory_check is_window);
  ~proxy_ring() override;
  proxy_ring(const proxy_ring&) = delete;
  proxy_ring& operator=(const proxy_ring&) = delete;

  const peerlane_device_ring& handle() const noexcept override { return handle_; }
  bool refill() override;
  state read() const override;
  void close() noexcept override;

 private:
  struct commands;
  proxy_ring(const copy::gpu_context& context, const dma::device_ring_options& options, memory_check is_window)
      : context_(context), options_(options), is_window_(std::move(is_window)) {}
  status set_up();
  status carry_out(const std::uint32_t* segment, std::uint32_t ticket);
  status launch(commands& now, std::uint32_t flags);
  status write_word(std::uint64_t address, std::uint32_t value);
  status check(std::uint64_t address, std::uint64_t bytes) const;
  bool read_control(void* out, std::size_t bytes) const;
  void end(failure reason, cu::stream_t behind);

  const copy::gpu_context context_;
  const dma::device_ring_options options_;
  const memory_check is_window_;
  cu::device_ptr control_ = 0;
  copy::pinned_buffer segments_;
  cu::stream_t stream_ = nullptr, questions_ = nullptr;  // the copies'; and one for looks at the counts
  peerlane_device_ring handle_{};

  mutable std::mutex mutex_;
  std::uint64_t taken_ = 0;  // tickets
  std::uint64_t last_look_ns_ = 0;
  std::optional<failure> reason_;
};

}  // namespace pl::device
