// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/byte_ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"

namespace pl::store_protocol {

// The words of one direction. Each has its own cache line, because only the two wakeup requests are written by both
// ends.
struct byte_rings::words {
  alignas(64) std::atomic<std::uint64_t> written;  // bytes since the beginning, by the writer
  alignas(64) std::atomic<std::uint64_t> read;     // bytes since the beginning, by the reader
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;
};

namespace {

constexpr std::size_t kDataAt = 4096;
// The lines to be overwritten are in the other end's cache; an ordinary store would fetch each of them first.
constexpr std::size_t kNonTemporalFrom = 1024;
constexpr std::size_t kWholeBytes = kDataAt + 2 * byte_rings::kRingBytes;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

result<void*> map_memory(int fd) {
  void* const mapping = mmap(nullptr, kWholeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return failure{errno, format("mapping rings of bytes: %s", errno_text(errno).c_str())};
  return mapping;
}

}  // namespace

result<std::unique_ptr<byte_rings>> byte_rings::make() {
  const int fd = memfd_create("peerlane-store-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return failure{errno, format("memory for rings of bytes: %s", errno_text(errno).c_str())};
  // Sealed, because a client that shrank it would kill the server by SIGBUS.
  const bool is_made =
      ftruncate(fd, kWholeBytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  result<void*> mapping =
      is_made ? map_memory(fd) : failure{errno, format("memory for rings of bytes: %s", errno_text(errno).c_str())};
  if (!mapping) {
    close(fd);
    return mapping.error();
  }
  return std::unique_ptr<byte_rings>(new byte_rings(*mapping, fd, true));
}

result<std::unique_ptr<byte_rings>> byte_rings::map(int fd) {
  struct stat about {};
  const bool fits = fstat(fd, &about) == 0 && about.st_size == static_cast<off_t>(kWholeBytes);
  result<void*> mapping =
      fits ? map_memory(fd) : failure{EPROTO, "the store's rings of bytes are not of the size they shall have"};
  close(fd);
  if (!mapping) return mapping.error();
  return std::unique_ptr<byte_rings>(new byte_rings(*mapping, -1, false));
}

byte_rings::byte_rings(void* memory, int fd, bool is_server) : memory_(memory), fd_(fd) {
  auto* const both = static_cast<words*>(memory);
  auto* const data = static_cast<std::byte*>(memory) + kDataAt;
  const direction to_server{both, data}, to_client{both + 1, data + kRingBytes};
  outgoing_ = is_server ? to_client : to_server;
  incoming_ = is_server ? to_server : to_client;
}

byte_rings::~byte_rings() {
  munmap(memory_, kWholeBytes);
  if (fd_ >= 0) close(fd_);
}

failure byte_rings::nonsense() { return {EPROTO, "the other end of the byte rings reports impossible positions"}; }

// Copies without publishing; write() publishes.
void byte_rings::store(std::byte* target, const void* source, std::size_t bytes) {
  if (bytes < kNonTemporalFrom) {
    std::memcpy(target, source, bytes);
    return;
  }
  arch::copy_to_unfenced(arch::mapping_type::wc, target, source, bytes);
  stored_non_temporal_ = true;
}

// Precondition: there is room.
std::size_t byte_rings::put(const void* source, std::size_t bytes) {
  const std::size_t position = outgoing_.mine % kRingBytes;
  const std::size_t first = std::min(bytes, kRingBytes - position);
  store(outgoing_.data + position, source, first);
  store(outgoing_.data, static_cast<const std::byte*>(source) + first, bytes - first);
  outgoing_.mine += bytes;
  return bytes;
}

result<std::size_t> byte_rings::write(std::span<const iovec> buffers) {
  std::size_t wanted = 0, done = 0;
  for (const iovec& each : buffers) wanted += each.iov_len;
  if (outgoing_.mine - outgoing_.theirs + wanted > kRingBytes) {
    outgoing_.theirs = outgoing_.shared->read.load(std::memory_order_acquire);
    if (outgoing_.mine - outgoing_.theirs > kRingBytes) return nonsense();
  }
  std::size_t room = kRingBytes - static_cast<std::size_t>(outgoing_.mine - outgoing_.theirs);
  for (const iovec& each : buffers) {
    const std::size_t part = put(each.iov_base, std::min(room, each.iov_len));
    room -= part;
    done += part;
  }
  if (done == 0) return done;
  if (std::exchange(stored_non_temporal_, false)) arch::publish_to_device(arch::mapping_type::wc);
  // Sequentially consistent, like arm(): either arm() sees these bytes, or this end sees that the other end sleeps.
  outgoing_.shared->written.store(outgoing_.mine, std::memory_order_seq_cst);
  if (outgoing_.shared->reader_sleeps.load(std::memory_order_seq_cst) != 0)
    wakeup_due_ = outgoing_.shared->reader_sleeps.exchange(0) != 0 || wakeup_due_;
  return done;
}

result<std::size_t> byte_rings::read(void* destination, std::size_t bytes) {
  if (incoming_.theirs == incoming_.mine) {
    incoming_.theirs = incoming_.shared->written.load(std::memory_order_acquire);
    if (incoming_.theirs - incoming_.mine > kRingBytes) return nonsense();
  }
  const std::size_t done = std::min(bytes, static_cast<std::size_t>(incoming_.theirs - incoming_.mine));
  if (done == 0) return done;
  const std::size_t position = incoming_.mine % kRingBytes;
  const std::size_t first = std::min(done, kRingBytes - position);
  std::memcpy(destination, incoming_.data + position, first);
  std::memcpy(static_cast<std::byte*>(destination) + first, incoming_.data, done - first);
  incoming_.mine += done;
  incoming_.shared->read.store(incoming_.mine, std::memory_order_seq_cst);
  if (incoming_.shared->writer_sleeps.load(std::memory_order_seq_cst) != 0)
    wakeup_due_ = incoming_.shared->writer_sleeps.exchange(0) != 0 || wakeup_due_;
  return done;
}

bool byte_rings::has_incoming() const noexcept {
  return incoming_.shared->written.load(std::memory_order_relaxed) != incoming_.mine;
}

bool byte_rings::arm(bool to_read, bool to_write) {
  is_armed_ = true;
  if (to_read) {
    incoming_.shared->reader_sleeps.store(1, std::memory_order_seq_cst);
    if (incoming_.shared->written.load(std::memory_order_seq_cst) != incoming_.mine) return disarm(), false;
  }
  if (to_write) {
    outgoing_.shared->writer_sleeps.store(1, std::memory_order_seq_cst);
    if (outgoing_.mine - outgoing_.shared->read.load(std::memory_order_seq_cst) != kRingBytes) return disarm(), false;
  }
  return true;
}

bool byte_rings::disarm() {
  if (!is_armed_) return false;
  incoming_.shared->reader_sleeps.store(0, std::memory_order_relaxed);
  outgoing_.shared->writer_sleeps.store(0, std::memory_order_relaxed);
  is_armed_ = false;
  return true;
}

bool byte_rings::take_wakeup_request() noexcept { return std::exchange(wakeup_due_, false); }

}  // namespace pl::store_protocol
