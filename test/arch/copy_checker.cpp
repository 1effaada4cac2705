// SPDX-License-Identifier: Apache-2.0
#include "test/arch/copy_checker.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <thread>

namespace pl::arch::check {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kMargin = 128;  // canaries on each side: two lines
constexpr std::size_t kSmall = 256;
constexpr std::size_t kLargest = 4096;
constexpr std::size_t kArena = 3 * 4096;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::uint64_t next_random(std::uint64_t& state) {  // splitmix64
  std::uint64_t value = state += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

void make_data(unsigned char* bytes, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(next_random(seed) & 0x7f);
}

void make_canaries(unsigned char* bytes, std::size_t count, std::uint64_t seed) {
  make_data(bytes, count, seed);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(bytes[i] | 0x80);
}

template <class... Arguments>
std::string sentence(const char* format, Arguments... arguments) {
  char text[256];
  std::snprintf(text, sizeof text, format, arguments...);
  return text;
}

// Where two ranges first differ, as an offset from `origin`; for messages.
long first_difference(const unsigned char* a, const unsigned char* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (a[i] != b[i]) return static_cast<long>(i);
  return -1;
}

// The target of copies under test: an arena of canaries, which verify() restores after each call.
class target_arena {
 public:
  target_arena() : pages_(kArena), canaries_(kArena) {
    make_canaries(canaries_.begin(), kArena, 11);
    std::memcpy(pages_.begin(), canaries_.begin(), kArena);
  }

  // The first usable address with this offset in its line.
  unsigned char* at_alignment(std::size_t alignment) const { return pages_.begin() + kMargin + alignment; }

  // True when [target, target + count) equals `expected` and nothing around it changed. Restores the canaries.
  bool verify(unsigned char* target, const unsigned char* expected, std::size_t count) {
    const auto offset = static_cast<std::size_t>(target - pages_.begin());
    const bool before = std::memcmp(pages_.begin() + offset - kMargin, canaries_.begin() + offset - kMargin, kMargin) == 0;
    const bool inside = std::memcmp(target, expected, count) == 0;
    const bool after = std::memcmp(target + count, canaries_.begin() + offset + count, kMargin) == 0;
    if (before && inside && after) {
      std::memcpy(target, canaries_.begin() + offset, count);
      return true;
    }
    reason_ = !inside  ? sentence("byte %ld of the target is wrong", first_difference(target, expected, count))
              : before ? sentence("byte %ld past the end was overwritten",
                                  first_difference(target + count, canaries_.begin() + offset + count, kMargin))
                       : std::string("a byte before the target was overwritten");
    return false;
  }

  const std::string& reason() const { return reason_; }

 private:
  guarded_pages pages_;
  guarded_pages canaries_;
  std::string reason_;
};

struct one_case {
  std::size_t device_alignment, host_alignment, bytes;
};

std::string describe(const char* check, const copy_ops& ops, const one_case& shape, const std::string& reason) {
  return sentence("%s.%s of %zu bytes, device at line offset %zu, host at line offset %zu: %s", ops.name, check, shape.bytes,
                  shape.device_alignment, shape.host_alignment, reason.c_str());
}

// Calls body(one_case) for every case of the effort until it returns a violation.
template <class Body>
std::string for_each_case(const effort& effort, const Body& body) {
  for (std::size_t device = 0; device < kLine; ++device)
    for (std::size_t host = 0; host < kLine; host += effort.host_step)
      for (std::size_t bytes = 0; bytes <= kSmall; ++bytes)
        if (std::string reason = body(one_case{device, host, bytes}); !reason.empty()) return reason;
  for (std::size_t device = 0; device < kLine; ++device)
    for (const std::size_t host : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{63}})
      for (std::size_t bytes = kSmall + 1 + device % effort.size_step; bytes <= kLargest; bytes += effort.size_step)
        if (std::string reason = body(one_case{device, host, bytes}); !reason.empty()) return reason;
  return {};
}

}  // namespace

