// SPDX-License-Identifier: Apache-2.0
// A ring whose posts the CPU carries out, where DMA channels cannot be had, and towards other hosts: kernels write the same
// segments, into pinned host memory, and a thread hands them to CUDA as copies and words of one stream. So everything is in
// order, and a put takes as long as the thread's next look and CUDA's copy.
//
// What goes to or comes from a remote window (remote_target.hpp) is a transfer of its own. Those of one ring are under way
// together, and count as done in their order; between them and what CUDA does stands the end of whatever came first. A
// signal begins when everything before it has ended; behind a put alone the two go together.
//
// The counts lie in GPU memory, where kernels take tickets by atomics; CUDA's stream writes how far it is.
//
// Thread-safe but for close(), which must not run beside refill().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"
#include "device/remote_queue.hpp"
#include "dma/device_ring.hpp"
#include "dma/kernel_ring.hpp"

namespace pl::device {

class proxy_ring final : public dma::kernel_ring {
 public:
  // What [address, address + bytes) is in kernels' windows: memory of this process, which lies at `address` for it, or of
  // another one from `address` on in `remote`. None: no window has it.
  struct place {
    std::uint64_t address = 0;
    std::shared_ptr<remote_target> remote;
  };
  using window_search = std::function<std::optional<place>(std::uint64_t address, std::uint64_t bytes)>;

  // ENOTSUP: CUDA has no stream memory operations here; ENOMEM; EINVAL: the options.
  static result<std::unique_ptr<proxy_ring>> open(const copy::gpu_context& context, const dma::device_ring_options& options,
                                                  window_search find_window);
  ~proxy_ring() override;
  proxy_ring(const proxy_ring&) = delete;
  proxy_ring& operator=(const proxy_ring&) = delete;

  const peerlane_device_ring& handle() const noexcept override { return handle_; }
  bool refill() override;
  state read() const override;
  void close() noexcept override;

 private:
  struct commands;
  // Of a segment: bytes, or a word (no bytes), which may be the count of what is done.
  struct step {
    std::uint64_t destination = 0, source = 0, bytes = 0;
    std::uint32_t value = 0;
    bool is_ordered = false;  // begins when what is before it has ended
  };
  // Whether a step is behind us: else it has to wait for what is before it.
  enum class progress : std::uint8_t { done, waits };

  proxy_ring(const copy::gpu_context& context, const dma::device_ring_options& options, window_search find_window)
      : context_(context), options_(options), find_window_(std::move(find_window)) {}
  status set_up();
  const std::uint32_t* next_segment() const;
  status read_segment(const std::uint32_t* segment, std::uint32_t ticket);
  void add_steps(const commands& now, std::uint32_t flags);
  // Steps of segments until one waits or there is none. An error ends the ring.
  status carry_out();
  result<progress> take(const step& now);
  result<progress> copy(const step& now);
  result<progress> copy_remote(const step& now, const place& destination, const place& source);
  std::unique_ptr<remote_transfer> put_signal(const step& now, const place& destination, const place& source);
  result<progress> set_word(const step& now);
  // Whether transfers to other processes have ended, with the count of what has; whether CUDA's copies have.
  result<bool> is_remote_idle();
  bool is_local_idle();
  status write_word(std::uint64_t address, std::uint32_t value);
  result<place> find(std::uint64_t address, std::uint64_t bytes) const;
  bool read_control(void* out, std::size_t bytes) const;
  void end(failure reason, cu::stream_t behind);

  const copy::gpu_context context_;
  const dma::device_ring_options options_;
  const window_search find_window_;
  cu::device_ptr control_ = 0;
  copy::pinned_buffer segments_;
  cu::stream_t stream_ = nullptr, questions_ = nullptr;  // the copies'; and one for looks at the counts
  peerlane_device_ring handle_{};

  mutable std::mutex mutex_;
  std::uint64_t taken_ = 0;  // tickets
  std::deque<step> steps_;   // of the last one, that are still to be taken
  remote_queue remote_;      // what is under way to other processes
  bool has_local_ = false;   // CUDA may be at copies or words of segments
  std::uint64_t last_poll_ns_ = 0;
  std::optional<failure> reason_;
};

}  // namespace pl::device
