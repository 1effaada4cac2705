// SPDX-License-Identifier: Apache-2.0
#include "copy/bounce.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "copy/host_memory.hpp"
#include "copy/pinned_buffer.hpp"
#include "copy/ring_job.hpp"

namespace pl::copy {
struct bounce_ring::state {
  state(copy_engine& e, worker_pool& p, options wanted)
      : engine(e),
        pool(p),
        chunk_bytes(std::bit_ceil(std::max(wanted.chunk_bytes, ring::kMinChunkBytes))),
        chunks(std::max(wanted.chunks, ring::kMinChunks)) {}

  status allocate() {
    if (slots != nullptr) return {};
    auto made = pinned_buffer::make(engine.context(), chunk_bytes * chunks);
    if (!made) return made.error();
    std::unique_ptr<ring::slot<copy_engine>[]> fresh(new (std::nothrow) ring::slot<copy_engine>[chunks]);
    if (fresh == nullptr) return failure{ENOMEM, "no memory for a ring of pinned chunks"};
    memory = *std::move(made);
    slots = std::move(fresh);
    return {};
  }

  status run(const transfer& whole, unsigned width) {
    // Checked before locking: a thread of the parent may have held the lock at the fork.
    if (!engine.is_of_this_process()) return failure{EACCES, "a ring of the parent process: make one in this process"};
    if (whole.row_bytes == 0) return {};
    const std::lock_guard lock(mutex);
    if (auto ready = allocate(); !ready) return ready;
    return ring::run<copy_engine>(engine, pool, memory.data(), {slots.get(), chunks}, chunk_bytes, whole, width);
  }

  copy_engine& engine;
  worker_pool& pool;
  const std::size_t chunk_bytes;
  const unsigned chunks;
  std::mutex mutex;
  pinned_buffer memory;
  std::unique_ptr<ring::slot<copy_engine>[]> slots;
};

bounce_ring::bounce_ring(copy_engine& engine, worker_pool& pool, options wanted)
    : state_(std::make_unique<state>(engine, pool, wanted)) {}

bounce_ring::~bounce_ring() {
  // Deliberately leaked in a forked child: the driver must not be called, and the ring's pages are not mapped.
  if (!state_->engine.is_of_this_process()) (void)state_.release();
}

status bounce_ring::to_host(void* dst, std::uint64_t src, std::size_t bytes, unsigned width) {
  return state_->run({.way = direction::to_host, .dst = address_of(dst), .src = src, .row_bytes = bytes}, width);
}

status bounce_ring::to_device(std::uint64_t dst, const void* src, std::size_t bytes, unsigned width) {
  return state_->run({.way = direction::to_device, .dst = dst, .src = address_of(src), .row_bytes = bytes}, width);
}

bool bounce_ring::release() {
  if (!state_->engine.is_of_this_process()) return false;
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) return false;
  state_->slots.reset();
  state_->memory = {};
  return true;
}

// ---- registered for one copy ----------------------------------------------------------------------------------------

namespace {

std::optional<address_range> host_pages(const transfer& copy) {
  const bool is_read = copy.way == direction::to_host;
  const std::size_t pitch = copy.is_linear() ? copy.row_bytes : is_read ? copy.dst_pitch : copy.src_pitch;
  const auto before_last = checked_mul(copy.rows - 1, pitch);
  const auto bytes = before_last ? checked_add(*before_last, copy.row_bytes) : std::nullopt;
  if (!bytes) return std::nullopt;
  return round_outwards({is_read ? copy.dst : copy.src, *bytes}, kHostPageBytes);
}

status register_pages(const gpu_context& context, address_range pages) {
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  const auto rc = context.cuda->cuMemHostRegister_v2(host_pointer(pages.begin), pages.size_bytes, kFlags);
  if (rc == cu::error_code::success) return {};
  auto reason = cu::make_error(
      *context.cuda, rc,
      format("registering %zu bytes of the application's memory", static_cast<std::size_t>(pages.size_bytes)));
  if (rc == cu::error_code::host_memory_already_registered) reason.code = EBUSY;
  return reason;
}

status unregister_pages(const gpu_context& context, address_range pages) {
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  const auto rc = context.cuda->cuMemHostUnregister(host_pointer(pages.begin));
  if (rc != cu::error_code::success) return cu::make_error(*context.cuda, rc, "unregistering the application's memory");
  return {};
}

}  // namespace

status copy_registered(copy_engine& engine, const transfer& copy) {
  if (!engine.is_of_this_process()) return failure{EACCES, "a copy engine of the parent process"};
  if (copy.way == direction::on_device) return failure{EINVAL, "a copy between GPUs has no host memory to register"};
  if (copy.bytes() == 0) return {};
  const auto pages = host_pages(copy);
  if (!pages) return failure{EINVAL, "the copy's host memory passes the end of the address space"};
  const concurrent_pin noted(*pages);
  if (auto done = register_pages(engine.context(), *pages); !done) return done;
  status outcome;
  if (auto queued = engine.submit(copy)) outcome = engine.wait(*queued);
  else outcome = queued.error();
  auto undone = unregister_pages(engine.context(), *pages);  // waits for whatever still uses the pages
  return outcome ? undone : outcome;
}

}  // namespace pl::copy
