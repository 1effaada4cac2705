// SPDX-License-Identifier: Apache-2.0
// Windows of GPU memory without their target: the owner hands its memory over once, and each peer of the node moves bytes by
// DMA channels of its own, or by stores of its CPU where few bytes are put. A peer needs no CUDA.
//
//   owner                                     peer
//   descriptors of the driver's objects       learns the file from the window table
//   a sealed file that lists them             takes the descriptors (pidfd_getfd), imports the objects
//                                             puts and gets: DMA channels, mapped stores
//
// Owns: the descriptors (handed_memory.hpp) of this process's windows, the channels of this process, and memory that data
// passes through. Threads: the messenger's lock guards all calls. A move is done when its call returns. Errors: of share()
// and open() say why a window is reached by messages.
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
#include "copy/gpu_queues.hpp"
#include "copy/handed_memory.hpp"
#include "dma/arrival_buffer.hpp"
#include "messaging/messenger_context.hpp"
#include "messaging/window_table.hpp"

namespace pl::messaging {

class gpu_windows {
 public:
  explicit gpu_windows(messenger_context& context) : context_(context) {}

  // ---- The owner
  result<window_place> share(std::uint32_t id, const memory& range);
  // No peer uses the window, which has ended.
  void free(std::uint32_t id) { shared_.erase(id); }

  // ---- A peer. The window must not end meanwhile (window_table::enter).
  using imported = std::shared_ptr<copy::dma_memory>;
  result<imported> open(const window_table::name& owner, const window_place& place);
  // Between `local` and as many bytes at `pointer`, an address of the owner's. Empty: `local` is of another GPU, and more
  // than the CPU moves. `is_live` is asked now and then; ECANCELED: it said no. EIO, ETIMEDOUT: the channel, which touches
  // no memory any more.
  std::optional<status> move(copy::dma_memory& window, std::uint64_t pointer, const memory& local, bool is_put,
                             const std::function<bool()>& is_live);

  // Why the last window was not reached so; empty: none was refused.
  const std::string& refusal() const noexcept { return refusal_; }
  void refuse(std::string reason) { refusal_ = std::move(reason); }

 private:
  // Pinned memory for data of pageable memory, in parts of which several are under way.
  struct staging {
    ~staging();
    std::byte* pages = nullptr;
    dma::region bound;
  };
  // What this process has of a GPU.
  struct route {
    std::shared_ptr<copy::gpu_queues> queues;
    std::unique_ptr<copy::channel_memory> local;  // of CUDA's memory in this process
    std::unique_ptr<dma::arrival_buffer> arrivals;
    std::unique_ptr<staging> outgoing;
  };
  struct span {
    std::uint64_t address = 0, bytes = 0;  // of the channels
    bool is_on_peer = false;               // another GPU's than theirs
  };

  // Stores and loads through BAR1; empty: not this many bytes, or not mapped.
  std::optional<status> move_by_cpu(copy::dma_memory& window, std::uint64_t pointer, const memory& local, bool is_put);
  route& route_of(const std::shared_ptr<copy::gpu_queues>& queues);
  bool is_of_gpu(const copy::gpu_queues& queues, const memory& local);
  // The engine's copy between `remote` and the local bytes from `done` on: how many it moved.
  result<std::uint64_t> move_some(route& way, const span& remote, const memory& local, std::uint64_t done, bool is_put);
  result<std::uint64_t> copy_bound(route& way, const span& remote, const copy::channel_memory::piece& local, bool is_put,
                                   bool is_on_device);
  status send_staged(route& way, const span& remote, const std::byte* source);
  status receive_staged(route& way, const span& remote, std::byte* destination);
  status wait(route& way, const copy::gpu_queues::ticket& begun, std::uint64_t bytes);

  messenger_context& context_;
  std::map<const copy::gpu_queues*, route> routes_;
  std::map<std::uint32_t, copy::handed_memory> shared_;
  std::string refusal_;
};

}  // namespace pl::messaging
