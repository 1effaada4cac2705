// SPDX-License-Identifier: Apache-2.0
#include "dma/device_ring.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "arch/mmio.hpp"
#include "base/text.hpp"

namespace pl::dma {
namespace {

constexpr std::uint64_t kSegmentsOffset = PEERLANE_DEVICE_CONTROL_BYTES;
constexpr std::uint64_t kGranuleBytes = 64u << 10;
constexpr std::uint32_t kWaitWords = command_writer::kCompletionWords + 2 + command_writer::kSemaphoreWords;
constexpr std::uint64_t kWaitBytes = kWaitWords * sizeof(std::uint32_t);
constexpr std::uint32_t kInterruptWords = command_writer::kCompletionWords + command_writer::kCopyWords;
constexpr std::uint32_t kQuarters = 4;  // of a ring, each with an entry that raises an interrupt
constexpr std::uint64_t kErrorOffset = PEERLANE_DEVICE_COMPLETED_AT + sizeof(std::uint32_t);
constexpr auto kRingView = arch::mapping_type::wc;

std::uint64_t waits_offset(std::uint32_t segments) {
  return kSegmentsOffset + std::uint64_t{segments} * PEERLANE_DEVICE_SEGMENT_BYTES;
}
std::uint64_t interrupt_offset(std::uint32_t segments) { return waits_offset(segments) + segments * kWaitBytes; }

}  // namespace

status check_segments(std::uint32_t segments) {
  if (std::has_single_bit(segments) && segments >= kMinSegments && segments <= kMaxSegments) return {};
  return failure{EINVAL, format("a ring for kernels cannot have %u segments: give a power of two from %u to %u", segments,
                                kMinSegments, kMaxSegments)};
}

std::uint64_t device_ring::memory_bytes(std::uint32_t segments) {
  const std::uint64_t bytes = interrupt_offset(segments) + kInterruptWords * sizeof(std::uint32_t);
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

device_ring::device_ring(region memory, std::uint64_t kernel_address, const device_ring_options& options)
    : options_(options), memory_(std::move(memory)), kernel_address_(kernel_address) {}

device_ring::~device_ring() {
  close();
  queue_.reset();
  if (mapping_.address != nullptr) memory_.space()->objects().owner().unmap(mapping_, rm::unmap_policy::hole);
}

result<std::unique_ptr<device_ring>> device_ring::open(region memory, std::uint64_t kernel_address,
                                                       const device_ring_options& options) {
  if (auto good = check_segments(options.segments); !good) return good.error();
  if (!memory || memory.size_bytes() < memory_bytes(options.segments))
    return failure{EINVAL, "the memory of a ring for kernels is too small"};
  std::unique_ptr<device_ring> made(new device_ring(std::move(memory), kernel_address, options));
  if (status done = made->set_up(); !done) return done.error();
  return made;
}

status device_ring::set_up() {
  rm::channel_objects& objects = memory_.space()->objects();
  const std::uint64_t bytes = memory_bytes(options_.segments);
  auto mapped = objects.owner().map(objects.device(), memory_.memory(), memory_.offset(), bytes, nullptr);
  if (!mapped) return mapped.error();
  mapping_ = *mapped;
  view_ = static_cast<std::byte*>(mapping_.address);

  channel_options wanted;
  wanted.engine = options_.engine;
  wanted.timeslice_us = options_.timeslice_us == device_ring_options::kDriversTimeslice ? 0 : options_.timeslice_us;
  wanted.ring_entries = 2 * options_.segments;
  auto opened = channel::open(memory_.space(), wanted);
  if (!opened && wanted.timeslice_us != 0) {  // a driver that knows no time slices
    wanted.timeslice_us = 0;
    opened = channel::open(memory_.space(), wanted);
  }
  if (!opened) return opened.error();
  queue_ = std::move(*opened);

  handle_.control = kernel_address_;
  handle_.segments = kernel_address_ + kSegmentsOffset;
  handle_.completed = memory_.address() + PEERLANE_DEVICE_COMPLETED_AT;
  handle_.spare = memory_.address() + PEERLANE_DEVICE_SPARE_AT;
  handle_.timeout_ns = options_.timeout_ns;
  handle_.count = options_.segments;
  if (options_.interrupts) write_interrupts();
  queue_to(most_queued());
  return {};
}

// One pair of entries fewer than fits, since a ring whose position is its begin is empty; and room for the interrupts.
std::uint64_t device_ring::most_queued() const {
  return options_.segments - 1 - (interrupt_words_ != 0 ? kQuarters / 2 : 0);
}

// With a transfer of a word and a release, as channel::interrupt() has it: so it was run on hardware. Nobody reads them.
void device_ring::write_interrupts() {
  std::array<std::uint32_t, kInterruptWords> commands{};
  command_writer writer(commands);
  writer.completion(handle_.spare + 16, 1);
  writer.copy(handle_.spare + 20, handle_.spare + 36, sizeof(std::uint32_t),
              launch::kPipelined | launch::kReleaseWord | launch::kInterrupt);
  interrupt_words_ = static_cast<std::uint32_t>(writer.words());
  arch::copy_to_unfenced(kRingView, view_ + interrupt_offset(options_.segments), commands.data(), sizeof commands);
  arch::publish_to_device(kRingView);
}

// With the lock held, or before anybody else knows the ring.
void device_ring::queue_to(std::uint64_t last) {
  const std::uint64_t waits = waits_offset(options_.segments);
  while (queued_ < last) {
    const std::uint64_t slot = (queued_ + 1) & (options_.segments - 1);
    const std::uint64_t count = std::min(last - queued_, options_.segments - slot);  // that lie side by side
    commands_.assign(count * kWaitWords, 0);
    entries_.clear();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t ticket = queued_ + 1 + i;
      command_writer writer(std::span<std::uint32_t>(commands_).subspan(i * kWaitWords, kWaitWords));
      const std::uint64_t segment = memory_.address() + kSegmentsOffset + (slot + i) * PEERLANE_DEVICE_SEGMENT_BYTES;
      writer.completion(handle_.completed, static_cast<std::uint32_t>(ticket));  // what the segment needs not say then
      writer.remap(kRemapFill32);
      writer.acquire(segment + PEERLANE_DEVICE_MARK_AT, static_cast<std::uint32_t>(ticket), options_.yields);
      if (interrupt_words_ != 0 && ticket % (options_.segments / kQuarters) == 0)
        entries_.push_back(ring_entry(memory_.address() + interrupt_offset(options_.segments), interrupt_words_));
      entries_.push_back(ring_entry(memory_.address() + waits + (slot + i) * kWaitBytes, kWaitWords));
      entries_.push_back(ring_entry(segment, PEERLANE_DEVICE_SEGMENT_WORDS, true));
    }
    arch::copy_to_unfenced(kRingView, view_ + waits + slot * kWaitBytes, commands_.data(),
                           commands_.size() * sizeof(std::uint32_t));
    arch::publish_to_device(kRingView);
    queue_->queue_entries(entries_);
    queued_ += count;
  }
}

std::uint64_t device_ring::load64(std::uint64_t offset) const {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(view_ + offset), __ATOMIC_ACQUIRE);
}

