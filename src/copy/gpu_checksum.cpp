// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_checksum.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "arch/crc32c.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "checksum_image.hpp"
#include "copy/checksum_protocol.hpp"
#include "copy/pinned_buffer.hpp"
#include "cuda/kernel_image.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kLivenessCheckNs = 1'000'000;

// Table i: the effect of a byte on the checksum when i more bytes follow.
constexpr std::array<std::uint32_t, checksum::kTableWords> kTables = [] {
  std::array<std::uint32_t, checksum::kTableWords> out{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    out[byte] = crc;
  }
  for (std::size_t i = 256; i < out.size(); ++i) out[i] = out[i - 256] >> 8 ^ out[out[i - 256] & 0xff];
  return out;
}();

}  // namespace

struct gpu_checksum::state {
  explicit state(const gpu_context& gpu) : context(gpu), cuda(*gpu.cuda), epoch(claim_process_epoch()) {}
  ~state();
  status make();
  status launch(cu::device_ptr src, std::uint64_t bytes, cu::stream_t after, bool has_after);
  std::atomic_ref<std::uint32_t> word(std::size_t offset) const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(control.data() + offset));
  }
  bool is_ours() const noexcept { return process_epoch() == epoch; }

  const gpu_context context;
  const cu::driver_table& cuda;
  const std::uint32_t epoch;
  cu::module_t module = nullptr;
  cu::function_t kernel = nullptr;
  cu::stream_t stream = nullptr;
  cu::event_t event = nullptr;
  cu::device_ptr tables = 0;
  pinned_buffer control;
  std::mutex mutex;
  std::uint32_t last = 0;     // number of the last job
  bool is_in_flight = false;  // and not given up
};

gpu_checksum::state::~state() {
  if (!is_ours()) return;
  auto scope = context_use::enter(context);
  if (!scope) return;  // everything was destroyed with the context
  if (stream != nullptr) {
    cuda.cuStreamSynchronize(stream);
    cuda.cuStreamDestroy_v2(stream);
  }
  if (event != nullptr) cuda.cuEventDestroy_v2(event);
  if (tables != 0) cuda.cuMemFree_v2(tables);
  if (module != nullptr) cuda.cuModuleUnload(module);
}

status gpu_checksum::state::make() {
  if (cuda.cuStreamWriteValue32_v2 == nullptr) return failure{ENOTSUP, "the driver's streams write no words"};
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  auto loaded = cu::load_kernels(cuda, kernels::checksum());
  if (!loaded) return loaded.error();
  module = *loaded;
  auto buffer = pinned_buffer::make(context, checksum::kControlBytes);
  if (!buffer) return buffer.error();
  control = *std::move(buffer);
  std::fill_n(control.data(), checksum::kSegmentsAt, std::byte{});
  int least = 0, greatest = 0;
  auto rc = cuda.cuModuleGetFunction(&kernel, module, "crc32c_segments");
  if (rc == cu::error_code::success) rc = cuda.cuCtxGetStreamPriorityRange(&least, &greatest);
  if (rc == cu::error_code::success) rc = cuda.cuStreamCreateWithPriority(&stream, cu::stream_flag::non_blocking, greatest);
  if (rc == cu::error_code::success) rc = cuda.cuEventCreate(&event, cu::event_flag::disable_timing);
  if (rc == cu::error_code::success) rc = cuda.cuMemAlloc_v2(&tables, sizeof kTables);
  if (rc == cu::error_code::success) rc = cuda.cuMemcpyHtoD_v2(tables, kTables.data(), sizeof kTables);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "preparing the checksum kernel");
  return {};
}

// Launches job `last`. Precondition: the lock is held.
status gpu_checksum::state::launch(cu::device_ptr src, std::uint64_t bytes, cu::stream_t after, bool has_after) {
  auto rc = cu::result_t{cu::error_code::success};
  if (has_after) {
    // In the caller's context, which determines the meaning of null.
    rc = cuda.cuEventRecord(event, after);
    if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "ordering a checksum after the application's stream");
  }
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  if (has_after) rc = cuda.cuStreamWaitEvent(stream, event, 0);
  std::uint64_t source = src, tables_at = tables, control_at = control.device_address();
  std::uint32_t job = last;
  void* parameters[] = {&source, &bytes, &tables_at, &control_at, &job};
  const auto segments = (bytes + checksum::kSegmentBytes - 1) / checksum::kSegmentBytes;
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>((segments + checksum::kThreads - 1) / checksum::kThreads, checksum::kMaxBlocks));
  if (rc == cu::error_code::success)
    rc = cuda.cuLaunchKernel(kernel, blocks, 1, 1, checksum::kThreads, 1, 1, checksum::kSharedBytes, stream, parameters,
                             nullptr);
  if (rc == cu::error_code::success)
    rc = cuda.cuStreamWriteValue32_v2(stream, control.device_address() + checksum::kDoneAt, job, cu::write_value::standard);
  if (rc == cu::error_code::success) return {};
  cuda.cuStreamSynchronize(stream);
  return cu::make_error(cuda, rc, "queueing a checksum");
}

