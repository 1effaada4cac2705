// SPDX-License-Identifier: Apache-2.0
// The GPU engine: a resident kernel that executes the CPU's copy requests without a launch or driver call for each.
//
// It runs for a lease (200 us by default) and ends by itself. A caller that uses it near the end of a lease launches
// the next kernel, so the engine stays hot while it is used and ends one lease after its last use. While the GPU has no
// room for it, or it has just left, calls return `not_taken` and the caller uses another method: nothing here waits for
// a kernel to start. engine_protocol.hpp explains why an unanswered request can always be taken back.
//
// One object serves one CUDA context. All methods are thread-safe unless they say otherwise; in a forked child they
// answer EACCES or not_taken.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "copy/copy_kernel.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

// Maximum that one worker copies at a time: bounds how long a kernel can stay beyond its lease (0.1 ms to the host, 0.2
// from it).
constexpr std::size_t kMaxEngineBytes = 4u << 20;

class gpu_engine {
 public:
  struct options {
    copy_kernel::shape shape;
    unsigned lease_us = 200;  // 20 .. 1 000 000
    // A started request without an answer fails with ETIMEDOUT after this time. 0: 10 s; a minute on the simulated GPU,
    // whose blocks are threads that wait for busy CPUs.
    unsigned timeout_ms = 0;
  };
  enum class fate { pending, done, not_taken };

  // Workers in action on one request. Movable. Must be waited for, or tested until its end; the destructor waits.
  class request {
   public:
    request() = default;
    request(request&& other) noexcept;
    request& operator=(request&& other) noexcept;
    ~request();
    // Whether no worker has it, because the engine is not hot or all workers are busy.
    bool is_refused() const noexcept { return pending_ == 0 && refused_; }

   private:
    friend class gpu_engine;
    gpu_engine* engine_ = nullptr;
    copy_kernel* kernel_ = nullptr;
    std::uint64_t pending_ = 0;  // a bit for each worker
    std::uint64_t stuck_since_ns_ = 0;
    bool refused_ = false;  // a worker left before it read the request
    std::array<std::uint32_t, engine::kMaxWorkers> sequences_{};
  };

  // Loads the kernel (about a millisecond) but does not launch it. ENOTSUP without GPU code in this build.
  static result<std::unique_ptr<gpu_engine>> open(const gpu_context& context, backend& maps, const options& wanted);
  // Ends the kernels and waits for them, at most one lease.
  ~gpu_engine();
  gpu_engine(const gpu_engine&) = delete;
  gpu_engine& operator=(const gpu_engine&) = delete;

  const gpu_context& context() const noexcept { return context_; }
  unsigned workers() const noexcept { return options_.shape.workers; }

  // Whether some worker would take a request now. Cheap.
  bool is_hot() noexcept;
  // Launches a kernel unless one is running or launched; does not wait for it. EIO if the driver refuses (context
  // gone).
  status start();
  // start(), and waits up to `timeout_us` for the first worker. ETIMEDOUT: the device is full.
  status start_and_wait(unsigned timeout_us);

  // The first bytes of a message as the calling CPU reaches them: it loads those itself while the worker's data is on
  // its way.
  struct head {
    arch::mapping_type type = arch::mapping_type::none;
    const void* data = nullptr;
    std::size_t bytes = 0;  // less than the message; one round trip of the bus brings 1 KiB
  };
  // Device to host by data lines; returns with the data in dst, which may be any memory. At most kLowLatencyBytes, one
  // row.
  result<fate> read_low_latency(void* dst, std::uint64_t src, std::size_t bytes) {
    return read_low_latency(dst, src, bytes, head());
  }
  result<fate> read_low_latency(void* dst, std::uint64_t src, std::size_t bytes, const head& by_cpu);
  // Up to `workers` workers copy parts of it; addresses are the GPU's (pinned host memory by its device address). With
  // `done` or `not_taken` the request has ended; with `not_taken`, parts of the destination may be written.
  result<request> begin_copy(const transfer& transfer, unsigned workers);
  // Several pieces, copied by one worker. The total should be small; at most engine::kListEntries pieces.
  result<request> begin_list(std::span<const engine::list_entry> pieces);
  // Device to the worker's own pinned memory, which is then passed to `take(data)`. Gathers up to 2 * kLowLatencyBytes
  // in all; dst of the pieces is the offset in that memory.
  result<fate> gather(std::span<const engine::list_entry> pieces, std::size_t total_bytes,
                      void (*take)(void*, const std::byte*), void* context);
  result<fate> test(request& operation);
  result<fate> wait(request& operation);

