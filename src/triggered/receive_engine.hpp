// SPDX-License-Identifier: Apache-2.0
// A DMA channel with which the proxy thread copies data that has arrived in host memory to this process's windows. For large
// pieces the copy engine is faster than stores of the CPU, and the thread can continue meanwhile. The proxy thread makes no
// CUDA call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "copy/channel_memory.hpp"
#include "copy/channel_source.hpp"
#include "copy/gpu_context.hpp"
#include "copy/time_limit.hpp"
#include "dma/channel.hpp"

namespace pl::triggered {

class receive_engine {
 public:
  // Call it on an application's thread. ENOTSUP: this driver or GPU has no DMA channels, or PEERLANE_STREAM_RECEIVE forbids
  // it.
  static result<std::unique_ptr<receive_engine>> open(const copy::gpu_context& context);
  ~receive_engine();
  receive_engine(const receive_engine&) = delete;
  receive_engine& operator=(const receive_engine&) = delete;

  // ---- The application's threads
  // Errors: those of copy::channel_memory; the engine then copies nothing to the window.
  status add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);
  // Waits for the copies in progress.
  void remove(std::uint32_t window);
  // Binds whole pages of this process, from which the engine copies while the region exists.
  result<dma::region> bind(void* pages, std::size_t size_bytes) { return source_.addresses->bind_host(pages, size_bytes); }

  // ---- The proxy thread
  // Begins a copy to the window, from an address of the engine. The bytes must be inside the window. Empty: the window is
  // unknown. EIO, ETIMEDOUT: the channel has ended.
  result<std::optional<dma::sequence>> begin(std::uint32_t window, std::uint64_t offset, std::uint64_t source,
                                             std::uint64_t bytes);
  // Whether the copy has ended. EIO: the GPU has ended the channel, with the reason. ETIMEDOUT: the channel did not answer
  // and was stopped.
  result<bool> is_done(dma::sequence number);

 private:
  receive_engine(const copy::gpu_context& context, copy::channel_source source);

  const copy::gpu_context context_;
  const copy::channel_source source_;
  copy::channel_memory memory_;
  std::unique_ptr<dma::channel> channel_;
  copy::stall_watch watch_;  // proxy thread
  unsigned polls_ = 0;
  std::mutex mutex_;  // of what follows
  std::map<std::uint32_t, std::vector<copy::channel_memory::piece>> windows_;
  dma::sequence last_ = 0;
};

}  // namespace pl::triggered
