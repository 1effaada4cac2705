// SPDX-License-Identifier: Apache-2.0
// One launch slot of the GPU engine: a resident kernel of n workers, its control block in GPU memory and its status and data
// lines in pinned host memory. engine_protocol.hpp defines the messages. gpu_engine.hpp has two such kernels that relieve
// each other, so that the engine stays hot although each kernel leaves when its lease is over.
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

// Data bytes that one low-latency message carries at most; its lines take twice that of pinned memory.
constexpr std::size_t kLowLatencyBytes = 32u << 10;

class copy_kernel {
 public:
  struct shape {
    unsigned workers = 8;    // 1..engine::kMaxWorkers
    unsigned threads = 256;  // each, a multiple of 32; more are slower to gather at the barriers (4 KiB: 2.4 us, 512: 2.7)
  };

  // Loads nothing and launches nothing: `kernel` is gpu_engine in that context's module. A failed make leaves nothing
  // behind.
  static result<std::unique_ptr<copy_kernel>> make(const gpu_context& context, cu::function_t kernel, backend& maps,
                                                   const shape& wanted);
  // The kernel must have ended, or the context be gone.
  ~copy_kernel();
  copy_kernel(const copy_kernel&) = delete;
  copy_kernel& operator=(const copy_kernel&) = delete;

  unsigned workers() const noexcept { return shape_.workers; }

  // Queues a new generation. EBUSY if the last one has not ended.
  status launch(std::uint64_t lease_ns);
  std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
  // No worker of the present generation is left (or none was ever launched).
  bool is_idle() const noexcept;
  // The worker has started in this generation and has not left.
  bool is_present(unsigned worker) const noexcept;
  // CUDA's answer about the kernel: success (ended, or none was launched), not_ready (runs or waits for room), or what went
  // wrong; launch_failed also for a kernel that has ended without a word from its workers.
  cu::result_t query();

  // ---- One worker; the caller holds its claim --------------------------------------------------------------------------
  bool try_claim(unsigned worker) noexcept;
  void release(unsigned worker) noexcept;
  // Gives the worker a descriptor; the pieces' sequence fields are filled in here. Returns the sequence number.
  std::uint32_t send(unsigned worker, const engine::descriptor& command) noexcept;
  // send() for several workers with two fences in all: publish(), post() for each, publish().
  std::uint32_t post(unsigned worker, const engine::descriptor& command) noexcept;
  void publish() noexcept;
  // The done word has the number; acquire.
  bool is_done(unsigned worker, std::uint32_t sequence) const noexcept;
  enum class answer {
    none,      // nothing yet
    executed,  // by op_copy and op_list's done word, or because the worker left after it; acquire
    left,      // the worker left before it looked; the request has been taken back and will never be executed
  };
  // What became of the request that was sent last. A low-latency message is answered by its data: for it this says
  // `executed` only once the worker has left.
  answer ask(unsigned worker, std::uint32_t sequence) noexcept;

  // Lines (2 * kLowLatencyBytes) that this worker writes low-latency data to; as plain pinned memory also a bounce buffer.
  std::byte* lines(unsigned worker) const noexcept { return host_.data() + lines_at_ + worker * 2 * kLowLatencyBytes; }
  cu::device_ptr lines_device(unsigned worker) const noexcept {
    return host_.device_address() + lines_at_ + worker * 2 * kLowLatencyBytes;
  }
  // Writes entries of a list into the worker's list memory; unfenced (send() publishes it). At most engine::kListEntries.
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
  std::mutex launch_mutex_;  // a new generation would execute what is just being taken back
  std::atomic<std::uint32_t> generation_{0};
};

}  // namespace pl::copy
