// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/pipeline_copy.hpp"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "compat/mpi/device_memory.hpp"
#include "compat/mpi/direct_copy.hpp"
#include "copy/completion.hpp"

namespace pl::mpi {
namespace {

constexpr std::uint64_t kMinChunk = 256 * 1024, kMaxChunk = 2u << 20;
constexpr std::size_t kInFlight = 2;
constexpr std::uint64_t kStallNs = 5'000'000;  // nothing was taken for this long: the receiver is busy with something else
constexpr std::uint64_t kPollNs = 2'000'000;   // between two checks whether the sender is alive

// A pipeline starts and ends with one chunk on either side, and costs several microseconds a chunk.
std::uint64_t chunk_of(std::uint64_t bytes, std::uint64_t ring) {
  return std::min(std::clamp(bytes / 8, kMinChunk, kMaxChunk), std::max<std::uint64_t>(ring / 4, 4096));
}

// Waits a little longer each time, because ranks often share their CPUs.
class backoff_wait {
 public:
  void wait() {
    if (++rounds_ < 200) return arch::relax();
    if (rounds_ < 2000) return void(sched_yield());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  void reset() noexcept { rounds_ = 0; }

 private:
  unsigned rounds_ = 0;
};

copy::transfer transfer_of(const piece& one, std::byte* host, bool to_device) {
  const auto device = static_cast<std::uint64_t>(one.offset), packed = copy::address_of(host);
  if (to_device) return {copy::direction::to_device, device, packed, one.row_bytes, one.rows, one.pitch, one.row_bytes};
  return {copy::direction::to_host, packed, device, one.row_bytes, one.rows, one.row_bytes, one.pitch};
}

// Device rows on one side, bytes without gaps on the other.
result<copy::completion> begin_chunk(const pieces& rows, std::byte* host, bool to_device) {
  std::vector<copy::transfer> list;
  list.reserve(rows.size());
  for (const auto& one : rows) {
    list.push_back(transfer_of(one, host, to_device));
    host += one.bytes();
  }
  return begin_copies(list);
}

void copy_on_host(const pieces& rows, const std::byte* packed) {
  for (const auto& one : rows)
    for (std::size_t row = 0; row < one.rows; ++row, packed += one.row_bytes)
      std::memcpy(reinterpret_cast<void*>(one.offset + static_cast<std::ptrdiff_t>(row * one.pitch)), packed, one.row_bytes);
}

// Copies of chunks, which end in order. Each then moves a word of the slot to its chunk's end.
class chunks_in_flight {
 public:
  explicit chunks_in_flight(std::atomic<std::uint64_t>& word) : word_(word) {}
  bool empty() const noexcept { return chunks_.empty(); }
  // Waits for the oldest copy if enough are in flight.
  status add(copy::completion begun, std::uint64_t end) {
    chunks_.push_back({std::move(begun), end});
    return chunks_.size() == kInFlight ? end_oldest() : status();
  }
  status end_oldest() {
    auto oldest = std::move(chunks_.front());
    chunks_.pop_front();
    if (auto done = oldest.copy.wait(); !done) return done;
    word_.store(oldest.end, std::memory_order_release);
    return {};
  }
  status end_all() {
    while (!chunks_.empty())
      if (auto done = end_oldest(); !done) return done;
    return {};
  }

 private:
  struct chunk {
    copy::completion copy;
    std::uint64_t end = 0;
  };
  std::atomic<std::uint64_t>& word_;
  std::deque<chunk> chunks_;
};

// ---- The sender's side
// ----------------------------------------------------------------------------------------------------

class sending {
 public:
  sending(pipeline_peers& peers, const outgoing_message& message, const pieces& rows)
      : peers_(peers), message_(message), slot_(message.shared()), cursor_(rows), size_(slot_.ring_bytes) {
    pin_for(static_cast<std::uint64_t>(rows[0].offset), message.ring->memory);
    device_ = static_cast<std::uint64_t>(rows[0].offset);
  }

  status run() {
    const std::uint64_t most = chunk_of(slot_.bytes, size_);
    while (begun_ < slot_.bytes) {
      const std::uint64_t room = find_room(std::min(most, slot_.bytes - begun_));
      if (!failed_) return failed_;
      if (is_for_nobody_) return {};
      if (room == 0) continue;
      auto copy = begin_chunk(cursor_.next(static_cast<std::size_t>(room)), place(), false);
      if (!copy) return copy.error();
      begun_ += room;
      if (auto done = in_flight_.add(std::move(*copy), begun_); !done) return done;
    }
    return in_flight_.end_all();
  }

 private:
  std::byte* place() const {
    if (tail_ != nullptr) return tail_->memory.data() + (begun_ - tail_from_);
    return message_.ring->memory.data() + begun_ % size_;
  }

  // How many of `wanted` bytes may be written at place(); 0: ask again.
  std::uint64_t find_room(std::uint64_t wanted) {
    if (tail_ != nullptr) return wanted;
    const std::uint64_t to_end = size_ - begun_ % size_;
    const std::uint64_t taken = slot_.taken.load(std::memory_order_acquire);
    const std::uint64_t out = std::min(wanted, to_end);
    if (begun_ + out <= taken + size_) return stalled_since_ = 0, backoff_.reset(), out;
    if (!in_flight_.empty()) {
      if (auto done = in_flight_.end_oldest(); !done) failed_ = done;
      return 0;
    }
    wait_or_add_tail(taken);
    return 0;
  }

