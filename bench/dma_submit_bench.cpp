// SPDX-License-Identifier: Apache-2.0
// What giving a copy to an engine costs, and which shorter ways are safe: an uncached view of entries and position, entries
// that are written once, commands in host memory, an armed channel; ends of a copy on each; and reads through pinned memory
// by several CPU threads. All in turns, every copy of the long part checked.
//
//     dma_submit_bench [--seconds N] [--only PART] [--shape TEXT] [FILE.json]
//
// --seconds: of each checked case [2]; --shape: those whose name has the text alone are checked.
#include <immintrin.h>

#include <deque>

#include "bench/forwarding_io.hpp"
#include "bench/raw_channel.hpp"
#include "rm/rm_abi.hpp"

namespace {

using namespace pl;
using namespace pl::bench;

// The system's calls; mappings of GPU memory are uncached while that is asked for.
class uncached_io final : public forwarding_io {
 public:
  bool is_uncached = false;
  int ioctl(int fd, unsigned long request, void* argument) override {
    constexpr std::uint32_t kUncached = 1u << 23;  // NVOS33_FLAGS_CACHING_TYPE
    if (is_uncached && (request & 0xff) == rm::esc_map_memory) static_cast<rm::map_params*>(argument)->flags |= kUncached;
    return forwarding_io::ioctl(fd, request, argument);
  }
};

struct shape {
  const char* name;
  bool is_position_uncached = false;  // entries too
  bool are_entries_fixed = false;     // each entry names its slot for ever
  bool are_commands_in_host = false;
  bool are_entries_in_host = false;
  bool is_armed = false;  // the engine waits for a word behind index the commands lie: no doorbell
  bool has_fence = true;  // before the position
};

constexpr shape kShapes[] = {
    {.name = "product: fence, two doorbells"},
    {.name = "fixed entries, fence", .are_entries_fixed = true},
    {.name = "uncached position, no fence", .is_position_uncached = true, .has_fence = false},
    {.name = "uncached, fixed entries, no fence",
     .is_position_uncached = true,
     .are_entries_fixed = true,
     .has_fence = false},
    {.name = "uncached, fixed entries, fence", .is_position_uncached = true, .are_entries_fixed = true},
    {.name = "commands in host, fixed entries", .are_entries_fixed = true, .are_commands_in_host = true, .has_fence = false},
    {.name = "entries and commands in host", .are_commands_in_host = true, .are_entries_in_host = true, .has_fence = false},
    {.name = "armed by a word of GPU memory", .are_entries_fixed = true, .is_armed = true},
};

constexpr std::uint32_t kLineWords = 16;  // a submission is one line

class line_channel {
 public:
  static constexpr std::uint32_t kEntries = 1024;
  static constexpr std::uint64_t kUserWords = 0x10000, kArmWords = 0x14000, kCommands = 0x20000, kMemory = 2u << 20;
  static constexpr std::size_t kHostBytes = 4096 * 64;  // completion, then entries, then commands
  static constexpr std::uint64_t kHostEntries = 4096, kHostCommands = 16384;

