// SPDX-License-Identifier: Apache-2.0
#include "copy/host_memory.hpp"

#include "base/checked_math.hpp"

namespace pl::copy {

host_memory inspect_host(const cu::driver_table& cuda, const void* pointer, std::size_t bytes,
                         const gpu_context* context) noexcept {
  namespace attribute = cu::pointer_attribute;
  if (cuda.cuPointerGetAttributes == nullptr) return {};
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  unsigned type = 0, managed = 0;
  cu::device_ptr device = 0;
  std::uint64_t begin = 0;
  std::size_t size = 0;
  int attributes[] = {attribute::memory_type, attribute::is_managed, attribute::device_pointer, attribute::range_start,
                      attribute::range_size};
  void* values[] = {&type, &managed, &device, &begin, &size};
  if (cuda.cuPointerGetAttributes(5, attributes, values, address) != cu::error_code::success) return {};
  if (type != cu::memory_type::host || managed != 0) return {};
  if (device == 0) {
    if (context == nullptr) return {};
    const auto inside = context_use::enter(*context);
    return inside ? inspect_host(cuda, pointer, bytes) : host_memory{};
  }
  // CUDA reports the range in the GPU's addresses where those differ from the CPU's.
  const address_range known{begin, size};
  if (!known.contains({device, bytes}) && !known.contains({address, bytes})) return {};
  return {true, device};
}

}  // namespace pl::copy
