// SPDX-License-Identifier: Apache-2.0
#include "collectives/device_combiner.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "combine_image.hpp"
#include "cuda/kernel_image.hpp"

namespace pl::collectives {
namespace {

constexpr unsigned kThreads = 512;
constexpr std::size_t kBytesOfBlock = 64 << 10;  // more blocks than these bytes need would have little to do
constexpr unsigned kBlocksOfProcessor = 2;
constexpr std::size_t kKeptBytes = 64 << 20;  // of memory that nothing uses

}  // namespace

result<std::unique_ptr<device_combiner>> device_combiner::open(const copy::gpu_context& gpu) {
  std::unique_ptr<device_combiner> out(new device_combiner(gpu));
  if (auto done = out->load(); !done) return done.error();
  return out;
}

status device_combiner::load() {
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  const auto& cuda = *gpu_.cuda;
  auto loaded = cu::load_kernels(cuda, kernels::combine());
  if (!loaded) return loaded.error();
  module_ = *loaded;
  for (unsigned i = 0; i < kElements; ++i) {
    const std::string name = std::string("combine_") + name_of(static_cast<element>(i));
    const auto found = cu::find_kernel(cuda, module_, name.c_str());
    if (!found) return found.error();
    kernels_[i] = *found;
  }
  if (const auto rc = cuda.cuStreamCreate(&stream_, cu::stream_flag::non_blocking); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "a stream for reductions");
  int processors = 0;
  static_cast<void>(cuda.cuDeviceGetAttribute(&processors, cu::device_attribute::multiprocessor_count, gpu_.device_ordinal));
  max_blocks_ = cuda.is_simulated ? 1 : static_cast<unsigned>(std::max(processors, 1)) * kBlocksOfProcessor;
  return {};
}

device_combiner::~device_combiner() {
  if (!gpu_.is_alive()) return;
  auto use = copy::context_use::enter(gpu_);
  if (!use) return;
  const auto& cuda = *gpu_.cuda;
  if (stream_ != nullptr) {
    static_cast<void>(cuda.cuStreamSynchronize(stream_));
    static_cast<void>(cuda.cuStreamDestroy_v2(stream_));
  }
  for (const auto& each : marks_) static_cast<void>(cuda.cuEventDestroy_v2(each.event));
  for (const auto event : events_) static_cast<void>(cuda.cuEventDestroy_v2(event));
  for (const auto& each : blocks_) static_cast<void>(cuda.cuMemFree_v2(each.address));
  if (module_ != nullptr) static_cast<void>(cuda.cuModuleUnload(module_));
}

result<device_combiner::ticket> device_combiner::begin(element type, reduction op, std::uint64_t first, std::uint64_t second,
                                                       std::uint64_t out, std::size_t count) {
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  const auto& cuda = *gpu_.cuda;
  cu::event_t event = nullptr;
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
  } else if (const auto rc = cuda.cuEventCreate(&event, cu::event_flag::disable_timing); rc != cu::error_code::success) {
    return cu::make_error(cuda, rc, "an event for reductions");
  }
  auto operation = static_cast<std::uint32_t>(op);
  std::uint64_t bytes = count * size_of(type);
  void* parameters[] = {&operation, &first, &second, &out, &bytes};
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>(bytes / kBytesOfBlock, 1, max_blocks_));
  const unsigned threads = cuda.is_simulated ? 16 : kThreads;
  auto rc = cuda.cuLaunchKernel(kernels_[static_cast<std::size_t>(type)], blocks, 1, 1, threads, 1, 1, 0, stream_,
                                parameters, nullptr);
  if (rc == cu::error_code::success) rc = cuda.cuEventRecord(event, stream_);
  if (rc != cu::error_code::success) {
    events_.push_back(event);
    return cu::make_error(cuda, rc, "a reduction's kernel");
  }
  marks_.push_back({++begun_, event});
  return begun_;
}

result<bool> device_combiner::has_ended(ticket begun) {
  if (begun <= ended_) return true;
  const auto wanted = std::find_if(marks_.begin(), marks_.end(), [&](const mark& each) { return each.number == begun; });
  if (wanted == marks_.end()) return true;
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  const auto rc = gpu_.cuda->cuEventQuery(wanted->event);
  if (rc == cu::error_code::not_ready) return false;
  if (rc != cu::error_code::success) return cu::make_error(*gpu_.cuda, rc, "a reduction's kernel");
  ended_ = begun;
  for (auto each = marks_.begin(); each <= wanted; ++each) events_.push_back(each->event);
  marks_.erase(marks_.begin(), wanted + 1);
  return true;
}

result<std::uint64_t> device_combiner::take(std::size_t bytes) {
  block* best = nullptr;
  for (auto& each : blocks_)
    if (!each.is_taken && each.bytes >= bytes && (best == nullptr || each.bytes < best->bytes)) best = &each;
  if (best == nullptr) {
    auto use = copy::context_use::enter(gpu_);
    if (!use) return use.error();
    block made{0, bytes, false};
    if (const auto rc = gpu_.cuda->cuMemAlloc_v2(&made.address, bytes); rc != cu::error_code::success)
      return cu::make_error(*gpu_.cuda, rc, format("%zu bytes of GPU memory for a reduction", bytes));
    blocks_.push_back(made);
    best = &blocks_.back();
  }
  best->is_taken = true;
  return best->address;
}

void device_combiner::give_back(std::uint64_t memory) noexcept {
  std::size_t kept = 0;
  for (auto& each : blocks_) {
    if (each.address == memory) each.is_taken = false;
    if (!each.is_taken) kept += each.bytes;
  }
  if (kept <= kKeptBytes) return;
  auto use = copy::context_use::enter(gpu_);
  if (!use) return;
  const auto last = std::remove_if(blocks_.begin(), blocks_.end(), [&](const block& each) {
    return !each.is_taken && gpu_.cuda->cuMemFree_v2(each.address) == cu::error_code::success;
  });
  blocks_.erase(last, blocks_.end());
}

}  // namespace pl::collectives
