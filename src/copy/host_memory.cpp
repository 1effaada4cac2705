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
  unsigned long long buffer_id = 0;
  int attributes[] = {attribute::memory_type, attribute::is_managed, attribute::device_pointer,
                      attribute::range_start, attribute::range_size, attribute::buffer_id};
  void* values[] = {&type, &managed, &device, &begin, &size, &buffer_id};
  if (cuda.cuPointerGetAttributes(6, attributes, values, address) != cu::error_code::success) return {};
  if (type != cu::memory_type::host || managed != 0) return {};
  if (device == 0) {
    if (context == nullptr) return {};
    const auto inside = context_use::enter(*context);
    return inside ? inspect_host(cuda, pointer, bytes) : host_memory{};
  }
  // CUDA reports the range in the GPU's addresses where those differ from the CPU's.
  const address_range known{begin, size};
  const bool is_in_cpu_addresses = known.contains({address, bytes});
  if (!known.contains({device, bytes}) && !is_in_cpu_addresses) return {};
  return {true, device, is_in_cpu_addresses ? known : address_range{}, buffer_id, false};
}

}  // namespace pl::copy
