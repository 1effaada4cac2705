// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/gpu_buffers.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "consume_image.hpp"

namespace pl::p2p {
namespace {

constexpr unsigned kAttachGlobal = 1;  // CU_MEM_ATTACH_GLOBAL
constexpr unsigned kConsumeThreads = 256;
constexpr unsigned kConsumeBytesPerBlock = 64u << 10;
constexpr unsigned kMaxConsumeBlocks = 256;

class device_buffer : public message_buffer {
 public:
  device_buffer(const tools::gpu_session& gpu, std::size_t size_bytes) : gpu_(gpu), memory_(gpu, size_bytes) {}
  void* data() const override { return reinterpret_cast<void*>(memory_.get()); }
  std::size_t size_bytes() const override { return memory_.size_bytes(); }
  memory_kind kind() const override { return memory_kind::device; }
  void fill(std::uint8_t value, std::size_t count) override {
    if (count == 0) return;
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(memory_.get(), value, count), "cuMemsetD8");
    gpu_.synchronize();
  }
  void store(std::span<const std::uint8_t> bytes) override {
    if (!bytes.empty()) gpu_.check(gpu_.cuda().cuMemcpyHtoD_v2(memory_.get(), bytes.data(), bytes.size()), "cuMemcpyHtoD");
  }
  void load(std::span<std::uint8_t> bytes) const override {
    if (!bytes.empty()) gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(bytes.data(), memory_.get(), bytes.size()), "cuMemcpyDtoH");
  }

 private:
  const tools::gpu_session& gpu_;
  tools::device_memory memory_;
};

class managed_buffer : public message_buffer {
 public:
  managed_buffer(const tools::gpu_session& gpu, memory_kind kind, std::size_t size_bytes)
      : gpu_(gpu), kind_(kind), size_bytes_(std::max<std::size_t>(size_bytes, 1)) {
    if (gpu.cuda().cuMemAllocManaged == nullptr) throw tools::tool_failure("this driver has no managed memory");
    gpu.check(gpu.cuda().cuMemAllocManaged(&pointer_, size_bytes_, kAttachGlobal), "cuMemAllocManaged");
  }
  ~managed_buffer() override { gpu_.cuda().cuMemFree_v2(pointer_); }
  void* data() const override { return reinterpret_cast<void*>(pointer_); }
  std::size_t size_bytes() const override { return size_bytes_; }
  memory_kind kind() const override { return kind_; }
  void fill(std::uint8_t value, std::size_t count) override {
    if (count == 0) return;
    if (kind_ == memory_kind::managed_host) {
      std::memset(data(), value, count);
      return;
    }
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(pointer_, value, count), "cuMemsetD8");
    gpu_.synchronize();
  }
  void store(std::span<const std::uint8_t> bytes) override {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  void load(std::span<std::uint8_t> bytes) const override {
    if (!bytes.empty()) std::memcpy(bytes.data(), data(), bytes.size());
  }

 private:
  const tools::gpu_session& gpu_;
  memory_kind kind_;
  std::size_t size_bytes_;
  cu::device_ptr pointer_ = 0;
};

}  // namespace

// The kernel that reads a received buffer, with what its launch needs.
struct gpu_buffers::consumer {
  explicit consumer(const tools::gpu_session& session)
      : gpu(session), module(session, kernels::consume()), stream(session), sum(session, sizeof(std::uint64_t)) {}
  void read(const void* data, std::size_t size_bytes) const {
    const auto blocks =
        static_cast<unsigned>(std::clamp<std::size_t>(size_bytes / kConsumeBytesPerBlock, 1, kMaxConsumeBlocks));
    module.launch("p2p_consume", blocks, kConsumeThreads, 0, stream.get(), reinterpret_cast<std::uint64_t>(data),
                  std::uint64_t{size_bytes}, std::uint64_t{sum.get()});
    gpu.check(gpu.cuda().cuStreamSynchronize(stream.get()), "kernel p2p_consume");
  }
  const tools::gpu_session& gpu;
  tools::kernel_module module;
  tools::gpu_stream stream;
  tools::device_memory sum;
};

gpu_buffers::gpu_buffers(const tools::gpu_session* gpu) : gpu_(gpu) {}
gpu_buffers::~gpu_buffers() = default;

std::unique_ptr<message_buffer> gpu_buffers::allocate(memory_kind kind, std::size_t size_bytes) {
  if (kind == memory_kind::host) return allocate_host_buffer(size_bytes);
  if (gpu_ == nullptr) throw tools::tool_failure("GPU memory was asked for in a run without a GPU");
  if (kind == memory_kind::device) return std::make_unique<device_buffer>(*gpu_, std::max<std::size_t>(size_bytes, 1));
  return std::make_unique<managed_buffer>(*gpu_, kind, size_bytes);
}

void gpu_buffers::consume(const message_buffer& buffer, std::size_t size_bytes) {
  if (buffer.kind() == memory_kind::host || buffer.kind() == memory_kind::managed_host)
    return consume_on_host(buffer.data(), size_bytes);
  if (!consumer_) consumer_ = std::make_unique<consumer>(*gpu_);
  consumer_->read(buffer.data(), size_bytes);
}

}  // namespace pl::p2p
