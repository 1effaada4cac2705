// SPDX-License-Identifier: Apache-2.0
// A DMA channel whose every word is the program's, and the ways to end a copy that are compared.
#pragma once

#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "bench/channel_setup.hpp"
#include "dma/commands.hpp"

namespace pl::bench {

namespace launch = dma::launch;

constexpr std::uint64_t kGiveUpNs = 200'000'000;
constexpr std::size_t kSlotBytes = 64u << 10, kSlots = 512;
constexpr std::size_t kThreadBytes = 2u << 20;
constexpr std::size_t kLoadBytes = 32u << 20;
constexpr std::size_t kBigBytes = 16u << 20;  // of plain copies
constexpr unsigned kMaxThreads = 10;

inline std::uint32_t pattern(std::uint32_t slot) { return (slot + 1) * 2654435761u; }

// ---- A channel whose every word is ours

enum class fences { three, before_position_and_doorbell, before_doorbell, none };

class raw_channel {
 public:
  static constexpr std::uint32_t kEntries = 1024, kSlotWords = 128;
  static constexpr std::uint64_t kUserWords = 0x10000, kCommands = 0x20000, kMemory = 2u << 20;

  raw_channel(std::shared_ptr<dma::address_space> space, unsigned engine) : space_(std::move(space)) {
    auto& objects = space_->objects();
    memory_ = need(space_->make_device_memory(kMemory), "ring memory");
    view_ = static_cast<std::byte*>(
        need(objects.owner().map(objects.device(), memory_.memory, 0, kMemory, nullptr), "map").address);
    arch::fill_to(arch::mapping_type::wc, view_, 0, kCommands);
    arch::publish_to_device(arch::mapping_type::wc);
    pages_ = static_cast<std::byte*>(
        mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    std::memset(pages_, 0, 3 * 4096);
    host_ = need(space_->bind_host(pages_, 3 * 4096), "completion pages");
    rm::channel_objects::channel_request request;
    request.address_space = space_->handle();
    request.engine = engine;
    request.ring_address = memory_.bound.address();
    request.ring_entries = kEntries;
    request.user_words_memory = memory_.memory;
    request.user_words_offset = kUserWords;
    request.error_memory = host_.memory();
    handles_ = need(objects.make_channel(request), "channel");
    doorbell_ = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(need(space_->map_doorbell(), "doorbell").address) +
                                                 rm::kDoorbellOffset);
    dma::command_writer first(room_);
    first.set_object(objects.copy_class());
    name(first, 1);
    first.launch(launch::kReleaseWord);
    need(submit(first.words()) && wait(), "the first command");
  }
  ~raw_channel() { space_->objects().release(handles_.group); }

  std::uint32_t* room() { return room_; }
  std::uint32_t next() const { return number_ + 1; }
  std::uint64_t word_address() const { return host_.address() + 4096; }
  std::uint64_t spare_address() const { return host_.address() + 8192; }
  void name(dma::command_writer& writer, std::uint32_t number) const { writer.completion(word_address(), number); }
  std::uint32_t seen() const {
    return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(pages_ + 4096), __ATOMIC_ACQUIRE);
  }
  const std::uint32_t* spare() const { return reinterpret_cast<const std::uint32_t*>(pages_ + 8192); }
  bool is_broken() const { return reinterpret_cast<const rm::notification*>(pages_)->status != 0; }

