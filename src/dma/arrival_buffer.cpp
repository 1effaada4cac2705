// SPDX-License-Identifier: Apache-2.0
#include "dma/arrival_buffer.hpp"

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

// Longer reads are quicker by parts: a core copies what it has polled more slowly than what lies there whole.
constexpr std::size_t kMaxPolledBytes = 16u << 10;
constexpr std::size_t kHalfBytes = 3 * kMaxPolledBytes / 2;  // whole pages, with room for a first line in part
// Each part costs the engine some 1.4 us more than its bytes, so there are few; but the CPU begins with the first.
constexpr std::size_t kMinPartBytes = 16u << 10, kMaxPartBytes = 256u << 10;
constexpr std::size_t kPartsOfRead = 4;
constexpr std::size_t kRingBytes = 4u << 20;  // more than a core's own caches hold
constexpr std::size_t kMaxParts = 8;          // under way at once
constexpr std::size_t kPolledBytes = 2 * kHalfBytes;
constexpr unsigned kPollsPerCheck = 64;
// A line that has not come for so long holds data that equals the sentinel, or the engine has missed its doorbell (which the
// flush rings again), or it has others' work.
constexpr std::uint64_t kConfirmNs = 10'000;

std::uint64_t random_word() {
  std::uint64_t out = 0;
  if (getrandom(&out, sizeof out, 0) != sizeof out) out = monotonic_ns() * 0x9e37'79b9'7f4a'7c15;
  return out | 1;  // not 0, which is frequent data
}

std::uint64_t left_ns(std::uint64_t end_ns) {
  const std::uint64_t now_ns = monotonic_ns();
  return end_ns > now_ns ? end_ns - now_ns : 0;
}

}  // namespace

// One read whose bytes tell that they are there. Positions count from the line that holds its first byte, in its half.
struct arrival_buffer::polled_read {
  arrival_buffer& buffer;
  std::size_t half;  // its offset
  channel& queue;
  std::byte* destination;  // where position `begin` goes
  std::size_t begin, end;  // positions of the data
  std::uint64_t end_ns;

  std::byte* line_at(std::size_t position) const { return buffer.memory_.data() + half + position; }

  // Whole words, for what is compared to be data alone; they do not leave the page of the bytes that are wanted.
  status start(std::uint64_t source_line) const {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    const std::size_t first = begin / kWord * kWord, last = (end + kWord - 1) / kWord * kWord;
    auto queued = queue.copy(buffer.bound_.address() + half + first, source_line + first, last - first, ordering::none);
    return queued ? status() : status(queued.error());
  }

  // What from `place` on has arrived, in one step: part of a line, or whole lines.
  std::size_t take(std::size_t place) const {
    std::byte* const target = destination + (place - begin);
    const std::size_t in_line = place % arch::kArrivalLine;
    const std::size_t whole = (end - place) / arch::kArrivalLine * arch::kArrivalLine;
    if (in_line == 0 && whole != 0) return arch::take_arrived(target, line_at(place), whole, buffer.sentinel_);
    const std::size_t bytes = std::min(arch::kArrivalLine - in_line, end - place);
    const bool is_there =
        arch::take_part_of_line(target, line_at(place - in_line), in_line, in_line + bytes, buffer.sentinel_);
    return is_there ? bytes : 0;
  }

  // Behind a flush all is there, whatever it looks like.
  status take_confirmed(std::size_t place) const {
    auto flushed = queue.flush();
    if (!flushed) return flushed.error();
    if (status done = queue.wait(*flushed, left_ns(end_ns)); !done) return done;
    std::memcpy(destination + (place - begin), line_at(place), end - place);
    arch::put_sentinel(line_at(0), kHalfBytes, buffer.sentinel_);
    return {};
  }

  status finish() const {
    std::uint64_t still_ns = 0;  // since when nothing has come
    unsigned polls = 0;
    for (std::size_t place = begin; place < end;) {
      if (const std::size_t taken = take(place); taken != 0) {
        place += taken;
        still_ns = 0;
        continue;
      }
      if (++polls % kPollsPerCheck != 0) continue;
      if (auto reason = queue.fault()) return *std::move(reason);
      const std::uint64_t now_ns = monotonic_ns();
      if (still_ns == 0) still_ns = now_ns;
      if (now_ns - still_ns > kConfirmNs) return take_confirmed(place);
    }
    return {};
  }
};

