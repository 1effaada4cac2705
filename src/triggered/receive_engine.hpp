// SPDX-License-Identifier: Apache-2.0
// A DMA channel by which the proxy thread moves what has arrived in host memory into this process's windows: the copy engine
// takes large pieces sooner than a CPU stores them, and the thread goes on meanwhile. No CUDA call on the proxy thread.
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
#include "copy/patience.hpp"
#include "dma/channel.hpp"

namespace pl::triggered {

class receive_engine {
 public:
  // On the application's thread. ENOTSUP: no DMA channels with this driver or GPU, or PEERLANE_STREAM_RECEIVE says so.
  static result<std::unique_ptr<receive_engine>> open(const copy::gpu_context& context);
  ~receive_engine();
  receive_engine(const receive_engine&) = delete;
  receive_engine& operator=(const receive_engine&) = delete;

  // ---- The application's threads
  // Errors: those of copy::channel_memory; the window then has no copies by the engine.
  status add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);
  // Waits for the copies that are under way.
  void remove(std::uint32_t window);
  // Whole pages of this process, as the engine reads them while the region lives.
  result<dma::region> bind(void* pages, std::size_t size_bytes) { return source_.addresses->bind_host(pages, size_bytes); }

  // ---- The proxy thread
  // Begins a copy of bytes that lie inside the window, from an address of the engine's. Nothing: the window is not known.
  // EIO, ETIMEDOUT: the channel has ended.
  result<std::optional<dma::sequence>> begin(std::uint32_t window, std::uint64_t offset, std::uint64_t source,
                                             std::uint64_t bytes);
  // Whether it has ended. EIO: the GPU has ended the channel, with the reason; ETIMEDOUT: it does not answer, and was
  // stopped.
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
