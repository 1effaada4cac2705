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

namespace pl::store_wire {

// Of one direction. A line each: none is written by both ends but the two that ask for a bell.
struct byte_rings::words {
  alignas(64) std::atomic<std::uint64_t> written;  // bytes since the beginning, by the writer
  alignas(64) std::atomic<std::uint64_t> read;     // the same by the reader
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;
};

namespace {

constexpr std::size_t kDataAt = 4096;
// The other end's cache holds the lines that are written over, and each would be fetched from there to be changed.
constexpr std::size_t kPastCacheFrom = 1024;
constexpr std::size_t kWholeBytes = kDataAt + 2 * byte_rings::kRingBytes;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

result<void*> map_memory(int fd) {
  void* const at = mmap(nullptr, kWholeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return failure{errno, format("mapping rings of bytes: %s", errno_text(errno).c_str())};
  return at;
}

}  // namespace

result<std::unique_ptr<byte_rings>> byte_rings::make() {
  const int fd = memfd_create("peerlane-store-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return failure{errno, format("memory for rings of bytes: %s", errno_text(errno).c_str())};
  // Sealed: a client that shrank it would end the server with SIGBUS.
  const bool is_made =
      ftruncate(fd, kWholeBytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  result<void*> at =
      is_made ? map_memory(fd) : failure{errno, format("memory for rings of bytes: %s", errno_text(errno).c_str())};
  if (!at) {
    close(fd);
    return at.error();
  }
  return std::unique_ptr<byte_rings>(new byte_rings(*at, fd, true));
}

result<std::unique_ptr<byte_rings>> byte_rings::map(int fd) {
  struct stat about {};
  const bool fits = fstat(fd, &about) == 0 && about.st_size == static_cast<off_t>(kWholeBytes);
  result<void*> at =
      fits ? map_memory(fd) : failure{EPROTO, "the store's rings of bytes are not of the size they shall have"};
  close(fd);
  if (!at) return at.error();
  return std::unique_ptr<byte_rings>(new byte_rings(*at, -1, false));
}

byte_rings::byte_rings(void* at, int fd, bool is_server) : at_(at), fd_(fd) {
  auto* const both = static_cast<words*>(at);
  auto* const data = static_cast<std::byte*>(at) + kDataAt;
  const direction to_server{both, data}, to_client{both + 1, data + kRingBytes};
  out_ = is_server ? to_client : to_server;
  in_ = is_server ? to_server : to_client;
}

byte_rings::~byte_rings() {
  munmap(at_, kWholeBytes);
  if (fd_ >= 0) close(fd_);
}

failure byte_rings::nonsense() { return {EPROTO, "the other end of the rings of bytes tells positions that cannot be"}; }

// Not yet to be seen: write() publishes it.
void byte_rings::store(std::byte* to, const void* from, std::size_t bytes) {
  if (bytes < kPastCacheFrom) {
    std::memcpy(to, from, bytes);
    return;
  }
  arch::copy_to_unfenced(arch::mapping_type::wc, to, from, bytes);
  stored_past_cache_ = true;
}

// Precondition: there is room.
std::size_t byte_rings::put(const void* from, std::size_t bytes) {
  const std::size_t at = out_.mine % kRingBytes;
  const std::size_t first = std::min(bytes, kRingBytes - at);
  store(out_.data + at, from, first);
  store(out_.data, static_cast<const std::byte*>(from) + first, bytes - first);
  out_.mine += bytes;
  return bytes;
}

result<std::size_t> byte_rings::write(std::span<const iovec> from) {
  std::size_t wanted = 0, done = 0;
  for (const iovec& each : from) wanted += each.iov_len;
  if (out_.mine - out_.theirs + wanted > kRingBytes) {
    out_.theirs = out_.shared->read.load(std::memory_order_acquire);
    if (out_.mine - out_.theirs > kRingBytes) return nonsense();
  }
  std::size_t room = kRingBytes - static_cast<std::size_t>(out_.mine - out_.theirs);
  for (const iovec& each : from) {
    const std::size_t part = put(each.iov_base, std::min(room, each.iov_len));
    room -= part;
    done += part;
  }
  if (done == 0) return done;
  if (std::exchange(stored_past_cache_, false)) arch::publish_to_device(arch::mapping_type::wc);
  // Sequentially consistent, as what arm() does: either it sees these bytes, or they are seen to be waited for.
  out_.shared->written.store(out_.mine, std::memory_order_seq_cst);
  if (out_.shared->reader_sleeps.load(std::memory_order_seq_cst) != 0)
    rings_bell_ = out_.shared->reader_sleeps.exchange(0) != 0 || rings_bell_;
  return done;
}

result<std::size_t> byte_rings::read(void* into, std::size_t bytes) {
  if (in_.theirs == in_.mine) {
    in_.theirs = in_.shared->written.load(std::memory_order_acquire);
    if (in_.theirs - in_.mine > kRingBytes) return nonsense();
  }
  const std::size_t done = std::min(bytes, static_cast<std::size_t>(in_.theirs - in_.mine));
  if (done == 0) return done;
  const std::size_t at = in_.mine % kRingBytes;
  const std::size_t first = std::min(done, kRingBytes - at);
  std::memcpy(into, in_.data + at, first);
  std::memcpy(static_cast<std::byte*>(into) + first, in_.data, done - first);
  in_.mine += done;
  in_.shared->read.store(in_.mine, std::memory_order_seq_cst);
  if (in_.shared->writer_sleeps.load(std::memory_order_seq_cst) != 0)
    rings_bell_ = in_.shared->writer_sleeps.exchange(0) != 0 || rings_bell_;
  return done;
}

bool byte_rings::arm(bool to_read, bool to_write) {
  is_armed_ = true;
  if (to_read) {
    in_.shared->reader_sleeps.store(1, std::memory_order_seq_cst);
    if (in_.shared->written.load(std::memory_order_seq_cst) != in_.mine) return disarm(), false;
  }
  if (to_write) {
    out_.shared->writer_sleeps.store(1, std::memory_order_seq_cst);
    if (out_.mine - out_.shared->read.load(std::memory_order_seq_cst) != kRingBytes) return disarm(), false;
  }
  return true;
}

bool byte_rings::disarm() {
  if (!is_armed_) return false;
  in_.shared->reader_sleeps.store(0, std::memory_order_relaxed);
  out_.shared->writer_sleeps.store(0, std::memory_order_relaxed);
  is_armed_ = false;
  return true;
}

bool byte_rings::take_bell() noexcept { return std::exchange(rings_bell_, false); }

}  // namespace pl::store_wire
