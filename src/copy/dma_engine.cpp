// SPDX-License-Identifier: Apache-2.0
#include "copy/dma_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.hpp"

namespace pl::copy {
namespace {

// A copy that takes this much longer than the slowest link would need has failed.
constexpr std::uint64_t kPatienceNs = 10'000'000'000;
constexpr std::uint64_t kSlowestBytesPerUs = 100;

constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 31;

// Bytes for the host were never seen behind their completion word. Bytes for GPU memory were, unless they are flushed
// (docs/results/dma). What a copy reads is flushed: nothing is queued before its sources are complete.
dma::ordering order_of(direction way) {
  return way == direction::to_host ? dma::ordering::none : dma::ordering::none_flushed;
}

failure not_for_channels(const failure& reason) {
  return {reason.code == EACCES ? EACCES : ENOTSUP, format("DMA channels: %s", reason.message.c_str())};
}

}  // namespace

dma_engine::dma_engine(const gpu_context& context, channel_source source)
    : context_(context), source_(std::move(source)), memory_(*context.cuda, source_.space, source_.addresses) {}

dma_engine::~dma_engine() = default;

result<std::unique_ptr<dma_engine>> dma_engine::open(const gpu_context& context) {
  auto source = channel_source::open(*context.cuda, context.device_ordinal);
  if (!source) return source.error();
  std::unique_ptr<dma_engine> made(new dma_engine(context, *std::move(source)));
  if (auto tried = made->channel_for(direction::to_host); !tried) return tried.error();  // whether channels work here at all
  return made;
}

result<std::shared_ptr<dma::channel>> dma_engine::channel_for(direction way) {
  const std::size_t index = way == direction::to_host ? 0 : 1;
  auto& slot = channels_[index];
  {
    const std::lock_guard guard(lock_);
    if (slot != nullptr) return slot;
  }
  const std::lock_guard alone(opening_);
  {
    const std::lock_guard guard(lock_);
    if (slot != nullptr) return slot;
  }
  dma::channel_options options;
  options.engine = source_.engines[std::min(index, source_.engines.size() - 1)];
  auto opened = dma::channel::open(source_.addresses, options);
  if (!opened) return opened.error();
  const std::lock_guard guard(lock_);
  return slot = std::move(*opened);
}

void dma_engine::forget(const std::shared_ptr<dma::channel>& broken) noexcept {
  const std::lock_guard guard(lock_);
  for (auto& slot : channels_)
    if (slot == broken) slot.reset();
}

result<channel_memory::piece> dma_engine::find(bool is_host, const sides& ends, bool is_source, std::uint64_t pointer,
                                               std::uint64_t size_bytes) {
  if (is_host) {
    auto found = memory_.find_host(*ends.host, pointer, size_bytes);
    if (!found) return not_for_channels(found.error());
    return found;
  }
  const cu::pointer_info* const known = is_source && ends.source != nullptr ? ends.source : ends.device;
  cu::pointer_info found_info = *known;
  if (found_info.object.size_bytes != 0 && !found_info.object.contains({pointer, 1})) {  // behind the first memory object
    auto asked = cu::inspect_pointer(*context_.cuda, pointer);
    if (!asked) return not_for_channels(asked.error());
    found_info = *asked;
  }
  auto found = memory_.find_device(found_info, pointer, size_bytes);
  if (!found) return not_for_channels(found.error());
  return found;
}

// ---- One copy

// Gives work to the direction's channel; to a new one if another copy's fault has ended that.
template <class Give>
result<std::pair<std::shared_ptr<dma::channel>, dma::sequence>> dma_engine::submit(direction way, Give give) {
  for (bool is_again = false;; is_again = true) {
    auto queue = channel_for(way);
    if (!queue) return queue.error();
    result<dma::sequence> number = give(**queue);
    if (number) return std::pair{*std::move(queue), *number};
    (*queue)->stop();  // a part may be queued
    forget(*queue);
    if (is_again) return number.error();
  }
}

result<dma_engine::operation> dma_engine::begin(const transfer& transfer, const sides& ends) {
  if (transfer.rows == 1) {
    operation made;
    auto destination = find(transfer.way == direction::to_host, ends, false, transfer.dst, transfer.row_bytes);
    if (!destination) return destination.error();
    auto source = find(transfer.way == direction::to_device, ends, true, transfer.src, transfer.row_bytes);
    if (!source) return source.error();
    if (destination->size_bytes == transfer.row_bytes && source->size_bytes == transfer.row_bytes) {
      auto queued = submit(transfer.way, [&](dma::channel& queue) {
        return queue.copy(destination->address, source->address, transfer.row_bytes, order_of(transfer.way));
      });
      if (!queued) return queued.error();
      made.owner_ = this;
      made.queue_ = std::move(queued->first);
      made.number_ = queued->second;
      made.size_bytes_ = transfer.row_bytes;
      made.first_ = {*std::move(destination), *std::move(source)};
      return made;
    }
  }
  list pieces(*this, transfer.way);
  if (auto added = pieces.add(transfer, ends); !added) return added.error();
  return pieces.submit();
}

dma_engine::operation& dma_engine::operation::operator=(operation&& other) noexcept {
  if (this == &other) return *this;
  (void)wait();
  owner_ = other.owner_;
  queue_ = std::move(other.queue_);
  number_ = other.number_;
  size_bytes_ = other.size_bytes_;
  tests_ = other.tests_;
  first_ = std::move(other.first_);
  more_ = std::move(other.more_);
  if (event_ != nullptr) owner_->take_back(std::move(event_));
  event_ = std::move(other.event_);
  return *this;
}

dma_engine::operation::~operation() {
  (void)wait();
  if (event_ != nullptr) owner_->take_back(std::move(event_));
}

result<int> dma_engine::operation::make_descriptor() {
  if (event_ != nullptr) return event_->descriptor();
  if (queue_ == nullptr) return failure{ENOTSUP, "the copy has ended"};
  auto lent = owner_->lend_event(queue_->engine());
  if (!lent) return lent.error();
  (*lent)->clear();
  // Behind the copy, which so costs those nothing that do not sleep.
  if (auto asked = queue_->interrupt(); !asked) {
    owner_->take_back(*std::move(lent));
    return asked.error();
  }
  event_ = *std::move(lent);
  return event_->descriptor();
}

result<bool> dma_engine::operation::test() {
  const unsigned tests_between_looks = event_ != nullptr ? 1 : 256;  // who sleeps tests rarely
  if (event_ != nullptr) event_->clear();
  if (!is_done() && (++tests_ % tests_between_looks != 0 || !queue_->fault())) {
    if (event_ != nullptr) queue_->ring();
    return false;
  }
  if (status ended = wait(); !ended) return ended.error();
  return true;
}

status dma_engine::operation::wait() {
  if (queue_ == nullptr) return {};
  status outcome = queue_->wait(number_, kPatienceNs + size_bytes_ / kSlowestBytesPerUs * 1000);
  if (!outcome) {
    queue_->stop();
    owner_->forget(queue_);
  }
  queue_.reset();
  first_ = {};
  more_.clear();
  return outcome;
}

// ---- Events

result<std::unique_ptr<dma::completion_event>> dma_engine::lend_event(unsigned engine) {
  {
    const std::lock_guard guard(events_mutex_);
    const auto found =
        std::find_if(events_.begin(), events_.end(), [engine](const auto& one) { return one->engine() == engine; });
    if (found != events_.end()) {
      auto lent = std::move(*found);
      events_.erase(found);
      return lent;
    }
  }
  return dma::completion_event::open(source_.addresses, engine);
}

void dma_engine::take_back(std::unique_ptr<dma::completion_event> event) noexcept {
  constexpr std::size_t kMaxIdle = 16;
  const std::lock_guard guard(events_mutex_);
  if (events_.size() < kMaxIdle) events_.push_back(std::move(event));
}

// ---- Lists

result<std::pair<std::uint64_t, std::uint64_t>> dma_engine::list::find(unsigned side, bool is_host, const sides& ends,
                                                                       std::uint64_t pointer, std::uint64_t size_bytes) {
  binding& last = last_[side];
  if (!last.pointers.contains({pointer, 1})) {
    // As much of the allocation as one binding holds, for the pieces that come.
    const cu::pointer_info* const info = side == 1 && ends.source != nullptr ? ends.source : ends.device;
    const std::uint64_t end = is_host ? ends.host->allocation.end() : info->allocation.end();
    auto found = owner_.find(is_host, ends, side == 1, pointer, std::max(size_bytes, end > pointer ? end - pointer : 0));
    if (!found) found = owner_.find(is_host, ends, side == 1, pointer, size_bytes);
    if (!found) return found.error();
    last = {{pointer, found->size_bytes}, found->address};
    begun_.more_.push_back(*std::move(found));
  }
  return std::pair{last.address + (pointer - last.pointers.begin), std::min(size_bytes, last.pointers.end() - pointer)};
}

status dma_engine::list::add(const transfer& transfer, const sides& ends) {
  for (std::size_t row = 0; row < transfer.rows; ++row) {
    std::uint64_t destination = transfer.dst + row * transfer.dst_pitch, source = transfer.src + row * transfer.src_pitch;
    for (std::uint64_t left = transfer.row_bytes; left != 0;) {
      const auto target = find(0, way_ == direction::to_host, ends, destination, left);
      if (!target) return target.error();
      const auto origin = find(1, way_ == direction::to_device, ends, source, left);
      if (!origin) return origin.error();
      const std::uint64_t bytes = std::min({target->second, origin->second, kMaxBlockBytes});
      blocks_.push_back({target->first, origin->first, static_cast<std::uint32_t>(bytes)});
      destination += bytes;
      source += bytes;
      left -= bytes;
      begun_.size_bytes_ += bytes;
      if (blocks_.size() < room_) continue;
      if (auto given = flush(false); !given) return given;
    }
  }
  return {};
}

// Gives what was gathered to the channel. Only the last part carries the flush, behind all that the channel has written.
status dma_engine::list::flush(bool is_last) {
  constexpr std::size_t kMaxRoom = 1024;
  room_ = std::min(room_ * 2, kMaxRoom);
  const auto give = [&](dma::channel& queue) {
    return queue.copy_blocks(blocks_, is_last ? order_of(way_) : dma::ordering::none);
  };
  begun_.owner_ = &owner_;
  if (begun_.queue_ == nullptr) {
    auto queued = owner_.submit(way_, give);
    if (!queued) return queued.error();
    begun_.queue_ = std::move(queued->first);
    begun_.number_ = queued->second;
  } else {
    auto number = give(*begun_.queue_);  // the same channel, which the parts before are in
    if (!number) return number.error();
    begun_.number_ = *number;
  }
  blocks_.clear();
  return {};
}

result<dma_engine::operation> dma_engine::list::submit() {
  if (!blocks_.empty()) {
    if (auto given = flush(true); !given) return given.error();
  } else if (begun_.queue_ != nullptr && way_ != direction::to_host) {
    auto number = begun_.queue_->flush();
    if (!number) return number.error();
    begun_.number_ = *number;
  }
  return std::move(begun_);
}

}  // namespace pl::copy