result<std::unique_ptr<arrival_buffer>> arrival_buffer::open(std::shared_ptr<address_space> space) {
  std::unique_ptr<arrival_buffer> made(new arrival_buffer);
  made->space_ = std::move(space);
  // Shared, since the simulated engine writes whole words into such memory alone.
  auto pages = unforked_pages::make(kPolledBytes, unforked_pages::sharing::shared);
  if (!pages) return pages.error();
  made->memory_ = *std::move(pages);
  made->sentinel_ = random_word();
  arch::put_sentinel(made->memory_.data(), kPolledBytes, made->sentinel_);
  arch::evict_lines(made->memory_.data(), kPolledBytes);
  auto bound = made->space_->bind_host(made->memory_.data(), kPolledBytes);
  if (!bound) return bound.error();
  made->bound_ = *std::move(bound);
  return made;
}

status arrival_buffer::open_ring() {
  if (!ring_) {
    auto pages = unforked_pages::make(kRingBytes);
    if (!pages) return pages.error();
    ring_ = *std::move(pages);
  }
  auto bound = space_->bind_host(ring_.data(), kRingBytes);
  if (!bound) return bound.error();
  bound_ring_ = *std::move(bound);
  return {};
}

status arrival_buffer::read_polled(channel& queue, std::uint64_t source, std::byte* destination, std::size_t size_bytes,
                                   std::uint64_t end_ns) {
  const std::size_t begin = source % arch::kArrivalLine;  // lines of the source are lines here: each is written at once
  const polled_read one{*this, half_, queue, destination, begin, begin + size_bytes, end_ns};
  if (status begun = one.start(source - begin); !begun) return begun;
  half_ = kHalfBytes - half_;
  arch::evict_lines(memory_.data() + half_, touched_bytes_);  // of the read before, for the next one
  touched_bytes_ = begin + size_bytes;
  return one.finish();
}

status arrival_buffer::read_by_parts(channel& queue, std::uint64_t source, std::byte* destination, std::size_t size_bytes,
                                     std::uint64_t end_ns) {
  const std::size_t share = (size_bytes / kPartsOfRead + 4095) / 4096 * 4096;
  const std::size_t part_bytes = std::clamp(share, kMinPartBytes, kMaxPartBytes);
  const std::size_t parts = (size_bytes + part_bytes - 1) / part_bytes;
  sequence numbers[kMaxParts] = {};
  std::size_t offsets[kMaxParts] = {};
  const auto bytes_of = [&](std::size_t part) { return std::min(part_bytes, size_bytes - part * part_bytes); };
  const auto start = [&](std::size_t part) -> status {
    if (next_part_ + part_bytes > kRingBytes) next_part_ = 0;
    const std::size_t offset = std::exchange(next_part_, next_part_ + part_bytes);
    auto queued =
        queue.copy(bound_ring_.address() + offset, source + part * part_bytes, bytes_of(part), ordering::none_settled);
    if (!queued) return queued.error();
    offsets[part % kMaxParts] = offset;
    numbers[part % kMaxParts] = *queued;
    return {};
  };
  for (std::size_t part = 0; part < std::min(parts, kMaxParts); ++part)
    if (status begun = start(part); !begun) return begun;
  for (std::size_t part = 0; part < parts; ++part) {
    if (status done = queue.wait(numbers[part % kMaxParts], left_ns(end_ns)); !done) return done;
    std::memcpy(destination + part * part_bytes, ring_.data() + offsets[part % kMaxParts], bytes_of(part));
    if (part + kMaxParts < parts)
      if (status begun = start(part + kMaxParts); !begun) return begun;
  }
  return {};
}

status arrival_buffer::read(channel& queue, std::uint64_t source, void* destination, std::size_t size_bytes,
                            std::uint64_t timeout_ns) {
  if (size_bytes == 0) return {};
  if (size_bytes > kMaxPolledBytes && !bound_ring_)
    if (status made = open_ring(); !made) return made;
  const auto read = size_bytes <= kMaxPolledBytes ? &arrival_buffer::read_polled : &arrival_buffer::read_by_parts;
  status done = (this->*read)(queue, source, static_cast<std::byte*>(destination), size_bytes, monotonic_ns() + timeout_ns);
  if (done) return done;
  queue.stop();  // nothing writes here any more
  arch::put_sentinel(memory_.data(), kPolledBytes, sentinel_);
  return done;
}

}  // namespace pl::dma