  line_channel(std::shared_ptr<dma::address_space> space, uncached_io& io, unsigned engine, const shape& form)
      : space_(std::move(space)), form_(form) {
    auto& objects = space_->objects();
    memory_ = need(space_->make_device_memory(kMemory), "ring memory");
    view_ = static_cast<std::byte*>(
        need(objects.owner().map(objects.device(), memory_.memory, 0, kMemory, nullptr), "map").address);
    arch::fill_to(arch::mapping_type::wc, view_, 0, kMemory);
    arch::publish_to_device(arch::mapping_type::wc);
    ring_view_ = view_;
    if (form.is_position_uncached) {
      io.is_uncached = true;
      ring_view_ = static_cast<std::byte*>(
          need(objects.owner().map(objects.device(), memory_.memory, 0, kCommands, nullptr), "uncached map").address);
      io.is_uncached = false;
    }
    pages_ = static_cast<std::byte*>(
        mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    std::memset(pages_, 0, kHostBytes);
    host_ = need(space_->bind_host(pages_, kHostBytes), "completion pages");
    rm::channel_objects::channel_request request;
    request.address_space = space_->handle();
    request.engine = engine;
    request.ring_address = form.are_entries_in_host ? host_.address() + kHostEntries : memory_.bound.address();
    request.ring_entries = kEntries;
    request.user_words_memory = memory_.memory;
    request.user_words_offset = kUserWords;
    request.error_memory = host_.memory();
    handles_ = need(objects.make_channel(request), "channel");
    doorbell_ = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(need(space_->map_doorbell(), "doorbell").address) +
                                                 rm::kDoorbellOffset);
    if (form.are_entries_fixed && !form.is_armed)
      for (std::uint32_t i = 0; i < kEntries; ++i) put_entry(i, dma::ring_entry(command_address(i), kLineWords));
    arch::publish_to_device(arch::mapping_type::wc);
    dma::command_writer first({room_, 64});
    first.set_object(objects.copy_class());
    write_line(first.words());
    dma::command_writer second({room_, 64});
    second.copy(spare_address() + 64, spare_address(), 4, launch::kPipelined);  // sets what the lines leave as it is
    write_line(second.words());
    dma::command_writer third({room_, 64});
    third.completion(word_address(), number_ + 1);
    third.launch(launch::kReleaseWord);
    write_line(third.words());
    if (!wait()) std::printf("FAILED: %s: the first commands\n", form.name), std::exit(1);
    if (form.is_armed) arm();
  }
  ~line_channel() { space_->objects().release(handles_.group); }

  std::uint32_t* room() { return room_; }
  std::uint32_t next() const { return number_ + 1; }
  std::uint64_t word_address() const { return host_.address() + 2048; }
  std::uint64_t spare_address() const { return host_.address() + 3072; }
  std::uint32_t seen() const {
    return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(pages_ + 2048), __ATOMIC_ACQUIRE);
  }
  bool is_broken() const { return reinterpret_cast<const rm::notification*>(pages_)->status != 0; }
  void ring() const { __atomic_store_n(doorbell_, handles_.token, __ATOMIC_RELEASE); }
  bool is_armed() const { return form_.is_armed; }

