// SPDX-License-Identifier: Apache-2.0
#include "device/proxy_ring.hpp"

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "cuda/pointer.hpp"
#include "dma/commands.hpp"

namespace pl::device {
namespace {

constexpr std::uint64_t kErrorOffset = PEERLANE_DEVICE_COMPLETED_AT + sizeof(std::uint32_t);
constexpr std::uint64_t kPollNs = 20'000'000;  // how often it is asked whether kernels have given up
constexpr unsigned kMaxAtOnce = 256;           // segments of one refill(), which holds the lock

failure gave_up(std::uint64_t timeout_ns) {
  return {ETIMEDOUT,
          format("a ring for kernels: no room for %llu ms, or a segment that its thread never wrote; open a new one",
                 static_cast<unsigned long long>(timeout_ns / 1'000'000))};
}

}  // namespace

// The registers that a segment's methods set: as a copy engine has them.
struct proxy_ring::commands {
  static constexpr std::size_t kRegisters = 0x1000 / 4;
  std::uint32_t registers[kRegisters] = {};
  std::uint32_t at(std::uint32_t method) const { return registers[method >> 2]; }
  std::uint64_t address(std::uint32_t method) const { return std::uint64_t{at(method)} << 32 | at(method + 4); }
};

result<std::unique_ptr<proxy_ring>> proxy_ring::open(const copy::gpu_context& context,
                                                     const dma::device_ring_options& options, window_search find_window) {
  if (auto good = dma::check_segments(options.segments); !good) return good.error();
  if (context.cuda->cuStreamWriteValue32_v2 == nullptr)
    return failure{ENOTSUP, "this CUDA driver has no stream memory operations (cuStreamWriteValue32)"};
  std::unique_ptr<proxy_ring> made(new proxy_ring(context, options, std::move(find_window)));
  if (status done = made->set_up(); !done) return done.error();
  return made;
}

status proxy_ring::set_up() {
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  const auto& cuda = *context_.cuda;
  constexpr unsigned kNonBlocking = cu::stream_flag::non_blocking;
  auto rc = cuda.cuMemAlloc_v2(&control_, PEERLANE_DEVICE_CONTROL_BYTES);
  if (rc == cu::error_code::success) rc = cuda.cuMemsetD8_v2(control_, 0, PEERLANE_DEVICE_CONTROL_BYTES);
  if (rc == cu::error_code::success) rc = cuda.cuStreamCreate(&stream_, kNonBlocking);
  if (rc == cu::error_code::success) rc = cuda.cuStreamCreate(&questions_, kNonBlocking);
  if (rc == cu::error_code::success) rc = cuda.cuCtxSynchronize();
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "memory and streams for a ring that kernels post into");
  auto pinned = copy::pinned_buffer::make(context_, std::size_t{options_.segments} * PEERLANE_DEVICE_SEGMENT_BYTES);
  if (!pinned) return pinned.error();
  segments_ = std::move(*pinned);
  handle_.control = control_;
  handle_.segments = segments_.device_address();
  handle_.completed = control_ + PEERLANE_DEVICE_COMPLETED_AT;
  handle_.spare = control_ + PEERLANE_DEVICE_SPARE_AT;
  handle_.timeout_ns = options_.timeout_ns;
  handle_.count = options_.segments;
  handle_.by_proxy = 1;
  return {};
}

proxy_ring::~proxy_ring() {
  close();
  auto use = copy::context_use::enter(context_);
  if (!use) return;
  for (const auto stream : {stream_, questions_})
    if (stream != nullptr) static_cast<void>(context_.cuda->cuStreamDestroy_v2(stream));
  if (control_ != 0) static_cast<void>(context_.cuda->cuMemFree_v2(control_));
}

// The next segment, once a thread has written it.
const std::uint32_t* proxy_ring::next_segment() const {
  const auto ticket = static_cast<std::uint32_t>(taken_ + 1);
  const auto* const segment = reinterpret_cast<const std::uint32_t*>(
      segments_.data() + std::size_t{ticket & (options_.segments - 1)} * PEERLANE_DEVICE_SEGMENT_BYTES);
  return __atomic_load_n(segment + PEERLANE_DEVICE_MARK_AT / 4, __ATOMIC_ACQUIRE) == ticket ? segment : nullptr;
}

bool proxy_ring::refill() {
  const std::lock_guard hold(mutex_);
  if (reason_) return false;
  auto use = copy::context_use::enter(context_);
  if (!use) return false;
  const std::uint64_t before = taken_;
  if (status done = carry_out(); !done) {
    remote_.drop();
    const int code = done.code() == ECONNRESET ? ECONNRESET : EIO;
    end({code, done.error().message}, stream_);  // kernels learn of it behind what was right
    return true;
  }
  if (taken_ != before || !steps_.empty() || !remote_.is_empty()) return true;
  const std::uint64_t now_ns = monotonic_ns();
  if (now_ns - last_poll_ns_ < kPollNs) return false;
  last_poll_ns_ = now_ns;
  std::uint32_t error = 0, words[2] = {};
  if (read_control(words, sizeof words)) error = words[1];
  if (error != 0) reason_ = gave_up(options_.timeout_ns);
  return false;
}

