// SPDX-License-Identifier: Apache-2.0
// The words with which the two ends of a channel count, and where they lie.
//
// Cost decides the place: who waits, polls near; who writes, writes once across the link (docs/design/0003). Every word has
// one writer at a time, grows, and is compared cyclically, so nothing is ever reset under a wait. Except graph words, which
// are 0 and 1, because values in a captured graph cannot grow; only the end that waited sets them back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "copy/gpu_context.hpp"
#include "copy/mapping_cache.hpp"
#include "copy/pinned_buffer.hpp"
#include "triggered/stuck_release.hpp"

namespace pl::stream {

// A word with this bit satisfies every wait for a count: how a stream is let go when what it waits for will not come.
// Counts stay below it: 2^62 operations at one a nanosecond are 146 years.
inline constexpr std::uint64_t kPoisonBit = 1ull << 62;
inline constexpr std::uint64_t poison(int code) noexcept { return kPoisonBit | static_cast<std::uint32_t>(code); }
inline constexpr bool is_poisoned(std::uint64_t word) noexcept { return (word & kPoisonBit) != 0; }
inline constexpr int poison_code(std::uint64_t word) noexcept { return static_cast<int>(static_cast<std::uint32_t>(word)); }

inline constexpr unsigned kGraphSlots = 64;  // captured puts of one channel and direction
inline constexpr unsigned kLitmusWords = 128;

// In the memory of the GPU that waits for them. Written by the peer GPU's front end, or by this process's service thread
// through a CPU mapping.
struct alignas(4096) gpu_words {
  alignas(64) std::uint64_t signal;          // puts and signals that have arrived
  alignas(64) std::uint64_t ack;             // of ours, that the peer has released
  alignas(64) std::uint64_t staged;          // chunks that have left their staging slot (executor X)
  alignas(64) std::uint64_t scratch_signal;  // of the flag writer that copies: the values to be copied
  std::uint64_t scratch_ack;
  std::uint64_t one;  // 1, for ever: what that writer copies in graphs
  // Of captured operations that count (graph_slots.hpp): what has arrived, what the peer has released, and how many puts,
  // waits and releases this end's kernels have counted.
  alignas(64) std::uint64_t graph_signal;
  alignas(64) std::uint64_t graph_released;
  alignas(64) std::uint64_t graph_puts;
  std::uint64_t graph_waits;
  std::uint64_t graph_releases;
  std::uint64_t spread;  // pieces of the put under way whose blocks have ended (executor X)
  alignas(64) std::uint64_t graph_flag[kGraphSlots];
  alignas(64) std::uint64_t graph_ack[kGraphSlots];  // 1: the slot may be used again
  // Of the peer's litmus (visibility_self_test.hpp), who writes here; and the data that ours sends.
  alignas(64) std::uint64_t litmus_flag;
  alignas(64) std::uint64_t litmus_data[kLitmusWords];
  alignas(64) std::uint64_t litmus_source[kLitmusWords];
};
static_assert(sizeof(gpu_words) == 4096);

// Words on which a stream may wait, but for `staged`: by whom a stream is let go writes all of them.
inline constexpr auto kWaitedWords = [] {
  std::array<std::size_t, 4 + 2 * kGraphSlots> out{offsetof(gpu_words, signal), offsetof(gpu_words, ack),
                                                   offsetof(gpu_words, graph_signal), offsetof(gpu_words, graph_released)};
  for (unsigned slot = 0; slot < kGraphSlots; ++slot) {
    out[4 + slot] = offsetof(gpu_words, graph_flag) + slot * sizeof(std::uint64_t);
    out[4 + kGraphSlots + slot] = offsetof(gpu_words, graph_ack) + slot * sizeof(std::uint64_t);
  }
  return out;
}();

// In pinned host memory: written by this end's own streams, read by the CPU.
struct alignas(4096) host_words {
  alignas(64) std::uint64_t doorbell;  // chunks that lie ready in their staging slot (executor X)
  std::uint64_t consumed;              // puts that our consumer has released
  // Waits that a stream has come to. That it got past one shows in the word it waits for: a write behind the wait would
  // stand between the peer's signal and the next kernel (1.6 us on an H200).
  alignas(64) std::uint64_t reached;
  std::uint64_t sent;                // puts and signals that have left
  alignas(64) std::uint64_t status;  // 0 or an errno, written by the CPU; kernels may read it
  std::uint64_t passed;       // as `reached`, of waits that are over; written only where the CPU cannot read GPU memory
  std::uint64_t put_reached;  // puts that had to ask for a release and that a stream has come to
  std::uint64_t graph_reached, graph_put_reached;  // as both, of captured operations that count
  alignas(64) std::uint64_t graph_doorbell[kGraphSlots];
  alignas(64) std::uint64_t graph_at[kGraphSlots];  // where a captured wait stands: graph_place
  alignas(64) std::uint64_t litmus[kLitmusWords];   // what has come back from the peer's GPU
};
static_assert(sizeof(host_words) == 4096);

// The words of all channels of one context: one allocation on the GPU, mapped for the CPU, and one of pinned memory.
// take() and give_back() from one thread at a time; the words themselves from any.
class word_pool {
 public:
  // `channels`: most at a time. Without a mapping (`why_unmapped` tells) the CPU cannot write GPU words: waits are then
  // released by a stream of their own.
  static result<std::unique_ptr<word_pool>> make(const copy::gpu_context& context, unsigned channels);
  ~word_pool();
  word_pool(const word_pool&) = delete;
  word_pool& operator=(const word_pool&) = delete;