  // room()[0, words) becomes the next operation.
  void submit(std::size_t words) {
    if (!form_.is_armed) return write_line(words);
    pad(words);
    const std::uint32_t slot = number_++ % kEntries;
    arch::write_commands_unfenced(view_ + kCommands + slot * kLineWords * 4, room_, kLineWords * 4);
    arch::publish_to_device(arch::mapping_type::wc);
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(view_ + kArmWords), number_, __ATOMIC_RELEASE);
    arch::publish_to_device(arch::mapping_type::wc);
    if (armed_ - number_ < kEntries / 8) arm();
  }

  bool wait(std::uint64_t* rings = nullptr) const {
    std::uint64_t begin = 0, last = 0;
    for (unsigned polls = 1; seen() != number_; ++polls) {
      if (polls % 256 != 0) continue;
      if (is_broken()) return false;
      const std::uint64_t now = monotonic_ns();
      if (begin == 0) begin = last = now;
      if (now - begin > kGiveUpNs) return false;
      if (now - last > 15'000) {
        last = now;
        if (rings != nullptr) ++*rings;
        ring();
      }
    }
    return true;
  }

 private:
  template <class T>
  static T need(result<T> outcome, const char* step) {
    return pl::need(std::move(outcome), step);
  }
  std::uint64_t command_address(std::uint32_t slot) const {
    return (form_.are_commands_in_host ? host_.address() + kHostCommands : memory_.bound.address() + kCommands) +
           std::uint64_t{slot} * kLineWords * 4;
  }
  void put_entry(std::uint32_t place, std::uint64_t entry) {
    std::byte* const entries = form_.are_entries_in_host ? pages_ + kHostEntries : ring_view_;
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(entries) + place, entry, __ATOMIC_RELEASE);
  }
  void pad(std::size_t words) {
    while (words < kLineWords) room_[words++] = 0;  // no methods
  }
  // Pairs of entries: one that waits for the word to reach k, one with the line k, fetched when that is done.
  void arm() {
    dma::command_writer wait_for({room_, 64});
    for (std::uint32_t i = 0; i < kEntries / 4; ++i) {
      const std::uint32_t value = armed_ + 1, place = value % (kEntries / 2);
      std::uint32_t commands[kLineWords] = {};
      dma::command_writer writer({commands, kLineWords});
      writer.acquire(memory_.bound.address() + kArmWords, value);
      const std::uint64_t offset = kCommands + (kEntries + place) * kLineWords * 4;
      arch::copy_to_unfenced(arch::mapping_type::wc, view_ + offset, commands, sizeof commands);
      put_entry(put_, dma::ring_entry(memory_.bound.address() + offset, static_cast<std::uint32_t>(writer.words())));
      put_ = (put_ + 1) % kEntries;
      put_entry(put_, dma::ring_entry(command_address((value - 1) % kEntries), kLineWords, true));
      put_ = (put_ + 1) % kEntries;
      armed_ = value;
    }
    publish();
  }
  void write_line(std::size_t words) {
    pad(words);
    const std::uint32_t slot = put_;
    if (form_.are_commands_in_host) std::memcpy(pages_ + kHostCommands + slot * kLineWords * 4, room_, kLineWords * 4);
    else arch::write_commands_unfenced(view_ + kCommands + slot * kLineWords * 4, room_, kLineWords * 4);
    if (!form_.are_entries_fixed || form_.is_armed) put_entry(put_, dma::ring_entry(command_address(slot), kLineWords));
    put_ = (put_ + 1) % kEntries;
    ++number_;
    armed_ = number_;
    publish();
  }
  void publish() {
    if (form_.has_fence) arch::publish_to_device(arch::mapping_type::wc);
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(ring_view_ + kUserWords + rm::kPutOffset), put_, __ATOMIC_RELEASE);
    if (form_.is_position_uncached) return ring();
    ring();
    arch::publish_to_device(arch::mapping_type::wc);
    ring();
  }

  std::shared_ptr<dma::address_space> space_;
  const shape form_;
  dma::address_space::own_memory memory_;
  dma::region host_;
  std::byte *view_ = nullptr, *ring_view_ = nullptr, *pages_ = nullptr;
  std::uint32_t* doorbell_ = nullptr;
  rm::channel_objects::channel_handles handles_;
  std::uint32_t put_ = 0, number_ = 0, armed_ = 0;
  alignas(64) std::uint32_t room_[64];
};

// ---- Lines: a copy and its end. What earlier commands set (pitches, one row) stays.

enum class ending { word, host_word, flushed };

std::size_t line(line_channel& queue, ending end, std::uint64_t destination, std::uint64_t source, std::uint32_t bytes) {
  std::uint32_t* const room = queue.room();
  std::size_t n = 0;
  const auto put_address = [&](std::uint64_t address) {
    room[n++] = static_cast<std::uint32_t>(address >> 32);
    room[n++] = static_cast<std::uint32_t>(address);
  };
  room[n++] = dma::method_header(dma::method::kCopySubchannel, dma::method::kSourceHigh, 4);
  put_address(source);
  put_address(destination);
  room[n++] = dma::method_header(dma::method::kCopySubchannel, dma::method::kLineLength, 1);
  room[n++] = bytes;
  if (end == ending::host_word) {
    room[n++] = dma::immediate(dma::method::kCopySubchannel, dma::method::kLaunch, kPitch | launch::kPipelined);
    room[n++] = dma::method_header(dma::method::kHostSubchannel, dma::method::kSemaphoreAddressLow, 5);
    room[n++] = static_cast<std::uint32_t>(queue.word_address());
    room[n++] = static_cast<std::uint32_t>(queue.word_address() >> 32);
    room[n++] = queue.next();
    room[n++] = 0;
    room[n++] = 1 | 1u << 20;  // a release that waits until the engine is idle
    return n;
  }
  room[n++] = dma::method_header(dma::method::kCopySubchannel, dma::method::kSemaphoreAddressHigh, 3);
  put_address(queue.word_address());
  room[n++] = queue.next();
  room[n++] =
      dma::immediate(dma::method::kCopySubchannel, dma::method::kLaunch,
                     kPitch | launch::kPipelined | launch::kReleaseWord | (end == ending::flushed ? launch::kFlush : 0));
  return n;
}

