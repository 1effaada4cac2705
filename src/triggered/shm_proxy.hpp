// SPDX-License-Identifier: Apache-2.0
// Executor X between processes of one node: the streams of this end write puts to a shm queue, and the proxy thread here
// takes puts from the queue of the peer (shm_put_queue.hpp). Messages only report that an end closes or has failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "triggered/channel_core.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/receive_slots.hpp"
#include "triggered/send_queue.hpp"
#include "triggered/shm_put_queue.hpp"

namespace pl::triggered {

class shm_proxy final : public send_queue, public proxy_task {
 public:
  static constexpr std::uint64_t kMaxChunks = 256;  // queued; with their copies they fill half of the driver's queue

  // `theirs`: the queue of the peer, whose proxy thread takes from `ours`.
  shm_proxy(std::shared_ptr<channel_core> core, proxy_thread& proxy, receive_slots& windows, shm_queue_pool::shm_queue ours,
            shm_queue_view theirs, std::shared_ptr<thread_wakeup> peer_wakeup, const put_chunking& chunking);

  // ---- The channel's thread
  bool has_room(std::uint64_t bytes) const noexcept override;
  void publish(const put& transfer) noexcept override;
  void take_back() noexcept override;
  std::uint64_t pieces() const noexcept override;
  piece piece_at(std::uint64_t number) const noexcept override;
  std::optional<spread> spread_out() const noexcept override;
  void publish_release(std::uint64_t sequence) noexcept override;
  void armed() noexcept override;
  thread_wakeup& consumer_wakeup() const noexcept override { return *peer_wakeup_; }
  std::shared_ptr<thread_wakeup> share_consumer_wakeup() const noexcept override { return peer_wakeup_; }
  bool needs_wakeup() const noexcept override { return false; }
  cu::device_ptr doorbell_word() const noexcept override { return ours_.gpu(&ours_->doorbell); }
  cu::device_ptr consumed_word() const noexcept override { return ours_.gpu(&ours_->consumed); }
  cu::device_ptr sent_word() const noexcept override { return 0; }
  std::uint64_t kernel_limit() const noexcept override { return kInlineBytes; }
  std::string report() const override;

  // ---- The proxy thread
  bool advance(bool has_progress) override;
  void stop() override;
  bool drain() override;
  void give_up() override {}
  bool has_sent_all() const noexcept override;
  message_counts sent() const noexcept override { return {ours_->stored.count(), ours_->acked.count()}; }
  bool has_received(const message_counts& theirs) const noexcept override {
    return stored_ >= theirs.data && acked_ >= theirs.credits;
  }
  bool expects_doorbell() const noexcept override;
  bool needs_messages() const noexcept override { return false; }

 private:
  bool take_puts(bool is_storing);
  bool take_put(std::uint64_t number, bool is_whole, bool is_storing);
  status take_chunks(std::uint64_t chunks, bool is_whole, bool is_storing);
  bool is_chunk_here(std::uint64_t chunk) const noexcept;
  std::uint64_t chunks_here(const shm_put& transfer) const noexcept {
    return chunks_of(transfer.bytes, transfer.chunk_bytes);
  }
  std::uint64_t slot_awaited(std::uint64_t chunk) const noexcept;
  status store_chunk(const shm_put& transfer, std::uint64_t offset, const std::byte* bytes, std::uint64_t count);
  bool take_releases(bool is_stored);
  bool free_slots();
  bool is_theirs_alive() const noexcept { return theirs_->use.load(std::memory_order_seq_cst) == theirs_.use(); }

  const std::shared_ptr<channel_core> core_;
  proxy_thread& proxy_;
  receive_slots& windows_;
  const shm_queue_pool::shm_queue ours_;
  const shm_queue_view theirs_;
  const std::shared_ptr<thread_wakeup> peer_wakeup_;
  const put_chunking chunking_;

  // Of the channel's thread.
  put last_;
  std::uint64_t last_first_ = 0;  // its first chunk
  std::uint64_t last_chunk_bytes_ = 0;
  std::atomic<std::uint64_t> chunks_{0};  // of all puts

  // Of the proxy thread.
  std::uint64_t stored_ = 0, stored_chunks_ = 0, part_ = 0, acked_ = 0, staged_ = 0;
  shm_put current_{};  // the put of which `part_` chunks are stored
};

}  // namespace pl::triggered
