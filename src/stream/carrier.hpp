// SPDX-License-Identifier: Apache-2.0
// The service thread's part of executor X: sends what the stream has staged, stores what comes, and passes releases on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "channel_core.hpp"
#include "landing.hpp"
#include "messenger.hpp"
#include "service.hpp"
#include "staging.hpp"

namespace pl::stream {

// What goes before a chunk's bytes. Plain bytes.
struct chunk_head {
  std::uint32_t magic = kMagic;
  std::uint32_t window = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  // the put that ends with this chunk, else 0
  static constexpr std::uint32_t kMagic = 0x706c7831;
};
static_assert(sizeof(chunk_head) <= kHeadBytes);

class carrier final : public service_task {
 public:
  static constexpr std::uint64_t kPuts = 1024;       // that have not been sent
  static constexpr std::uint64_t kMostQueued = 256;  // chunks on streams: with their copies half of the driver's queue

  struct put {
    std::uint32_t window = 0;
    std::uint64_t offset = 0, bytes = 0, sequence = 0;
    std::uint64_t first = 0, chunks = 0;  // chunks are counted from 1
  };

  carrier(std::shared_ptr<channel_core> core, link::messenger& messages, service& watch, landing& windows,
          staging_pool::ring slots);

  // ---- The channel's thread
  bool has_room(std::uint64_t chunks) const noexcept;
  // Before its operations are queued. The last one can be taken back as long as none of its doorbells was queued.
  void publish(const put& what) noexcept;
  void take_back() noexcept;
  void publish_release(std::uint64_t sequence) noexcept;
  // An event behind all that was published wakes the service thread.
  void armed() noexcept;
  std::uint64_t queued() const noexcept { return queued_.load(std::memory_order_relaxed); }
  std::uint64_t left() const noexcept { return left_.load(std::memory_order_acquire); }  // chunks whose slot is free again
  std::byte* slot(std::uint64_t chunk) const noexcept { return slots_.slot(chunk) + kHeadBytes; }
  std::string report() const;

  // ---- The service thread
  bool advance(bool has_heard) override;
  void stop() override;
  bool drain() override;
  void give_up() override;
  bool has_carried() const noexcept override;
  carried sent() const noexcept override { return {begun_, credits_sent_}; }
  bool has_got(const carried& theirs) const noexcept override {
    return got_ >= theirs.data && credits_got_ >= theirs.credits;
  }
  bool expects_bell() const noexcept override;

 private:
  static constexpr unsigned kInbox = 8;
  bool send_rung();
  void send(std::uint64_t chunk);
  bool retire();
  bool send_credit();
  bool take_data();
  bool take_credits();
  status land(const std::byte* message, const link::message_info& info);
  void expect_data(unsigned at);
  void expect_credit();
  void fail(const failure& why);
  std::uint64_t tag(message_kind kind) const noexcept { return tag_of(kind, core_->id, core_->incarnation); }
  std::uint64_t rung() const noexcept { return __atomic_load_n(&core_->host().doorbell, __ATOMIC_ACQUIRE); }
  std::uint64_t consumed() const noexcept { return __atomic_load_n(&core_->host().consumed, __ATOMIC_ACQUIRE); }

  const std::shared_ptr<channel_core> core_;
  link::messenger& messages_;
  service& watch_;
  landing& windows_;
  staging_pool::ring slots_;

  // Written by the channel's thread.
  std::array<put, kPuts> puts_;
  std::atomic<std::uint64_t> puts_in_{0}, queued_{0}, release_{0}, armed_{0}, release_armed_{0};
  // Written by the service thread.
  alignas(64) std::atomic<std::uint64_t> puts_out_{0}, left_{0};
  std::uint64_t begun_ = 0;
  std::array<link::request, kSlots> sends_;
  std::uint64_t credit_ = 0;  // in the message under way
  std::uint64_t credits_sent_ = 0;
  link::request credit_sending_;

  struct letter {
    std::unique_ptr<std::byte[]> bytes;
    link::request coming;
  };
  std::array<letter, kInbox> inbox_;
  std::atomic<std::uint64_t> got_{0};
  std::uint64_t last_sequence_ = 0;
  std::uint64_t credit_in_ = 0, credits_got_ = 0;
  link::request credit_coming_;
  unsigned quiet_rounds_ = 0;
  bool is_stopped_ = false;
};

}  // namespace pl::stream