status proxy_ring::carry_out() {
  const std::uint64_t before = taken_;
  if (const auto idle = is_remote_idle(); !idle) return idle.error();
  for (;;) {
    while (!steps_.empty()) {
      const auto taken = take(steps_.front());
      if (!taken) return taken.error();
      if (*taken == progress::waits) return {};
      steps_.pop_front();
    }
    const auto* const segment = taken_ - before < kMaxAtOnce ? next_segment() : nullptr;
    if (segment == nullptr) return {};
    if (status done = read_segment(segment, static_cast<std::uint32_t>(taken_ + 1)); !done) return done;
    ++taken_;
  }
}

// Methods until a launch: what device.cuh writes. From a copy: once the segment counts as done, kernels write the next one
// there.
status proxy_ring::read_segment(const std::uint32_t* segment, std::uint32_t ticket) {
  std::uint32_t words[PEERLANE_DEVICE_SEGMENT_WORDS];
  std::memcpy(words, segment, sizeof words);
  commands now;
  now.registers[dma::method::kSemaphoreAddressHigh >> 2] = static_cast<std::uint32_t>(handle_.completed >> 32);
  now.registers[(dma::method::kSemaphoreAddressHigh >> 2) + 1] = static_cast<std::uint32_t>(handle_.completed);
  now.registers[(dma::method::kSemaphoreAddressHigh >> 2) + 2] = ticket;
  for (std::size_t i = 0; i < PEERLANE_DEVICE_SEGMENT_WORDS; ++i) {
    const std::uint32_t header = words[i], count = header >> 16 & 0x1fff, first = header & 0xfff;
    if (header >> 29 == 4 && first < commands::kRegisters) {
      now.registers[first] = count;  // the value
      if (first == dma::method::kLaunch >> 2) add_steps(now, count);
    } else if (header >> 29 == 1 && i + count < PEERLANE_DEVICE_SEGMENT_WORDS && first + count <= commands::kRegisters) {
      std::memcpy(&now.registers[first], words + i + 1, count * sizeof(std::uint32_t));
      i += count;
    } else {
      return failure{EIO, "a ring for kernels contains an invalid segment: its memory was overwritten"};
    }
  }
  return {};
}

void proxy_ring::add_steps(const commands& now, std::uint32_t flags) {
  using namespace dma::method;
  if ((flags & 3) != dma::launch::kNone) {
    const std::uint64_t destination = now.address(kSourceHigh + 8);
    const std::uint64_t bytes = now.at(kLineLength);
    const bool is_ordered = (flags & 3) == dma::launch::kNotPipelined;
    if ((flags & dma::launch::kRemap) != 0) steps_.push_back({destination, 0, 0, now.at(kRemapConstantA), true});
    else if (bytes != 0) steps_.push_back({destination, now.address(kSourceHigh), bytes, 0, is_ordered});
  }
  if ((flags & dma::launch::kReleaseWord) != 0)
    steps_.push_back({now.address(kSemaphoreAddressHigh), 0, 0, now.at(kSemaphoreAddressHigh + 8), true});
}

result<proxy_ring::progress> proxy_ring::take(const step& now) { return now.bytes != 0 ? copy(now) : set_word(now); }

result<proxy_ring::progress> proxy_ring::copy(const step& now) {
  auto destination = find(now.destination, now.bytes), source = find(now.source, now.bytes);
  if (!destination) return destination.error();
  if (!source) return source.error();
  if (destination->remote != nullptr || source->remote != nullptr) return copy_remote(now, *destination, *source);
  if (const auto idle = is_remote_idle(); !idle || !*idle) return idle ? result(progress::waits) : idle.error();
  const auto& cuda = *context_.cuda;
  if (const auto rc = cuda.cuMemcpyAsync(now.destination, now.source, now.bytes, stream_); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "a copy that a kernel has posted");
  has_local_ = true;
  return progress::done;
}

result<proxy_ring::progress> proxy_ring::copy_remote(const step& now, const place& destination, const place& source) {
  if (destination.remote != nullptr && source.remote != nullptr)
    return failure{EIO, "a ring for kernels: a put from one remote window to another: go by memory of this process"};
  if (!is_local_idle()) return progress::waits;
  if (now.is_ordered || !remote_.has_room()) {
    const auto idle = is_remote_idle();
    if (!idle) return idle.error();
    if (now.is_ordered ? !*idle : !remote_.has_room()) return progress::waits;
  }
  if (destination.remote == nullptr) {
    remote_.add(source.remote->get(source.address, destination.address, now.bytes));
  } else if (auto both = put_signal(now, destination, source)) {
    remote_.add(std::move(both));
    steps_.pop_front();  // the copy; the caller takes the word away
  } else {
    remote_.add(destination.remote->put(destination.address, source.address, now.bytes));
  }
  return progress::done;
}

