// SPDX-License-Identifier: Apache-2.0
#include "tools/blocks/block_mover.hpp"

#include <algorithm>

#include "copy/completion.hpp"
#include "gather_image.hpp"

namespace pl::tools {
namespace {

class planner_mover final : public block_mover {
 public:
  explicit planner_mover(planner_session& planner) : planner_(planner) {}
  void take(const block_list& list) override { list_ = &list; }
  void submit() override { begun_.emplace(must(planner_->begin_blocks(list_->transfer(), {}))); }
  void finish() override { must(begun_->wait()); }

 private:
  planner_session& planner_;
  const block_list* list_ = nullptr;
  std::optional<copy::completion> begun_;
};

class stream_mover : public block_mover {
 public:
  explicit stream_mover(const gpu_session& gpu) : gpu_(gpu), stream_(gpu) {}
  void finish() override { gpu_.check(gpu_.cuda().cuStreamSynchronize(stream_.get()), "cuStreamSynchronize"); }

 protected:
  const gpu_session& gpu_;
  gpu_stream stream_;
};

class batch_mover final : public stream_mover {
 public:
  using stream_mover::stream_mover;
  void take(const block_list& list) override {
    destinations_.clear(), sources_.clear();
    for (std::size_t i = 0; i < list.count(); ++i) {
      destinations_.push_back(list.destination(i));
      sources_.push_back(list.source(i));
    }
    sizes_.assign(list.count(), list.block_bytes);
  }
  void submit() override {
    cu::memcpy_attributes attributes{};
    attributes.source_order = cu::memcpy_source_order::stream;
    std::size_t first = 0;
    gpu_.check(gpu_.cuda().cuMemcpyBatchAsync_v2(destinations_.data(), sources_.data(), sizes_.data(), sizes_.size(),
                                                 &attributes, &first, 1, stream_.get()),
               kBatch);
  }

 private:
  std::vector<cu::device_ptr> destinations_, sources_;
  std::vector<std::size_t> sizes_;
};

class each_mover final : public stream_mover {
 public:
  using stream_mover::stream_mover;
  void take(const block_list& list) override { list_ = &list; }
  void submit() override {
    for (std::size_t i = 0; i < list_->count(); ++i)
      gpu_.check(gpu_.cuda().cuMemcpyAsync(list_->destination(i), list_->source(i), list_->block_bytes, stream_.get()),
                 kEach);
  }

 private:
  const block_list* list_ = nullptr;
};

// The list of addresses is in GPU memory before the clock starts, which favours this contender.
class gather_mover final : public stream_mover {
 public:
  gather_mover(const gpu_session& gpu, const kernel_module& module, unsigned multiprocessors)
      : stream_mover(gpu), module_(module), multiprocessors_(multiprocessors) {}
  void take(const block_list& list) override {
    std::vector<std::uint64_t> addresses;
    for (std::size_t i = 0; i < list.count(); ++i) {
      addresses.push_back(list.destination(i));
      addresses.push_back(list.source(i));
    }
    const std::uint64_t size_bytes = addresses.size() * sizeof addresses[0];
    if (size_bytes > room_bytes_) {
      on_device_.reset();
      on_device_ = std::make_unique<device_block>(gpu_, gpu_.ordinal(), size_bytes);
      room_bytes_ = size_bytes;
    }
    on_device_->write(0, addresses.data(), size_bytes);
    count_ = list.count();
    block_bytes_ = list.block_bytes;
  }
  void submit() override {
    // One block of threads for each multiprocessor, as in kernels/bandwidth.cu; the simulated one runs a thread at a time.
    const unsigned threads = gpu_.simulated() ? 32 : 512;
    module_.launch("gather_blocks", multiprocessors_, threads, 0, stream_.get(), on_device_->get(), count_, block_bytes_);
  }

 private:
  const kernel_module& module_;
  const unsigned multiprocessors_;
  std::unique_ptr<device_block> on_device_;
  std::uint64_t room_bytes_ = 0, count_ = 0, block_bytes_ = 0;
};

}  // namespace

mover_set::mover_set(const gpu_session& session) : gpu(session), planner(session) {
  if (kernel_module::why_missing(gpu).empty()) gather.emplace(gpu, kernels::gather());
}

std::unique_ptr<block_mover> mover_set::make(const std::string& name) {
  constexpr unsigned kFew = 16;
  const auto all = static_cast<unsigned>(std::max(1, gpu.attribute(cu::device_attribute::multiprocessor_count)));
  if (name == kOurs) return std::make_unique<planner_mover>(planner);
  if (name == kEach) return std::make_unique<each_mover>(gpu);
  if (name == kBatch) {
    if (gpu.cuda().cuMemcpyBatchAsync_v2 != nullptr) return std::make_unique<batch_mover>(gpu);
    why_not = "this driver has no cuMemcpyBatchAsync of CUDA 13";
    return nullptr;
  }
  if (!gather) {
    why_not = kernel_module::why_missing(gpu);
    return nullptr;
  }
  if (name == kGatherFew) return std::make_unique<gather_mover>(gpu, *gather, std::min(kFew, all));
  if (name == kGatherAll) return std::make_unique<gather_mover>(gpu, *gather, all);
  why_not = "no such contender";
  return nullptr;
}

}  // namespace pl::tools
