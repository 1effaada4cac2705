// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/shm_queue.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::messaging {
namespace {

failure queue_failure(const char* step) {
  const int code = errno;
  return failure{code, format("shared memory for packets: %s failed: %s", step, errno_text(code).c_str())};
}

result<shm_queue> map_queue(int fd, int rank) {
  void* const mapping = mmap(nullptr, shm_queue::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                             static_cast<off_t>(rank) * static_cast<off_t>(shm_queue::kBytes));
  if (mapping == MAP_FAILED) return queue_failure("mmap");
  madvise(mapping, shm_queue::kBytes, MADV_DONTFORK);
  return shm_queue(mapping);
}

}  // namespace

shm_queue::extent shm_queue::extent_behind(std::uint32_t position, std::size_t body_bytes) noexcept {
  constexpr std::size_t kLine = 64;
  const std::size_t needed = (body_bytes + kLine - 1) & ~(kLine - 1);
  const std::size_t inside = position % kDataBytes;
  const std::uint32_t begin =
      inside + needed > kDataBytes ? position + static_cast<std::uint32_t>(kDataBytes - inside) : position;
  return {begin, begin + static_cast<std::uint32_t>(needed)};
}

shm_queue::room shm_queue::reserve(std::size_t head_bytes, std::size_t body_bytes) noexcept {
  const bool fits_slot = head_bytes + body_bytes <= kMaxHead;
  const extent body = fits_slot ? extent{data_, data_} : extent_behind(data_, body_bytes);
  if (!has_room(body.end)) {
    taken_ = shared_->taken.load(std::memory_order_acquire);
    if (!has_room(body.end)) return {};
  }
  fresh_.body_bytes = static_cast<std::uint16_t>(body_bytes);
  fresh_.head_bytes = static_cast<std::uint8_t>(head_bytes);
  data_behind_ = body.end;
  return {fresh_.inside, fits_slot ? fresh_.inside + head_bytes : shared_->data + body.begin % kDataBytes};
}

void shm_queue::publish(int outcome) noexcept {
  constexpr int kMax = 0xff;
  fresh_.outcome = static_cast<std::uint8_t>(outcome >= 0 && outcome <= kMax ? outcome : EIO);
  slot& entry = slot_of(number_);
  std::memcpy(&entry.packet, &fresh_, sizeof fresh_);
  entry.mark.store(++number_, std::memory_order_release);
  data_ = data_behind_;
}

shm_queue::view shm_queue::peek() noexcept {
  slot& entry = slot_of(number_);
  if (entry.mark.load(std::memory_order_acquire) != number_ + 1) return {};
  const content& stored = entry.packet;
  view out{stored.inside, stored.head_bytes, nullptr, stored.body_bytes, stored.outcome};
  // An impossible length ends the queue, not this process.
  if (out.head_bytes > kMaxHead) return {};
  const bool fits_slot = out.head_bytes + out.body_bytes <= kMaxHead;
  const extent body = fits_slot ? extent{data_, data_} : extent_behind(data_, out.body_bytes);
  out.body = fits_slot ? out.head + out.head_bytes : shared_->data + body.begin % kDataBytes;
  data_behind_ = body.end;
  // The lines are in the writer's cache. Prefetching overlaps their transfers with each other and with the matching. The
  // hardware prefetcher fetches the rest of longer bodies.
  constexpr std::size_t kLine = 64, kMaxAhead = 16 * kLine;
  if (!fits_slot)
    for (std::size_t i = 0; i < out.body_bytes && i < kMaxAhead; i += kLine) __builtin_prefetch(out.body + i);
  return out;
}

void shm_queue::release() noexcept {
  data_ = data_behind_;
  shared_->taken.store(std::uint64_t{++number_} << 32 | data_, std::memory_order_release);
}

result<shm_queue_set> shm_queue_set::make(int ranks) {
  auto made = sealed_memory::make("peerlane-lanes", static_cast<std::size_t>(ranks) * shm_queue::kBytes);
  if (!made) return std::move(made).error();
  shm_queue_set out;
  out.fd_ = std::move(made->fd);
  out.name_ = {getpid(), out.fd_.get(), made->inode};
  return out;
}

result<shm_queue> shm_queue_set::queue_to(int rank) const { return map_queue(fd_.get(), rank); }

result<shm_queue> shm_queue_set::open_queue(const name& file, int rank) {
  const auto opened =
      sealed_memory::open(file.pid, file.fd, file.inode, (static_cast<std::uint64_t>(rank) + 1) * shm_queue::kBytes);
  if (!opened) return opened.error();
  return map_queue(opened->fd.get(), rank);
}

void shm_queue_set::close(shm_queue& queue) noexcept {
  if (queue.is_open()) munmap(queue.address(), shm_queue::kBytes);
  queue = {};
}

}  // namespace pl::messaging
