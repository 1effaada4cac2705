// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/gpu_copier.hpp"

#include <algorithm>
#include <span>

#include "base/text.hpp"
#include "tools/bandwidth/bulk_protocol.hpp"
#include "tools/bandwidth/copy_plan.hpp"

namespace pl::bandwidth {
namespace {

constexpr unsigned kThreads = 512;          // of a block, one block to a multiprocessor: kernels/bandwidth.cu counts on it
constexpr unsigned kSimulatedThreads = 32;  // of which a simulated multiprocessor runs one at a time
constexpr std::uint64_t kVectorBytes = 16;

const char* kernel_name(const bound_transfer& transfer) {
  switch (transfer.executor.kind) {
    case executor_kind::tma:
      return "bandwidth_copy_bulk";
    case executor_kind::sm_read:
      return "bandwidth_read";
    case executor_kind::sm_write:
      return "bandwidth_write";
    default:
      return transfer.is_multicast ? "bandwidth_multicast" : "bandwidth_copy";
  }
}

}  // namespace

launch_shape shape_for(const gpu_set& gpus, int gpu, unsigned width, std::uint64_t bytes) {
  const unsigned threads = gpus.simulated() ? kSimulatedThreads : kThreads;
  const unsigned all = std::max(1u, gpus.multiprocessors(gpu));
  const unsigned budget = width == 0 ? all : std::min(width, all);
  const std::uint64_t block_bytes = threads * kVectorBytes;
  const std::uint64_t useful = std::max<std::uint64_t>(1, (bytes + block_bytes - 1) / block_bytes);
  return {static_cast<unsigned>(std::min<std::uint64_t>(budget, useful)), threads};
}

launch_shape bulk_shape_for(const gpu_set& gpus, int gpu, unsigned width, std::uint64_t bytes) {
  const unsigned all = std::max(1u, gpus.multiprocessors(gpu));
  const unsigned budget = (width == 0 ? all : std::min(width, all)) * protocol::kBulkBlocksEach;
  const std::uint64_t pieces = std::max<std::uint64_t>(1, (bytes + protocol::kBulkBytes - 1) / protocol::kBulkBytes);
  return {static_cast<unsigned>(std::min<std::uint64_t>(budget, pieces)), protocol::kBulkThreads};
}

status owned_stream::open() {
  if (auto ready = gpus_.make_current(gpu_); !ready) return ready;
  cu::stream_t made = nullptr;
  const auto rc = gpus_.cuda().cuStreamCreate(&made, cu::stream_flag::non_blocking);
  if (auto got = gpus_.check(rc, format("GPU %d: a stream", gpu_)); !got) return got;
  stream_ = made;
  return {};
}

owned_stream::~owned_stream() {
  if (stream_ != nullptr && gpus_.make_current(gpu_)) gpus_.cuda().cuStreamDestroy_v2(stream_);
}

result<std::unique_ptr<gpu_copier>> gpu_copier::make(gpu_set& gpus, const bound_transfer& transfer, bool has_company) {
  std::unique_ptr<gpu_copier> copier(new gpu_copier(gpus, transfer));
  if (auto opened = copier->stream_.open(); !opened) return opened.error();
  if (has_company && transfer.executor.kind == executor_kind::ce) copier->traces_.resize(kTraces);
  for (const std::span<cu::event_t> some : {std::span<cu::event_t>(copier->events_), std::span(copier->traces_)})
    for (auto& event : some) {
      cu::event_t made = nullptr;
      const auto rc = gpus.cuda().cuEventCreate(&made, cu::event_flag::standard);
      if (auto got = copier->check(rc, "an event"); !got) return got.error();
      event = made;
    }
  if (!is_kernel(transfer.executor.kind)) return copier;
  const auto kernel = gpus.kernel(copier->gpu(), kernel_name(transfer));
  if (!kernel) return kernel.error();
  copier->kernel_ = *kernel;
  return copier;
}

gpu_copier::~gpu_copier() {
  if (!select()) return;
  for (const std::span<cu::event_t> some : {std::span<cu::event_t>(events_), std::span(traces_)})
    for (const auto event : some)
      if (event != nullptr) gpus_.cuda().cuEventDestroy_v2(event);
}

status gpu_copier::check(cu::result_t code, const char* step) const {
  if (code == cu::error_code::success) return {};
  return gpus_.check(code, format("GPU %d: %s", transfer_.executor.gpu, step));
}

status gpu_copier::enqueue_copies(std::uint64_t copies) {
  if (copies == 0) return {};
  const auto& cuda = gpus_.cuda();
  std::uint64_t dst = transfer_.destination.address;
  std::uint64_t src = transfer_.source.address;
  std::uint64_t bytes = transfer_.bytes;
  if (is_kernel(transfer_.executor.kind)) {
    const bool is_bulk = transfer_.executor.kind == executor_kind::tma;
    const unsigned width = transfer_.executor.width, shared_bytes = is_bulk ? protocol::kBulkSharedBytes : 0;
    const launch_shape shape = is_bulk ? bulk_shape_for(gpus_, gpu(), width, bytes) : shape_for(gpus_, gpu(), width, bytes);
    std::array<void*, 4> parameters{&dst, &src, &bytes, &copies};
    return check(cuda.cuLaunchKernel(kernel_, shape.blocks, 1, 1, shape.threads, 1, 1, shared_bytes, stream(),
                                     parameters.data(), nullptr),
                 "launch of the copy kernel");
  }
  for (std::uint64_t copy = 0; copy < copies; ++copy)
    if (auto queued = check(cuda.cuMemcpyAsync(dst, src, bytes, stream()), "cuMemcpyAsync"); !queued) return queued;
  return {};
}

status gpu_copier::enqueue_timed(std::uint64_t copies) {
  copies_ = copies;
  traced_ = 0;
  if (traces_.empty()) return enqueue_copies(copies);
  step_ = (copies + kTraces - 1) / kTraces;
  for (std::uint64_t done = 0; done < copies; done += step_) {
    const std::uint64_t some = std::min(step_, copies - done);
    if (auto queued = enqueue_copies(some); !queued) return queued;
    if (done + some == copies) break;  // the end has its own mark
    if (auto left = check(gpus_.cuda().cuEventRecord(traces_[traced_], stream()), "cuEventRecord"); !left) return left;
    ++traced_;
  }
  return {};
}

result<std::optional<double>> gpu_copier::copies_until(double ns) {
  if (traces_.empty()) return std::optional<double>();
  const auto end_ns = elapsed_ns(mark::start, mark::end);
  if (!end_ns) return end_ns.error();
  std::vector<double> ended_ns;
  for (std::size_t i = 0; i < traced_; ++i) {
    float milliseconds = 0;
    const auto rc =
        gpus_.cuda().cuEventElapsedTime(&milliseconds, events_[static_cast<std::size_t>(mark::start)], traces_[i]);
    if (auto got = check(rc, "cuEventElapsedTime"); !got) return got.error();
    ended_ns.push_back(static_cast<double>(milliseconds) * 1e6);
  }
  ended_ns.push_back(*end_ns);
  return std::optional(bandwidth::copies_until(ended_ns, step_, copies_, ns));
}

status gpu_copier::record(mark marker) {
  return check(gpus_.cuda().cuEventRecord(events_[static_cast<std::size_t>(marker)], stream()), "cuEventRecord");
}

status gpu_copier::wait_for(const gpu_copier& other, mark marker) {
  return check(gpus_.cuda().cuStreamWaitEvent(stream(), other.events_[static_cast<std::size_t>(marker)], 0),
               "cuStreamWaitEvent");
}

status gpu_copier::finished() {
  if (auto ready = select(); !ready) return ready;
  const auto rc = gpus_.cuda().cuStreamQuery(stream());
  if (rc == cu::error_code::not_ready) return failure{EAGAIN, format("GPU %d is still at work", gpu())};
  return check(rc, "the transfer");
}

result<double> gpu_copier::elapsed_ns(mark begin, mark end) {
  return between(events_[static_cast<std::size_t>(begin)], events_[static_cast<std::size_t>(end)]);
}

result<double> gpu_copier::started_after_ns(const gpu_copier& other) {
  constexpr auto start = static_cast<std::size_t>(mark::start);
  return between(other.events_[start], events_[start]);
}

result<double> gpu_copier::between(cu::event_t begin, cu::event_t end) {
  if (auto ready = select(); !ready) return ready.error();
  float milliseconds = 0;
  const auto rc = gpus_.cuda().cuEventElapsedTime(&milliseconds, begin, end);
  if (auto got = check(rc, "cuEventElapsedTime"); !got) return got.error();
  return static_cast<double>(milliseconds) * 1e6;
}

}  // namespace pl::bandwidth
