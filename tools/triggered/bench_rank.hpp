// SPDX-License-Identifier: Apache-2.0
// The resources of one rank of an exchange: its GPU, a stream, a window, a channel to each neighbour, and the kernel of the
// application.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "messaging/messenger.hpp"
#include "tools/common/gpu.hpp"
#include "triggered/context.hpp"

namespace pl::async {

struct bench_rank_options {
  int rank = 0;
  int gpu = 0;                   // ordinal
  std::size_t window_bytes = 0;  // of each of the two buffers
  triggered::context_options context;
};

// Opening is collective. Everything throws tools::tool_failure.
class bench_rank {
 public:
  bench_rank(const bench_rank_options& plan, messaging::bootstrap& bootstrap);
  ~bench_rank();
  bench_rank(const bench_rank&) = delete;
  bench_rank& operator=(const bench_rank&) = delete;

  int rank() const { return plan_.rank; }
  const tools::gpu_session& gpu() const { return *gpu_; }
  const cu::driver_table& cuda() const { return gpu_->cuda(); }
  cu::stream_t stream() const { return stream_->get(); }
  triggered::context& context() { return *context_; }
  messaging::messenger& messages();       // with device memory; opened at the first use (collective)
  messaging::messenger& host_messages();  // host memory only, so that it makes no CUDA call; the same
  messaging::bootstrap& bootstrap() { return bootstrap_; }

  std::uint64_t receive_buffer() const { return receive_buffer_->get(); }
  std::uint64_t send_buffer() const { return send_buffer_->get(); }
  std::size_t window_bytes() const { return plan_.window_bytes; }
  const triggered::remote_window& window_of(int rank) const { return windows_[static_cast<std::size_t>(rank)]; }
  // The same in all ranks that ask equally often.
  std::uint32_t new_channel_id() { return next_channel_++; }
  // Collective between the two.
  result<std::unique_ptr<triggered::channel>> try_connect(int peer, std::uint32_t id,
                                                          const triggered::channel_options& options);
  std::unique_ptr<triggered::channel> connect(int peer, std::uint32_t id, const triggered::channel_options& options);

  void launch_step(std::uint64_t bytes, std::uint64_t busy_ns) const;
  // Sets every word of both buffers.
  void fill(std::uint64_t value, std::size_t bytes) const;
  // Words of the send buffer that are not `value`.
  std::size_t wrong_words(std::uint64_t value, std::size_t bytes) const;
  // The GPU time of one `call`, in ns, in a row of `count`.
  double time_on_gpu(int count, const std::function<void()>& call) const;
  void synchronize() const;
  void barrier() const;
  // Collective: the texts of all ranks, in their order.
  std::vector<std::string> gather(std::string_view mine) const;

 private:
  bench_rank_options plan_;
  messaging::bootstrap& bootstrap_;
  std::unique_ptr<tools::gpu_session> gpu_;
  std::unique_ptr<tools::device_memory> receive_buffer_, send_buffer_;
  std::unique_ptr<tools::gpu_stream> stream_;
  cu::module_t module_ = nullptr;
  cu::function_t step_ = nullptr;
  std::unique_ptr<triggered::context> context_;
  std::unique_ptr<messaging::messenger> messages_, host_messages_;
  std::uint32_t next_channel_ = 1;
  std::vector<triggered::remote_window> windows_;
};

}  // namespace pl::async
