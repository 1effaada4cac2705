// SPDX-License-Identifier: Apache-2.0
// The send queue of a proxy channel: where its streams place the bytes of puts. This interface is for the channel's thread,
// which queues those operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver_table.hpp"
#include "triggered/thread_wakeup.hpp"

namespace pl::triggered {

class send_queue {
 public:
  struct put {
    std::uint32_t window = 0;
    std::uint64_t offset = 0, bytes = 0, sequence = 0;  // sequences have no gaps
  };
  // A part of a put, in order: the stream waits until `staged` is reached (if not 0), copies the bytes to the slot, and
  // then writes `doorbell_value` to `doorbell_address`.
  struct piece {
    std::byte* host = nullptr;
    cu::device_ptr gpu = 0;
    std::uint64_t bytes = 0;
    std::uint64_t staged = 0;  // 0: the slot is free
    std::uint64_t doorbell_value = 0;
    cu::device_ptr doorbell_address = 0;
  };
  // All pieces of a put as one kernel writes them: piece `first` + i goes to slot (first + i) % places and rings that
  // slot's doorbell.
  struct spread {
    cu::device_ptr slots = 0, slot_doorbells = 0;  // of slot 0
    std::uint64_t slot_bytes = 0, places = 0;
    std::uint64_t piece_bytes = 0, first = 0, pieces = 0;
    std::uint64_t staged = 0;          // as in piece, for all pieces
    std::uint64_t doorbell_value = 0;  // written when all pieces are there
  };

  virtual ~send_queue() = default;
  virtual bool has_room(std::uint64_t bytes) const noexcept = 0;
  // Call it before the operations are queued. The last put can be taken back as long as none of its doorbells was queued.
  virtual void publish(const put& transfer) noexcept = 0;
  virtual void take_back() noexcept = 0;
  // Pieces of the put published last; pieces() is at least 1.
  virtual std::uint64_t pieces() const noexcept = 0;
  virtual piece piece_at(std::uint64_t number) const noexcept = 0;
  // Replaces piece_at() if one kernel writes the whole put.
  virtual std::optional<spread> spread_out() const noexcept { return {}; }
  virtual void publish_release(std::uint64_t sequence) noexcept = 0;
  // An event after everything published wakes consumer_wakeup().
  virtual void armed() noexcept = 0;
  // The proxy thread that must be awake to see the stream's doorbells.
  virtual thread_wakeup& consumer_wakeup() const noexcept = 0;
  virtual std::shared_ptr<thread_wakeup> share_consumer_wakeup() const noexcept = 0;
  // Whether the proxy thread must be woken to notice the operation that a newly queued wait is for.
  virtual bool needs_wakeup() const noexcept = 0;

  virtual cu::device_ptr doorbell_word() const noexcept = 0;
  virtual cu::device_ptr consumed_word() const noexcept = 0;
  virtual cu::device_ptr sent_word() const noexcept = 0;  // 0: the doorbell counts sent puts
  // Up to this size, a kernel may copy a put and then write the doorbell.
  virtual std::uint64_t kernel_limit() const noexcept = 0;
  virtual std::string report() const = 0;
};

}  // namespace pl::triggered
