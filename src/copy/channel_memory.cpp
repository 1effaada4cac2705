// SPDX-License-Identifier: Apache-2.0
#include "copy/channel_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace pl::copy {
namespace {

// Size limit of a window: a copy finds its memory in one window. Binding takes longer the more is bound, so windows of
// host memory, which must be pinned page by page (about 20 ms for a window), are smaller.
constexpr std::uint64_t kDeviceWindowBytes = std::uint64_t{16} << 30;
constexpr std::uint64_t kHostWindowBytes = std::uint64_t{256} << 20;

// A bound part of a memory object. Its "CPU address" is the address for channels.
class bound_memory final : public pinned_memory {
 public:
  bound_memory(const pin_plan& plan, rm_placement placement, dma::region bound)
      : pinned_memory("dma", plan.rounded, plan.device_ordinal),
        placement_(std::move(placement)),
        bound_(std::move(bound)) {}

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type) override {
    return cpu_view{host_pointer(bound_.address()), size_bytes, arch::mapping_type::none};
  }
  void unmap(const cpu_view&, unmapping) noexcept override {}

 private:
  rm_placement placement_;  // outlives what is bound of it
  dma::region bound_;
};

class binding_backend final : public backend {
 public:
  binding_backend(const cu::driver_table& cuda, std::shared_ptr<rm_space> space,
                  std::shared_ptr<dma::address_space> addresses)
      : cuda_(cuda), space_(std::move(space)), addresses_(std::move(addresses)) {}
  const char* name() const noexcept override { return "dma"; }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    auto plan = plan_pin(cuda_, request.range, request.granule_bytes, request.rule);
    if (!plan) return plan.error();
    auto found = space_->resolve_one(cuda_, *plan);
    if (!found) return found.error();
    const rm_object& object = *found->object;
    auto bound = addresses_->bind_share(object.memory(), found->offset, plan->rounded.size_bytes, &object.gpu());
    if (!bound) return bound.error();
    return std::unique_ptr<pinned_memory>(new bound_memory(*plan, *std::move(found), *std::move(bound)));
  }

 private:
  const cu::driver_table& cuda_;
  std::shared_ptr<rm_space> space_;
  std::shared_ptr<dma::address_space> addresses_;
};

}  // namespace

struct channel_memory::host_binding {
  address_range pages;
  std::uint64_t probe = 0;  // an address in the allocation, for asking the driver whether it still exists
  unsigned long long buffer_id = 0;
  dma::region bound;
};

channel_memory::channel_memory(const cu::driver_table& cuda, std::shared_ptr<rm_space> space,
                               std::shared_ptr<dma::address_space> addresses)
    : cuda_(cuda), addresses_(addresses), device_([&] {
        mapping_cache::options wanted;
        wanted.window_bytes = kDeviceWindowBytes;
        wanted.capacity_bytes = UINT64_MAX / 2;  // address space is free of cost
        wanted.open = [space, addresses](const cu::driver_table& driver) -> result<std::unique_ptr<backend>> {
          return std::unique_ptr<backend>(new binding_backend(driver, space, addresses));
        };
        wanted.also_sweep = [this] { return drop_freed_host_memory(); };
        return wanted;
      }()) {}

channel_memory::~channel_memory() = default;

result<channel_memory::piece> channel_memory::find_device(const cu::pointer_info& info, std::uint64_t pointer,
                                                          std::uint64_t size_bytes) {
  piece out;
  out.size_bytes = size_bytes;
  if (info.object.contains({pointer, 1})) out.size_bytes = std::min(size_bytes, info.object.end() - pointer);
  auto found = device_.find(cuda_, info, pointer, out.size_bytes);
  if (!found) return found.error();
  out.address = address_of(found->data);
  out.device = *std::move(found);
  return out;
}

