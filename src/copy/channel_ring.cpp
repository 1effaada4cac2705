// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_ring.hpp"

#include <bit>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "base/text.hpp"
#include "copy/ring_job.hpp"
#include "os/unforked_pages.hpp"

namespace pl::copy {

struct channel_ring::state {
  using slot = ring::slot<dma_engine::part_queue>;

  state(dma_engine& its_engine, worker_pool& its_pool, options wanted)
      : engine(its_engine),
        pool(its_pool),
        chunk_bytes(std::bit_ceil(std::max(wanted.chunk_bytes, ring::kMinChunkBytes))),
        chunks(std::max(wanted.chunks, ring::kMinChunks)) {}
  status allocate() {
    if (slots != nullptr) return {};
    if (!memory) {
      auto pages = unforked_pages::make(chunk_bytes * chunks);
      if (!pages) return pages.error();
      memory = *std::move(pages);
    }
    auto made = engine.bind_own(memory.data(), chunk_bytes * chunks);
    if (!made) return made.error();
    bound = *std::move(made);
    slots.reset(new (std::nothrow) slot[chunks]);
    return slots != nullptr ? status() : failure{ENOMEM, "no memory for a ring of pinned chunks"};
  }

  status run(const transfer& whole, const cu::pointer_info& device, unsigned width) {
    if (whole.row_bytes == 0) return {};
    const std::lock_guard lock(mutex);
    if (auto ready = allocate(); !ready) return ready;
    auto parts = engine.begin_parts(whole, device, memory.data(), bound);
    if (!parts) return parts.error();
    return ring::run(*parts, pool, memory.data(), std::span(slots.get(), chunks), chunk_bytes, whole, width);
  }

  dma_engine& engine;
  worker_pool& pool;
  const std::size_t chunk_bytes;
  const unsigned chunks;
  std::mutex mutex;
  unforked_pages memory;
  dma::region bound;
  std::unique_ptr<slot[]> slots;
};

channel_ring::channel_ring(dma_engine& engine, worker_pool& pool, options wanted)
    : state_(std::make_unique<state>(engine, pool, wanted)) {}

channel_ring::~channel_ring() = default;

bool channel_ring::release() {
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) return false;
  state_->slots.reset();
  state_->bound = {};
  state_->memory = {};
  return true;
}

status channel_ring::copy(const transfer& whole, const cu::pointer_info& device, unsigned width) {
  auto done = state_->run(whole, device, width);
  // If the fault of another copy had ended the channel, it is opened again and everything is written again.
  return done || done.code() != EIO ? done : state_->run(whole, device, width);
}

}  // namespace pl::copy
