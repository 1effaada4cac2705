// SPDX-License-Identifier: Apache-2.0
// Buffers of every kind on one GPU; host memory only when there is none.
#pragma once

#include <memory>

#include "tools/common/gpu.hpp"
#include "tools/common/kernel_module.hpp"
#include "tools/p2p/buffers.hpp"

namespace pl::p2p {

class gpu_buffers : public buffer_source {
 public:
  // `gpu` may be null: host memory only. Must outlive this object and its buffers.
  explicit gpu_buffers(const tools::gpu_session* gpu);
  ~gpu_buffers() override;

  std::unique_ptr<message_buffer> allocate(memory_kind kind, std::size_t size_bytes) override;
  void consume(const message_buffer& buffer, std::size_t size_bytes) override;

 private:
  struct consumer;
  const tools::gpu_session* gpu_;
  std::unique_ptr<consumer> consumer_;  // made on first use
};

}  // namespace pl::p2p
