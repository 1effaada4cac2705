// SPDX-License-Identifier: Apache-2.0
#include "copy/dma_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::copy {
namespace {

// How long no other channel is tried after one for which there was no GPU memory.
constexpr std::uint64_t kNoMemoryNs = 1'000'000'000;

// If this process itself stood still for long, it checks once more before it gives up a copy.
constexpr std::uint64_t kLastChanceNs = 100'000'000;

// About 340 000 blocks of a list can be queued before the caller has to wait for the first ones.
constexpr std::uint64_t kBulkMemoryBytes = std::uint64_t{8} << 20;

// A helper shares its engine with short copies, which wait for at most this long.
constexpr std::uint32_t kHelperTimesliceUs = 50;

// Operations may overlap, since nothing is queued before its sources are complete. A completion word written by the
// engine's semaphore occasionally overtakes data: for one copy to the host in two hundred, by about 16 us
// (docs/results/dma).
constexpr auto kOrder = dma::ordering::none_settled;

// For another GPU a settled word is not enough: on two H200 it was seen in host memory before the copy's last bytes had
// arrived.
dma::ordering order_of(bool writes_to_peer) noexcept { return writes_to_peer ? dma::ordering::none_flushed : kOrder; }

unsigned index_of(direction way, dma_engine::queue_kind kind) {
  using queue_kind = dma_engine::queue_kind;
  if (kind == queue_kind::peer) return 4;
  return (way == direction::to_host ? 0u : 1u) + (kind == queue_kind::quick ? 0u : kind == queue_kind::bulk ? 2u : 5u);
}

dma_engine::queue_kind kind_of(const dma_engine::sides& ends) {
  const bool is_peer = ends.source != nullptr && ends.source->device_ordinal != ends.device->device_ordinal;
  return is_peer ? dma_engine::queue_kind::peer : dma_engine::queue_kind::quick;
}

failure not_for_channels(const failure& reason) {
  return {reason.code == EACCES ? EACCES : ENOTSUP, format("DMA channels: %s", reason.message.c_str())};
}

}  // namespace

dma_engine::dma_engine(const gpu_context& context, channel_source source)
    : context_(context),
      source_(std::move(source)),
      memory_(*context.cuda, source_.space, source_.addresses),
      order_(context_, source_) {}

dma_engine::~dma_engine() = default;

result<std::unique_ptr<dma_engine>> dma_engine::open(const gpu_context& context) {
  auto source = channel_source::open(*context.cuda, context.device_ordinal);
  if (!source) return source.error();
  std::unique_ptr<dma_engine> made(new dma_engine(context, *std::move(source)));
  if (auto tried = made->channel_for(direction::to_host, queue_kind::quick); !tried)
    return tried.error();  // tells whether channels work on this machine at all
  made->has_helpers_ =
      env_read("PEERLANE_DMA_BULK_ENGINES").integer >= 2 && made->source_.helper_engine_of(true).has_value();
  return made;
}

result<std::shared_ptr<dma::channel>> dma_engine::channel_for(direction way, queue_kind kind) {
  const std::size_t index = index_of(way, kind);
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
  options.engine = source_.engine_of(way == direction::to_host, kind == queue_kind::bulk);
  if (kind == queue_kind::helper) options.engine = *source_.helper_engine_of(way == direction::to_host);
  // The memory was bound before, so the engine is known.
  if (kind == queue_kind::peer) options.engine = source_.addresses->peer_engine().value_or(options.engine);
  if (kind == queue_kind::helper) options.timeslice_us = kHelperTimesliceUs;
  if (kind != queue_kind::quick) options.memory_bytes = kBulkMemoryBytes;
  if (monotonic_ns() < no_memory_until_ns_) return failure{EAGAIN, "DMA channels: GPU memory for another one was used up"};
  auto opened = dma::channel::open(source_.addresses, options);
  if (!opened && opened.code() == ENOMEM) {  // another method takes the copy
    no_memory_until_ns_ = monotonic_ns() + kNoMemoryNs;
    return failure{EAGAIN, format("DMA channels: %s", opened.error().message.c_str())};
  }
  if (!opened) return opened.error();
  const std::lock_guard guard(lock_);
  return slot = std::move(*opened);
}

