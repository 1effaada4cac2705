// SPDX-License-Identifier: Apache-2.0
#include "copy/copy_kernel.hpp"

#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"

namespace pl::copy {
namespace {

std::uint32_t load_acquire(const std::uint32_t& word) noexcept {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(word)).load(std::memory_order_acquire);
}

constexpr std::uint64_t kControlAlignment = 64 * 1024;

}  // namespace

copy_kernel::copy_kernel(const gpu_context& context, cu::function_t kernel, const shape& wanted)
    : context_(context),
      kernel_(kernel),
      shape_(wanted),
      lines_at_((wanted.workers * sizeof(engine::status_line) + 4095) / 4096 * 4096),
      slots_(wanted.workers) {}

result<std::unique_ptr<copy_kernel>> copy_kernel::make(const gpu_context& context, cu::function_t kernel, backend& maps,
                                                       const shape& wanted) {
  if (wanted.workers == 0 || wanted.workers > engine::kMaxWorkers || wanted.threads == 0 || wanted.threads > 1024)
    return failure{EINVAL, format("the GPU engine takes 1 to %u workers of 1 to 1024 threads", engine::kMaxWorkers)};
  const auto& cuda = *context.cuda;
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  std::unique_ptr<copy_kernel> made(new copy_kernel(context, kernel, wanted));

  auto host = pinned_buffer::make(context, made->lines_at_ + wanted.workers * 2 * kLowLatencyBytes);
  if (!host) return host.error();
  made->host_ = *std::move(host);

  int least = 0;
  int greatest = 0;
  if (cuda.cuCtxGetStreamPriorityRange != nullptr) cuda.cuCtxGetStreamPriorityRange(&least, &greatest);
  auto rc = cuda.cuStreamCreateWithPriority(&made->stream_, cu::stream_flag::non_blocking, greatest);
  if (rc != cu::error_code::success) {
    made->stream_ = nullptr;
    return cu::make_error(cuda, rc, "the GPU engine's stream");
  }

  const std::uint64_t bytes = align_down(engine::control_bytes(wanted.workers) + kControlAlignment - 1, kControlAlignment);
  rc = cuda.cuMemAlloc_v2(&made->control_, bytes);
  if (rc != cu::error_code::success) {
    made->control_ = 0;
    return cu::make_error(cuda, rc, "the GPU engine's control block");
  }
  rc = cuda.cuMemsetD8Async(made->control_, 0, bytes, made->stream_);
  if (rc == cu::error_code::success) rc = cuda.cuStreamSynchronize(made->stream_);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "clearing the GPU engine's control block");

  pin_request request;
  request.range = {made->control_, bytes};
  auto pin = maps.pin(request);
  if (!pin) return pin.error();
  made->pin_ = *std::move(pin);
  auto view = made->pin_->map(made->pin_->range().size_bytes, arch::mapping_type::none);
  if (!view) return view.error();
  made->view_ = *view;
  made->control_cpu_ = static_cast<char*>(view->address) + (made->control_ - made->pin_->range().begin);
  return made;
}

copy_kernel::~copy_kernel() {
  if (view_.address != nullptr) pin_->unmap(view_, unmapping::by_request);
  pin_.reset();
  if (!context_.is_alive()) return;  // the stream and the memory went with it
  auto scope = context_use::enter(context_);
  if (!scope) return;
  const auto& cuda = *context_.cuda;
  if (stream_ != nullptr) {
    cuda.cuStreamSynchronize(stream_);
    cuda.cuStreamDestroy_v2(stream_);
  }
  if (control_ != 0) cuda.cuMemFree_v2(control_);
}

status copy_kernel::launch(std::uint64_t lease_ns) {
  auto scope = context_use::enter(context_);
  if (!scope) return scope.error();
  const std::lock_guard lock(launch_mutex_);
  if (!is_idle()) return failure{EBUSY, "the GPU engine's last kernel has not ended"};
  std::uint32_t next = generation_.load(std::memory_order_relaxed) + 1;
  if (next == 0) next = 1;  // 0 is the initial value of the status lines
  cu::device_ptr control = control_;
  cu::device_ptr status_lines = host_.device_address();
  void* parameters[] = {&control, &status_lines, &next, &lease_ns};
  const auto rc = context_.cuda->cuLaunchKernel(kernel_, shape_.workers, 1, 1, shape_.threads, 1, 1,
                                                2 * sizeof(engine::descriptor), stream_, parameters, nullptr);
  if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launching the GPU engine");
  // is_present() compares with this number, so a kernel that starts right now is not mistaken for the previous
  // generation.
  generation_.store(next, std::memory_order_release);
  return {};
}

