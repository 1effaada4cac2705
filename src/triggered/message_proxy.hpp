// SPDX-License-Identifier: Apache-2.0
// Executor X by messages, for processes that share no memory: the proxy thread sends what the stream has staged, stores
// what arrives, and forwards releases.
//
// A put is divided into pieces, which are numbered from 1 over all puts. A small put is one piece with its own place. A
// large put is divided into chunks, which use a few slots. The stream writes a piece to pinned memory and then its number to
// the doorbell, and the proxy thread sends it from there. Over a network without RDMA, a chunk is sent as several messages,
// each short enough to be sent with its header: a handshake would take as long as the chunk, and the receiver can store one
// message while the next one arrives.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "messaging/messenger.hpp"
#include "triggered/channel_core.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/receive_slots.hpp"
#include "triggered/send_queue.hpp"
#include "triggered/shm_put_queue.hpp"
#include "triggered/staging.hpp"

namespace pl::triggered {

// Header of a piece. Plain bytes.
struct chunk_head {
  std::uint32_t magic = kMagic;
  std::uint32_t window = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;       // the put that ends with this piece; 0: none
  std::uint64_t message_bytes = 0;  // bytes of the piece in each of its messages, except the last
  static constexpr std::uint32_t kMagic = 0x706c7832;
};
// Follows a piece that is sent as several messages. Shows that the piece was still valid when its last message was sent.
struct chunk_tail {
  std::uint64_t magic = kMagic;
  std::uint64_t offset = 0;
  static constexpr std::uint64_t kMagic = 0x32786c70656e64ull;
};
static_assert(sizeof(chunk_head) <= kHeadBytes && sizeof(chunk_tail) <= kHeadBytes);
static_assert(kShmChunkBytes <= kChunkBytes);

class message_proxy final : public send_queue, public proxy_task {
 public:
  static constexpr std::uint64_t kPuts = kSmallSlots;  // limit of puts whose messages have not been sent
  // Pieces queued on streams. With their copies, they fill half of the driver's queue.
  static constexpr std::uint64_t kMaxQueued = 256;

  // `message_bytes`: a larger piece is divided into messages of this size; 0: never.
  message_proxy(std::shared_ptr<channel_core> core, messaging::messenger& messages, proxy_thread& proxy,
                receive_slots& windows, staging_pool::ring slots, const put_chunking& chunking, std::size_t message_bytes);

  // Waits for copies of the receive engine, which read from the ring.
  ~message_proxy() override;

  // ---- The channel's thread
  bool has_room(std::uint64_t bytes) const noexcept override;
  void publish(const put& transfer) noexcept override;
  void take_back() noexcept override;
  std::uint64_t pieces() const noexcept override { return last().pieces; }
  piece piece_at(std::uint64_t number) const noexcept override;
  void publish_release(std::uint64_t sequence) noexcept override;
  void armed() noexcept override;
  thread_wakeup& consumer_wakeup() const noexcept override { return *proxy_.wakeup(); }
  std::shared_ptr<thread_wakeup> share_consumer_wakeup() const noexcept override { return proxy_.wakeup(); }
  bool needs_wakeup() const noexcept override { return proxy_.wakeup()->is_asleep(); }
  cu::device_ptr doorbell_word() const noexcept override { return host() + offsetof(host_words, doorbell); }
  cu::device_ptr consumed_word() const noexcept override { return host() + offsetof(host_words, consumed); }
  cu::device_ptr sent_word() const noexcept override { return host() + offsetof(host_words, sent); }
  std::uint64_t kernel_limit() const noexcept override { return kSmallBytes; }
  std::string report() const override;

  // ---- The proxy thread
  bool advance(bool is_round_of_messages) override;
  void stop() override;
  bool drain() override;
  void give_up() override;
  bool has_sent_all() const noexcept override;
  message_counts sent() const noexcept override { return {messages_begun_, credits_sent_}; }
  bool has_received(const message_counts& theirs) const noexcept override {
    return got_ >= theirs.data && credits_got_ >= theirs.credits && copies_ended_ == copies_begun_;
  }
  bool expects_doorbell() const noexcept override;
  bool needs_messages() const noexcept override { return true; }
  bool awaits_message() const noexcept override;