void dma_engine::release() {
  trim();
  decltype(channels_) closed;  // ends outside of the lock
  const std::lock_guard guard(lock_);
  closed.swap(channels_);
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
  if (found_info.object.size_bytes != 0 && !found_info.object.contains({pointer, 1})) {  // beyond the first memory object
    auto asked = cu::inspect_pointer(*context_.cuda, pointer);
    if (!asked) return not_for_channels(asked.error());
    found_info = *asked;
  }
  auto found = memory_.find_device(found_info, pointer, size_bytes);
  if (!found) return not_for_channels(found.error());
  return found;
}

result<std::uint64_t> dma_engine::prepare(const host_memory& host, std::uint64_t pointer, std::uint64_t size_bytes) {
  for (const direction way : {direction::to_host, direction::to_device})
    for (const queue_kind kind : {queue_kind::quick, queue_kind::bulk})
      if (auto opened = channel_for(way, kind); !opened && opened.code() != EAGAIN) return opened.error();
  std::uint64_t fresh_bytes = 0;
  for (std::uint64_t done = 0; done < size_bytes;) {
    const bool is_bound = memory_.has_host(host, pointer + done);
    auto found = memory_.find_host(host, pointer + done, size_bytes - done);
    if (!found) return not_for_channels(found.error());
    if (!is_bound) fresh_bytes += found->size_bytes;
    done += found->size_bytes;
  }
  return fresh_bytes;
}

// ---- One copy

// Passes work to the direction's channel, or to a new one if the fault of another copy has ended that channel.
template <class Give>
result<std::pair<std::shared_ptr<dma::channel>, dma::sequence>> dma_engine::submit(direction way, queue_kind kind,
                                                                                   Give give) {
  for (bool is_again = false;; is_again = true) {
    auto channel = channel_for(way, kind);
    if (!channel) return channel.error();
    result<dma::sequence> number = give(**channel);
    if (number) return std::pair{*std::move(channel), *number};
    (*channel)->stop();  // a part may be queued
    forget(*channel);
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
      const queue_kind kind = kind_of(ends);
      const bool writes_to_peer = kind == queue_kind::peer && ends.device->device_ordinal != context_.device_ordinal;
      auto queued = submit(transfer.way, kind, [&](dma::channel& channel) {
        return channel.copy(destination->address, source->address, transfer.row_bytes, order_of(writes_to_peer));
      });
      if (!queued) return queued.error();
      made.owner_ = this;
      made.queue_ = std::move(queued->first);
      made.index_ = index_of(transfer.way, kind);
      made.number_ = queued->second;
      made.size_bytes_ = transfer.row_bytes;
      made.first_ = {*std::move(destination), *std::move(source)};
      return made;
    }
  }
  list pieces(*this, transfer.way, kind_of(ends));
  if (auto added = pieces.add(transfer, ends); !added) return added.error();
  return pieces.submit();
}

status dma_engine::read_through(dma::arrival_buffer& buffer, const transfer& transfer, const cu::pointer_info& device) {
  const sides ends{&device, nullptr, nullptr};
  auto* const destination = static_cast<std::byte*>(host_pointer(transfer.dst));
  for (std::uint64_t done = 0; done < transfer.row_bytes;) {
    auto source = find(false, ends, true, transfer.src + done, transfer.row_bytes - done);
    if (!source) return source.error();
    auto queue = channel_for(direction::to_host, queue_kind::quick);
    if (!queue) return queue.error();
    if (status read = buffer.read(**queue, source->address, destination + done, source->size_bytes, time_limit_ns(0));
        !read) {
      if ((*queue)->fault()) forget(*queue);
      return read;
    }
    done += source->size_bytes;
  }
  return {};
}

