// SPDX-License-Identifier: Apache-2.0
// One launch slot of the GPU engine: a resident kernel of n workers, its control block in GPU memory, and its status
// and data lines in pinned host memory. engine_protocol.hpp defines the messages. gpu_engine.hpp uses two such kernels
// in turns, so that the engine stays hot although each kernel leaves when its lease is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "copy/engine_protocol.hpp"
#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"
#include "map/backend.hpp"

namespace pl::copy {

// Maximum data of a low-latency message; its lines take twice as much pinned memory.
constexpr std::size_t kLowLatencyBytes = 32u << 10;

class copy_kernel {
 public:
  struct shape {
    unsigned workers = 8;  // 1..engine::kMaxWorkers
    // Of each worker, a multiple of 32; more are slower to gather at the barriers (4 KiB: 2.4 us, 512: 2.7).
    unsigned threads = 256;
  };

  // Loads and launches nothing: `kernel` is gpu_engine in that context's module. A failed make leaves nothing behind.
  static result<std::unique_ptr<copy_kernel>> make(const gpu_context& context, cu::function_t kernel, backend& maps,
                                                   const shape& wanted);
  // Precondition: the kernel has ended, or the context is gone.
  ~copy_kernel();
  copy_kernel(const copy_kernel&) = delete;
  copy_kernel& operator=(const copy_kernel&) = delete;

  unsigned workers() const noexcept { return shape_.workers; }

  // Queues a new generation. EBUSY if the last one has not ended.
  status launch(std::uint64_t lease_ns);
  std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  // Whether no worker of the current generation is left (or none was ever launched).
  bool is_idle() const noexcept;
  // Whether the worker has started in this generation and has not left.
  bool is_present(unsigned worker) const noexcept;
  // CUDA's answer about the kernel: success (ended, or none was launched), not_ready (running or waiting for room), or
  // the error. launch_failed also if a kernel has ended without a message from its workers.
  cu::result_t query();

  // ---- One worker; the caller has claimed it
  // ------------------------------------------------------------------------------
  bool try_claim(unsigned worker) noexcept;
  void release(unsigned worker) noexcept;
  // Gives the worker a descriptor, filling in the sequence fields of its quarters. Returns the sequence number.
  std::uint32_t send(unsigned worker, const engine::descriptor& command) noexcept;
  // send() for several workers with two fences in all: publish(), post() for each, publish().
  std::uint32_t post(unsigned worker, const engine::descriptor& command) noexcept;
  void publish() noexcept;
  // Whether the done word has this number. Acquire.
  bool is_done(unsigned worker, std::uint32_t sequence) const noexcept;
  enum class answer {
    none,      // no answer yet
    executed,  // as op_copy's and op_list's done word says, or because the worker left after it; acquire
    left,      // the worker left before it read the request, which has been taken back and will never be executed
  };
  // The outcome of the request that was sent last. A low-latency message is answered by its data: for it this returns
  // `executed` only once the worker has left.
  answer ask(unsigned worker, std::uint32_t sequence) noexcept;

  // Lines (2 * kLowLatencyBytes) to which this worker writes low-latency data. As plain pinned memory they also serve
  // as a bounce buffer.
  std::byte* lines(unsigned worker) const noexcept { return host_.data() + lines_at_ + worker * 2 * kLowLatencyBytes; }
  cu::device_ptr lines_device(unsigned worker) const noexcept {
    return host_.device_address() + lines_at_ + worker * 2 * kLowLatencyBytes;
  }
  // Writes entries of a list into the worker's list memory, without a fence (send() publishes it). At most
  // engine::kListEntries.
  void write_list(unsigned worker, const engine::list_entry* entries, std::size_t count) noexcept;
  cu::device_ptr list_device(unsigned worker) const noexcept {
    return control_ + engine::kListsAt + worker * engine::kListBytes;
  }

 private:
  struct alignas(64) worker_slot {
    std::atomic<bool> claimed{false};
    std::uint32_t last_sequence = 0;  // guarded by the claim
  };

  copy_kernel(const gpu_context& context, cu::function_t kernel, const shape& wanted);
  const engine::status_line& line(unsigned worker) const noexcept {
    return reinterpret_cast<const engine::status_line*>(host_.data())[worker];
  }
  void write_descriptor(unsigned worker, const engine::descriptor& command) noexcept;

  gpu_context context_;
  cu::function_t kernel_;
  shape shape_;
  std::size_t lines_at_;
  cu::stream_t stream_ = nullptr;
  cu::device_ptr control_ = 0;
  std::unique_ptr<pinned_memory> pin_;
  cpu_view view_;
  char* control_cpu_ = nullptr;
  pinned_buffer host_;
  std::vector<worker_slot> slots_;
  std::mutex launch_mutex_;  // without it, a new generation could execute what is just being taken back
  std::atomic<std::uint32_t> generation_{0};
};

}  // namespace pl::copy