 private:
  static constexpr unsigned kInbox = kInboxSlots, kSends = 64;
  // For shorter pieces, the CPU's stores are faster than the start of an engine's copy.
  static constexpr std::uint64_t kEngineBytes = 16 << 10;
  struct chunked_put : put {
    std::uint64_t first = 0, pieces = 0, chunk_bytes = 0;
    std::uint64_t first_chunk = 0;  // 0: a small put
  };
  const chunked_put& last() const noexcept { return puts_[(puts_in_.load(std::memory_order_relaxed) - 1) % kPuts]; }
  cu::device_ptr host() const noexcept { return core_->words->host_on_gpu(core_->index); }
  std::byte* place_of(std::uint64_t put_index, std::uint64_t piece_index) const noexcept;
  static std::uint64_t bytes_of(const chunked_put& transfer, std::uint64_t piece_index) noexcept;
  bool send_rung();
  void begin_piece(std::uint64_t number);
  void send_next_message();
  bool retire();
  bool send_credit();
  bool take_data();
  bool take_credits();
  status take_message(unsigned index, std::uint64_t bytes);
  status take_head(const std::byte* message, std::uint64_t bytes);
  status check_part(const std::byte* part, std::uint64_t bytes);
  status store_part(unsigned index, const std::byte* part, std::uint64_t bytes);
  result<bool> begin_copy(unsigned index, const std::byte* part, std::uint64_t bytes);
  bool end_copies();
  void signal(std::uint64_t sequence);
  void expect_data(unsigned index);
  void expect_credit();
  void fail(const failure& reason);
  bool is_alive() const noexcept { return !is_stopped_ && core_->error.load(std::memory_order_acquire) == 0; }
  std::uint64_t tag(message_kind kind) const noexcept { return tag_of(kind, core_->id, core_->incarnation); }
  std::uint64_t rung() const noexcept { return __atomic_load_n(&core_->host().doorbell, __ATOMIC_ACQUIRE); }
  std::uint64_t consumed() const noexcept { return __atomic_load_n(&core_->host().consumed, __ATOMIC_ACQUIRE); }

  const std::shared_ptr<channel_core> core_;
  messaging::messenger& messages_;
  proxy_thread& proxy_;
  receive_slots& windows_;
  staging_pool::ring slots_;
  const put_chunking chunking_;
  const std::size_t message_bytes_;

  // Written by the channel's thread.
  std::array<chunked_put, kPuts> puts_;
  std::uint64_t chunks_ = 0;  // of large puts
  std::atomic<std::uint64_t> puts_in_{0}, queued_{0}, release_{0}, armed_{0}, release_armed_{0};
  // Written by the proxy thread. Puts, pieces and chunks whose messages have left.
  alignas(64) std::atomic<std::uint64_t> puts_left_{0}, left_{0}, chunks_left_{0};
  std::uint64_t puts_begun_ = 0, begun_ = 0;  // the piece in progress is begun_ + 1
  struct piece_in_flight {
    std::byte* place = nullptr;  // null: none
    std::uint64_t bytes = 0, sent = 0, message_bytes = 0;
    bool ends_put = false, is_chunk = false;
  };
  piece_in_flight current_;
  // The messages in progress, numbered from 1.
  struct sent_message {
    messaging::request sending;
    std::byte* place = nullptr;  // of its piece
    std::uint64_t piece_bytes = 0;
    bool ends_piece = false, ends_put = false, is_chunk = false;
  };
  std::array<sent_message, kSends> sends_;
  std::uint64_t messages_begun_ = 0, messages_left_ = 0;
  std::uint64_t credit_ = 0;  // in the message in progress
  std::uint64_t credits_sent_ = 0;
  messaging::request credit_sending_;

  // Message n is received into place n % kInbox, which is free again when its bytes are in the window.
  std::array<messaging::request, kInbox> inbox_;
  std::atomic<std::uint64_t> got_{0};
  // Copies of the receive engine in progress, in order. The CPU stores nothing meanwhile, so that puts stay in order.
  struct copy_in_flight {
    dma::sequence number = 0;
    unsigned index = 0;          // in the inbox
    std::uint64_t sequence = 0;  // of the put that ends with it, else 0
  };
  std::array<copy_in_flight, kInbox> copies_;
  std::uint64_t copies_begun_ = 0, copies_ended_ = 0;
  chunk_head arriving_;              // the piece whose messages are arriving
  std::uint64_t arriving_left_ = 0;  // its bytes that have not arrived
  // Of the last put that has arrived completely, and of the last that was signalled.
  std::uint64_t taken_sequence_ = 0, last_sequence_ = 0;
  std::uint64_t credit_in_ = 0, acked_ = 0, credits_got_ = 0;
  messaging::request credit_coming_;
  bool is_stopped_ = false;
};

}  // namespace pl::triggered