  // room()[0, words) become operation next(). The slot of operation n is n modulo the number of slots: fixed.
  bool submit(std::size_t words, fences fencing = fences::three) {
    constexpr auto kView = arch::mapping_type::wc;
    const std::uint32_t slot = number_ % (kEntries - 1);
    const std::uint64_t offset = kCommands + std::uint64_t{slot} * kSlotWords * 4;
    std::size_t padded = words;
    while (padded % 16 != 0) room_[padded++] = 0;  // whole lines; a word of 0 is no method
    arch::copy_to_unfenced(kView, view_ + offset, room_, padded * 4);
    if (fencing != fences::three) words = padded;
    if (fencing == fences::three) arch::publish_to_device(kView);
    const std::uint64_t entry = dma::ring_entry(memory_.bound.address() + offset, static_cast<std::uint32_t>(words));
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(view_) + put_, entry, __ATOMIC_RELEASE);
    put_ = (put_ + 1) % kEntries;
    if (fencing == fences::three || fencing == fences::before_position_and_doorbell) arch::publish_to_device(kView);
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(view_ + kUserWords + rm::kPutOffset), put_, __ATOMIC_RELEASE);
    if (fencing != fences::none) arch::publish_to_device(kView);
    ring();
    ++number_;
    return true;
  }
  void ring() const { __atomic_store_n(doorbell_, handles_.token, __ATOMIC_RELEASE); }
  bool wait() const {
    std::uint64_t begin = 0;
    for (unsigned polls = 1; seen() != number_; ++polls) {
      if (polls % 256 != 0) continue;
      if (is_broken()) return false;
      const std::uint64_t now = monotonic_ns();
      if (begin == 0) begin = now;
      if (now - begin > kGiveUpNs) return false;
      if (now - begin > 10'000) ring();  // one of some 50 000 doorbells is missed
    }
    return true;
  }
  // The same; rings again after `ring_ns`, and counts that.
  bool wait_ringing(std::uint64_t ring_ns, std::uint64_t& rings) const {
    const std::uint64_t begin = monotonic_ns();
    std::uint64_t last = begin;
    while (seen() != number_) {
      const std::uint64_t now = monotonic_ns();
      if (now - last > ring_ns) ++rings, last = now, ring();
      if (now - begin > kGiveUpNs) return false;
    }
    return true;
  }

 private:
  static void need(bool ok, const char* step) {
    if (!ok) std::printf("FAILED: %s\n", step), std::exit(1);
  }
  template <class T>
  static T need(result<T> outcome, const char* step) {
    return pl::need(std::move(outcome), step);
  }
  std::shared_ptr<dma::address_space> space_;
  dma::address_space::own_memory memory_;
  dma::region host_;
  std::byte *view_ = nullptr, *pages_ = nullptr;
  std::uint32_t* doorbell_ = nullptr;
  rm::channel_objects::channel_handles handles_;
  std::uint32_t put_ = 0, number_ = 0;
  alignas(64) std::uint32_t room_[kSlotWords];
};

// ---- Candidates

constexpr std::uint32_t kFlushGl = 1u << 25, kTimestamp = 2u << 3;
constexpr std::uint32_t kPitch = launch::kPitchLayouts;

struct candidate {
  const char* name;
  std::size_t (*build)(raw_channel&, std::uint64_t destination, std::uint64_t source, std::uint32_t bytes);
};

inline std::size_t with_flags(raw_channel& queue, std::uint64_t destination, std::uint64_t source, std::uint32_t bytes,
                              std::uint32_t flags) {
  dma::command_writer writer({queue.room(), raw_channel::kSlotWords});
  queue.name(writer, queue.next());
  writer.copy(destination, source, bytes, flags);
  return writer.words();
}

inline std::size_t host_release(raw_channel& queue, std::uint64_t destination, std::uint64_t source, std::uint32_t bytes,
                                std::uint32_t execute, bool membar, std::uint32_t membar_type) {
  dma::command_writer writer({queue.room(), raw_channel::kSlotWords});
  writer.copy(destination, source, bytes, launch::kPipelined);
  std::size_t words = writer.words();
  std::uint32_t* room = queue.room();
  if (membar) {
    room[words++] = dma::method_header(0, 0x28, 4);
    for (const std::uint32_t one : {0u, 0u, membar_type, 5u << 27}) room[words++] = one;
  }
  room[words++] = dma::method_header(0, 0x5c, 5);
  const std::uint64_t address = queue.word_address();
  for (const std::uint32_t one :
       {static_cast<std::uint32_t>(address), static_cast<std::uint32_t>(address >> 32), queue.next(), 0u, execute})
    room[words++] = one;
  return words;
}

constexpr candidate kCandidates[] = {
    {"none",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) { return with_flags(q, d, s, n, 1 | 8); }},
    {"flush sys",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) { return with_flags(q, d, s, n, 1 | 8 | 4); }},
    {"flush gl", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                    std::uint32_t n) { return with_flags(q, d, s, n, 1 | 8 | 4 | kFlushGl); }},
    {"not pipelined",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) { return with_flags(q, d, s, n, 2 | 8); }},
    {"timestamp", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                     std::uint32_t n) { return with_flags(q, d, s, n, 1 | kTimestamp); }},
    {"release apart",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) {
       dma::command_writer w({q.room(), raw_channel::kSlotWords});
       w.copy(d, s, n, 1);
       q.name(w, q.next());
       w.launch(8);
       return w.words();
     }},
    {"4 B np behind, release",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) {
       dma::command_writer w({q.room(), raw_channel::kSlotWords});
       q.name(w, q.next());
       w.copy(d, s, n, 1);
       w.copy(q.spare_address() + 64, q.spare_address(), 4, 2 | 8);
       return w.words();
     }},
    {"fill np is the word",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) {
       dma::command_writer w({q.room(), raw_channel::kSlotWords});
       w.copy(d, s, n, 1);
       w.fill(q.word_address(), q.next(), 1, 2);
       return w.words();
     }},
    {"last 64 B np",
     [](raw_channel& q, std::uint64_t d, std::uint64_t s, std::uint32_t n) {
       dma::command_writer w({q.room(), raw_channel::kSlotWords});
       q.name(w, q.next());
       if (n > 64) w.copy(d, s, n - 64, 1);
       const std::uint32_t tail = n > 64 ? 64 : n;
       w.copy(d + n - tail, s + n - tail, tail, 2 | 8);
       return w.words();
     }},
    {"host release", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                        std::uint32_t n) { return host_release(q, d, s, n, 1, false, 0); }},
    {"host release wfi", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                            std::uint32_t n) { return host_release(q, d, s, n, 1 | 1u << 20, false, 0); }},
    {"membar, host release", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                                std::uint32_t n) { return host_release(q, d, s, n, 1 | 1u << 20, true, 1); }},
    {"sysmembar, host release", [](raw_channel& q, std::uint64_t d, std::uint64_t s,
                                   std::uint32_t n) { return host_release(q, d, s, n, 1 | 1u << 20, true, 0); }},
};