__attribute__((target("avx512f,avx512bw"), noinline)) bool all_changed(const std::byte* place, std::size_t bytes,
                                                                       std::uint64_t value) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(value));
  const std::uint64_t begin = monotonic_ns();
  for (std::size_t i = 0; i < bytes; i += 64)
    for (unsigned polls = 1; _mm512_cmpeq_epi64_mask(_mm512_load_si512(place + i), mark) != 0; ++polls)
      if (polls % 4096 == 0 && monotonic_ns() - begin > kGiveUpNs) return false;
  return true;
}

struct bench : channel_bench {
  using channel_bench::channel_bench;
  uncached_io calls;
  double seconds = 2;
  std::string shape_text;
  void latency();
  void back_to_back();
  void checked();
  void marked_reads();
  void ring_reads();
};

void bench::latency() {
  const std::vector<std::uint32_t> sizes{64, 4096, 16384, 65536, 1u << 20};
  struct ending_case {
    const char* name;
    ending end;
    bool has_marks;
  };
  const ending_case kEnds[] = {{"word, not ordered", ending::word, false},
                               {"host word", ending::host_word, false},
                               {"flushed", ending::flushed, false},
                               {"marks, up to 8 KiB", ending::word, true}};
  const marks mark;
  for (const auto& end : kEnds) {
    std::printf("\nto the host, %-20s us p50", end.name);
    for (const auto size : sizes) std::printf("%9u", size);
    std::printf("\n");
    std::deque<line_channel> queues;
    std::vector<std::vector<std::vector<std::uint32_t>>> ns(std::size(kShapes),
                                                            {sizes.size(), std::vector<std::uint32_t>()});
    // In turns, but for armed channels, which hold their engine.
    const auto turn = [&](std::size_t index, line_channel& queue, std::size_t i, unsigned times) {
      for (unsigned k = 0; k < times; ++k) {
        const bool is_marked = end.has_marks && sizes[i] <= 8192;
        const std::uint64_t begin = monotonic_ns();
        if (is_marked) set_marks(big_host(), sizes[i], mark.value);
        queue.submit(line(queue, end.end, big_on_host(), big_on_device(), sizes[i]));
        if (is_marked && !all_changed(big_host(), sizes[i], mark.value)) std::printf(" never");
        if (!is_marked && !queue.wait()) std::printf(" lost");
        ns[index][i].push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
        if (is_marked) (void)queue.wait();
      }
    };
    for (const auto& form : kShapes)
      if (!form.is_armed) queues.emplace_back(space, calls, engines[0], form);
    for (int round = 0; round < 60; ++round)
      for (std::size_t i = 0; i < sizes.size(); ++i)
        for (std::size_t index = 0; index < queues.size(); ++index)
          turn(index, queues[index], i, 1 + 9 * (sizes[i] < 100000));
    queues.clear();
    for (std::size_t index = 0; index < std::size(kShapes); ++index)
      if (kShapes[index].is_armed) {
        line_channel queue(space, calls, engines[0], kShapes[index]);
        for (std::size_t i = 0; i < sizes.size(); ++i) turn(index, queue, i, sizes[i] < 100000 ? 500 : 60);
      }
    for (std::size_t index = 0; index < std::size(kShapes); ++index) {
      std::printf("  %-44s", kShapes[index].name);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const double us = percentile(ns[index][i], 0.5) / 1e3;
        std::printf("%9.2f", us);
        file.add_row(
            {{"kind", "latency"}, {"case", kShapes[index].name}, {"end", end.name}, {"size", sizes[i]}, {"us_p50", us}});
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
}

void bench::back_to_back() {
  std::printf("\n256 submissions of 4 B one behind the other, CPU ns each (p50 of 40), all there\n");
  for (const auto& form : kShapes) {
    line_channel queue(space, calls, engines[0], form);
    std::vector<std::uint32_t> cost;
    bool is_right = true;
    const unsigned count = form.is_armed ? 64 : 256;
    for (int round = 0; round < 40 && is_right; ++round) {
      const std::uint64_t begin = monotonic_ns();
      for (unsigned i = 0; i < count; ++i)
        queue.submit(line(queue, ending::word, big_on_host() + 64u * i, big_on_device(), 4));
      cost.push_back(static_cast<std::uint32_t>((monotonic_ns() - begin) / count));
      is_right = queue.wait();
    }
    const double each = percentile(cost, 0.5);
    std::printf("  %-44s %6.0f%s\n", form.name, each, is_right ? "" : "  LOST");
    file.add_row({{"kind", "back_to_back"}, {"case", form.name}, {"ns_each", each}, {"is_right", is_right}});
    std::fflush(stdout);
  }
}

// Copies of random slots by ten threads on all engines, each checked as soon as its word is seen.
void bench::checked() {
  std::printf("\nchecked copies to the host, ended by a host word: lost for good, old or late bytes, rung again\n");
  for (const auto& form : kShapes) {
    if (form.is_armed || std::strstr(form.name, shape_text.c_str()) == nullptr) continue;
    std::atomic<std::uint64_t> copies{0}, lost{0}, late{0}, wrong{0}, rings{0};
    std::vector<std::thread> running;
    std::deque<line_channel> queues;
    for (unsigned index = 0; index < threads; ++index)
      queues.emplace_back(space, calls, engines[index % engines.size()], form);
    const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9);
    for (unsigned index = 0; index < threads; ++index)
      running.emplace_back([&, index] {
        line_channel& queue = queues[index];
        std::mt19937_64 random(index + 1);
        const auto* words = reinterpret_cast<const volatile std::uint32_t*>(host + index * kThreadBytes);
        std::uint64_t mine = 0, my_rings = 0;
        for (std::uint32_t slot = 0; monotonic_ns() < end_ns; ++mine) {
          slot = (slot + 1 + static_cast<std::uint32_t>(random() % (kSlots - 1))) % kSlots;
          const std::uint32_t size = 64u << (random() % 9);
          queue.submit(
              line(queue, ending::host_word, host_address + index * kThreadBytes, device_address + slot * kSlotBytes, size));
          if (!queue.wait(&my_rings)) {
            ++lost;
            break;
          }
          const std::uint32_t n = size / 4;
          const auto is_old = [&] {
            for (std::uint32_t i = 0; i < n; i += n <= 64 ? 1 : 16)
              if (words[n - 1 - i] != pattern(slot)) return true;
            return false;
          };
          if (!is_old()) continue;
          const std::uint64_t begin = monotonic_ns();
          while (is_old() && monotonic_ns() - begin < 1'000'000) {}
          ++(is_old() ? wrong : late);
        }
        copies += mine;
        rings += my_rings;
      });
    for (auto& thread : running) thread.join();
    std::printf("  %-44s %llu copies: lost %llu, late %llu, wrong %llu, rings %llu\n", form.name,
                static_cast<unsigned long long>(copies), static_cast<unsigned long long>(lost),
                static_cast<unsigned long long>(late), static_cast<unsigned long long>(wrong),
                static_cast<unsigned long long>(rings));
    file.add_row({{"kind", "checked"},
                  {"case", form.name},
                  {"copies", copies.load()},
                  {"lost", lost.load()},
                  {"late", late.load()},
                  {"wrong", wrong.load()},
                  {"rings", rings.load()}});
    std::fflush(stdout);
  }
}

// ---- What a core's caches have to do with it

enum class eviction { none, flush, demote };
constexpr const char* kEvictionNames[] = {"left", "clflushopt", "cldemote"};

__attribute__((target("clflushopt,cldemote"), noinline)) void evict(const std::byte* place, std::size_t bytes,
                                                                    eviction kind) {
  if (kind == eviction::flush)
    for (std::size_t i = 0; i < bytes; i += 64) _mm_clflushopt(const_cast<std::byte*>(place) + i);
  else if (kind == eviction::demote)
    for (std::size_t i = 0; i < bytes; i += 64) _cldemote(const_cast<std::byte*>(place) + i);
}

// Copies lines that have changed on and marks them again.
__attribute__((target("avx512f,avx512bw"), noinline)) bool take_marked(std::byte* target, std::byte* origin,
                                                                       std::size_t bytes, std::uint64_t value) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(value));
  const std::uint64_t begin = monotonic_ns();
  for (std::size_t i = 0; i < bytes; i += 64)
    for (unsigned polls = 1;; ++polls) {
      const __m512i line_now = _mm512_load_si512(origin + i);
      if (_mm512_cmpeq_epi64_mask(line_now, mark) == 0) {
        _mm512_storeu_si512(target + i, line_now);
        _mm512_store_si512(origin + i, mark);
        break;
      }
      if (polls % 4096 == 0 && monotonic_ns() - begin > kGiveUpNs) return false;
    }
  return true;
}

