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

shm_queue::room shm_queue::reserve(std::size_t head_bytes, std::size_t body_bytes) noexcept {
  const bool fits_slot = head_bytes + body_bytes <= kSlotBytes;
  const extent body = fits_slot ? extent{data_, data_} : extent_behind(data_, body_bytes);
  if (!find_room(body.end)) return {};
  fresh_.body_bytes = static_cast<std::uint16_t>(body_bytes);
  fresh_.head_bytes = static_cast<std::uint8_t>(head_bytes);
  data_behind_ = body.end;
  return {fresh_.inside, fits_slot ? fresh_.inside + head_bytes : shared_->data + body.begin % kDataBytes};
}

void shm_queue::publish(int outcome) noexcept {
  constexpr int kMax = 0xff;
  constexpr std::size_t kFirstLine = 60;  // after the mark
  fresh_.outcome = static_cast<std::uint8_t>(outcome >= 0 && outcome <= kMax ? outcome : EIO);
  slot& entry = slot_of(number_);
  const std::size_t body_bytes = data_behind_ == data_ ? fresh_.body_bytes : 0;
  const bool is_one_line = offsetof(content, inside) + fresh_.head_bytes + body_bytes <= kFirstLine;
  std::memcpy(&entry.packet, &fresh_, is_one_line ? kFirstLine : sizeof fresh_);
  entry.mark.store(++number_, std::memory_order_release);
  data_ = data_behind_;
}

void shm_queue::find_body(view& packet) noexcept {
  const extent body = extent_behind(data_, packet.body_bytes);
  packet.body = shared_->data + body.begin % kDataBytes;
  data_behind_ = body.end;
  // The lines are in the writer's cache. Prefetching overlaps their transfers with each other and with the matching. The
  // hardware prefetcher fetches the rest of longer bodies.
  constexpr std::size_t kLine = 64, kMaxAhead = 16 * kLine;
  for (std::size_t i = 0; i < packet.body_bytes && i < kMaxAhead; i += kLine) __builtin_prefetch(packet.body + i);
}

result<shm_queue_set> shm_queue_set::make(int ranks) {
  auto made = sealed_memory::make("peerlane-shm-queues", static_cast<std::size_t>(ranks) * shm_queue::kBytes);
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
