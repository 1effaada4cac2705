// SPDX-License-Identifier: Apache-2.0
#include "copy/host_memory.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/checked_math.hpp"

namespace pl::copy {

namespace {

struct concurrent_pins {
  std::atomic<unsigned> active{0};
  std::atomic<std::uint64_t> ended{0};
  std::mutex mutex;
  std::vector<address_range> pages;
};
concurrent_pins& passing() noexcept {
  static auto& only = *new concurrent_pins;  // copies may be in progress while static objects are destroyed
  return only;
}

host_memory query_driver(const cu::driver_table& cuda, const void* pointer, std::size_t bytes,
                         const gpu_context* context) noexcept {
  namespace attribute = cu::pointer_attribute;
  if (cuda.cuPointerGetAttributes == nullptr) return {};
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  unsigned type = 0, managed = 0;
  cu::device_ptr device = 0;
  std::uint64_t begin = 0;
  std::size_t size = 0;
  unsigned long long buffer_id = 0;
  int attributes[] = {attribute::memory_type, attribute::is_managed, attribute::device_pointer,
                      attribute::range_start, attribute::range_size, attribute::buffer_id};
  void* values[] = {&type, &managed, &device, &begin, &size, &buffer_id};
  if (cuda.cuPointerGetAttributes(6, attributes, values, address) != cu::error_code::success) return {};
  if (type != cu::memory_type::host || managed != 0) return {};
  if (device == 0) {
    if (context == nullptr) return {};
    const auto inside = context_use::enter(*context);
    return inside ? query_driver(cuda, pointer, bytes, nullptr) : host_memory{};
  }
  // CUDA reports the range in the GPU's addresses if those differ from the CPU's.
  const address_range known{begin, size};
  const bool is_in_cpu_addresses = known.contains({address, bytes});
  if (!known.contains({device, bytes}) && !is_in_cpu_addresses) return {};
  return {true, device, is_in_cpu_addresses ? known : address_range{}, buffer_id, false};
}

}  // namespace

concurrent_pin::concurrent_pin(address_range pages) : pages_(pages) {
  const std::lock_guard lock(passing().mutex);
  passing().pages.push_back(pages);
  passing().active.fetch_add(1);
}

concurrent_pin::~concurrent_pin() {
  auto& all = passing();
  const std::lock_guard lock(all.mutex);
  all.ended.fetch_add(1);
  all.active.fetch_sub(1);
  const auto own = std::find_if(all.pages.begin(), all.pages.end(), [this](const address_range& one) {
    return one.begin == pages_.begin && one.size_bytes == pages_.size_bytes;
  });
  *own = all.pages.back();
  all.pages.pop_back();
}

bool concurrent_pin::overlaps(address_range range) noexcept {
  const std::lock_guard lock(passing().mutex);
  return std::any_of(passing().pages.begin(), passing().pages.end(),
                     [&](const address_range& one) { return range.begin < one.end() && one.begin < range.end(); });
}

host_memory inspect_host(const cu::driver_table& cuda, const void* pointer, std::size_t bytes,
                         const gpu_context* context) noexcept {
  constexpr int kMaxAttempts = 100;  // then it counts as pageable, which is always correct
  auto& others = passing();
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::uint64_t before = others.ended.load();
    const host_memory known = query_driver(cuda, pointer, bytes, context);
    if (!known.is_pinned || (others.active.load() == 0 && others.ended.load() == before)) return known;
    if (concurrent_pin::overlaps({reinterpret_cast<std::uint64_t>(pointer), bytes})) return {};
    if (others.ended.load() == before) return known;  // one that ended meanwhile may be what the driver saw
  }
  return {};
}

}  // namespace pl::copy
