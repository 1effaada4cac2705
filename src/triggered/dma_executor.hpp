// SPDX-License-Identifier: Apache-2.0
// Executor D: a kernel of one thread posts each put into a ring of a DMA channel (dma/device_ring.hpp), and a copy engine
// moves the bytes and writes the peer's word. No CPU takes part, no multiprocessor moves data, and CUDA need not reach the
// peer's memory: it is handed over as a descriptor. For processes of one host.
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
#include "triggered/memory_handover.hpp"

namespace pl::triggered {

// Kernels that post; null: this build has none.
struct dma_kernels {
  cu::function_t put = nullptr, counted_put = nullptr;  // stream_dma_put, stream_dma_put_counted
};

// What all channels of a context share: the ring, and memory of this process and of others as the copy engine reaches it.
// Thread-safe.
class dma_domain : public std::enable_shared_from_this<dma_domain> {
 public:
  // Finds the memory that this process gives to peers, by its window's number. 0: the words of all channels.
  using own_memory = std::function<result<address_range>(std::uint32_t)>;
  static constexpr std::uint32_t kWords = 0;

  // ENOTSUP: no DMA channels here, or no kernels in this build.
  static result<std::shared_ptr<dma_domain>> open(const copy::gpu_context& context, const dma_kernels& kernels,
                                                  own_memory find);

  const memory_handover::name& own_name() const noexcept { return handover_->own_name(); }
  const peerlane_device_ring& ring() const noexcept { return session_->ring(0).handle(); }
  cu::function_t kernel() const noexcept { return kernels_.put; }
  cu::function_t counted_kernel() const noexcept { return kernels_.counted_put; }
  // Why the ring has ended; empty: it has not.
  std::string why_ended() const;
  // How often its thread has looked, for people.
  std::string activity() const;

  // A window of another process as the copy engine has it. `place`: enum peerlane_device_place; what goes to another GPU has
  // to be flushed before its signal.
  struct window {
    std::uint64_t address = 0;
    std::uint32_t place = 0;
  };
  // The other process is asked for it once. ENOTSUP: this GPU's copy engines do not reach it.
  result<window> find_window(const memory_handover::name& owner, std::uint32_t id, std::chrono::milliseconds limit);
  // Of memory of this process. It stays bound while the piece lives.
  result<copy::channel_memory::piece> find_source(cu::device_ptr source, std::uint64_t bytes);

 private:
  dma_domain(const copy::gpu_context& context, const dma_kernels& kernels, std::unique_ptr<device::session> made)
      : context_(context), kernels_(kernels), session_(std::move(made)) {}

  const copy::gpu_context context_;
  const dma_kernels kernels_;
  const std::unique_ptr<device::session> session_;
  std::unique_ptr<copy::channel_memory> sources_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, window> windows_;  // of others, by owner and number
  std::unique_ptr<memory_handover> handover_;                          // ends first: its thread uses the others
};

// How a process offers the executor to its peer. Plain bytes.
struct dma_offer {
  std::int32_t code = 0;  // not 0: it cannot
  std::uint32_t word_index = 0;
  memory_handover::name owner;
};

// `theirs`: what the peer has offered. ENOTSUP: with the reason.
result<std::unique_ptr<executor>> make_dma_executor(const copy::gpu_context& context, std::shared_ptr<dma_domain> domain,
                                                    const std::shared_ptr<channel_core>& core, const dma_offer& theirs,
                                                    std::chrono::milliseconds limit);

}  // namespace pl::triggered