// The put with the word that its segment has behind it, if nothing else is under way that the word would have to wait for.
std::unique_ptr<remote_transfer> proxy_ring::put_signal(const step& now, const place& destination, const place& source) {
  if (!remote_.is_empty() || steps_.size() < 2) return nullptr;
  const step& word = steps_[1];
  if (word.bytes != 0 || word.destination == handle_.completed) return nullptr;
  const auto target = find(word.destination, sizeof word.value);
  if (!target || target->remote == nullptr) return nullptr;  // an error is told when the word's turn comes
  return destination.remote->put_signal(destination.address, source.address, now.bytes, *target->remote, target->address,
                                        word.value);
}

result<proxy_ring::progress> proxy_ring::set_word(const step& now) {
  const bool is_count = now.destination == handle_.completed;
  if (is_count && !remote_.is_empty()) return remote_.count_behind_last(now.value), progress::done;
  const auto is_behind_all = is_remote_idle();
  if (!is_behind_all) return is_behind_all.error();
  if (!*is_behind_all) return progress::waits;
  const auto target = find(now.destination, sizeof now.value);
  if (!target) return target.error();
  if (target->remote != nullptr) {
    if (!is_local_idle()) return progress::waits;
    remote_.add(target->remote->put_word(target->address, now.value));
    return progress::done;
  }
  if (status done = write_word(now.destination, now.value); !done) return done.error();
  has_local_ = has_local_ || !is_count;
  return progress::done;
}

result<bool> proxy_ring::is_remote_idle() {
  const auto done = remote_.poll();
  if (!done) return done.error();
  if (*done)
    if (status counted = write_word(handle_.completed, **done); !counted) return counted.error();
  return remote_.is_empty();
}

bool proxy_ring::is_local_idle() {
  if (!has_local_) return true;
  const cu::relaxed_capture beside_captures(*context_.cuda);
  has_local_ = context_.cuda->cuStreamQuery(stream_) == cu::error_code::not_ready;
  return !has_local_;
}

// Behind all copies before it.
status proxy_ring::write_word(std::uint64_t address, std::uint32_t value) {
  const auto rc = context_.cuda->cuStreamWriteValue32_v2(stream_, address, value, cu::write_value::standard);
  if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "a word that a kernel has posted");
  return {};
}

result<proxy_ring::place> proxy_ring::find(std::uint64_t address, std::uint64_t bytes) const {
  const bool is_own = address >= control_ && bytes <= PEERLANE_DEVICE_CONTROL_BYTES &&
                      address - control_ <= PEERLANE_DEVICE_CONTROL_BYTES - bytes;
  if (is_own) return place{address, nullptr};
  if (auto found = find_window_(address, bytes)) return *std::move(found);
  return failure{EIO, format("a ring for kernels: a put of %llu bytes at 0x%llx, which no window has: it was released",
                             static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address))};
}

// The counts, from `completed` on; with the context current. Behind nothing.
bool proxy_ring::read_control(void* out, std::size_t bytes) const {
  const cu::relaxed_capture beside_captures(*context_.cuda);
  const auto& cuda = *context_.cuda;
  return cuda.cuMemcpyDtoHAsync_v2(out, control_ + PEERLANE_DEVICE_COMPLETED_AT, bytes, questions_) ==
             cu::error_code::success &&
         cuda.cuStreamSynchronize(questions_) == cu::error_code::success;
}

// With the lock held, and the context current.
void proxy_ring::end(failure reason, cu::stream_t behind) {
  const auto& cuda = *context_.cuda;
  static_cast<void>(cuda.cuStreamWriteValue32_v2(behind, control_ + kErrorOffset, static_cast<std::uint32_t>(reason.code),
                                                 cu::write_value::standard));
  static_cast<void>(cuda.cuStreamSynchronize(behind));
  reason_ = std::move(reason);
}

dma::kernel_ring::state proxy_ring::read() const {
  const std::lock_guard hold(mutex_);
  state now;
  now.reason = reason_;
  auto use = copy::context_use::enter(context_);
  if (!use || control_ == 0) return now;
  std::uint32_t words[2] = {};
  if (!read_control(words, sizeof words)) return now;
  now.completed = taken_ - (static_cast<std::uint32_t>(taken_) - words[0]);
  const auto& cuda = *context_.cuda;
  if (cuda.cuMemcpyDtoHAsync_v2(&now.posted, control_ + PEERLANE_DEVICE_TICKETS_AT, sizeof now.posted, questions_) ==
      cu::error_code::success)
    static_cast<void>(cuda.cuStreamSynchronize(questions_));
  if (!now.reason && words[1] != 0) now.reason = gave_up(options_.timeout_ns);
  return now;
}

void proxy_ring::close() noexcept {
  const std::lock_guard hold(mutex_);
  auto use = copy::context_use::enter(context_);
  if (!use || handle_.count == 0) return;
  const auto before = reason_;
  end({ESHUTDOWN, "a ring for kernels: it has been closed"}, questions_);
  if (before) reason_ = before;
  remote_.drop();  // which may take longer than kernels should wait
  static_cast<void>(context_.cuda->cuStreamSynchronize(stream_));
}

}  // namespace pl::device