  // While a hold exists, a thread renews the lease before it ends, so the engine stays hot without being used. This
  // costs about 2 % of one CPU core and the GPU time that docs/results/envelope states. Whatever waits for the GPU
  // still waits for one lease at most.
  class hold {
   public:
    explicit hold(gpu_engine* engine) noexcept : engine_(engine) {}
    hold(hold&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
    hold& operator=(hold&&) = delete;
    ~hold();

   private:
    gpu_engine* engine_;
  };
  result<hold> keep_hot();

  struct statistics {
    std::uint64_t launches = 0;
    std::uint64_t low_latency = 0, copies = 0, lists = 0;  // requests that were executed
    std::uint64_t not_hot = 0;                             // refused at once: no worker was running
    std::uint64_t all_busy = 0;                            // refused at once: other threads used all workers
    std::uint64_t left = 0;                                // a worker left just before it read the request
    std::uint64_t never_started = 0;                       // leases that expired while the kernel waited for room
  };
  statistics counts() const noexcept;

 private:
  struct leased_kernel {  // a kernel and what the CPU knows of its lease
    std::unique_ptr<copy_kernel> kernel;
    std::atomic<std::uint64_t> launched_ticks{0};
    std::atomic<std::uint64_t> until_ticks{0};  // later requests may arrive too late
    std::atomic<std::uint32_t> greeted{0};      // generation whose hello has been seen
    std::uint32_t missed = 0;                   // generation that had not started by the end of its lease
  };
  struct claim {
    copy_kernel* kernel = nullptr;
    unsigned worker = 0;
  };

  gpu_engine(const gpu_context& context, const options& wanted);
  bool belongs_here() const noexcept;
  bool is_usable(leased_kernel& worker, std::uint64_t now) noexcept;
  leased_kernel* usable_kernel(std::uint64_t now) noexcept;
  void start_quietly() noexcept;
  bool try_claim(claim& out) noexcept;
  fate poll(request& operation) noexcept;
  // Waits for a request to one worker. `more()` fetches what has arrived and returns whether that is everything.
  template <class More>
  result<fate> wait_for(const claim& claimed, std::uint32_t sequence, More&& more);
  // EIO or ETIMEDOUT if the kernel can no longer answer. Called about every millisecond of a wait.
  status check_health(copy_kernel& kernel, std::uint64_t waiting_since_ns) const;
  void abandon(request& operation) noexcept;
  void keep() noexcept;
  void drop_hold() noexcept;

  gpu_context context_;
  options options_;
  std::uint32_t epoch_;
  cu::module_t module_ = nullptr;
  std::uint64_t lease_ticks_, margin_ticks_;
  std::array<leased_kernel, 2> kernels_;
  std::atomic<unsigned> current_{0};
  std::mutex start_mutex_;

  // Separate, so that a forked child can leave it behind: destroying a condition variable waits for its waiters, which
  // do not exist there.
  struct lease_thread {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<unsigned> holds{0};  // changed under the mutex
    std::thread thread;
    bool must_stop = false;
  };
  std::unique_ptr<lease_thread> lease_thread_ = std::make_unique<lease_thread>();

  struct counters {
    std::atomic<std::uint64_t> launches{0}, low_latency{0}, copies{0}, lists{0}, not_hot{0}, all_busy{0}, left{0},
        never_started{0};
  };
  mutable counters counters_;
};

}  // namespace pl::copy
