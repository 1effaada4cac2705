// SPDX-License-Identifier: Apache-2.0
// One-sided access to windows of GPU memory on one node. The owner shares its memory once. Each peer then moves bytes with
// its own DMA channels, or with stores of its CPU for a short put. A peer needs no CUDA.
//
//   owner                                     peer
//   descriptors of the driver's objects       learns the file from the window table
//   a sealed file that lists them             takes the descriptors (pidfd_getfd), imports the objects
//                                             puts and gets: DMA channels, mapped stores
//
// Owns: the descriptors (fd_memory.hpp) of this process's windows, the channels of this process, and staging memory.
// Threads: the messenger's lock guards all calls. A transfer is complete when its call returns. Errors: those of share() and
// open() say why a window must be accessed by messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copy/channel_memory.hpp"
#include "copy/dma_memory.hpp"
#include "copy/fd_memory.hpp"
#include "copy/gpu_queues.hpp"
#include "copy/queue_ring.hpp"
#include "dma/arrival_buffer.hpp"
#include "messaging/messenger_context.hpp"
#include "messaging/window_table.hpp"
#include "os/unforked_pages.hpp"

namespace pl::messaging {

class gpu_windows {
 public:
  explicit gpu_windows(messenger_context& context) : context_(context) {}

  // ---- The owner
  result<window_place> share(std::uint32_t id, const memory& range);
  // Call it when no peer uses the window, which has ended.
  void free(std::uint32_t id) { shared_.erase(id); }

  // ---- A peer. The window must not end meanwhile (window_table::enter).
  using imported = std::shared_ptr<copy::dma_memory>;
  result<imported> open(const window_table::name& owner, const window_place& place);
  // Copies between `local` and as many bytes at `pointer`, an address in the owner. Empty: `local` is on another GPU and is
  // too large for the CPU. Calls `is_live` periodically; ECANCELED: it returned false. EIO, ETIMEDOUT: the channel has
  // failed, and accesses no memory any more.
  std::optional<status> move(copy::dma_memory& window, std::uint64_t pointer, const memory& local, bool is_put,
                             const std::function<bool()>& is_live);

  // Why the last window could not be accessed directly; empty: none was refused.
  const std::string& refusal() const noexcept { return refusal_; }
  void refuse(std::string reason) { refusal_ = std::move(reason); }

 private:
  // Pinned staging memory for pageable memory, with several parts in progress.
  struct staging {
    unforked_pages pages;
    dma::region bound;
  };
  // The objects of this process for one GPU.
  struct route {
    std::shared_ptr<copy::gpu_queues> queues;
    std::unique_ptr<copy::channel_memory> local;  // of CUDA's memory in this process
    std::unique_ptr<dma::arrival_buffer> arrivals;
    std::unique_ptr<staging> outgoing;
    std::unique_ptr<copy::queue_ring> ring;  // of long transfers
  };
  struct span {
    std::uint64_t address = 0, bytes = 0;  // of the channels
    bool is_on_peer = false;               // the memory is on another GPU than the channels
  };

  // Copies with stores or loads through BAR1. Empty: too many bytes, or not mapped.
  std::optional<status> move_by_cpu(copy::dma_memory& window, std::uint64_t pointer, const memory& local, bool is_put);
  route& route_of(const std::shared_ptr<copy::gpu_queues>& queues);
  bool is_of_gpu(const copy::gpu_queues& queues, const memory& local);
  // Copies with the engine between `remote` and the local bytes from `done` on. Returns the number of bytes.
  result<std::uint64_t> move_some(route& way, const span& remote, const memory& local, std::uint64_t done, bool is_put);
  result<std::uint64_t> copy_bound(route& way, const span& remote, const copy::channel_memory::piece& local, bool is_put,
                                   bool is_on_device);
  // Pageable host memory, by several threads.
  status move_by_ring(route& way, const span& remote, std::byte* own_bytes, bool is_put);
  status send_staged(route& way, const span& remote, const std::byte* source);
  status receive_staged(route& way, const span& remote, std::byte* destination);
  status wait(route& way, const copy::gpu_queues::ticket& begun, std::uint64_t bytes);

  messenger_context& context_;
  std::map<const copy::gpu_queues*, route> routes_;
  std::map<std::uint32_t, copy::fd_memory> shared_;
  std::string refusal_;
};

}  // namespace pl::messaging