void device_ring::store_error(std::uint32_t code) const {
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(view_ + kErrorOffset), code, __ATOMIC_RELEASE);
  arch::publish_to_device(kRingView);
}

void device_ring::end(failure reason) {
  store_error(static_cast<std::uint32_t>(reason.code));
  reason_ = std::move(reason);
}

bool device_ring::refill() {
  const std::lock_guard hold(mutex_);
  if (reason_) return false;
  if (auto fault = queue_->fault()) {
    end(*std::move(fault));
    return false;
  }
  const std::uint64_t words = load64(PEERLANE_DEVICE_COMPLETED_AT);
  if (const auto error = static_cast<std::uint32_t>(words >> 32); error != 0) {
    reason_ =
        failure{static_cast<int>(error),
                format("a ring for kernels: no room for %llu ms, or a segment that its thread never wrote; open a new one",
                       static_cast<unsigned long long>(options_.timeout_ns / 1'000'000))};
    return false;
  }
  const std::uint32_t fresh = static_cast<std::uint32_t>(words) - static_cast<std::uint32_t>(completed_);
  completed_ += fresh;
  // In large steps: each costs a doorbell.
  const std::uint64_t last = completed_ + most_queued();
  if (last - queued_ >= options_.segments / 8) queue_to(last);
  else if (fresh == 0) queue_->ring();  // heals a doorbell that the engine has missed
  return fresh != 0;
}

kernel_ring::state device_ring::read() const {
  const std::lock_guard hold(mutex_);
  state now;
  now.reason = reason_;
  if (queue_ == nullptr) return now;
  now.posted = load64(PEERLANE_DEVICE_TICKETS_AT);
  now.completed = completed_ + (static_cast<std::uint32_t>(load64(PEERLANE_DEVICE_COMPLETED_AT)) -
                                static_cast<std::uint32_t>(completed_));
  return now;
}

void device_ring::close() noexcept {
  if (queue_ == nullptr) return;
  const std::lock_guard hold(mutex_);
  store_error(ESHUTDOWN);
  queue_->stop();
  if (!reason_) reason_ = failure{ESHUTDOWN, "a ring for kernels: it has been closed"};
}

}  // namespace pl::dma
