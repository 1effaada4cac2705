// SPDX-License-Identifier: Apache-2.0
// The counters of the two ends of a channel, and where they are placed.
//
// A word lies near the side that polls it, and the other side writes it once across the link (docs/design/0003). Every word
// has one writer at a time, only grows, and is compared cyclically, so no word is reset under a wait. Graph words are the
// exception: they are 0 or 1, because a captured graph cannot use growing values, and only the waiting end resets them.
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

namespace pl::triggered {

// A word with this bit satisfies every wait for a count. It releases a stream when the awaited operation will not come.
// Counts stay below it: 2^62 operations at one a nanosecond are 146 years.
inline constexpr std::uint64_t kPoisonBit = 1ull << 62;
inline constexpr std::uint64_t poison(int code) noexcept { return kPoisonBit | static_cast<std::uint32_t>(code); }
inline constexpr bool is_poisoned(std::uint64_t word) noexcept { return (word & kPoisonBit) != 0; }
inline constexpr int poison_code(std::uint64_t word) noexcept { return static_cast<int>(static_cast<std::uint32_t>(word)); }

inline constexpr unsigned kGraphSlots = 64;  // captured puts of one channel and direction
inline constexpr unsigned kSelfTestWords = 128;

// In the memory of the GPU that waits for them. Written by the peer GPU's front end, or by this process's proxy thread
// through a CPU mapping.
struct alignas(4096) gpu_words {
  alignas(64) std::uint64_t signal;          // puts and signals that have arrived
  alignas(64) std::uint64_t ack;             // our puts that the peer has released
  alignas(64) std::uint64_t staged;          // chunks that have left their staging slot (executor X)
  alignas(64) std::uint64_t scratch_signal;  // source values of the flag writer `copied`
  std::uint64_t scratch_ack;
  std::uint64_t one;  // always 1: the source value of that writer in graphs
  // For counted captured operations (graph_slots.hpp): puts that have arrived, puts that the peer has released, and the
  // puts, waits and releases that this end's kernels have counted.
  alignas(64) std::uint64_t graph_signal;
  alignas(64) std::uint64_t graph_released;
  alignas(64) std::uint64_t graph_puts;
  std::uint64_t graph_waits;
  std::uint64_t graph_releases;
  std::uint64_t spread;  // pieces of the put in progress whose thread blocks have ended (executor X)
  alignas(64) std::uint64_t graph_flag[kGraphSlots];
  alignas(64) std::uint64_t graph_ack[kGraphSlots];  // 1: the slot may be used again
  // The visibility self-test (visibility_self_test.hpp): the peer writes the flag and the data here; `self_test_source` is
  // what this end sends.
  alignas(64) std::uint64_t self_test_flag;
  alignas(64) std::uint64_t self_test_data[kSelfTestWords];
  alignas(64) std::uint64_t self_test_source[kSelfTestWords];
};
static_assert(sizeof(gpu_words) == 4096);

// The words on which a stream may wait, except `staged`. Releasing a stream writes all of them.
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
  alignas(64) std::uint64_t doorbell;  // chunks that are ready in their staging slot (executor X)
  std::uint64_t consumed;              // the peer's puts that this end has released
  // Waits that a stream has reached. The awaited word itself shows that a stream has passed: a write behind the wait would
  // delay the next kernel after the peer's signal (1.6 us on an H200).
  alignas(64) std::uint64_t reached;
  std::uint64_t sent;                              // puts and signals that were sent
  alignas(64) std::uint64_t status;                // 0 or an errno, written by the CPU; kernels may read it
  std::uint64_t passed;                            // waits that have ended; written only if the CPU cannot read GPU memory
  std::uint64_t put_reached;                       // puts with a wait for a release that a stream has reached
  std::uint64_t graph_reached, graph_put_reached;  // the same two, for counted captured operations
  std::uint64_t executor_error;                    // 0 or an errno, written by a kernel that could not post (executor D)
  alignas(64) std::uint64_t graph_doorbell[kGraphSlots];
  alignas(64) std::uint64_t graph_wait_place[kGraphSlots];  // state of a captured wait: graph_place
  alignas(64) std::uint64_t self_test[kSelfTestWords];      // read back from the peer's GPU
};
static_assert(sizeof(host_words) == 4096);

// The words of all channels of one context: one allocation on the GPU, mapped for the CPU, and one of pinned memory.
// take() and give_back() from one thread at a time; the words themselves from any.
class word_pool {
 public:
  // `channels`: the maximum at a time. Without a mapping (see why_unmapped()) the CPU cannot write GPU words, and a
  // dedicated stream releases waits.
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
  // Whether waiting streams can be released, by the mapping or by a stream. See why_no_stuck_release().
  bool can_release() const noexcept { return is_mapped() || stuck_release_ != nullptr; }
  const std::string& why_no_stuck_release() const noexcept { return why_no_stuck_release_; }
  // Writes `value` to every word of a channel on which a stream may wait: immediately through the mapping, soon without it,
  // never if !can_release(). Any thread; makes no CUDA call. `with_staged`: also writes the word that counts free staging
  // slots.
  void poison_all(unsigned index, std::uint64_t value, bool with_staged) const noexcept;
  // A store that the GPU sees: data stored before it through the mapping is visible first. Precondition: is_mapped().
  void store(unsigned index, std::size_t offset, std::uint64_t value) const noexcept;
  // About 1 us. Precondition: is_mapped().
  std::uint64_t load(unsigned index, std::size_t offset) const noexcept;

 private:
  explicit word_pool(const copy::gpu_context& context, unsigned channels) : context_(context), channels_(channels) {}
  status allocate();
  void map();
  void open_stuck_release();

  copy::gpu_context context_;
  unsigned channels_;
  cu::device_ptr gpu_ = 0;
  copy::pinned_buffer host_;
  std::unique_ptr<copy::mapping_cache> cache_;
  copy::mapping_cache::hold mapped_;
  std::string why_unmapped_;
  std::unique_ptr<stuck_release> stuck_release_;  // where there is no mapping
  std::string why_no_stuck_release_;
  std::vector<bool> used_;
};

}  // namespace pl::triggered
