// SPDX-License-Identifier: Apache-2.0
#include "copy/queue_ring.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "copy/ring_job.hpp"
#include "copy/worker_pool.hpp"
#include "os/unforked_pages.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kChunkBytes = 1u << 20, kChunks = 8, kBytes = kChunkBytes * kChunks;
constexpr std::uint64_t kTimeoutNs = 10'000'000'000;

// The engine of ring_job.hpp: chunks between the ring and device memory.
class chunk_queue {
 public:
  using ticket = gpu_queues::ticket;

  chunk_queue(gpu_queues& queues, gpu_queues::path way, const std::byte* ring, std::uint64_t ring_address)
      : queues_(queues), way_(way), ring_(address_of(ring)), ring_address_(ring_address) {}

  // One of the two sides is the ring, by the CPU's address; the other is the device, by the channels'.
  result<ticket> submit(const transfer& part) const {
    const bool is_read = way_ == gpu_queues::path::to_host;
    const std::uint64_t in_ring = ring_address_ + ((is_read ? part.dst : part.src) - ring_);
    return queues_.copy(way_, is_read ? in_ring : part.dst, is_read ? part.src : in_ring, part.row_bytes);
  }
  status wait(const ticket& begun) const {
    auto done = begun.channel->wait(begun.number, kTimeoutNs);
    // Stopped at once: the waits for its other chunks then end, too.
    if (!done) queues_.drop(begun.channel);
    return done;
  }

 private:
  gpu_queues& queues_;
  const gpu_queues::path way_;
  const std::uint64_t ring_, ring_address_;
};

}  // namespace

struct queue_ring::state {
  state(std::shared_ptr<gpu_queues> its_queues, unsigned its_threads)
      : queues(std::move(its_queues)),
        threads(its_threads),
        pool({its_threads - 1, cpus_near(bus_id(queues->pci()).c_str())}) {}
  static std::string bus_id(const rm::pci_address& gpu) {
    return format("%04x:%02x:%02x.0", gpu.domain, gpu.bus, gpu.device);
  }

  std::shared_ptr<gpu_queues> queues;
  const unsigned threads;
  worker_pool pool;
  unforked_pages memory;
  dma::region bound;
  std::array<ring::slot<chunk_queue>, kChunks> slots;
};

queue_ring::queue_ring(std::unique_ptr<state> made) : state_(std::move(made)) {}
queue_ring::~queue_ring() = default;

result<std::unique_ptr<queue_ring>> queue_ring::open(std::shared_ptr<gpu_queues> queues, unsigned threads) {
  auto made = std::make_unique<state>(std::move(queues), std::clamp(threads, 1u, kMaxThreads));
  auto pages = unforked_pages::make(kBytes);
  if (!pages) return pages.error();
  made->memory = *std::move(pages);
  auto bound = made->queues->addresses().bind_host(made->memory.data(), kBytes);
  if (!bound) return bound.error();
  made->bound = *std::move(bound);
  return std::unique_ptr<queue_ring>(new queue_ring(std::move(made)));
}

status queue_ring::run(gpu_queues::path way, std::uint64_t device_address, std::uint64_t host_address, std::size_t bytes) {
  if (bytes == 0) return {};
  const bool is_read = way == gpu_queues::path::to_host;
  const transfer whole{is_read ? direction::to_host : direction::to_device, is_read ? host_address : device_address,
                       is_read ? device_address : host_address, bytes};
  chunk_queue engine(*state_->queues, way, state_->memory.data(), state_->bound.address());
  return ring::run(engine, state_->pool, state_->memory.data(), std::span<ring::slot<chunk_queue>>(state_->slots),
                   kChunkBytes, whole, is_read ? state_->threads : std::min(state_->threads, kMaxFillers));
}

status queue_ring::to_device(std::uint64_t device_address, const void* source, std::size_t bytes) {
  return run(gpu_queues::path::to_device, device_address, address_of(source), bytes);
}

status queue_ring::to_host(void* destination, std::uint64_t device_address, std::size_t bytes) {
  return run(gpu_queues::path::to_host, device_address, address_of(destination), bytes);
}

}  // namespace pl::copy
