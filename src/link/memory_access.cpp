// SPDX-License-Identifier: Apache-2.0
#include "memory_access.hpp"

#include <cstring>

#include "text.hpp"

namespace pl::link {

bool memory_access::is_device_pointer(std::uint64_t address) const noexcept {
  unsigned type = 0, managed = 0;
  int attributes[] = {cu::pointer_attribute::memory_type, cu::pointer_attribute::is_managed};
  void* values[] = {&type, &managed};
  if (cuda_->cuPointerGetAttributes(2, attributes, values, address) != cu::error_code::success) return false;
  return type == cu::memory_type::device && managed == 0;  // managed memory is the CPU's as well
}

result<memory> memory_access::look(const buffer& what) const {
  memory found{what.address, what.bytes, what.kind == memory_kind::device};
  if (what.bytes == 0) {
    found.is_device = false;
    return found;
  }
  if (what.address == 0) return failure{EINVAL, format("a message of %zu bytes at address 0: give its buffer", what.bytes)};
  if (planner_ == nullptr) {
    if (found.is_device)
      return failure{EINVAL,
                     "device memory, and this messenger was opened without CUDA: give messenger::open a driver table"};
  } else if (what.kind == memory_kind::detect) {
    found.is_device = is_device_pointer(what.address);
  }
  return found;
}

status memory_access::copy(const copy::transfer& what, touch how) const {
  // Small copies go by the CPU anyhow, and the planner's own path to that is the shortest.
  if (how == touch::any ||
      copy::is_by_cpu(planner_->costs().pick(what.way, copy::other_side::pageable, true, what.bytes()).how))
    return planner_->copy(what);
  const auto by = what.way == copy::direction::to_device ? copy::method::cpu_store : copy::method::cpu_load;
  auto done = planner_->copy_by({by, 1}, what);
  // Not mapped now, or not mappable at all: then the GPU's engines, at their price.
  if (done.code() == EAGAIN || done.code() == ENOTSUP || done.code() == ERANGE) return planner_->copy(what);
  return done;
}

status memory_access::read(const memory& from, std::size_t offset, void* to, std::size_t bytes, touch how) const {
  if (bytes == 0) return {};
  if (from.is_device) return copy({copy::direction::to_host, copy::address_of(to), from.address + offset, bytes}, how);
  std::memcpy(to, copy::host_pointer(from.address + offset), bytes);
  return {};
}

status memory_access::write(const memory& to, std::size_t offset, const void* from, std::size_t bytes, touch how) const {
  if (bytes == 0) return {};
  if (to.is_device) return copy({copy::direction::to_device, to.address + offset, copy::address_of(from), bytes}, how);
  std::memcpy(copy::host_pointer(to.address + offset), from, bytes);
  return {};
}

status memory_access::move(const memory& to, const memory& from, std::size_t bytes) const {
  if (!to.is_device) return read(from, 0, copy::host_pointer(to.address), bytes, touch::any);
  if (!from.is_device) return write(to, 0, copy::host_pointer(from.address), bytes, touch::any);
  return planner_->copy({copy::direction::on_device, to.address, from.address, bytes});
}

}  // namespace pl::link
