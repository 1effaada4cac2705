// SPDX-License-Identifier: Apache-2.0
// The server's own DMA channels. They move values between its arena and device memory that clients have handed over as
// descriptors. The server loads libcuda only for the simulated GPU.
//
//   device_memory    a client's memory, bound where the channels of its GPU reach it
//   device_gpu       a GPU: its channels, and the windows of the arena that are bound there
//   device_queue     the transfers of one thread: collected, submitted as lists, and polled by the thread's ring_poller
//
// Threads: device_mover and device_gpu are thread-safe; a queue belongs to its thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "copy/channel_source.hpp"
#include "dma/shared_region.hpp"
#include "store/server/ring_poller.hpp"

namespace pl::store_server {

class device_gpu {
 public:
  enum class way : std::uint8_t { to_device, to_store };
  static result<std::shared_ptr<device_gpu>> open(std::shared_ptr<rm_space> space, const rm::gpu& gpu,
                                                  std::span<std::byte> arena);

  dma::address_space& addresses() noexcept { return *source_.addresses; }

  // The arena is pinned for the GPU in windows, each when a value in it is first moved; that takes 4 ms.
  bool is_bound(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  // Takes several milliseconds. EFAULT or ENOMEM if the memory cannot be pinned.
  status bind(std::uint64_t offset, std::uint64_t bytes);
  // Adds the blocks of a copy between arena and device memory. Precondition: is_bound().
  void add_blocks(way direction, std::uint64_t offset, std::uint64_t device_address, std::uint64_t bytes,
                  std::vector<dma::block>& out) const;

  struct ticket {
    std::shared_ptr<dma::channel> channel;
    dma::sequence number = 0;
  };
  // The blocks of one list must not overlap. `is_one_of_several`: the list arrives after earlier lists that had it set.
  result<ticket> submit(way direction, std::span<const dma::block> blocks, bool is_one_of_several);
  // Stops the channel: it touches no memory afterwards. The next submit() opens another one.
  void drop(const std::shared_ptr<dma::channel>& broken) noexcept;

 private:
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20;
  device_gpu(copy::channel_source source, std::span<std::byte> arena);
  result<std::shared_ptr<dma::channel>> channel_for(way direction, bool is_short);

  copy::channel_source source_;
  const std::span<std::byte> arena_;
  std::vector<std::atomic<std::uint64_t>> windows_;  // GPU addresses of the arena's windows; 0: not bound
  std::mutex mutex_;
  std::vector<dma::region> bound_;
  std::array<std::shared_ptr<dma::channel>, 4> channels_;
};

// Memory that a client has handed over. It is released with the last transfer that uses it.
struct device_memory {
  std::shared_ptr<device_gpu> gpu;
  dma::region bound;
};

class device_queue final : public ring_poller::member {
 public:
  explicit device_queue(ring_poller& poller) : poller_(&poller) {}

  struct job {
    std::shared_ptr<device_gpu> gpu;
    device_gpu::way direction = device_gpu::way::to_store;
    std::vector<dma::block> blocks;
    std::function<void(const status&)> ended;  // called on this thread; the transfer no longer touches the memory
    bool is_one_of_several = false;            // as in device_gpu::submit
  };
  // Collects a job. Collected jobs become one list for each GPU and direction.
  void add(job one);
  void flush();
  // Calls `check` at every poll until it returns true.
  void watch(std::function<bool()> check);

  // Stops the channels of transfers in progress without calling anybody. Call after the thread has ended.
  void stop() noexcept;

  std::size_t poll() override;
  bool arm() override { return is_idle(); }
  void disarm() override {}

 private:
  struct submitted {
    std::shared_ptr<device_gpu> gpu;
    device_gpu::ticket ticket;
    std::uint64_t began_ns = 0, ring_ns = 0;  // ring_ns: when to ring the doorbell again
    std::vector<std::function<void(const status&)>> ended;
  };
  bool is_idle() const noexcept { return gathered_.empty() && in_flight_.empty() && watched_.empty(); }
  void be_polled();
  void submit(std::vector<job>& list);
  static std::optional<status> outcome_of(submitted& one);

  ring_poller* poller_;
  bool is_polled_ = false;
  std::vector<job> gathered_;
  std::deque<submitted> in_flight_;
  std::vector<std::function<bool()>> watched_;
};

class device_mover {
 public:
  // `arena` must outlive the object.
  explicit device_mover(std::span<std::byte> arena) : arena_(arena) {}
  device_mover(const device_mover&) = delete;
  device_mover& operator=(const device_mover&) = delete;

  // Whether this machine can have channels; the failure says what is missing (a GPU's device files, the service).
  static status probe();
  // Takes about 10 ms for the first memory of a GPU. EINVAL: not memory of a GPU. ENODEV, ENOTSUP: no channels there.
  result<std::shared_ptr<device_memory>> import(const dma::shared_region& shared);

 private:
  const std::span<std::byte> arena_;
  std::mutex mutex_;
  std::shared_ptr<rm_space> space_;
  std::map<std::tuple<unsigned, unsigned, unsigned>, std::shared_ptr<device_gpu>> gpus_;
};

}  // namespace pl::store_server