// Reads through marked memory: the lines of the read before are evicted while this one's copy is under way, or not.
void bench::marked_reads() {
  const marks mark;
  const std::vector<std::uint32_t> sizes{64, 512, 4096, 8192, 16384, 32768, 65536};
  std::vector<std::byte> room((1u << 20) + 4096);
  std::byte* const target = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096);
  std::printf("\nreads through marked memory, us p50              ");
  for (const auto size : sizes) std::printf("%9u", size);
  std::printf("\n");
  constexpr std::size_t kHalf = 128u << 10;
  line_channel queue(space, calls, engines[0], kShapes[2]);
  std::vector<std::vector<std::vector<std::uint32_t>>> ns(8, {sizes.size(), std::vector<std::uint32_t>()});
  set_marks(big_host(), 8 * 2 * kHalf, mark.value);
  for (int round = 0; round < 80; ++round)
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (unsigned form = 0; form < 6; ++form) {
        // 0 to 2: two halves in turns; 3 to 5: one half, evicted before the copy begins.
        const auto kind = static_cast<eviction>(form % 3);
        std::byte* const mine = big_host() + form * 2 * kHalf;
        for (unsigned k = 0; k < 10; ++k) {
          const std::size_t half = form < 3 ? k % 2 * kHalf : 0;
          const std::uint64_t begin = monotonic_ns();
          if (form >= 3) evict(mine, sizes[i], kind);
          queue.submit(line(queue, ending::word, big_on_host() + form * 2 * kHalf + half, big_on_device(), sizes[i]));
          if (form < 3) evict(mine + (kHalf - half), sizes[i], kind);
          if (!take_marked(target, mine + half, sizes[i], mark.value)) std::printf(" never");
          ns[form][i].push_back(static_cast<std::uint32_t>(monotonic_ns() - begin));
          (void)queue.wait();
        }
      }
  for (unsigned form = 0; form < 6; ++form) {
    std::printf("  %s, lines %-24s", form < 3 ? "two halves" : "one half  ", kEvictionNames[form % 3]);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const double us = percentile(ns[form][i], 0.5) / 1e3;
      std::printf("%9.2f", us);
      file.add_row({{"kind", "marked"},
                    {"halves", form < 3 ? 2 : 1},
                    {"eviction", kEvictionNames[form % 3]},
                    {"size", sizes[i]},
                    {"us_p50", us}});
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

// Reads through a ring of pinned parts that goes on where the last read ended. Part p is copied by thread p modulo their
// number; thread 0 submits.
void bench::ring_reads() {
  std::vector<std::byte> room((4u << 20) + 4096);
  std::byte* const target = room.data() + (4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096);
  std::byte* const bounce = big_host();
  const std::vector<std::uint32_t> sizes{65536, 262144, 1u << 20, 4u << 20};
  std::printf("\nreads through a ring, us p50 (64 KiB, 256 KiB, 1 MiB, 4 MiB), and the engine's part of it\n");
  for (const unsigned width : {1u, 2u})
    for (const std::uint32_t part : {32u << 10, 64u << 10, 128u << 10, 256u << 10})
      for (const std::size_t ring_bytes : {std::size_t{1} << 20, std::size_t{8} << 20, std::size_t{64} << 20})
        for (const eviction kind : {eviction::none, eviction::flush, eviction::demote})
          for (const unsigned end : {0u, 7u}) {  // "none": the word may come before the bytes; "fill np is the word"
            if (ring_bytes != (1u << 20) && kind != eviction::none) continue;
            if (width == 2 && (end == 0 || kind == eviction::demote)) continue;
            raw_channel queue(space, engines[0]);
            const auto ring = static_cast<std::uint32_t>(ring_bytes / part);
            std::uint32_t place = 0;            // of the read's first part
            std::atomic<std::uint64_t> job{0};  // round * 2^32 + bytes
            std::atomic<std::uint32_t> first{0}, helped{0};
            std::atomic<bool> stop{false};
            const auto take = [&](std::uint32_t index, std::uint32_t n) {
              const std::uint32_t number = first.load(std::memory_order_relaxed) + index;
              for (unsigned polls = 1; static_cast<std::int32_t>(queue.seen() - number) < 0 && polls < 20'000'000; ++polls)
                if (polls % 8192 == 0) queue.ring();  // words that are not ordered may change places
              const std::uint32_t bytes = std::min(part, n - index * part);
              std::byte* const origin = bounce + (place + index) % ring * part;
              std::memcpy(target + index * part, origin, bytes);
              evict(origin, bytes, kind);
            };
            std::thread helper;
            if (width == 2)
              helper = std::thread([&] {
                for (std::uint64_t last = 0; !stop;) {
                  const std::uint64_t now = job.load(std::memory_order_acquire);
                  if (now == last) {
                    _mm_pause();
                    continue;
                  }
                  last = now;
                  const auto n = static_cast<std::uint32_t>(now);
                  for (std::uint32_t index = 1; index * part < n; index += 2) take(index, n);
                  helped.store(1, std::memory_order_release);
                }
              });
            std::printf("  %u threads, %2zu MiB of %3u KiB, %-10s %-19s", width, ring_bytes >> 20, part >> 10,
                        kEvictionNames[static_cast<int>(kind)], kCandidates[end].name);
            for (const std::uint32_t n : sizes) {
              if (n > ring_bytes) {
                std::printf("        -");
                continue;
              }
              std::uint64_t round = 0, wrong = 0;
              const double us = p50_us(n > 2000000 ? 40 : 150, [&] {
                helped = 0;
                first.store(queue.next(), std::memory_order_relaxed);
                for (std::uint32_t begun = 0; begun * part < n; ++begun) {
                  const std::uint32_t bytes = std::min(part, n - begun * part);
                  queue.submit(kCandidates[end].build(queue, big_on_host() + (place + begun) % ring * part,
                                                      big_on_device() + begun * part, bytes),
                               fences::before_position_and_doorbell);
                  if (begun == 0) job.store(++round << 32 | n, std::memory_order_release);
                }
                for (std::uint32_t index = 0; index * part < n; index += width) take(index, n);
                while (width == 2 && helped.load(std::memory_order_acquire) == 0) {}
                place = (place + (n + part - 1) / part) % ring;
                wrong += *reinterpret_cast<std::uint32_t*>(target + n - 4) != 0x12345678;
                std::memset(target + n - 64, 0, 64);
                return true;
              });
              std::printf("%9.2f%s", us, wrong != 0 ? " WRONG" : "");
              file.add_row({{"kind", "ring"},
                            {"threads", width},
                            {"part", part},
                            {"ring", ring_bytes},
                            {"eviction", kEvictionNames[static_cast<int>(kind)]},
                            {"end", kCandidates[end].name},
                            {"size", n},
                            {"us_p50", us},
                            {"wrong", wrong}});
            }
            std::printf("\n");
            std::fflush(stdout);
            stop = true;
            if (helper.joinable()) helper.join();
          }
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, path, shape_text;
  double seconds = 2;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
    else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (std::strcmp(argv[i], "--shape") == 0 && i + 1 < argc) shape_text = argv[++i];
    else path = argv[i];
  }
  const auto cuda = need(cu::driver(), "libcuda");
  static ::bench run(*cuda, "dma_submit_bench");
  run.seconds = seconds;
  run.shape_text = shape_text;
  run.set_up(run.calls);
  if (only.empty() || only == "latency") run.latency();
  if (only.empty() || only == "back") run.back_to_back();
  if (only.empty() || only == "checked") run.checked();
  if (only.empty() || only == "marked") run.marked_reads();
  if (only.empty() || only == "ring") run.ring_reads();
  if (!path.empty()) need(run.file.write(path), "result file");
  std::printf("end\n");
  std::fflush(stdout);
  _exit(0);
}
