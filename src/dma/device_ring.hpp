// SPDX-License-Identifier: Apache-2.0
// A ring into which kernels write commands for a copy engine. It is a channel whose entries the CPU queues in advance.
//
//   GPU memory                                       the channel's entries, queued by the CPU
//   control words: tickets, completed
//   segments: written by kernels          <--------  {wait until the word of segment k is k} {segment k, fetched only then}
//   waits: one for each segment
//   interrupts: one, of which each quarter of the ring has an entry before its first wait
//
// A kernel takes a ticket k, writes the commands of segment k, and stores k in the last word of the segment. The engine
// waits for the segments in the order of tickets. It then executes segment k, whose last command writes k into `completed`.
// The engine must not fetch a segment before everything before it is done (the fence bit of its entry). Otherwise it could
// execute the segment's old contents (docs/design/0004). Commands that the CPU knows in advance come before the wait,
// because commands after the wait add latency.
//
// The CPU does not take part in transfers. It only calls refill(), which queues new entries for segments that are done. This
// is not urgent: only if the ring is full, kernels wait for it.
//
// Thread-safe, except that close() must not run at the same time as refill().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "dma/channel.hpp"
#include "dma/kernel_ring.hpp"

namespace pl::dma {

inline constexpr std::uint32_t kMinSegments = 64, kMaxSegments = 4096;  // of a ring

struct device_ring_options {
  unsigned engine = 2;            // COPY<engine>
  std::uint32_t segments = 4096;  // limit of posted segments that are not done; a power of two, 64 to 4096
  // The engine serves other channels while kernels post nothing. It then reacts some microseconds later to the next post.
  bool yields = false;
  // Time slice in microseconds: how long the ring may use the engine while another channel waits for it. 0:
  // PEERLANE_DEVICE_TIMESLICE_US. The driver's default is a millisecond or two.
  static constexpr std::uint32_t kDriversTimeslice = UINT32_MAX;
  std::uint32_t timeslice_us = 0;
  // The engine raises an interrupt (completion_event.hpp) whenever another quarter of the ring is done, so that the thread
  // that calls refill() can sleep.
  bool interrupts = false;
  std::uint64_t timeout_ns = 2'000'000'000;  // of waits in kernels
};

// EINVAL: a ring cannot have this number of segments.
status check_segments(std::uint32_t segments);

class device_ring final : public kernel_ring {
 public:
  // GPU memory that a ring needs, in whole pages of 64 KiB.
  static std::uint64_t memory_bytes(std::uint32_t segments);

  // `memory`: zeroed GPU memory of memory_bytes(). `kernel_address`: its address for kernels. EINVAL: wrong options. Other
  // errors: see channel::open.
  static result<std::unique_ptr<device_ring>> open(region memory, std::uint64_t kernel_address,
                                                   const device_ring_options& options);
  ~device_ring() override;
  device_ring(const device_ring&) = delete;
  device_ring& operator=(const device_ring&) = delete;

  const peerlane_device_ring& handle() const noexcept override { return handle_; }
  // Queues new entries for segments that are done.
  bool refill() override;
  unsigned engine() const noexcept { return options_.engine; }
  state read() const override;
  void close() noexcept override;

 private:
  device_ring(region memory, std::uint64_t kernel_address, const device_ring_options& options);
  status set_up();
  std::uint64_t most_queued() const;
  void queue_to(std::uint64_t last);
  void write_interrupts();
  void end(failure reason);
  std::uint64_t load64(std::uint64_t offset) const;
  void store_error(std::uint32_t code) const;

  const device_ring_options options_;
  region memory_;
  const std::uint64_t kernel_address_;
  rm::cpu_mapping mapping_;
  std::byte* view_ = nullptr;
  std::unique_ptr<channel> queue_;
  peerlane_device_ring handle_{};

  mutable std::mutex mutex_;
  std::uint64_t queued_ = 0, completed_ = 0;  // tickets
  std::optional<failure> reason_;
  std::uint32_t interrupt_words_ = 0;  // 0: no interrupts
  std::vector<std::uint32_t> commands_;
  std::vector<std::uint64_t> entries_;
};

}  // namespace pl::dma
