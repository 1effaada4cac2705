// SPDX-License-Identifier: Apache-2.0
// Where the streams of a proxy channel leave what they put: as the channel's thread, which queues those operations, sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver_table.hpp"
#include "triggered/thread_wakeup.hpp"

namespace pl::stream {

class outlet {
 public:
  struct put {
    std::uint32_t window = 0;
    std::uint64_t offset = 0, bytes = 0, sequence = 0;  // sequences have no gaps
  };
  // A part of a put, in order: the stream waits for `staged` if there is anything to wait for, copies the bytes to the
  // place, and then the word `bell_word` becomes `bell`.
  struct piece {
    std::byte* host = nullptr;
    cu::device_ptr gpu = 0;
    std::uint64_t bytes = 0;
    std::uint64_t staged = 0;  // 0: the place is free
    std::uint64_t bell = 0;
    cu::device_ptr bell_word = 0;
  };
  // All pieces of a put as one kernel leaves them: piece `first` + i in the place (first + i) % places, with its own bell.
  struct spread {
    cu::device_ptr slots = 0, bells = 0;  // of place 0
    std::uint64_t slot_bytes = 0, places = 0;
    std::uint64_t piece_bytes = 0, first = 0, pieces = 0;
    std::uint64_t staged = 0;  // as above, for all of them
    std::uint64_t bell = 0;    // of the doorbell, when all are there
  };

  virtual ~outlet() = default;
  virtual bool has_room(std::uint64_t bytes) const noexcept = 0;
  // Before its operations are queued. The last one can be taken back as long as none of its doorbells was queued.
  virtual void publish(const put& transfer) noexcept = 0;
  virtual void take_back() noexcept = 0;
  // Of the put published last; pieces() is at least 1.
  virtual std::uint64_t pieces() const noexcept = 0;
  virtual piece piece_at(std::uint64_t number) const noexcept = 0;
  // Instead of piece_at(), if it is one kernel's.
  virtual std::optional<spread> spread_out() const noexcept { return {}; }
  virtual void publish_release(std::uint64_t sequence) noexcept = 0;
  // An event behind all that was published rings who_carries().
  virtual void armed() noexcept = 0;
  // The service thread that has to be awake for what the stream rings.
  virtual wake_bell& who_carries() const noexcept = 0;
  virtual std::shared_ptr<wake_bell> share_who_carries() const noexcept = 0;
  // A wait was queued: false if nothing need be done so that the service thread hears of what it waits for.
  virtual bool must_listen() const noexcept = 0;

  virtual cu::device_ptr doorbell_word() const noexcept = 0;
  virtual cu::device_ptr consumed_word() const noexcept = 0;
  virtual cu::device_ptr sent_word() const noexcept = 0;  // 0: the doorbell tells
  // Puts up to so many bytes may be copied by a kernel that then writes the doorbell.
  virtual std::uint64_t kernel_limit() const noexcept = 0;
  virtual std::string report() const = 0;
};

}  // namespace pl::stream
