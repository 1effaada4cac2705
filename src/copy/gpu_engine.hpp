// SPDX-License-Identifier: Apache-2.0
// The GPU engine: a resident kernel that executes the CPU's copy requests without a launch or a driver call for each.
//
// It runs for a lease (200 us by default) and ends by itself. A caller that uses it near the end of a lease launches the
// next kernel, so the engine stays hot while it is used and ends one lease after its last use. While the GPU has no room for
// it, or it has just left, calls return `not_taken` and the caller uses another method: nothing here waits for a kernel to
// start. engine_protocol.hpp says why an unanswered request can always be taken back.
//
// One object serves one CUDA context. All methods are thread-safe unless they say otherwise; in a forked child they answer
// EACCES or not_taken.
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

// Most that one worker copies in one go: bounds how long beyond its lease a kernel can stay (0.1 ms to the host, 0.2 from
// it).
constexpr std::size_t kMaxEngineBytes = 4u << 20;

class gpu_engine {
 public:
  struct options {
    copy_kernel::shape shape;
    unsigned lease_us = 200;  // 20 .. 1 000 000
    // A started request that is not answered for so long is ETIMEDOUT. 0: 10 s; a minute on the simulated GPU, whose blocks
    // are threads that wait for busy CPUs.
    unsigned patience_ms = 0;
  };
  enum class fate { pending, done, not_taken };

  // Workers at work on one request. Movable; must be waited for (or tested to its end) before it goes: the destructor waits.
  class request {
   public:
    request() = default;
    request(request&& other) noexcept;
    request& operator=(request&& other) noexcept;
    ~request();
    // No worker has it: the engine is not hot, or all are busy.
    bool is_refused() const noexcept { return pending_ == 0 && refused_; }

   private:
    friend class gpu_engine;
    gpu_engine* engine_ = nullptr;
    copy_kernel* kernel_ = nullptr;
    std::uint64_t pending_ = 0;  // bit per worker
    std::uint64_t stuck_since_ns_ = 0;
    bool refused_ = false;  // a worker left before it looked
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

  // Some worker would take a request now. Cheap.
  bool is_hot() noexcept;
  // Launches a kernel unless one runs or is on its way; does not wait for it. EIO if the driver refuses (context gone).
  status start();
  // start(), and waits up to `timeout_us` for the first worker. ETIMEDOUT: the device is full.
  status start_and_wait(unsigned timeout_us);

  // The first bytes of a message as the calling CPU reaches them: it loads those itself while the worker is on its way.
  struct head {
    arch::mapping_type type = arch::mapping_type::none;
    const void* data = nullptr;
    std::size_t bytes = 0;  // less than the message's; 1 KiB is what one round trip of the bus brings
  };
  // Device -> host by data lines; returns with the data in dst, which may be any memory. At most kLowLatencyBytes, one row.
  result<fate> read_low_latency(void* dst, std::uint64_t src, std::size_t bytes) {
    return read_low_latency(dst, src, bytes, head());
  }
  result<fate> read_low_latency(void* dst, std::uint64_t src, std::size_t bytes, const head& by_cpu);
  // Up to `workers` workers copy parts of it; addresses are the GPU's (pinned host memory by its device address). For done
  // or not_taken the request has ended; not_taken may have written parts of the destination.
  result<request> begin_copy(const transfer& transfer, unsigned workers);
  // Pieces, by one worker. The sum of bytes should be small; at most engine::kListEntries pieces.
  result<request> begin_list(std::span<const engine::list_entry> pieces);
  // Device -> pinned memory of the worker's own, then handed to `take(data)`: gathers up to 2 * kLowLatencyBytes in all; dst
  // of the pieces is the offset there.
  result<fate> gather(std::span<const engine::list_entry> pieces, std::size_t total_bytes,
                      void (*take)(void*, const std::byte*), void* context);
  result<fate> test(request& operation);
  result<fate> wait(request& operation);

  // While a hold lives, a thread renews the lease before it ends: the engine stays hot without being used. Costs some 2 % of
  // one CPU core and the GPU time that docs/results/envelope states. What waits for the GPU still waits one lease at most.
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
    std::uint64_t low_latency = 0, copies = 0, lists = 0;  // requests that were done
    std::uint64_t not_hot = 0;                             // refused at once: no worker there
    std::uint64_t all_busy = 0;                            // refused at once: other threads have all workers
    std::uint64_t left = 0;                                // a worker left just before it looked
    std::uint64_t never_started = 0;                       // leases that passed with the kernel waiting for room
  };
  statistics counts() const noexcept;

 private:
  struct leased_kernel {  // a kernel and what the CPU knows of its lease
    std::unique_ptr<copy_kernel> kernel;
    std::atomic<std::uint64_t> launched_ticks{0};
    std::atomic<std::uint64_t> until_ticks{0};  // requests after this may come too late
    std::atomic<std::uint32_t> greeted{0};      // generation whose hello was seen
    std::uint32_t missed = 0;                   // generation that had not started when its lease would have been over
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
  // Waits for a request to one worker. `more()` fetches what has come and says whether that is all of it.
  template <class More>
  result<fate> wait_for(const claim& claimed, std::uint32_t sequence, More&& more);
  // EIO/ETIMEDOUT if the kernel that should answer cannot any more. Called about every millisecond of waiting.
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

  // Apart, for a forked child to leave behind: destroying a condition variable waits for its waiters, who are not there.
  struct keeper {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<unsigned> holds{0};  // changed under the mutex
    std::thread thread;
    bool must_stop = false;
  };
  std::unique_ptr<keeper> keeper_ = std::make_unique<keeper>();

  struct counters {
    std::atomic<std::uint64_t> launches{0}, low_latency{0}, copies{0}, lists{0}, not_hot{0}, all_busy{0}, left{0},
        never_started{0};
  };
  mutable counters counters_;
};

}  // namespace pl::copy
