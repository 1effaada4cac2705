// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/shm_ring.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::messaging {
namespace {

failure ring_failure(const char* step) {
  const int code = errno;
  return failure{code, format("shared memory between two processes: %s failed: %s", step, errno_text(code).c_str())};
}

}  // namespace

result<std::unique_ptr<shm_ring>> shm_ring::make(std::size_t chunk_bytes) {
  auto memory = sealed_memory::make("peerlane-ring", kControlBytes + kChunks * chunk_bytes);
  if (!memory) return std::move(memory).error();
  std::unique_ptr<shm_ring> ring(new shm_ring);
  ring->fd_ = std::move(memory->fd);
  ring->name_ = {getpid(), ring->fd_.get(), memory->inode, chunk_bytes};
  if (auto done = ring->map(); !done) return std::move(done).error();
  return ring;
}

result<std::unique_ptr<shm_ring>> shm_ring::open(const name& file) {
  constexpr std::uint64_t kMaxChunkBytes = 64u << 20;
  if (file.chunk_bytes == 0 || file.chunk_bytes > kMaxChunkBytes || file.chunk_bytes % kControlBytes != 0)
    return failure{EINVAL, "shared memory between two processes: a ring of no possible size was named"};
  const auto bytes = kControlBytes + kChunks * file.chunk_bytes;
  auto memory = sealed_memory::open(file.pid, file.fd, file.inode, bytes);
  if (!memory) return std::move(memory).error();
  if (memory->bytes != bytes)
    return failure{ESTALE, "shared memory between two processes: the file is not the ring that was named"};
  std::unique_ptr<shm_ring> ring(new shm_ring);
  ring->fd_ = std::move(memory->fd);
  ring->name_ = file;
  if (auto done = ring->map(); !done) return std::move(done).error();
  return ring;
}

status shm_ring::map() {
  const std::size_t bytes = kControlBytes + kChunks * name_.chunk_bytes;
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapping == MAP_FAILED) return ring_failure("mmap");
  madvise(mapping, bytes, MADV_DONTFORK);
  control_ = static_cast<control*>(mapping);
  chunks_ = static_cast<std::byte*>(mapping) + kControlBytes;
  return {};
}

void shm_ring::pin(copy::planner& planner, int device_ordinal) {
  if (std::exchange(is_pin_tried_, true) || device_ordinal < 0) return;
  if (auto pinned = planner.register_host_memory(chunks_, kChunks * name_.chunk_bytes, device_ordinal))
    pinned_ = *std::move(pinned);
}

shm_ring::~shm_ring() {
  pinned_ = {};
  if (control_ != nullptr) munmap(control_, kControlBytes + kChunks * name_.chunk_bytes);
}

}  // namespace pl::messaging