status dma_engine::read(const transfer& transfer, const cu::pointer_info& device) {
  for (auto& slot : arrivals_) {
    if (slot.is_leased.load(std::memory_order_relaxed) || slot.is_leased.exchange(true, std::memory_order_acquire)) continue;
    struct give_back {
      std::atomic<bool>& is_leased;
      ~give_back() { is_leased.store(false, std::memory_order_release); }
    } const behind{slot.is_leased};
    if (slot.buffer == nullptr) {
      auto made = dma::arrival_buffer::open(source_.addresses);
      if (!made) return not_for_channels(made.error());
      slot.buffer = *std::move(made);
    }
    status done = read_through(*slot.buffer, transfer, device);
    // If the fault of another copy had ended the channel, it is opened again and everything is written again.
    if (done.code() == EIO) done = read_through(*slot.buffer, transfer, device);
    return done.code() == ENOMEM || done.code() == EFAULT ? not_for_channels(done.error()) : done;
  }
  return failure{EAGAIN, "other copies have all of the memory that data passes through"};
}

result<dma_engine::operation> dma_engine::begin_fill(std::uint64_t pointer, std::uint8_t value, std::uint64_t size_bytes,
                                                     const cu::pointer_info& device) {
  const sides ends{&device, nullptr, nullptr};
  operation made;
  made.owner_ = this;
  made.index_ = index_of(direction::on_device, queue_kind::quick);
  for (std::uint64_t done = 0; done < size_bytes;) {
    auto piece = find(false, ends, false, pointer + done, size_bytes - done);
    if (!piece) return piece.error();
    const auto give = [&](dma::channel& channel) {
      return channel.fill_bytes(piece->address, value, piece->size_bytes, kOrder);
    };
    if (made.queue_ == nullptr) {
      auto queued = submit(direction::on_device, queue_kind::quick, give);
      if (!queued) return queued.error();
      made.queue_ = std::move(queued->first);
      made.number_ = queued->second;
    } else {
      auto number = give(*made.queue_);
      if (!number) return number.error();
      made.number_ = *number;
    }
    done += piece->size_bytes;
    made.size_bytes_ += piece->size_bytes;
    made.more_.push_back(*std::move(piece));
  }
  return made;
}

dma_engine::operation& dma_engine::operation::operator=(operation&& other) noexcept {
  if (this == &other) return *this;
  (void)wait();
  if (event_ != nullptr) owner_->take_back(std::move(event_));
  owner_ = other.owner_;
  queue_ = std::move(other.queue_);
  index_ = other.index_;
  helper_ = std::move(other.helper_);
  helper_number_ = other.helper_number_;
  behind_ = std::move(other.behind_);
  number_ = other.number_;
  size_bytes_ = other.size_bytes_;
  tests_ = other.tests_;
  watch_ = other.watch_;
  first_ = std::move(other.first_);
  more_ = std::move(other.more_);
  event_ = std::move(other.event_);
  return *this;
}

dma_engine::operation::~operation() {
  (void)wait();
  if (event_ != nullptr) owner_->take_back(std::move(event_));
}

result<int> dma_engine::operation::make_descriptor() {
  if (event_ != nullptr) return event_->descriptor();
  if (queue_ == nullptr || behind_.armed != nullptr)
    return failure{ENOTSUP, "the copy has ended, or waits for a stream: its channel accepts no commands meanwhile"};
  auto lent = owner_->lease_event(queue_->engine());
  if (!lent) return lent.error();
  (*lent)->clear();
  if (auto joined = join(); !joined) {
    owner_->take_back(*std::move(lent));
    return joined.error();
  }
  // Queued after the copy, so that it costs nothing unless somebody sleeps.
  if (auto asked = queue_->interrupt(); !asked) {
    owner_->take_back(*std::move(lent));
    return asked.error();
  }
  event_ = *std::move(lent);
  return event_->descriptor();
}

result<bool> dma_engine::operation::test() {
  if (event_ != nullptr) event_->clear();
  const unsigned tests_between_polls = event_ != nullptr ? 1 : 256;  // a sleeping caller tests rarely
  if (behind_.armed != nullptr) {
    if (!is_done() && !owner_->order_.has_failed(behind_)) return false;
  } else if (!is_done() && (++tests_ % tests_between_polls != 0 || !has_failed())) {
    // A caller that only tests must not wait for ever for a doorbell that the engine has missed.
    if (tests_ % tests_between_polls != 0) return false;
    queue_->ring();
    if (helper_ != nullptr) helper_->ring();
    const dma::sequence completed = queue_->completed() + (helper_ != nullptr ? helper_->completed() : 0);
    if (!watch_.is_stalled(completed, time_limit_ns(size_bytes_))) return false;
    if (status ended = wait_for(std::min(kLastChanceNs, time_limit_ns(0))); !ended) return ended.error();
    return true;
  }
  if (status ended = wait(); !ended) return ended.error();
  return true;
}