result<std::unique_ptr<gpu_checksum>> gpu_checksum::open(const gpu_context& context) {
  auto made = std::make_unique<state>(context);
  if (auto done = made->make(); !done) return done.error();
  return std::unique_ptr<gpu_checksum>(new gpu_checksum(std::move(made)));
}

gpu_checksum::gpu_checksum(std::unique_ptr<state> s) : state_(std::move(s)) {}

gpu_checksum::~gpu_checksum() {
  if (!state_->is_ours()) (void)state_.release();  // a forked child: stream and pages are the parent's
}

result<gpu_checksum::job> gpu_checksum::begin(cu::device_ptr src, std::size_t bytes, cu::stream_t after, bool has_after) {
  if (src % kAlignment != 0 || bytes == 0 || bytes > kMaxBytes)
    return failure{EINVAL, format("a checksum of %zu bytes at 0x%llx: 1 to %zu bytes at a multiple of %zu", bytes,
                                  static_cast<unsigned long long>(src), kMaxBytes, kAlignment)};
  auto& s = *state_;
  if (!s.is_ours()) return failure{EACCES, "a checksum of the parent process"};
  const std::lock_guard lock(s.mutex);
  if (s.is_in_flight || s.word(checksum::kDoneAt).load(std::memory_order_acquire) != s.last)
    return failure{EBUSY, "another checksum is in progress on this GPU"};
  ++s.last;
  if (auto queued = s.launch(src, bytes, after, has_after); !queued) {
    --s.last;
    return queued.error();
  }
  s.is_in_flight = true;
  job out;
  out.owner_ = this;
  out.number_ = s.last;
  out.bytes_ = bytes;
  return out;
}

gpu_checksum::job::job(job&& other) noexcept { *this = std::move(other); }
gpu_checksum::job& gpu_checksum::job::operator=(job&& other) noexcept {
  if (this == &other) return *this;
  give_up();
  owner_ = std::exchange(other.owner_, nullptr);
  number_ = other.number_;
  bytes_ = other.bytes_;
  return *this;
}

std::optional<std::uint32_t> gpu_checksum::job::test() {
  if (owner_ == nullptr) return {};
  auto& s = *owner_->state_;
  if (s.word(checksum::kDoneAt).load(std::memory_order_acquire) != number_) return {};
  const auto* const segments = reinterpret_cast<const std::uint32_t*>(s.control.data() + checksum::kSegmentsAt);
  const auto count = (bytes_ + checksum::kSegmentBytes - 1) / checksum::kSegmentBytes;
  const auto out = arch::crc32c_join_pages({segments, count}, bytes_ - (count - 1) * checksum::kSegmentBytes);
  const std::lock_guard lock(s.mutex);
  s.is_in_flight = false;
  owner_ = nullptr;
  return out;
}

void gpu_checksum::job::give_up() noexcept {
  if (owner_ == nullptr) return;
  auto& s = *std::exchange(owner_, nullptr)->state_;
  if (!s.is_ours()) return;
  s.word(checksum::kGivenUpAt).store(number_, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::uint64_t polled_ns = monotonic_ns();
  for (unsigned block = 0; block < checksum::kMaxBlocks;) {
    const bool has_begun = s.word(checksum::kStartedAt + block * 4).load(std::memory_order_acquire) == number_;
    const bool is_running = has_begun && s.word(checksum::kEndedAt + block * 4).load(std::memory_order_acquire) != number_;
    if (!is_running || s.word(checksum::kDoneAt).load(std::memory_order_acquire) == number_) {
      ++block;
      continue;
    }
    arch::relax();
    // A destroyed context, or one in which a kernel faulted, runs nothing.
    if (monotonic_ns() - polled_ns < kLivenessCheckNs) continue;
    polled_ns = monotonic_ns();
    auto scope = s.context.is_alive() ? context_use::enter(s.context) : result<context_use>(failure{EIO, ""});
    const auto rc = scope ? s.cuda.cuStreamQuery(s.stream) : cu::result_t{cu::error_code::unknown};
    if (rc != cu::error_code::not_ready) break;
  }
  const std::lock_guard lock(s.mutex);
  s.is_in_flight = false;
}

}  // namespace pl::copy
