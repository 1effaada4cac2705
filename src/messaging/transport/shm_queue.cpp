// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/shm_queue.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::link {
namespace {

failure not_shared(const char* step) {
  const int code = errno;
  return failure{code, format("shared memory for packets: %s failed: %s", step, errno_text(code).c_str())};
}

result<shm_lane> map_lane(int fd, int rank) {
  void* const at = mmap(nullptr, shm_lane::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(rank) * static_cast<off_t>(shm_lane::kBytes));
  if (at == MAP_FAILED) return not_shared("mmap");
  madvise(at, shm_lane::kBytes, MADV_DONTFORK);
  return shm_lane(at);
}

}  // namespace

shm_lane::extent shm_lane::extent_behind(std::uint32_t position, std::size_t body_bytes) noexcept {
  constexpr std::size_t kLine = 64;
  const std::size_t needed = (body_bytes + kLine - 1) & ~(kLine - 1);
  const std::size_t inside = position % kDataBytes;
  const std::uint32_t at =
      inside + needed > kDataBytes ? position + static_cast<std::uint32_t>(kDataBytes - inside) : position;
  return {at, at + static_cast<std::uint32_t>(needed)};
}

shm_lane::room shm_lane::reserve(std::size_t head_bytes, std::size_t body_bytes) noexcept {
  const bool fits_slot = head_bytes + body_bytes <= kMostHead;
  const extent body = fits_slot ? extent{data_, data_} : extent_behind(data_, body_bytes);
  if (!has_room(body.end)) {
    taken_ = shared_->taken.load(std::memory_order_acquire);
    if (!has_room(body.end)) return {};
  }
  fresh_.body_bytes = static_cast<std::uint16_t>(body_bytes);
  fresh_.head_bytes = static_cast<std::uint8_t>(head_bytes);
  data_behind_ = body.end;
  return {fresh_.inside, fits_slot ? fresh_.inside + head_bytes : shared_->data + body.at % kDataBytes};
}

void shm_lane::publish(int outcome) noexcept {
  constexpr int kMost = 0xff;
  fresh_.outcome = static_cast<std::uint8_t>(outcome >= 0 && outcome <= kMost ? outcome : EIO);
  slot& to = slot_of(number_);
  std::memcpy(&to.what, &fresh_, sizeof fresh_);
  to.mark.store(++number_, std::memory_order_release);
  data_ = data_behind_;
}

shm_lane::view shm_lane::peek() noexcept {
  slot& from = slot_of(number_);
  if (from.mark.load(std::memory_order_acquire) != number_ + 1) return {};
  const content& what = from.what;
  view out{what.inside, what.head_bytes, nullptr, what.body_bytes, what.outcome};
  // A length that cannot be ends the lane instead of this process.
  if (out.head_bytes > kMostHead) return {};
  const bool fits_slot = out.head_bytes + out.body_bytes <= kMostHead;
  const extent body = fits_slot ? extent{data_, data_} : extent_behind(data_, out.body_bytes);
  out.body = fits_slot ? out.head + out.head_bytes : shared_->data + body.at % kDataBytes;
  data_behind_ = body.end;
  // They are in the writer's cache, all can be on their way at once, and matching comes before they are read. Of longer
  // bodies the hardware's own prefetching brings the rest.
  constexpr std::size_t kLine = 64, kMostAhead = 16 * kLine;
  if (!fits_slot)
    for (std::size_t i = 0; i < out.body_bytes && i < kMostAhead; i += kLine) __builtin_prefetch(out.body + i);
  return out;
}

void shm_lane::release() noexcept {
  data_ = data_behind_;
  shared_->taken.store(std::uint64_t{++number_} << 32 | data_, std::memory_order_release);
}

result<shm_outbox> shm_outbox::make(int ranks) {
  auto made = sealed_memory::make("peerlane-lanes", static_cast<std::size_t>(ranks) * shm_lane::kBytes);
  if (!made) return std::move(made).error();
  shm_outbox out;
  out.fd_ = std::move(made->fd);
  out.name_ = {getpid(), out.fd_.get(), made->inode};
  return out;
}

result<shm_lane> shm_outbox::lane_to(int rank) const { return map_lane(fd_.get(), rank); }

result<shm_lane> shm_outbox::open_lane(const name& of, int rank) {
  const auto opened =
      sealed_memory::open(of.pid, of.fd, of.inode, (static_cast<std::uint64_t>(rank) + 1) * shm_lane::kBytes);
  if (!opened) return opened.error();
  return map_lane(opened->fd.get(), rank);
}

void shm_outbox::close(shm_lane& lane) noexcept {
  if (lane.is_open()) munmap(lane.address(), shm_lane::kBytes);
  lane = {};
}

}  // namespace pl::link
