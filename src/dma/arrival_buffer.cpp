// SPDX-License-Identifier: Apache-2.0
#include "dma/arrival_buffer.hpp"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "arch/arrival.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::dma {
namespace {

constexpr std::size_t kBytes = arrival_buffer::kParts * arrival_buffer::kPartBytes;
constexpr unsigned kPollsPerLook = 64;
// A line that has not come for so long holds data that equals the sentinel, or the engine has missed its doorbell (which the
// flush rings again), or it has others' work.
constexpr std::uint64_t kConfirmNs = 10'000;

std::uint64_t random_word() {
  std::uint64_t out = 0;
  if (getrandom(&out, sizeof out, 0) != sizeof out) out = monotonic_ns() * 0x9e37'79b9'7f4a'7c15;
  return out | 1;  // not 0, which is frequent data
}

}  // namespace

// One read. Positions count from the line that holds its first byte.
struct arrival_buffer::reading {
  arrival_buffer& buffer;
  channel& queue;
  std::uint64_t source_line;  // the source's address at position 0
  std::byte* destination;     // where position `begin` goes
  std::size_t begin, end;     // positions of the data
  std::uint64_t end_ns;

  std::size_t parts() const { return (end + kPartBytes - 1) / kPartBytes; }
  std::size_t first_of(std::size_t part) const { return std::max(part * kPartBytes, begin); }
  std::size_t last_of(std::size_t part) const { return std::min((part + 1) * kPartBytes, end); }
  std::byte* line_at(std::size_t position) const { return buffer.memory_ + position % kBytes; }

  // Whole words, for what is compared to be data alone; they do not leave the page of the bytes that are wanted.
  status start(std::size_t part) {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    const std::size_t first = first_of(part) / kWord * kWord, last = (last_of(part) + kWord - 1) / kWord * kWord;
    auto queued = queue.copy(buffer.bound_.address() + first % kBytes, source_line + first, last - first, ordering::none);
    return queued ? status() : status(queued.error());
  }

  // What of [place, last) has arrived, in one step: part of a line, or whole lines.
  std::size_t take(std::size_t place, std::size_t last) {
    std::byte* const target = destination + (place - begin);
    const std::size_t in_line = place % arch::kArrivalLine;
    const std::size_t whole = (last - place) / arch::kArrivalLine * arch::kArrivalLine;
    if (in_line == 0 && whole != 0) return arch::take_arrived(target, line_at(place), whole, buffer.sentinel_);
    const std::size_t bytes = std::min(arch::kArrivalLine - in_line, last - place);
    const bool is_there =
        arch::take_part_of_line(target, line_at(place - in_line), in_line, in_line + bytes, buffer.sentinel_);
    return is_there ? bytes : 0;
  }

  // Behind a flush all that was started is there, whatever it looks like.
  status take_confirmed(std::size_t place, std::size_t last) {
    auto flushed = queue.flush();
    if (!flushed) return flushed.error();
    const std::uint64_t now_ns = monotonic_ns();
    if (status done = queue.wait(*flushed, end_ns > now_ns ? end_ns - now_ns : 0); !done) return done;
    std::memcpy(destination + (place - begin), line_at(place), last - place);
    const std::size_t line = place / arch::kArrivalLine * arch::kArrivalLine;
    const std::size_t lines = (last - line + arch::kArrivalLine - 1) / arch::kArrivalLine * arch::kArrivalLine;
    arch::put_sentinel(line_at(line), lines, buffer.sentinel_);
    return {};
  }

  status finish(std::size_t part) {
    const std::size_t last = last_of(part);
    std::uint64_t still_ns = 0;  // since when nothing has come
    unsigned polls = 0;
    for (std::size_t place = first_of(part); place < last;) {
      if (const std::size_t taken = take(place, last); taken != 0) {
        place += taken;
        still_ns = 0;
        continue;
      }
      if (++polls % kPollsPerLook != 0) continue;
      if (auto reason = queue.fault()) return *std::move(reason);
      const std::uint64_t now_ns = monotonic_ns();
      if (still_ns == 0) still_ns = now_ns;
      if (now_ns - still_ns > kConfirmNs) return take_confirmed(place, last);
    }
    return {};
  }

  status run() {
    for (std::size_t part = 0; part < std::min<std::size_t>(parts(), kParts); ++part)
      if (status begun = start(part); !begun) return begun;
    for (std::size_t part = 0; part < parts(); ++part) {
      if (status done = finish(part); !done) return done;
      if (part + kParts < parts())
        if (status begun = start(part + kParts); !begun) return begun;
    }
    return {};
  }
};

result<std::unique_ptr<arrival_buffer>> arrival_buffer::open(std::shared_ptr<address_space> space) {
  std::unique_ptr<arrival_buffer> made(new arrival_buffer);
  made->space_ = std::move(space);
  void* const pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return failure{errno, "no memory for copies by DMA channel: " + errno_text(errno)};
  made->pages_ = pages;
  made->memory_ = static_cast<std::byte*>(pages);
  madvise(pages, kBytes, MADV_DONTFORK);
  made->sentinel_ = random_word();
  arch::put_sentinel(pages, kBytes, made->sentinel_);
  auto bound = made->space_->bind_host(pages, kBytes);
  if (!bound) return bound.error();
  made->bound_ = *std::move(bound);
  return made;
}

arrival_buffer::~arrival_buffer() {
  bound_ = region();
  if (pages_ != nullptr) munmap(pages_, kBytes);
}

status arrival_buffer::read(channel& queue, std::uint64_t source, void* destination, std::size_t size_bytes,
                            std::uint64_t timeout_ns) {
  if (size_bytes == 0) return {};
  const std::size_t begin = source % arch::kArrivalLine;  // lines of the source are lines here: each is written at once
  reading one{*this,
              queue,
              source - begin,
              static_cast<std::byte*>(destination),
              begin,
              begin + size_bytes,
              monotonic_ns() + timeout_ns};
  status done = one.run();
  if (done) return done;
  queue.stop();  // nothing writes here any more
  arch::put_sentinel(memory_, kBytes, sentinel_);
  return done;
}

}  // namespace pl::dma
