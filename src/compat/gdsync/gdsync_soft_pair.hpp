// SPDX-License-Identifier: Apache-2.0
// A queue pair whose adapter is a thread. Streams (or the CPU) write a send's number to its doorbell. The thread reads its
// memory, passes it to the peer's thread through shared memory, and counts completions in words on which streams wait. As
// with a real adapter, memory is read between doorbell and completion, and written before the receiver's completion.
//
// Each send has a doorbell of its own, and each wait a word that tells that it has passed: streams that are not ordered
// among each other write them in any order, and one word for all could go back to a smaller number.
//
// Counts are cyclic with 32 bits, as libgdsync's descriptors compare them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "copy/gpu_context.hpp"
#include "copy/mapping_cache.hpp"
#include "triggered/shared_memory.hpp"

namespace pl::gds {

// Part of a message: host memory, or GPU memory as the CPU reaches it.
struct soft_piece {
  char* data = nullptr;
  std::size_t bytes = 0;
  bool is_device = false;
  std::shared_ptr<copy::mapping_cache::hold> mapping;
};

struct soft_work {
  std::uint64_t id = 0;  // the caller's
  std::vector<soft_piece> pieces;
  bool is_signaled = true;
  bool is_unreadable = false;  // its memory was gone when it was to leave
};

struct soft_completion {
  std::uint64_t id = 0;
  std::uint32_t bytes = 0;
  enum class outcome : std::uint8_t { success, too_long, no_memory } result = outcome::success;
};

class soft_pair {
 public:
  static constexpr std::size_t kMaxBytes = 1u << 20;

  // Plain bytes.
  struct address {
    triggered::shared_memory::name memory;
    std::uint64_t boot = 0, pid_namespace = 0;
  };

  // Its words are registered with the current CUDA context.
  static result<std::shared_ptr<soft_pair>> make(const copy::gpu_context& context, unsigned sends, unsigned receives);
  ~soft_pair();
  soft_pair(const soft_pair&) = delete;
  soft_pair& operator=(const soft_pair&) = delete;

  address own_address() const;
  status connect(const address& destination);  // also to its own

  // ---- Any thread
  // Returns the number of the send, which leaves once its doorbell has that value and those before it have left. ENOMEM:
  // too many sends are pending.
  result<std::uint32_t> prepare(soft_work work);
  void take_back();  // the last prepared one
  status receive(soft_work work);

  enum class side { send, receive };
  // The words that a stream writes and waits for, in host memory that CUDA knows.
  std::uint32_t* doorbell(std::uint32_t number) const noexcept { return &ours().doorbells[number % kDoorbells].number; }
  // For kernels that update an adapter's doorbell record; nobody reads it.
  std::uint32_t* doorbell_record() const noexcept { return &ours().doorbell_record; }
  std::uint32_t* completed(side direction) const noexcept { return &ours().completed[index(direction)]; }
  std::uint32_t* passed(side direction, std::uint32_t number) const noexcept {
    return &ours().passed[index(direction)][number % kWaits];
  }
  // No stream waits for completion `number`.
  void give_up(side direction, std::uint32_t number);
  // The next completion that the CPU may take. Completions for which `waits` streams wait follow only once the streams
  // have passed them, or the wait was given up.
  std::optional<soft_completion> poll(side direction, std::uint32_t waits);
  // Nothing is moved any more, and streams that wait for completions up to these numbers continue.
  void close(std::uint32_t send_waits, std::uint32_t receive_waits);

  // ---- The adapter's thread
  // Returns true if something was moved.
  bool advance();

 private:
  static constexpr unsigned kSlots = 8;
  static constexpr std::uint32_t kDropped = ~0u;  // the bytes of a message that its sender could not read
  // More sends than this are never pending. More waits than this may be: the CPU then gets a completion for which a stream
  // that is so far behind still waits.
  static constexpr unsigned kDoorbells = 4096, kWaits = 4096;
  struct doorbell_word {
    std::uint32_t number, unused;  // adapters' doorbells have 8 bytes
  };
  struct words {
    alignas(64) std::uint32_t completed[2];
    alignas(64) std::uint32_t doorbell_record;
    alignas(64) std::atomic<std::uint32_t> ready;  // sends whose bytes lie in their slot
    alignas(64) std::atomic<std::uint32_t> taken;  // by the peer's adapter
    std::uint32_t bytes[kSlots];
    alignas(64) doorbell_word doorbells[kDoorbells];
    alignas(64) std::uint32_t passed[2][kWaits];
  };
  static constexpr std::size_t kWordsBytes = 17 * 4096;
  static constexpr std::size_t kMemoryBytes = kWordsBytes + kSlots * kMaxBytes;
  static_assert(sizeof(words) <= kWordsBytes);

  soft_pair(const copy::gpu_context& context, triggered::shared_memory memory, unsigned sends, unsigned receives)
      : context_(context), memory_(std::move(memory)), most_{std::min(sends, kDoorbells), receives} {}
  static unsigned index(side direction) noexcept { return static_cast<unsigned>(direction); }
  static words& words_in(const triggered::shared_memory& memory) noexcept {
    return *reinterpret_cast<words*>(memory.data());
  }
  static char* slot_in(const triggered::shared_memory& memory, std::uint32_t number) noexcept {
    return reinterpret_cast<char*>(memory.data()) + kWordsBytes + number % kSlots * kMaxBytes;
  }
  words& ours() const noexcept { return words_in(memory_); }
  bool gather();
  bool take();
  static soft_completion deliver(const soft_work& work, const char* origin, std::size_t bytes);
  bool complete_sends();
  void complete(side direction, const soft_completion& completion);

  const copy::gpu_context context_;
  triggered::shared_memory memory_;
  const std::size_t most_[2];
  bool is_registered_ = false;

  std::mutex mutex_;  // guards everything below
  std::optional<triggered::shared_memory> theirs_;
  bool is_closed_ = false;
  std::deque<soft_work> sends_;  // not completed yet; the first is number `left_` + 1
  std::deque<soft_work> receives_;
  std::uint32_t prepared_ = 0, gathered_ = 0, left_ = 0, got_ = 0;
  std::deque<soft_completion> done_[2];
  std::uint32_t counted_[2] = {0, 0};  // completions so far
  std::uint32_t polled_[2] = {0, 0};
  std::set<std::uint32_t> given_up_[2];  // completions that were not polled yet
};

// Runs the pair on the adapter thread. Starts the thread.
void attach_to_adapter(const std::shared_ptr<soft_pair>& pair);
// Returns when the adapter thread has left the pair alone for good: its end may wait for streams, and with it all other
// pairs if the thread came to it.
void detach_from_adapter(const std::shared_ptr<soft_pair>& pair);

// A part of a message for the CPU. ENOTSUP: GPU memory that cannot be mapped; EFAULT: no memory.
result<soft_piece> piece_at(const cu::driver_table& cuda, std::uint64_t address, std::size_t bytes);

}  // namespace pl::gds