  // Zeroed, graph_ack and `one` 1. ENOSPC: all in use.
  result<unsigned> take();
  void give_back(unsigned index) noexcept;

  cu::device_ptr allocation() const noexcept { return gpu_; }
  std::size_t size_bytes() const noexcept { return std::size_t{channels_} * sizeof(gpu_words); }
  cu::device_ptr gpu(unsigned index) const noexcept { return gpu_ + std::uint64_t{index} * sizeof(gpu_words); }
  cu::device_ptr host_on_gpu(unsigned index) const noexcept {
    return host_.device_address() + std::uint64_t{index} * sizeof(host_words);
  }
  host_words& host(unsigned index) const noexcept { return reinterpret_cast<host_words*>(host_.data())[index]; }

  bool is_mapped() const noexcept { return mapped_.data != nullptr; }
  const std::string& why_unmapped() const noexcept { return why_unmapped_; }
  // Whether streams that wait can be let go: by the mapping, or by a stream. `why_no_rescue` tells.
  bool can_release() const noexcept { return is_mapped() || rescue_ != nullptr; }
  const std::string& why_no_rescue() const noexcept { return why_no_rescue_; }
  // Every word of a channel on which a stream may wait becomes `value`: at once through the mapping, soon without it,
  // never if !can_release(). Any thread; makes no CUDA call.
  // `with_staged`: also the word that says which staging slots are free.
  void poison_all(unsigned index, std::uint64_t value, bool with_staged) const noexcept;
  // A store that the GPU sees: data stored before it through the mapping is visible first. Precondition: is_mapped().
  void store(unsigned index, std::size_t offset, std::uint64_t value) const noexcept;
  // About 1 us. Precondition: is_mapped().
  std::uint64_t load(unsigned index, std::size_t offset) const noexcept;

 private:
  explicit word_pool(const copy::gpu_context& context, unsigned channels) : context_(context), channels_(channels) {}
  status allocate();
  void map();
  void open_rescue();

  copy::gpu_context context_;
  unsigned channels_;
  cu::device_ptr gpu_ = 0;
  copy::pinned_buffer host_;
  std::unique_ptr<copy::mapping_cache> cache_;
  copy::mapping_cache::hold mapped_;
  std::string why_unmapped_;
  std::unique_ptr<rescue> rescue_;  // where there is no mapping
  std::string why_no_rescue_;
  std::vector<bool> used_;
};

}  // namespace pl::stream
