// SPDX-License-Identifier: Apache-2.0
// What a program opens so that its kernels can start transfers: rings of one GPU (dma/device_ring.hpp), the windows that
// they reach, and a thread that queues entries again behind what the engine has done. Where DMA channels cannot be had the
// thread carries out what kernels post (proxy_ring.hpp).
//
// The thread sleeps between its looks: 0.3 ms while kernels post, 2 ms while they do not, 10 ms from 1 s on. So kernels that
// post more than a ring holds at once, after a long rest, wait for it once. Where the engine wakes it (session_options) it
// sleeps until a quarter of a ring is done, at most 20 ms, 100 ms from 1 s on. As a proxy it polls while kernels post, and
// looks every 50 us while they do not, every millisecond from 1 s on.
//
// Thread-safe. Belongs to the process that opened it.
#pragma once

#include <peerlane/device_types.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "copy/channel_source.hpp"
#include "copy/gpu_context.hpp"
#include "device/proxy_ring.hpp"
#include "device/remote_target.hpp"
#include "dma/completion_event.hpp"
#include "dma/device_ring.hpp"
#include "dma/kernel_ring.hpp"
#include "dma/shared_region.hpp"
#include "map/device_range.hpp"
#include "os/unique_fd.hpp"

namespace pl::device {

// Who carries out what kernels post. automatic: PEERLANE_DEVICE_RINGS if set, else channels, else the proxy.
enum class ring_backend : std::uint8_t { automatic, channels, proxy };

struct session_options {
  int device_ordinal = 0;
  ring_backend backend = ring_backend::automatic;
  unsigned rings = 1;         // up to kMaxRings, on the GPU's copy engines in turn
  unsigned first_engine = 0;  // the place among them of the first ring's, so that processes need not share one
  // The thread sleeps by a descriptor until the engine's interrupt (PEERLANE_DEVICE_WAKEUPS).
  copy::trial wakeups = copy::trial_from_environment("PEERLANE_DEVICE_WAKEUPS", copy::trial::always);
  dma::device_ring_options ring;
};

class session {
 public:
  static constexpr unsigned kMaxRings = 16;

  // ENOTSUP: channels are asked for and cannot be had (driver, GPU, MIG, MPS); EINVAL: the options; EACCES, ENOMEM.
  static result<std::unique_ptr<session>> open(const cu::driver_table& cuda, const session_options& options);
  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  unsigned ring_count() const noexcept { return static_cast<unsigned>(rings_.size()); }
  dma::kernel_ring& ring(unsigned index) const noexcept { return *rings_[index].queue; }
  // The copy engine of the first ring. Only of rings of DMA channels.
  unsigned engine() const noexcept { return engines_.front(); }
  // Why the CPU carries out what kernels post; empty: DMA channels do.
  const std::string& why_proxy() const noexcept { return why_proxy_; }

  // What the thread has done: rounds over all rings, and how many of them an interrupt began.
  struct activity {
    std::uint64_t rounds = 0, interrupts = 0;
    bool sleeps_by_descriptor = false;
  };
  activity counts() const noexcept;

  // Memory of this process from `address`: of the session's GPU, of another one, or of the host (any pages, which are pinned
  // then). Kernels reach host memory themselves where CUDA has pinned it. EINVAL: neither, or not one allocation; EXDEV: the
  // GPU does not reach the other's memory; ENOTSUP: managed memory, mappings of files, memory of several objects.
  result<peerlane_device_window> add_window(std::uint64_t address, std::uint64_t size_bytes);
  // Memory of another process (shared_region.hpp), which kernels of this process do not reach.
  result<peerlane_device_window> add_shared(const dma::shared_region& shared);
  // Memory that only messages reach: `address` is 0, so kernels put, get and signal. ENOTSUP: the rings are copy engines'.
  result<peerlane_device_window> add_remote(std::shared_ptr<remote_target> reached);
  // For another process: GPU memory. The descriptor stands for all of its memory object.
  result<dma::shared_region> share(const peerlane_device_window& window) const;
  // The same of any memory of this GPU: `offset` of it in the region, which is of whole 64 KiB and may hold neighbours.
  struct shared_memory {
    dma::shared_region region;
    std::uint64_t offset = 0;
  };
  result<shared_memory> share(address_range memory) const;
  // Of rings of DMA channels.
  const copy::channel_source& source() const noexcept { return *source_; }
  // Waits until the rings have done what was posted, at most their time-out. A put that is posted later ends its ring with
  // EIO. EINVAL: not a window of this session.
  status remove_window(const peerlane_device_window& window);

 private:
  // Memory of CUDA's in the channels' address space.
  struct bound_memory {
    rm_placement placement;  // outlives what is bound of it
    dma::region bound;
  };
  struct open_ring {
    cu::device_ptr memory = 0;
    rm_placement placement;
    std::unique_ptr<dma::kernel_ring> queue;
  };
  // Pages that CUDA knows because of us.
  struct registration;
  struct open_window {
    bound_memory device;
    dma::shared_host shared;
    dma::region host;  // ends before what it lies in, as do
    std::shared_ptr<const registration> pages;
    std::shared_ptr<remote_target> remote;
    std::uint64_t memory = 0;  // where it begins for this process; of a remote window 0
    std::uint64_t size_bytes = 0;
  };

  session(const copy::gpu_context& context, const session_options& options) : context_(context), options_(options) {}
  status open_channel_ring(open_ring& made, unsigned engine);
  status open_rings();
  status bind_pages(open_window& made, std::uint64_t begin, std::uint64_t end, peerlane_device_window& out) const;
  std::multimap<std::uint64_t, open_window>::iterator find_open(const peerlane_device_window& window);
  std::optional<proxy_ring::place> find_place(std::uint64_t address, std::uint64_t bytes) const;
  void choose_engines();
  void open_events();
  std::chrono::microseconds nap(std::uint64_t idle_ns) const;
  void rest(std::chrono::microseconds limit);
  result<pin_plan> find_range(address_range range) const;
  result<bound_memory> bind_device(address_range range) const;
  status bind_window(open_window& made, std::uint64_t address, std::uint64_t size_bytes, peerlane_device_window& out) const;
  result<peerlane_device_window> keep(open_window made, const peerlane_device_window& out);
  void run();

  const copy::gpu_context context_;
  std::optional<copy::channel_source> source_;  // none: the proxy
  std::string why_proxy_;
  std::vector<unsigned> engines_;  // of each ring; of rings of DMA channels
  const session_options options_;
  std::vector<open_ring> rings_;
  mutable std::mutex mutex_;
  std::multimap<std::uint64_t, open_window> windows_;           // by the address of who carries out
  std::uint64_t next_remote_ = PEERLANE_DEVICE_REMOTE_BASE;     // address of the next remote window
  std::vector<std::unique_ptr<dma::completion_event>> events_;  // of the rings' engines; none: no interrupts
  unique_fd stop_;
  std::vector<pollfd> sleeps_for_;  // `stop_` and the events
  std::atomic<bool> is_over_{false};
  std::atomic<std::uint64_t> rounds_{0}, interrupts_{0};
  std::thread thread_;
};

}  // namespace pl::device
