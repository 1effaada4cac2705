// SPDX-License-Identifier: Apache-2.0
// Executor D: a kernel of one thread posts each put into a ring of a DMA channel (dma/device_ring.hpp), and a copy engine
// moves the bytes and writes the peer's word. No CPU takes part, and no multiprocessor moves data. CUDA need not be able to
// access the peer's memory, which is shared as a descriptor. For processes of one host.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "copy/channel_memory.hpp"
#include "device/session.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/executor.hpp"
#include "triggered/fd_memory_server.hpp"

namespace pl::triggered {

// The kernels that post. Null: the build has no kernels.
struct dma_kernels {
  cu::function_t put = nullptr, counted_put = nullptr;  // stream_dma_put, stream_dma_put_counted
};

// Shared by all channels of a context: the ring, and the memory of this process and of others that is bound for the copy
// engine. Thread-safe.
class dma_domain : public std::enable_shared_from_this<dma_domain> {
 public:
  // Returns the memory of a window of this process by its number. Number 0: the words of all channels.
  using own_memory = std::function<result<address_range>(std::uint32_t)>;
  static constexpr std::uint32_t kWords = 0;

  // ENOTSUP: no DMA channels here, or no kernels in this build.
  static result<std::shared_ptr<dma_domain>> open(const copy::gpu_context& context, const dma_kernels& kernels,
                                                  own_memory find);

  const fd_memory_server::name& own_name() const noexcept { return memory_server_->own_name(); }
  const peerlane_device_ring& ring() const noexcept { return session_->ring(0).handle(); }
  cu::function_t kernel() const noexcept { return kernels_.put; }
  cu::function_t counted_kernel() const noexcept { return kernels_.counted_put; }
  // Why the ring has ended; empty: it has not.
  std::string why_ended() const;
  // How often its thread has polled, as text for diag().
  std::string activity() const;

  // A window of another process, bound for the copy engine. `place`: enum peerlane_device_place; data for another GPU needs
  // a flush before its signal.
  struct window {
    std::uint64_t address = 0;
    std::uint32_t place = 0;
  };
  // The first call for a window requests it from its owner. ENOTSUP: this GPU's copy engines cannot access it.
  result<window> find_window(const fd_memory_server::name& owner, std::uint32_t id, std::chrono::milliseconds limit);
  // Binds memory of this process while the returned piece exists.
  result<copy::channel_memory::piece> find_source(cu::device_ptr source, std::uint64_t bytes);

 private:
  dma_domain(const copy::gpu_context& context, const dma_kernels& kernels, std::unique_ptr<device::session> made)
      : context_(context), kernels_(kernels), session_(std::move(made)) {}

  const copy::gpu_context context_;
  const dma_kernels kernels_;
  const std::unique_ptr<device::session> session_;
  std::unique_ptr<copy::channel_memory> sources_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, window> windows_;  // windows of other processes, by owner and number
  std::unique_ptr<fd_memory_server>
      memory_server_;  // declared last, so that its thread ends before the members that it uses
};

// Sent to the peer when a channel is set up. Plain bytes.
struct dma_offer {
  std::int32_t code = 0;  // errno; not 0: this process cannot use the executor
  std::uint32_t word_index = 0;
  fd_memory_server::name owner;
};

// `theirs`: the peer's message. ENOTSUP: one of the two cannot use the executor; the error says why.
result<std::unique_ptr<executor>> make_dma_executor(const copy::gpu_context& context, std::shared_ptr<dma_domain> domain,
                                                    const std::shared_ptr<channel_core>& core, const dma_offer& theirs,
                                                    std::chrono::milliseconds limit);

}  // namespace pl::triggered
