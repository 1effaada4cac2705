// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_reader.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "base/checked_math.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "copy/channel_source.hpp"
#include "copy/transfer.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kReadsBeforeOpening = 4;
constexpr std::uint64_t kReadTimeoutNs = 2'000'000'000;
constexpr std::uint64_t kRetryNs = 1'000'000'000;
constexpr std::size_t kParts = 4;                                             // of one buffer, under way at once
constexpr std::size_t kMaxPartBytes = 128u << 10, kMinPartBytes = 32u << 10;  // a flush stands behind each
constexpr std::size_t kBufferBytes = kParts * kMaxPartBytes;
constexpr unsigned kBuffers = 4;
constexpr std::size_t kAllBytes = kBuffers * kBufferBytes;
static_assert(kAllBytes == 2u << 20, "a huge page");

std::byte* host_bytes(std::uint64_t address) { return static_cast<std::byte*>(host_pointer(address)); }

// Where a pin's memory lies for channels. Kept with the pin, and ended with it.
struct bound_pin {
  std::shared_ptr<dma::address_space> addresses;  // of the reader that bound it: its addresses mean nothing to another
  std::shared_ptr<rm_object> object;              // outlives what is bound of it
  dma::region bound;
};

// What one GPU needs for it: a channel, and host memory that is pinned for it.
class gpu_reader {
 public:
  static result<std::unique_ptr<gpu_reader>> open(rm_object& object) {
    auto source = channel_source::open(object.space(), object.gpu());
    if (!source) return source.error();
    std::unique_ptr<gpu_reader> made(new gpu_reader(*std::move(source)));
    void* const memory = mmap(nullptr, 2 * kAllBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return failure{errno, "no memory for reads by DMA channel: " + errno_text(errno)};
    made->reserved_ = memory;
    made->memory_ = host_bytes(align_down(address_of(memory) + kAllBytes - 1, kAllBytes));
    madvise(made->memory_, kAllBytes, MADV_HUGEPAGE);  // one huge page if the kernel has it at hand
    madvise(memory, 2 * kAllBytes, MADV_DONTFORK);
    std::memset(made->memory_, 0, kAllBytes);
    auto bound = made->source_.addresses->bind_host(made->memory_, kAllBytes);
    if (!bound) return bound.error();
    made->bound_ = *std::move(bound);
    dma::channel_options options;
    options.engine = made->source_.engines.front();
    options.order = dma::ordering::none_flushed;  // its completion word is all that the CPU looks at
    auto queue = dma::channel::open(made->source_.addresses, options);
    if (!queue) return queue.error();
    made->queue_ = std::move(*queue);
    return made;
  }
  ~gpu_reader() {
    queue_.reset();
    bound_ = dma::region();
    if (reserved_ != nullptr) munmap(reserved_, 2 * kAllBytes);
  }
  gpu_reader(const gpu_reader&) = delete;
  gpu_reader& operator=(const gpu_reader&) = delete;

  bool is_broken() const { return queue_->fault().has_value(); }

  result<std::shared_ptr<const bound_pin>> bind(pinned_memory& pin, const pinned_memory::backing& backing) {
    static std::mutex attachments;  // one for all: a reader that takes over from a broken one meets its attachments
    const std::lock_guard lock(attachments);
    auto known = std::static_pointer_cast<const bound_pin>(pin.attachment());
    if (known != nullptr && known->addresses == source_.addresses) return known;
    auto made = std::make_shared<bound_pin>();
    made->addresses = source_.addresses;
    made->object = backing.object;
    auto bound = source_.addresses->bind_share(backing.object->memory(), backing.offset, pin.range().size_bytes);
    if (!bound) return bound.error();
    made->bound = *std::move(bound);
    pin.attach(made);
    return std::shared_ptr<const bound_pin>(made);
  }

  // False: all buffers are in use, or the channel has ended.
  bool read(std::uint64_t source, std::byte* destination, std::size_t size_bytes) {
    const unsigned index = borrow();
    if (index == kBuffers) return false;
    const bool is_done = read_in_parts(index, source, destination, size_bytes);
    if (is_done) lent_[index].store(false, std::memory_order_release);
    else queue_->stop();  // nothing writes into the buffer any more; this reader is over
    return is_done;
  }

 private:
  explicit gpu_reader(channel_source source) : source_(std::move(source)) {}
  unsigned borrow() noexcept {
    unsigned index = 0;
    while (index < kBuffers && lent_[index].exchange(true, std::memory_order_acquire)) ++index;
    return index;
  }

  bool read_in_parts(unsigned index, std::uint64_t source, std::byte* destination, std::size_t size_bytes) {
    const std::size_t share = (size_bytes + kParts - 1) / kParts;
    const std::size_t part_bytes = std::clamp(align_down(share + 4095, 4096), kMinPartBytes, kMaxPartBytes);
    const std::size_t parts = (size_bytes + part_bytes - 1) / part_bytes;
    std::byte* const buffer = memory_ + index * kBufferBytes;
    const std::uint64_t buffer_address = bound_.address() + index * kBufferBytes;
    dma::sequence numbers[kParts] = {};
    const auto begin_part = [&](std::size_t part) {
      const std::size_t first = part * part_bytes;
      auto number = queue_->copy(buffer_address + part % kParts * kMaxPartBytes, source + first,
                                 std::min(part_bytes, size_bytes - first));
      if (number) numbers[part % kParts] = *number;
      return number.ok();
    };
    for (std::size_t part = 0; part < std::min(parts, kParts); ++part)
      if (!begin_part(part)) return false;
    for (std::size_t part = 0; part < parts; ++part) {
      if (!queue_->wait(numbers[part % kParts], kReadTimeoutNs)) return false;
      const std::size_t first = part * part_bytes;
      std::memcpy(destination + first, buffer + part % kParts * kMaxPartBytes, std::min(part_bytes, size_bytes - first));
      if (part + kParts < parts && !begin_part(part + kParts)) return false;
    }
    return true;
  }

  const channel_source source_;
  void* reserved_ = nullptr;     // of which an aligned half is used
  std::byte* memory_ = nullptr;  // kAllBytes
  dma::region bound_;
  std::unique_ptr<dma::channel> queue_;
  std::atomic<bool> lent_[kBuffers] = {};
};

// The readers of this process, by GPU. Never destroyed: threads may still read while the process ends.
class readers {
 public:
  // Null: not yet, or it cannot be had now.
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
  // A load through the mapping returns once the stores before it have reached the GPU, so that the engine sees them.
  unsigned char first = 0;
  arch::copy_from(arch::mapping_type::wc, &first, mapped, 1);
  return reader->read((*bound)->bound.address() + offset, static_cast<std::byte*>(destination), size_bytes);
} catch (const std::exception&) { return false; }

}  // namespace pl::copy
