// SPDX-License-Identifier: Apache-2.0
#include "copy/dma_memory.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/text.hpp"
#include "cuda/driver_table.hpp"
#include "map/backend.hpp"
#include "map/device_range.hpp"

namespace pl::copy {
namespace {

// Host memory is bound in windows: pinning takes 40 ms a GiB, and a transfer needs only what it moves.
constexpr std::uint64_t kHostWindowBytes = std::uint64_t{1} << 30;

// The CPU stores short writes itself, through windows of BAR1 as large as BAR1's own granule.
constexpr std::uint64_t kMappedWindowBytes = std::uint64_t{2} << 20;
constexpr std::size_t kMaxMappedWindows = 16;  // for one memory: some GPUs have a BAR1 of 256 MiB

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

dma_memory::dma_memory(kind type, std::uint64_t address, std::uint64_t size_bytes)
    : type_(type), address_(address), size_bytes_(size_bytes) {
  static std::atomic<std::uint64_t> next{1};
  id_ = next.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<dma_memory> dma_memory::make_host(std::uint64_t address, std::uint64_t size_bytes) {
  return std::shared_ptr<dma_memory>(new dma_memory(kind::host, address, size_bytes));
}

std::shared_ptr<dma_memory> dma_memory::make_foreign(kind type, std::uint64_t address, std::uint64_t size_bytes,
                                                     std::uint64_t id) {
  std::shared_ptr<dma_memory> made(new dma_memory(type, address, size_bytes));
  made->id_ = id;
  return made;
}

result<std::shared_ptr<dma_memory>> dma_memory::make_device(gpu_table& gpus, std::uint64_t address,
                                                            std::uint64_t size_bytes) {
  auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  auto plan = plan_pin(**cuda, {address, size_bytes}, kHostPageBytes, range_rule::exact);
  if (!plan) return plan.error();
  auto gpu = gpus.find(**cuda, plan->device_ordinal);
  if (!gpu) return gpu.error();
  auto space = gpus.space();
  if (!space) return space.error();
  auto placements = (*space)->resolve(**cuda, *plan);
  if (!placements) return placements.error();
  std::shared_ptr<dma_memory> made(new dma_memory(kind::device, address, size_bytes));
  made->gpu_ = *gpu;
  std::uint64_t begin = plan->rounded.begin;
  for (rm_placement& one : *placements) {
    const std::uint64_t length = std::min(one.length, plan->rounded.end() - begin);
    if (length == 0) break;
    auto bound = (*gpu)->addresses().bind_share(one.object->memory(), one.offset, length, &one.object->gpu());
    if (!bound) return bound.error();
    made->device_.push_back({begin, length, std::move(one), *std::move(bound)});
    begin += length;
  }
  if (begin < plan->rounded.end()) return failure{EIO, "libcuda named less memory than it was asked for"};
  return made;
}

result<std::shared_ptr<dma_memory>> dma_memory::import(gpu_table& gpus, const std::vector<shared_piece>& pieces,
                                                       const std::vector<dma::shared_region>& regions) {
  if (pieces.empty() || pieces.size() != regions.size())
    return failure{EPROTO, "another process gave memory without pieces"};
  auto gpu = gpus.find(regions.front().gpu);
  if (!gpu) return gpu.error();
  std::uint64_t end = pieces.front().begin;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].begin != end || pieces[i].size_bytes != regions[i].size_bytes || pieces[i].size_bytes > UINT64_MAX - end)
      return failure{EPROTO, "another process shared memory whose pieces are not contiguous"};
    end += pieces[i].size_bytes;
  }
  std::shared_ptr<dma_memory> made(new dma_memory(kind::device, pieces.front().begin, end - pieces.front().begin));
  made->gpu_ = *gpu;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto bound = dma::import_region((*gpu)->addresses(), regions[i]);
    if (!bound) return bound.error();
    made->device_.push_back({pieces[i].begin, pieces[i].size_bytes, {}, *std::move(bound)});
  }
  return made;
}

result<dma_memory::extent> dma_memory::find(const std::shared_ptr<gpu_queues>& gpu, std::uint64_t pointer) {
  if (type_ == kind::host) return find_host(gpu, pointer);
  if (type_ != kind::device) return failure{ENOTSUP, "memory of another process"};
  const bound_piece* const found = find_piece(pointer);
  if (found == nullptr) return failure{EINVAL, "bytes outside of the registered memory"};
  if (gpu != gpu_) return find_on_peer(gpu, *found);
  return extent{found->begin, found->size_bytes, found->bound.address()};
}

