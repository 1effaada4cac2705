// SPDX-License-Identifier: Apache-2.0
// Executor X by messages, for processes that share no memory: the proxy thread sends what the stream has staged, stores
// what arrives, and forwards releases.
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

// Header of a chunk. Plain bytes.
struct chunk_head {
  std::uint32_t magic = kMagic;
  std::uint32_t window = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  // the put that ends with this chunk, else 0
  static constexpr std::uint32_t kMagic = 0x706c7831;
};
static_assert(sizeof(chunk_head) <= kHeadBytes);
static_assert(kShmChunkBytes <= kChunkBytes);

class message_proxy final : public send_queue, public proxy_task {
 public:
  static constexpr std::uint64_t kPuts = 1024;      // that have not been sent
  static constexpr std::uint64_t kMaxQueued = 256;  // chunks on streams: with their copies half of the driver's queue

  message_proxy(std::shared_ptr<channel_core> core, messaging::messenger& messages, proxy_thread& proxy,
                receive_slots& windows, staging_pool::ring slots, const put_chunking& chunking);

  // ---- The channel's thread
  bool has_room(std::uint64_t bytes) const noexcept override;
  void publish(const put& transfer) noexcept override;
  void take_back() noexcept override;
  std::uint64_t pieces() const noexcept override { return last().chunks; }
  piece piece_at(std::uint64_t number) const noexcept override;
  void publish_release(std::uint64_t sequence) noexcept override;
  void armed() noexcept override;
  thread_wakeup& consumer_wakeup() const noexcept override { return *proxy_.wakeup(); }
  std::shared_ptr<thread_wakeup> share_consumer_wakeup() const noexcept override { return proxy_.wakeup(); }
  bool needs_wakeup() const noexcept override { return proxy_.wakeup()->is_asleep(); }
  cu::device_ptr doorbell_word() const noexcept override { return host() + offsetof(host_words, doorbell); }
  cu::device_ptr consumed_word() const noexcept override { return host() + offsetof(host_words, consumed); }
  cu::device_ptr sent_word() const noexcept override { return host() + offsetof(host_words, sent); }
  std::uint64_t kernel_limit() const noexcept override { return 8 << 10; }
  std::string report() const override;

  // ---- The proxy thread
  bool advance(bool has_progress) override;
  void stop() override;
  bool drain() override;
  void give_up() override;
  bool has_sent_all() const noexcept override;
  message_counts sent() const noexcept override { return {begun_, credits_sent_}; }
  bool has_received(const message_counts& theirs) const noexcept override {
    return got_ >= theirs.data && credits_got_ >= theirs.credits;
  }
  bool expects_doorbell() const noexcept override;
  bool needs_messages() const noexcept override { return true; }

 private:
  static constexpr unsigned kInbox = 8;
  // Chunks are counted from 1, over all puts.
  struct chunked_put : put {
    std::uint64_t first = 0, chunks = 0, chunk_bytes = 0;
  };
  const chunked_put& last() const noexcept { return puts_[(puts_in_.load(std::memory_order_relaxed) - 1) % kPuts]; }
  cu::device_ptr host() const noexcept { return core_->words->host_on_gpu(core_->index); }
  bool send_rung();
  void send(std::uint64_t chunk);
  bool retire();
  bool send_credit();
  bool take_data();
  bool take_credits();
  status store_chunk(const std::byte* message, const messaging::message_info& info);
  void expect_data(unsigned index);
  void expect_credit();
  void fail(const failure& reason);
  std::uint64_t tag(message_kind kind) const noexcept { return tag_of(kind, core_->id, core_->incarnation); }
  std::uint64_t rung() const noexcept { return __atomic_load_n(&core_->host().doorbell, __ATOMIC_ACQUIRE); }
  std::uint64_t consumed() const noexcept { return __atomic_load_n(&core_->host().consumed, __ATOMIC_ACQUIRE); }

  const std::shared_ptr<channel_core> core_;
  messaging::messenger& messages_;
  proxy_thread& proxy_;
  receive_slots& windows_;
  staging_pool::ring slots_;
  const put_chunking chunking_;

  // Written by the channel's thread.
  std::array<chunked_put, kPuts> puts_;
  std::atomic<std::uint64_t> puts_in_{0}, queued_{0}, release_{0}, armed_{0}, release_armed_{0};
  // Written by the proxy thread.
  alignas(64) std::atomic<std::uint64_t> puts_out_{0}, left_{0};
  std::uint64_t begun_ = 0;
  std::array<messaging::request, kSlots> sends_;
  std::uint64_t credit_ = 0;  // in the message under way
  std::uint64_t credits_sent_ = 0;
  messaging::request credit_sending_;

  struct inbox_message {
    std::unique_ptr<std::byte[]> bytes;
    messaging::request coming;
  };
  std::array<inbox_message, kInbox> inbox_;
  std::atomic<std::uint64_t> got_{0};
  std::uint64_t last_sequence_ = 0;
  std::uint64_t credit_in_ = 0, credits_got_ = 0;
  messaging::request credit_coming_;
  unsigned quiet_rounds_ = 0;
  bool is_stopped_ = false;
};

}  // namespace pl::triggered
