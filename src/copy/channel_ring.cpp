// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_ring.hpp"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "base/text.hpp"
#include "copy/ring_job.hpp"

namespace pl::copy {

struct channel_ring::state {
  using slot = ring::slot<dma_engine::part_queue>;

  state(dma_engine& its_engine, worker_pool& its_pool, options wanted)
      : engine(its_engine),
        pool(its_pool),
        chunk_bytes(std::bit_ceil(std::max(wanted.chunk_bytes, ring::kMinChunkBytes))),
        chunks(std::max(wanted.chunks, ring::kMinChunks)) {}
  ~state() {
    bound = dma::region();
    if (memory != nullptr) munmap(memory, chunk_bytes * chunks);
  }

  status allocate() {
    if (slots != nullptr) return {};
    const std::size_t bytes = chunk_bytes * chunks;
    if (memory == nullptr) {
      void* const fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (fresh == MAP_FAILED)
        return failure{ENOMEM, format("%zu bytes of host memory for copies: %s", bytes, errno_text(errno).c_str())};
      memory = static_cast<std::byte*>(fresh);
      madvise(memory, bytes, MADV_DONTFORK);
      madvise(memory, bytes, MADV_HUGEPAGE);
      std::memset(memory, 0, bytes);
    }
    auto made = engine.bind_own(memory, bytes);
    if (!made) return made.error();
    bound = *std::move(made);
    slots.reset(new (std::nothrow) slot[chunks]);
    return slots != nullptr ? status() : failure{ENOMEM, "no memory for a ring of pinned chunks"};
  }

  status run(const transfer& whole, const cu::pointer_info& device, unsigned width) {
    if (whole.row_bytes == 0) return {};
    const std::lock_guard lock(mutex);
    if (auto ready = allocate(); !ready) return ready;
    auto parts = engine.begin_parts(whole, device, memory, bound);
    if (!parts) return parts.error();
    return ring::run(*parts, pool, memory, std::span(slots.get(), chunks), chunk_bytes, whole, width);
  }

  dma_engine& engine;
  worker_pool& pool;
  const std::size_t chunk_bytes;
  const unsigned chunks;
  std::mutex mutex;
  std::byte* memory = nullptr;
  dma::region bound;
  std::unique_ptr<slot[]> slots;
};

channel_ring::channel_ring(dma_engine& engine, worker_pool& pool, options wanted)
    : state_(std::make_unique<state>(engine, pool, wanted)) {}

channel_ring::~channel_ring() = default;

status channel_ring::copy(const transfer& whole, const cu::pointer_info& device, unsigned width) {
  auto done = state_->run(whole, device, width);
  // If the fault of another copy had ended the channel, it is opened again and everything is written again.
  return done || done.code() != EIO ? done : state_->run(whole, device, width);
}

}  // namespace pl::copy