const dma_memory::bound_piece* dma_memory::find_piece(std::uint64_t pointer) const noexcept {
  auto next = std::upper_bound(device_.begin(), device_.end(), pointer,
                               [](std::uint64_t value, const bound_piece& one) { return value < one.begin; });
  if (next == device_.begin()) return nullptr;
  const bound_piece& found = *std::prev(next);
  return pointer - found.begin < found.size_bytes ? &found : nullptr;
}

dma_memory::~dma_memory() {
  for (auto& [window, mapping] : mappings_) {
    if (mapping.address == nullptr) continue;
    gpu_->addresses().objects().owner().unmap(mapping, rm::unmap_policy::hole);
  }
}

std::byte* dma_memory::find_mapping(std::uint64_t pointer, std::uint64_t size_bytes) {
  const bound_piece* const piece = find_piece(pointer);
  if (piece == nullptr || mapping_failed_.load(std::memory_order_relaxed)) return nullptr;
  const std::uint64_t begin = piece->bound.offset(), end = begin + piece->size_bytes;  // in the driver's object
  const std::uint64_t offset = begin + (pointer - piece->begin);
  const std::uint64_t window = offset / kMappedWindowBytes * kMappedWindowBytes;
  const std::uint64_t first = std::max(window, begin), last = std::min(window + kMappedWindowBytes, end);
  if (size_bytes > last - offset) return nullptr;
  const std::lock_guard hold(mutex_);
  auto found = mappings_.find({piece, window});
  if (found == mappings_.end()) {
    if (mappings_.size() >= kMaxMappedWindows) return nullptr;
    rm::channel_objects& objects = gpu_->addresses().objects();
    auto mapped = objects.owner().map(objects.device(), piece->bound.memory(), first, last - first, nullptr);
    if (!mapped) {
      mapping_failed_.store(true, std::memory_order_relaxed);
      return nullptr;
    }
    found = mappings_.emplace(std::pair{piece, window}, *mapped).first;
  }
  return static_cast<std::byte*>(found->second.address) + (offset - first);
}

// The same object in the other GPU's address space, if that GPU reaches it.
result<dma_memory::extent> dma_memory::find_on_peer(const std::shared_ptr<gpu_queues>& gpu, const bound_piece& piece) {
  const std::lock_guard hold(mutex_);
  auto found = on_peers_.find({gpu.get(), &piece});
  if (found == on_peers_.end()) {
    auto bound =
        gpu->addresses().bind_share(piece.bound.memory(), piece.bound.offset(), piece.size_bytes, &piece.bound.owner());
    if (!bound)
      return failure{bound.code() == EXDEV ? ENOTSUP : bound.code(),
                     "memory of another GPU is not reached from this one: " + bound.error().message};
    keep_alive(gpu);
    found = on_peers_.emplace(std::pair{gpu.get(), &piece}, *std::move(bound)).first;
  }
  return extent{piece.begin, piece.size_bytes, found->second.address()};
}

void dma_memory::keep_alive(const std::shared_ptr<gpu_queues>& gpu) {
  if (std::find(other_gpus_.begin(), other_gpus_.end(), gpu) == other_gpus_.end()) other_gpus_.push_back(gpu);
}

result<dma_memory::extent> dma_memory::find_host(const std::shared_ptr<gpu_queues>& gpu, std::uint64_t pointer) {
  const std::uint64_t window = pointer / kHostWindowBytes * kHostWindowBytes;
  const std::lock_guard hold(mutex_);
  auto found = host_.find({gpu.get(), window});
  if (found == host_.end()) {
    const std::uint64_t begin = std::max(address_ / kHostPageBytes * kHostPageBytes, window);
    const std::uint64_t end = std::min(round_up(address_ + size_bytes_, kHostPageBytes), window + kHostWindowBytes);
    auto bound = gpu->addresses().bind_host(reinterpret_cast<void*>(begin), end - begin);
    if (!bound)
      return failure{bound.code(), format("host memory of %s cannot be pinned for the GPU: %s",
                                          format_size(end - begin).c_str(), bound.error().message.c_str())};
    keep_alive(gpu);
    found = host_.emplace(std::pair{gpu.get(), window}, bound_piece{begin, end - begin, {}, *std::move(bound)}).first;
  }
  return extent{found->second.begin, found->second.size_bytes, found->second.bound.address()};
}

result<std::vector<dma::shared_region>> dma_memory::share() const {
  std::vector<dma::shared_region> out;
  for (const bound_piece& one : device_) {
    auto shared = dma::export_region(one.bound);
    if (!shared) return shared.error();
    out.push_back(*std::move(shared));
  }
  return out;
}

std::vector<shared_piece> dma_memory::pieces() const {
  std::vector<shared_piece> out;
  for (const bound_piece& one : device_) out.push_back({one.begin, one.size_bytes});
  return out;
}

}  // namespace pl::copy
