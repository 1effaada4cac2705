// SPDX-License-Identifier: Apache-2.0
// Executor X between processes of one node: this end's streams leave puts in a lane, and the service thread here takes out
// what the peer's streams left in theirs (lane.hpp). No message is sent but to say that an end closes or failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "triggered/channel_core.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/receive_slots.hpp"
#include "triggered/send_queue.hpp"
#include "triggered/shm_put_queue.hpp"

namespace pl::stream {

class lane_carrier final : public outlet, public service_task {
 public:
  static constexpr std::uint64_t kMostChunks = 256;  // queued: with their copies half of the driver's queue

  // `theirs`: whose service thread takes from `ours`.
  lane_carrier(std::shared_ptr<channel_core> core, service& watch, landing& windows, lane_pool::lane ours, lane_view theirs,
               std::shared_ptr<wake_bell> their_bell, const lane_cut& cut);

  // ---- The channel's thread
  bool has_room(std::uint64_t bytes) const noexcept override;
  void publish(const put& transfer) noexcept override;
  void take_back() noexcept override;
  std::uint64_t pieces() const noexcept override;
  piece piece_at(std::uint64_t number) const noexcept override;
  std::optional<spread> spread_out() const noexcept override;
  void publish_release(std::uint64_t sequence) noexcept override;
  void armed() noexcept override;
  wake_bell& who_carries() const noexcept override { return *their_bell_; }
  std::shared_ptr<wake_bell> share_who_carries() const noexcept override { return their_bell_; }
  bool must_listen() const noexcept override { return false; }
  cu::device_ptr doorbell_word() const noexcept override { return ours_.gpu(&ours_->doorbell); }
  cu::device_ptr consumed_word() const noexcept override { return ours_.gpu(&ours_->consumed); }
  cu::device_ptr sent_word() const noexcept override { return 0; }
  std::uint64_t kernel_limit() const noexcept override { return kInlineBytes; }
  std::string report() const override;

  // ---- The service thread
  bool advance(bool has_heard) override;
  void stop() override;
  bool drain() override;
  void give_up() override {}
  bool has_carried() const noexcept override;
  carried sent() const noexcept override { return {ours_->landed.count(), ours_->acked.count()}; }
  bool has_got(const carried& theirs) const noexcept override { return landed_ >= theirs.data && acked_ >= theirs.credits; }
  bool expects_bell() const noexcept override;
  bool needs_messages() const noexcept override { return false; }

 private:
  bool take_puts(bool is_landing);
  bool take_put(std::uint64_t number, bool is_whole, bool is_landing);
  status take_chunks(std::uint64_t chunks, bool is_whole, bool is_landing);
  bool is_chunk_here(std::uint64_t chunk) const noexcept;
  std::uint64_t chunks_here(const lane_put& transfer) const noexcept {
    return chunks_of(transfer.bytes, transfer.chunk_bytes);
  }
  std::uint64_t slot_awaited(std::uint64_t chunk) const noexcept;
  status land(const lane_put& transfer, std::uint64_t offset, const std::byte* bytes, std::uint64_t count);
  bool take_releases(bool is_stored);
  bool free_slots();
  bool is_theirs_alive() const noexcept { return theirs_->use.load(std::memory_order_seq_cst) == theirs_.use(); }

  const std::shared_ptr<channel_core> core_;
  service& watch_;
  landing& windows_;
  const lane_pool::lane ours_;
  const lane_view theirs_;
  const std::shared_ptr<wake_bell> their_bell_;
  const lane_cut cut_;

  // Of the channel's thread.
  put last_;
  std::uint64_t last_first_ = 0;  // its first chunk
  std::uint64_t last_chunk_bytes_ = 0;
  std::atomic<std::uint64_t> chunks_{0};  // of all puts

  // Of the service thread.
  std::uint64_t landed_ = 0, landed_chunks_ = 0, part_ = 0, acked_ = 0, staged_ = 0;
  lane_put current_{};  // the put of which `part_` chunks have landed
};

}  // namespace pl::stream
