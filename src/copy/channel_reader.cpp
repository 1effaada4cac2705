// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_reader.hpp"

#include <atomic>
#include <cerrno>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "copy/channel_source.hpp"
#include "dma/arrival_buffer.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kReadsBeforeOpening = 4;
constexpr std::uint64_t kReadTimeoutNs = 2'000'000'000;
constexpr std::uint64_t kRetryNs = 1'000'000'000;
constexpr unsigned kBuffers = 4;  // number of threads that can read at once

// Where a pin's memory lies for channels. Kept with the pin, and destroyed with it.
struct bound_pin {
  std::shared_ptr<dma::address_space> addresses;  // of the reader that bound it; its addresses are invalid for another one
  std::shared_ptr<rm_object> object;              // outlives what is bound of it
  dma::region bound;
};

// The state for one GPU: a channel, and host memory that is pinned for it.
class gpu_reader {
 public:
  static result<std::unique_ptr<gpu_reader>> open(rm_object& object) {
    auto source = channel_source::open(object.space(), object.gpu());
    if (!source) return source.error();
    std::unique_ptr<gpu_reader> made(new gpu_reader(*std::move(source)));
    for (auto& one : made->buffers_) {
      auto buffer = dma::arrival_buffer::open(made->source_.addresses);
      if (!buffer) return buffer.error();
      one = *std::move(buffer);
    }
    dma::channel_options options;
    options.engine = made->source_.engines.front();
    auto queue = dma::channel::open(made->source_.addresses, options);
    if (!queue) return queue.error();
    made->queue_ = std::move(*queue);
    return made;
  }
  gpu_reader(const gpu_reader&) = delete;
  gpu_reader& operator=(const gpu_reader&) = delete;

  bool is_broken() const { return queue_->fault().has_value(); }

  result<std::shared_ptr<const bound_pin>> bind(pinned_memory& pin, const pinned_memory::backing& backing) {
    static std::mutex attachments;  // one for all: a reader that replaces a broken one meets its attachments
    const std::lock_guard lock(attachments);
    auto known = std::static_pointer_cast<const bound_pin>(pin.attachment());
    if (known != nullptr && known->addresses == source_.addresses) return known;
    auto made = std::make_shared<bound_pin>();
    made->addresses = source_.addresses;
    made->object = backing.object;
    auto bound = source_.addresses->bind_share(backing.object->memory(), backing.offset, pin.range().size_bytes,
                                               &backing.object->gpu());
    if (!bound) return bound.error();
    made->bound = *std::move(bound);
    pin.attach(made);
    return std::shared_ptr<const bound_pin>(made);
  }

  // Returns false if all buffers are in use or the channel has ended.
  bool read(std::uint64_t source, void* destination, std::size_t size_bytes) {
    const unsigned index = borrow();
    if (index == kBuffers) return false;
    const status done = buffers_[index]->read(*queue_, source, destination, size_bytes, kReadTimeoutNs);
    is_leased_[index].store(false, std::memory_order_release);
    return done.ok();  // otherwise the channel was stopped, and this reader is unusable
  }

 private:
  explicit gpu_reader(channel_source source) : source_(std::move(source)) {}
  unsigned borrow() noexcept {
    unsigned index = 0;
    while (index < kBuffers && is_leased_[index].exchange(true, std::memory_order_acquire)) ++index;
    return index;
  }

  const channel_source source_;
  std::unique_ptr<dma::arrival_buffer> buffers_[kBuffers];
  std::atomic<bool> is_leased_[kBuffers] = {};
  std::unique_ptr<dma::channel> queue_;  // destroyed before the buffers
};

// The readers of this process, by GPU. Never destroyed, because threads may still read while the process exits.
class readers {
 public:
  // Returns null if there is none yet, or none can be opened now.
  std::shared_ptr<gpu_reader> find(rm_object& object) {
    const std::lock_guard lock(mutex_);
    auto& slot = by_gpu_[&object.gpu()];
    if (slot.reader != nullptr && !slot.reader->is_broken()) return slot.reader;
    slot.reader.reset();
    if (++slot.requests < kReadsBeforeOpening || monotonic_ns() < slot.not_before_ns) return nullptr;
    auto opened = gpu_reader::open(object);
    if (!opened) {
      if (slot.not_before_ns == 0) PL_LOG(info, "long reads go without a DMA channel: %s", opened.error().message.c_str());
      slot.not_before_ns = opened.code() == ENOTSUP ? UINT64_MAX : monotonic_ns() + kRetryNs;
      return nullptr;
    }
    return slot.reader = std::move(*opened);
  }

 private:
  struct state {
    std::shared_ptr<gpu_reader> reader;
    unsigned requests = 0;
    std::uint64_t not_before_ns = 0;
  };
  std::mutex mutex_;
  std::map<const rm::gpu*, state> by_gpu_;
};

}  // namespace

bool read_by_channel(pinned_memory& pin, std::uint64_t offset, const void* mapped, void* destination,
                     std::size_t size_bytes) noexcept try {
  static const bool wanted = channel_use_from_environment() != channel_use::never;
  if (!wanted || size_bytes < kMinChannelRead) return false;
  static const std::uint32_t epoch = claim_process_epoch();
  if (process_epoch() != epoch) return false;
  const auto backing = pin.find_backing();
  if (backing.object == nullptr) return false;
  static auto* const all = new readers;
  const auto reader = all->find(*backing.object);
  if (reader == nullptr) return false;
  auto bound = reader->bind(pin, backing);
  if (!bound) return false;
  // A load through the mapping returns once the earlier stores have reached the GPU, so that the engine sees them.
  unsigned char first = 0;
  arch::copy_from(arch::mapping_type::wc, &first, mapped, 1);
  return reader->read((*bound)->bound.address() + offset, destination, size_bytes);
} catch (const std::exception&) { return false; }

}  // namespace pl::copy