bool copy_kernel::is_idle() const noexcept {
  const std::uint32_t now = generation();
  for (unsigned worker = 0; worker < shape_.workers; ++worker)
    if (load_acquire(line(worker).left) != now) return false;
  return true;
}

bool copy_kernel::is_present(unsigned worker) const noexcept {
  const std::uint32_t now = generation();
  const auto& status_line = line(worker);
  return now != 0 && load_acquire(status_line.hello) == now && load_acquire(status_line.left) != now;
}

cu::result_t copy_kernel::query() {
  auto scope = context_use::enter(context_);
  if (!scope) return cu::error_code::context_is_destroyed;
  // Both checks must read one generation: after a launch in between, the kernel would seem to have ended without being
  // idle.
  const std::lock_guard lock(launch_mutex_);
  const auto rc = context_.cuda->cuStreamQuery(stream_);
  return rc == cu::error_code::success && !is_idle() ? cu::result_t{cu::error_code::launch_failed} : rc;
}

bool copy_kernel::try_claim(unsigned worker) noexcept {
  auto& claimed = slots_[worker].claimed;
  return !claimed.load(std::memory_order_relaxed) && !claimed.exchange(true, std::memory_order_acquire);
}

void copy_kernel::release(unsigned worker) noexcept { slots_[worker].claimed.store(false, std::memory_order_release); }

void copy_kernel::write_descriptor(unsigned worker, const engine::descriptor& command) noexcept {
  char* const address = control_cpu_ + engine::kDescriptorsAt + worker * sizeof(engine::descriptor);
#if defined(__SANITIZE_THREAD__)
  std::atomic_ref(reinterpret_cast<engine::status_line*>(host_.data())[worker].posted)
      .fetch_add(1, std::memory_order_acq_rel);
  // A race detector sees vector stores as plain accesses.
  std::uint64_t words[sizeof command / 8];
  std::memcpy(words, &command, sizeof command);
  for (std::size_t i = 0; i < std::size(words); ++i)
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(address)[i]).store(words[i], std::memory_order_release);
#else
  arch::copy_to_unfenced(view_.type, address, &command, sizeof command);
#endif
}

void copy_kernel::publish() noexcept { arch::publish_to_device(view_.type); }

std::uint32_t copy_kernel::send(unsigned worker, const engine::descriptor& command) noexcept {
  publish();  // everything written before (a list, data that the descriptor refers to) leaves the CPU first
  const std::uint32_t sequence = post(worker, command);
  publish();
  return sequence;
}

std::uint32_t copy_kernel::post(unsigned worker, const engine::descriptor& command) noexcept {
  auto& slot = slots_[worker];
  if (++slot.last_sequence == 0) {
    slot.last_sequence = 1;
    // Lines from four billion messages ago could contain the numbers that come now.
    std::memset(lines(worker), 0, 2 * kLowLatencyBytes);
  }
  const std::uint32_t sequence = slot.last_sequence;
  engine::descriptor numbered = command;
  numbered.src.sequence = numbered.dst.sequence = numbered.src_pitch.sequence = numbered.dst_pitch.sequence = sequence;
  write_descriptor(worker, numbered);
  return sequence;
}

bool copy_kernel::is_done(unsigned worker, std::uint32_t sequence) const noexcept {
  return load_acquire(line(worker).done) == sequence;
}

copy_kernel::answer copy_kernel::ask(unsigned worker, std::uint32_t sequence) noexcept {
  const auto& status_line = line(worker);
  if (is_done(worker, sequence)) return answer::executed;
  if (load_acquire(status_line.left) != generation()) return answer::none;  // most of the time
  const std::lock_guard lock(launch_mutex_);
  if (load_acquire(status_line.left) != generation()) return answer::none;  // a new generation has been launched: it will
  if (load_acquire(status_line.last) == sequence) return answer::executed;
  // Sequence 0 is never waited for. The next generation expects the number that was not taken.
  write_descriptor(worker, engine::descriptor{});
  publish();
  auto& slot = slots_[worker];
  slot.last_sequence = slot.last_sequence == 1 ? 0 : slot.last_sequence - 1;
  return answer::left;
}

void copy_kernel::write_list(unsigned worker, const engine::list_entry* entries, std::size_t count) noexcept {
  char* const address = control_cpu_ + engine::kListsAt + worker * engine::kListBytes;
#if defined(__SANITIZE_THREAD__)
  const auto* words = reinterpret_cast<const std::uint64_t*>(entries);
  for (std::size_t i = 0; i < count * sizeof *entries / 8; ++i)
    std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(address)[i]).store(words[i], std::memory_order_release);
#else
  arch::copy_to_unfenced(view_.type, address, entries, count * sizeof *entries);
#endif
}

}  // namespace pl::copy