struct channel_bench : channel_setup {
  using channel_setup::channel_setup;
  cu::device_ptr device = 0;
  std::byte* host = nullptr;
  std::size_t host_bytes = 0, device_bytes = 0;
  unsigned threads = 0;
  std::byte* view = nullptr;         // of the device memory
  std::vector<const char*> refused;  // candidates that ended their channel

  void set_up(device_io& calls = real_device_io());

  std::uint64_t big_on_device() const { return device_address + kSlots * kSlotBytes + threads * kThreadBytes; }
  std::uint64_t big_on_host() const { return host_address + threads * kThreadBytes; }
  std::byte* big_host() const { return host + threads * kThreadBytes; }
};

inline void channel_bench::set_up(device_io& calls) {
  open_cuda();
  threads = std::clamp(std::thread::hardware_concurrency() - 3, 1u, kMaxThreads);
  device_bytes = kSlots * kSlotBytes + threads * kThreadBytes + kBigBytes + 2 * kLoadBytes;
  host_bytes = threads * kThreadBytes + kBigBytes + 2 * kLoadBytes;
  must(cuda.cuMemAlloc_v2(&device, device_bytes), "cuMemAlloc");
  for (std::uint32_t slot = 0; slot < kSlots; ++slot)
    must(cuda.cuMemsetD32_v2(device + slot * kSlotBytes, pattern(slot), kSlotBytes / 4), "cuMemsetD32");
  must(cuda.cuMemsetD32_v2(device + kSlots * kSlotBytes + threads * kThreadBytes, 0x12345678, kBigBytes / 4), "cuMemsetD32");
  must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  host = static_cast<std::byte*>(mmap(nullptr, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  madvise(host, host_bytes, MADV_HUGEPAGE);
  std::memset(host, 0, host_bytes);
  open_space(calls);
  bind(device, device_bytes, host, host_bytes);
  auto& objects = space->objects();
  view = static_cast<std::byte*>(
      need(objects.owner().map(objects.device(), regions[0].memory(), regions[0].offset(), device_bytes, nullptr), "map")
          .address);
  std::printf("%u threads, engines:", threads);
  for (const unsigned one : engines)
    std::printf(" COPY%u(caps %02x)", one,
                space->objects().copy_engine_capabilities(one) ? *space->objects().copy_engine_capabilities(one) : 0u);
  std::printf("\n");
}

inline double percentile(std::vector<std::uint32_t>& ns, double share) {
  std::sort(ns.begin(), ns.end());
  return ns.empty() ? 0 : ns[static_cast<std::size_t>(static_cast<double>(ns.size() - 1) * share)];
}

template <class Run>
double p50_us(unsigned repeats, Run run) {
  std::vector<std::uint32_t> ns;
  for (unsigned i = 0; i < repeats; ++i) {
    const std::uint64_t begin = monotonic_ns();
    if (!run()) return -1;
    ns.push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
  }
  return percentile(ns, 0.5) / 1e3;
}

// Lines hold a value that data does not have; all eight words of a line changed means that it is there.
struct marks {
  std::uint64_t value = 0x9d3b'51c6'e07a'48f3;
};

__attribute__((target("avx512f,avx512bw"))) inline void set_marks(std::byte* target, std::size_t bytes,
                                                                  std::uint64_t value) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(value));
  for (std::size_t i = 0; i < bytes; i += 64) _mm512_store_si512(target + i, mark);
}

}  // namespace pl::bench