status dma_engine::operation::wait() { return wait_for(time_limit_ns(size_bytes_)); }

status dma_engine::operation::wait_for(std::uint64_t timeout_ns) {
  if (queue_ == nullptr) return {};
  // The helper comes first: if it has failed, what waits for it in the queue never ends.
  status outcome = helper_ != nullptr ? helper_->wait(helper_number_, timeout_ns) : status();
  if (outcome)
    outcome = behind_.armed != nullptr ? owner_->order_.wait(behind_, timeout_ns) : queue_->wait(number_, timeout_ns);
  if (!outcome && behind_.armed == nullptr)
    for (const auto& used : {queue_, helper_}) {
      if (used == nullptr) continue;
      used->stop();
      owner_->forget(used);
    }
  queue_.reset();
  helper_.reset();
  behind_ = {};
  first_ = {};
  more_.clear();
  return outcome;
}

status dma_engine::operation::join() const {
  if (helper_ == nullptr || helper_->is_done(helper_number_)) return {};
  auto joined = queue_->wait_for(*helper_, helper_number_);
  return joined ? status() : joined.error();
}

status dma_engine::operation::make_wait(cu::stream_t stream) const {
  if (is_done()) return {};
  if (auto joined = join(); !joined) return joined;
  return behind_.armed != nullptr ? owner_->order_.make_wait(stream, behind_)
                                  : owner_->order_.make_wait(stream, index_, queue_);
}

status dma_engine::operation::record(cu::event_t event) const {
  if (queue_ == nullptr) return failure{EAGAIN, "the copies have ended: there is nothing to record an event after"};
  if (auto joined = join(); !joined) return joined;
  return behind_.armed != nullptr ? owner_->order_.record(event, behind_) : owner_->order_.record(event, index_, queue_);
}

// ---- Parts

result<dma_engine::part_queue> dma_engine::begin_parts(const transfer& whole, const cu::pointer_info& device,
                                                       const std::byte* buffer, const dma::region& bound) {
  const bool is_read = whole.way == direction::to_host;
  part_queue made;
  made.owner_ = this;
  made.device_begin_ = is_read ? whole.src : whole.dst;
  made.buffer_begin_ = address_of(buffer);
  made.buffer_address_ = bound.address();
  const sides ends{&device, nullptr, nullptr};
  for (std::uint64_t done = 0; done < whole.row_bytes; done += made.pieces_.back().size_bytes) {
    auto found = find(false, ends, is_read, made.device_begin_ + done, whole.row_bytes - done);
    if (!found) return found.error();
    made.pieces_.push_back(*std::move(found));
  }
  auto queue = channel_for(whole.way, queue_kind::bulk);
  if (!queue) return queue.error();
  made.queue_ = *std::move(queue);
  return made;
}

result<dma::sequence> dma_engine::part_queue::submit(const transfer& part) {
  const bool is_read = part.way == direction::to_host;
  std::uint64_t in_buffer = buffer_address_ + ((is_read ? part.dst : part.src) - buffer_begin_);
  std::uint64_t offset = (is_read ? part.src : part.dst) - device_begin_;
  result<dma::sequence> queued = dma::sequence{0};
  std::uint64_t left = part.row_bytes;
  for (const auto& piece : pieces_) {
    if (offset >= piece.size_bytes) {
      offset -= piece.size_bytes;
      continue;
    }
    const std::uint64_t bytes = std::min(left, piece.size_bytes - offset);
    const std::uint64_t in_device = piece.address + offset;
    queued = queue_->copy(is_read ? in_buffer : in_device, is_read ? in_device : in_buffer, bytes, kOrder);
    if (!queued) break;
    in_buffer += bytes;
    left -= bytes;
    offset = 0;
    if (left == 0) break;
  }
  if (!queued) {
    queue_->stop();  // a part may be queued
    owner_->forget(queue_);
  }
  return queued;
}