  void wait_or_add_tail(std::uint64_t taken) {
    const std::uint64_t now = monotonic_ns();
    if (stalled_since_ == 0 || taken != last_taken_) stalled_since_ = now, last_taken_ = taken;
    if (now - stalled_since_ > kStallNs) {
      // A message to a process that has ended completes, as an eager one of MPI's would.
      if (!pipeline_peers::has_receiver(message_)) return void(is_for_nobody_ = true);
      // Without memory for it the message waits for its receiver, as a large one of MPI's would.
      if (auto tail = peers_.add_tail(message_, begun_)) {
        tail_ = std::move(*tail);
        tail_from_ = begun_;
        pin_for(device_, tail_->memory);
        return;
      }
    }
    backoff_.wait();
  }

  pipeline_peers& peers_;
  const outgoing_message& message_;
  message_slot& slot_;
  piece_cursor cursor_;
  const std::uint64_t size_;
  std::uint64_t device_ = 0;
  chunks_in_flight in_flight_{slot_.ready};
  std::uint64_t begun_ = 0, stalled_since_ = 0, last_taken_ = 0;
  std::shared_ptr<send_segment> tail_;
  std::uint64_t tail_from_ = 0;
  status failed_;
  bool is_for_nobody_ = false;
  backoff_wait backoff_;
};

// ---- The receiver's side
// ----------------------------------------------------------------------------------------------------

class receiving {
 public:
  receiving(pipeline_peers& peers, const incoming_message& message, const pieces& rows, place_kind kind)
      : peers_(peers),
        message_(message),
        slot_(message.shared()),
        rows_(rows),
        cursor_(rows),
        kind_(kind),
        bytes_(slot_.bytes),
        size_(slot_.ring_bytes) {
    if (kind_ == place_kind::device) pin_for(device(), *message.ring);
  }

  status run() {
    const std::uint64_t most = chunk_of(bytes_, size_);
    while (begun_ < bytes_) {
      if (begun_ == 0 && kind_ == place_kind::device && receive_directly(message_, rows_)) return {};
      auto n = find_data(most);
      if (!n) return n.error();
      if (*n == 0) continue;
      if (auto done = take(*n); !done) return done;
    }
    return in_flight_.end_all();
  }

 private:
  std::uint64_t device() const { return static_cast<std::uint64_t>(rows_[0].offset); }

  // How many bytes can be read at place_; 0: ask again.
  result<std::uint64_t> find_data(std::uint64_t most) {
    const std::uint64_t ready = std::min(slot_.ready.load(std::memory_order_acquire), bytes_);
    if (ready <= begun_) {
      if (!in_flight_.empty()) {
        if (auto done = in_flight_.end_oldest(); !done) return done.error();
        return std::uint64_t{0};
      }
      if (begun_ == 0 && kind_ == place_kind::host) refuse_direct(message_);
      if (auto lives = check_sender(); !lives) return lives.error();
      backoff_.wait();
      return std::uint64_t{0};
    }
    backoff_.reset();
    const std::uint64_t tail_from = slot_.tail_from.load(std::memory_order_acquire);
    if (begun_ >= tail_from) {
      if (tail_ == nullptr) {
        auto tail = peers_.tail_of(message_);
        if (!tail) return tail.error();
        tail_ = std::move(*tail);
        if (kind_ == place_kind::device) pin_for(device(), *tail_);
      }
      place_ = tail_->data() + (begun_ - tail_from);
      return std::min(most, ready - begun_);
    }
    const std::uint64_t offset = begun_ % size_;
    place_ = message_.ring->data() + offset;
    return std::min({most, std::min(ready, tail_from) - begun_, size_ - offset});
  }

  status check_sender() {
    if (slot_.is_failed.load(std::memory_order_acquire) != 0)
      return failure{EPIPE, format("rank %d could not read the device memory that it sends", message_.origin->rank)};
    const std::uint64_t now = monotonic_ns();
    if (now - last_poll_ < kPollNs) return {};
    last_poll_ = now;
    if (!message_.origin->has_ended()) return {};
    // What it has written before its end counts.
    if (slot_.ready.load(std::memory_order_acquire) > begun_) return {};
    return failure{EPIPE, format("rank %d ended while it sent a message", message_.origin->rank)};
  }

  status take(std::uint64_t n) {
    const auto part = cursor_.next(static_cast<std::size_t>(n));
    begun_ += n;
    if (kind_ == place_kind::host) {
      copy_on_host(part, place_);
      slot_.taken.store(begun_, std::memory_order_release);
      return {};
    }
    auto copy = begin_chunk(part, place_, true);
    if (!copy) return copy.error();
    return in_flight_.add(std::move(*copy), begun_);
  }

  pipeline_peers& peers_;
  const incoming_message& message_;
  message_slot& slot_;
  const pieces& rows_;
  piece_cursor cursor_;
  const place_kind kind_;
  const std::uint64_t bytes_, size_;
  chunks_in_flight in_flight_{slot_.taken};
  std::uint64_t begun_ = 0, last_poll_ = 0;
  std::byte* place_ = nullptr;
  std::shared_ptr<shared_segment> tail_;
  backoff_wait backoff_;
};

}  // namespace

status send_rows(pipeline_peers& peers, const outgoing_message& message, const pieces& device_rows) {
  if (send_directly(message, device_rows)) {
    peers.end_writing(message);
    return {};
  }
  auto done = sending(peers, message, device_rows).run();
  if (!done) message.shared().is_failed.store(1, std::memory_order_release);
  peers.end_writing(message);
  return done;
}

status receive_rows(pipeline_peers& peers, const incoming_message& message, const pieces& rows, place_kind kind) {
  auto done = receiving(peers, message, rows, kind).run();
  drop_message(message);
  return done;
}

void drop_message(const incoming_message& message) noexcept {
  message_slot& slot = message.shared();
  // The sender may be waiting for room: everything counts as taken.
  slot.taken.store(slot.bytes, std::memory_order_release);
  slot.is_done.store(1, std::memory_order_release);
}

}  // namespace pl::mpi