result<std::shared_ptr<channel_memory::host_binding>> channel_memory::bind_host(const host_memory& info,
                                                                                std::uint64_t pointer) {
  const std::uint64_t first = align_down(info.allocation.begin, kHostPageBytes);
  const std::uint64_t last = align_down(info.allocation.end() + kHostPageBytes - 1, kHostPageBytes);
  const std::uint64_t begin = std::max(first, align_down(pointer, kHostWindowBytes));
  const std::uint64_t end = std::min(last, align_down(pointer, kHostWindowBytes) + kHostWindowBytes);
  auto fresh = std::make_shared<host_binding>();
  auto bound = addresses_->bind_host(host_pointer(begin), end - begin);
  if (!bound) return bound.error();
  fresh->pages = {begin, end - begin};
  fresh->probe = std::max(begin, info.allocation.begin);
  fresh->buffer_id = info.buffer_id;
  fresh->bound = *std::move(bound);
  return fresh;
}

// Returns null if it is not bound.
std::shared_ptr<channel_memory::host_binding> channel_memory::bound_host(std::uint64_t pointer) {
  const std::lock_guard lock(mutex_);
  auto next = host_.upper_bound(pointer);
  if (next == host_.begin()) return nullptr;
  const auto& known = std::prev(next)->second;
  return known->pages.contains({pointer, 1}) ? known : nullptr;
}

std::shared_ptr<channel_memory::host_binding> channel_memory::bound_host(const host_memory& info, std::uint64_t pointer) {
  auto known = bound_host(pointer);
  return known != nullptr && known->buffer_id == info.buffer_id ? std::move(known) : nullptr;
}

std::optional<channel_memory::piece> channel_memory::find_bound_host(std::uint64_t pointer, std::uint64_t& begin) {
  auto known = bound_host(pointer);
  if (known == nullptr || !cu::is_still_buffer(cuda_, known->probe, known->buffer_id)) return std::nullopt;
  piece out;
  out.address = known->bound.address();
  out.size_bytes = known->pages.size_bytes;
  begin = known->pages.begin;
  out.host = std::move(known);
  return out;
}

bool channel_memory::has_host(const host_memory& info, std::uint64_t pointer) {
  return bound_host(info, pointer) != nullptr;
}

result<channel_memory::piece> channel_memory::find_host(const host_memory& info, std::uint64_t pointer,
                                                        std::uint64_t size_bytes) {
  if (info.buffer_id == 0 || !info.allocation.contains({pointer, size_bytes}))
    return failure{ENOTSUP, "CUDA does not identify this pinned memory"};
  std::shared_ptr<host_binding> found = bound_host(info, pointer), fresh, old;
  if (found == nullptr) {
    // Bound without the lock: it takes about 20 ms, during which other copies continue. If two threads bind one window,
    // the first to finish wins.
    auto made = bind_host(info, pointer);
    if (!made) return made.error();
    fresh = *std::move(made);
    found = bound_host(info, pointer);
    if (found == nullptr) {
      const std::lock_guard lock(mutex_);
      auto& slot = host_[fresh->pages.begin];
      old = std::exchange(slot, fresh);  // of freed memory; destroyed outside of the lock
      found = std::move(fresh);
    }
  }
  piece out;
  out.address = found->bound.address() + (pointer - found->pages.begin);
  out.size_bytes = std::min(size_bytes, found->pages.end() - pointer);
  out.host = std::move(found);
  return out;
}

void channel_memory::trim() {
  device_.trim(true);
  std::map<std::uint64_t, std::shared_ptr<host_binding>> gone;  // destroyed outside of the lock
  const std::lock_guard lock(mutex_);
  gone.swap(host_);
}

// Returns true if nothing is left.
bool channel_memory::drop_freed_host_memory() {
  struct question {
    std::uint64_t key, probe;
    unsigned long long buffer_id;
  };
  std::vector<question> questions;  // the driver is called without our lock
  {
    const std::lock_guard lock(mutex_);
    questions.reserve(host_.size());
    for (const auto& [key, one] : host_) questions.push_back({key, one->probe, one->buffer_id});
  }
  std::size_t left = 0;
  for (const question& asked : questions) {
    if (cu::is_still_buffer(cuda_, asked.probe, asked.buffer_id)) {
      ++left;
      continue;
    }
    std::shared_ptr<host_binding> gone;  // destroyed outside of the lock, once no copy uses it
    const std::lock_guard lock(mutex_);
    const auto found = host_.find(asked.key);
    if (found == host_.end() || found->second->buffer_id != asked.buffer_id) continue;
    gone = std::move(found->second);
    host_.erase(found);
  }
  return left == 0;
}

}  // namespace pl::copy
