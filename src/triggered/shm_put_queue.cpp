// SPDX-License-Identifier: Apache-2.0
#include "triggered/shm_put_queue.hpp"

#include <algorithm>
#include <iterator>

#include "base/env.hpp"

namespace pl::triggered {

put_chunking put_chunking::from_environment(bool has_kernels) {
  const auto bytes_of = [](const char* name) {
    return static_cast<std::size_t>(std::max<std::int64_t>(env_read(name).integer, 0));
  };
  put_chunking out;
  out.chunk_bytes = std::clamp(bytes_of("PEERLANE_STREAM_CHUNK"), kMinChunkBytes, kShmChunkBytes);
  out.spread_limit = has_kernels ? std::min(bytes_of("PEERLANE_STREAM_SPREAD"), kMaxSpreadBytes) : 0;
  return out;
}

shm_queue_pool::~shm_queue_pool() {
  for (const auto& each : all_) {
    // Fails when the context is gone, and the registration with it.
    if (auto use = copy::context_use::enter(context_))
      static_cast<void>(context_.cuda->cuMemHostUnregister(each->memory.data()));
  }
}

result<shm_queue_pool::pinned*> shm_queue_pool::make() {
  auto memory = shared_memory::make("peerlane-put-queue", sizeof(shm_queue_memory));
  if (!memory) return memory.error();
  auto made = std::make_unique<pinned>(pinned{std::move(memory).value(), 0});
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  const auto& cuda = *context_.cuda;
  auto* const mapped = made->memory.data();
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  if (const auto rc = cuda.cuMemHostRegister_v2(mapped, made->memory.size_bytes(), kFlags); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "registering memory shared with a peer");
  if (const auto rc = cuda.cuMemHostGetDevicePointer_v2(&made->gpu, mapped, 0); rc != cu::error_code::success) {
    static_cast<void>(cuda.cuMemHostUnregister(mapped));
    return cu::make_error(cuda, rc, "the device address of memory shared with a peer");
  }
  all_.push_back(std::move(made));
  return all_.back().get();
}

result<shm_queue_pool::shm_queue> shm_queue_pool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    auto made = make();
    if (!made) return made.error();
    free_.push_back(*made);
  }
  auto* const memory = free_.back();
  free_.pop_back();
  const auto use = uses_++ % ((1u << shm_count::kUseBits) - 1) + 1;
  auto* const words = reinterpret_cast<shm_queue_memory*>(memory->memory.data());
  words->doorbell = words->consumed = 0;
  std::fill(std::begin(words->slot_doorbells), std::end(words->slot_doorbells), 0);
  for (auto* const word : {&words->published, &words->armed, &words->release, &words->release_armed}) word->store(0);
  for (auto* const count : {&words->stored, &words->stored_chunks, &words->acked})
    count->word.store(shm_count::make(use, 0));
  words->use.store(use, std::memory_order_seq_cst);
  return shm_queue(this, memory, use);
}

shm_queue_pool::shm_queue::~shm_queue() {
  if (pool_ == nullptr) return;
  (*this)->use.store(0, std::memory_order_seq_cst);
  const std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(pinned_);
}

result<shm_queue_view> shm_queue_view::open(const shm_queue_offer& offer) {
  auto memory = shared_memory::open(offer.memory);
  if (!memory) return memory.error();
  if (memory->size_bytes() < sizeof(shm_queue_memory)) return failure{EINVAL, "a peer's shm queue is too small"};
  return shm_queue_view(std::move(memory).value(), offer.use);
}

}  // namespace pl::triggered