guarded_pages::guarded_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  bytes_ = (bytes + page - 1) / page * page;
  void* all = mmap(nullptr, bytes_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) std::abort();
  begin_ = static_cast<unsigned char*>(all) + page;
  if (mprotect(begin_, bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
}

guarded_pages::~guarded_pages() {
  const std::size_t page = page_bytes();
  munmap(begin_ - page, bytes_ + 2 * page);
}

std::string check_writes(const copy_ops& ops, const effort& effort) {
  target_arena device;
  const guarded_pages host(kArena);
  make_data(host.begin(), kArena, 22);
  return for_each_case(effort, [&](const one_case& shape) -> std::string {
    unsigned char* const destination = device.at_alignment(shape.device_alignment);
    const unsigned char* const source = host.begin() + shape.host_alignment;
    ops.write(destination, source, shape.bytes);
    if (!device.verify(destination, source, shape.bytes)) return describe("write", ops, shape, device.reason());
    return {};
  });
}

std::string check_reads(const copy_ops& ops, const effort& effort) {
  target_arena host;
  const guarded_pages device(kArena);
  make_data(device.begin(), kArena, 33);
  return for_each_case(effort, [&](const one_case& shape) -> std::string {
    unsigned char* const destination = host.at_alignment(shape.host_alignment);
    const unsigned char* const source = device.begin() + kMargin + shape.device_alignment;
    ops.read(destination, source, shape.bytes);
    if (!host.verify(destination, source, shape.bytes)) return describe("read", ops, shape, host.reason());
    return {};
  });
}

std::string check_fills(const copy_ops& ops, const effort& effort) {
  target_arena device;
  constexpr std::size_t kSteppedFrom = 320;
  const std::uint64_t patterns[] = {0, 0x5a5a5a5a5a5a5a5au, 0x0706050403020100u, 0x1234567812345678u};
  unsigned char expected[kLine + kLargest + 8];
  for (const std::uint64_t pattern : patterns) {
    // Little endian, as both architectures are.
    for (std::size_t i = 0; i < sizeof expected; ++i) expected[i] = static_cast<unsigned char>(pattern >> (8 * (i % 8)));
    for (std::size_t alignment = 0; alignment < kLine; ++alignment) {
      unsigned char* const destination = device.at_alignment(alignment);
      const auto next = [&](std::size_t bytes) { return bytes < kSteppedFrom ? bytes + 1 : bytes + 7 * effort.size_step; };
      for (std::size_t bytes = 0; bytes <= kLargest; bytes = next(bytes)) {
        ops.fill(destination, pattern, bytes);
        if (!device.verify(destination, expected + alignment, bytes))
          return describe("fill", ops, {alignment, 0, bytes}, device.reason());
      }
    }
  }
  return {};
}

std::string check_page_edges(const copy_ops& ops, const effort& effort) {
  const guarded_pages device(8192), host(8192);
  constexpr std::size_t kStepped = 300;
  for (std::size_t bytes = 0; bytes <= kLargest + kLine; bytes += bytes < kStepped ? 1 : effort.size_step) {
    for (const bool device_at_end : {false, true}) {
      for (const bool host_at_end : {false, true}) {
        unsigned char* const on_device = device_at_end ? device.end() - bytes : device.begin();
        unsigned char* const on_host = host_at_end ? host.end() - bytes : host.begin();
        const one_case shape{reinterpret_cast<std::uintptr_t>(on_device) % kLine,
                             reinterpret_cast<std::uintptr_t>(on_host) % kLine, bytes};
        make_data(on_host, bytes, bytes + 1);
        std::memset(on_device, 0xff, bytes);
        ops.write(on_device, on_host, bytes);
        if (std::memcmp(on_device, on_host, bytes) != 0) return describe("write", ops, shape, "wrong bytes at a page edge");
        std::memset(on_host, 0xff, bytes);
        ops.read(on_host, on_device, bytes);
        if (std::memcmp(on_device, on_host, bytes) != 0) return describe("read", ops, shape, "wrong bytes at a page edge");
      }
      ops.fill(device_at_end ? device.end() - bytes : device.begin(), 0x0706050403020100u, bytes);
    }
  }
  return {};
}

namespace {

template <class Word>
std::string untorn_word(const copy_ops& ops, std::size_t rounds) {
  const guarded_pages device(4096);
  // Offsets that are multiples of the width: at the start, in the middle and at the end of a line.
  for (const std::size_t offset : {std::size_t{0}, 2 * sizeof(Word) + 16, kLine - sizeof(Word)}) {
    auto* const word = reinterpret_cast<Word*>(device.begin() + offset);
    std::atomic<bool> stop{false};
    std::atomic<bool> started{false};
    std::thread writer([&] {
      const Word values[] = {0, static_cast<Word>(~Word{0})};
      for (std::size_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
        ops.write(word, &values[i & 1], sizeof(Word));
        if (i == 1) started.store(true, std::memory_order_relaxed);
      }
    });
    while (!started.load(std::memory_order_relaxed)) std::this_thread::yield();
    Word torn = 0;
    for (std::size_t i = 0; i < rounds && torn == 0; ++i) {
      const Word seen = __atomic_load_n(word, __ATOMIC_RELAXED);
      if (seen != 0 && seen != static_cast<Word>(~Word{0})) torn = seen;
    }
    stop.store(true, std::memory_order_relaxed);
    writer.join();
    if (torn != 0)
      return sentence("%s.write of %zu bytes at line offset %zu: another thread saw %llx", ops.name, sizeof(Word), offset,
                      static_cast<unsigned long long>(torn));
  }
  return {};
}

}  // namespace

std::string check_untorn_words(const copy_ops& ops, std::size_t rounds) {
  // One byte cannot tear.
  std::string reason = untorn_word<std::uint16_t>(ops, rounds);
  if (reason.empty()) reason = untorn_word<std::uint32_t>(ops, rounds);
  if (reason.empty()) reason = untorn_word<std::uint64_t>(ops, rounds);
  return reason;
}

}  // namespace pl::arch::check