status dma_engine::part_queue::wait(dma::sequence queued) {
  auto ended = queue_->wait(queued, time_limit_ns(0));
  if (!ended) {
    queue_->stop();
    owner_->forget(queue_);
  }
  return ended;
}

// ---- Events

result<std::unique_ptr<dma::completion_event>> dma_engine::lease_event(unsigned engine) {
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

// Binds the window around `pointer`, up to the end of its allocation.
status dma_engine::list::bind(unsigned side, const sides& given, std::uint64_t pointer, std::uint64_t size_bytes) {
  const bool is_host = way_ == (side == 0 ? direction::to_host : direction::to_device);
  sides ends = given;
  host_memory piece;
  if (is_host && given.host->is_in_pieces) {
    std::uint64_t begin = 0;
    if (auto known = owner_.memory_.find_bound_host(pointer, begin)) {  // a long list reaches many pieces of a pool
      const binding made{{begin, known->size_bytes}, known->address};
      begun_.more_.push_back(*std::move(known));
      remember(side, pointer, made);
      return {};
    }
    piece = inspect_host(*owner_.context_.cuda, host_pointer(pointer), 1, &owner_.context_);
    if (!piece.is_pinned) return failure{ENOTSUP, "DMA channels: a part of the host memory is not pinned"};
    ends.host = &piece;
  }
  const cu::pointer_info* const info = side == 1 && ends.source != nullptr ? ends.source : ends.device;
  const address_range allocation = is_host ? ends.host->allocation : info->allocation;
  const std::uint64_t window = pointer >> kWindowShift << kWindowShift;
  const std::uint64_t begin = std::max(window, allocation.begin);
  const std::uint64_t end = std::min(window + (std::uint64_t{1} << kWindowShift), allocation.end());
  binding made{{begin, 0}, 0};
  if (begin <= pointer && pointer < end) {
    if (auto found = owner_.find(is_host, ends, side == 1, begin, end - begin)) {
      made = {{begin, found->size_bytes}, found->address};
      begun_.more_.push_back(*std::move(found));
    }
  }
  if (!made.pointers.contains({pointer, 1})) {  // it lies in several memory objects, or in no known allocation
    auto found = owner_.find(is_host, ends, side == 1, pointer, size_bytes);
    if (!found) return found.error();
    made = {{pointer, found->size_bytes}, found->address};
    begun_.more_.push_back(*std::move(found));
  }
  remember(side, pointer, made);
  return {};
}

void dma_engine::list::remember(unsigned side, std::uint64_t pointer, const binding& made) {
  bound_side& bound = sides_[side];
  if (bound.last.pointers.size_bytes != 0) {
    if (bound.by_window.empty()) {
      bound.by_window.resize(kWindows);
      bound.by_window[(bound.last.pointers.begin >> kWindowShift) % kWindows] = bound.last;
    }
    bound.by_window[(pointer >> kWindowShift) % kWindows] = made;
  }
  bound.last = made;
}

result<std::pair<std::uint64_t, std::uint64_t>> dma_engine::list::find(unsigned side, const sides& ends,
                                                                       std::uint64_t pointer, std::uint64_t size_bytes) {
  bound_side& bound = sides_[side];
  if (!bound.find({pointer, 1}))
    if (auto made = bind(side, ends, pointer, size_bytes); !made) return made.error();
  const binding& last = bound.last;
  return std::pair{last.address + (pointer - last.pointers.begin), std::min(size_bytes, last.pointers.end() - pointer)};
}

status dma_engine::list::add(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes, const sides& ends) {
  while (size_bytes != 0) {
    const auto target = find(0, ends, destination, size_bytes);
    if (!target) return target.error();
    const auto origin = find(1, ends, source, size_bytes);
    if (!origin) return origin.error();
    const std::uint64_t bytes = std::min({target->second, origin->second, kMaxBlockBytes});
    if (gathers_) {
      blocks_.push_back({target->first, origin->first, static_cast<std::uint32_t>(bytes)});
      if (blocks_.size() > stream_order::kMaxBlocks)
        return failure{ENOTSUP, format("a list of more than %zu pieces that waits for a stream", stream_order::kMaxBlocks)};
    } else {
      // Before a block rather than after it: the last part ends the list, so it should not be empty.
      if (commands_.words() >= most_words_)
        if (auto given = flush(false); !given) return given;
      commands_.add(target->first, origin->first, static_cast<std::uint32_t>(bytes));
    }
    destination += bytes;
    source += bytes;
    size_bytes -= bytes;
    begun_.size_bytes_ += bytes;
  }
  return {};
}

status dma_engine::list::add(const transfer& transfer, const sides& ends) {
  for (std::size_t row = 0; row < transfer.rows; ++row)
    if (auto added =
            add(transfer.dst + row * transfer.dst_pitch, transfer.src + row * transfer.src_pitch, transfer.row_bytes, ends);
        !added)
      return added;
  return {};
}

// Gives every other part of a bulk list to the helper while more follow. Returns false, having given nothing, if there
// is no helper or it has failed.
bool dma_engine::list::give_to_helper() {
  if (kind_ != queue_kind::bulk || !owner_.has_helpers_.load(std::memory_order_relaxed) || parts_ % 2 == 0) return false;
  if (begun_.helper_ == nullptr) {
    auto opened = owner_.channel_for(way_, queue_kind::helper);
    if (!opened) {  // the driver has no time slices; not asked again for each list
      owner_.has_helpers_.store(false, std::memory_order_relaxed);
      return false;
    }
    const dma::list_writer unended = commands_;
    auto number = (*opened)->copy_blocks(commands_, dma::ordering::none);
    if (!number) {
      commands_ = unended;
      (*opened)->stop();
      owner_.forget(*opened);
      return false;
    }
    begun_.helper_ = *std::move(opened);
    begun_.helper_number_ = *number;
    return true;
  }
  auto number = begun_.helper_->copy_blocks(commands_, dma::ordering::none);
  if (!number) return false;  // the list fails when it waits
  begun_.helper_number_ = *number;
  return true;
}

// Passes what has been collected to the channel. The last part's word is written after everything that the channel has
// moved.
status dma_engine::list::flush(bool is_last) {
  most_words_ = std::min(most_words_ * kPartGrowth, kMaxWords);
  const dma::list_writer unended = commands_;  // another channel needs another end
  const bool may_write_to_peer = kind_ == queue_kind::peer;
  const auto order = is_last ? order_of(may_write_to_peer) : dma::ordering::none;
  const auto give = [&](dma::channel& channel) {
    commands_ = unended;
    return channel.copy_blocks(commands_, order);
  };
  begun_.owner_ = &owner_;
  if (!is_last && give_to_helper()) {
    ++parts_;
    commands_.restart();
    return {};
  }
  ++parts_;
  if (begun_.queue_ == nullptr) {
    auto queued = owner_.submit(way_, kind_, give);
    if (!queued) return queued.error();
    begun_.queue_ = std::move(queued->first);
    begun_.index_ = index_of(way_, kind_);
    begun_.number_ = queued->second;
  } else {
    auto number = give(*begun_.queue_);  // the same channel as the earlier parts
    if (!number) return number.error();
    begun_.number_ = *number;
  }
  commands_.restart();
  return {};
}

result<dma_engine::operation> dma_engine::list::submit() {
  if (begun_.helper_ != nullptr) {
    auto number = begun_.helper_->flush();
    if (!number) return number.error();
    begun_.helper_number_ = *number;
  }
  if (!commands_.is_empty()) {
    if (auto given = flush(true); !given) return given.error();
  } else if (begun_.queue_ != nullptr) {  // its last part was queued without an end
    auto number = begun_.queue_->flush();
    if (!number) return number.error();
    begun_.number_ = *number;
  }
  return std::move(begun_);
}

result<dma_engine::operation> dma_engine::list::submit_behind(cu::stream_t stream) {
  begun_.owner_ = &owner_;
  auto queued = owner_.order_.begin(stream, blocks_);
  if (!queued) return queued.error();
  begun_.queue_ = queued->queue;
  begun_.number_ = queued->number;
  begun_.behind_ = *std::move(queued);
  return std::move(begun_);
}

}  // namespace pl::copy
