// SPDX-License-Identifier: Apache-2.0
#include "messaging/memory_access.hpp"

#include <cstring>

#include "base/text.hpp"
#include "messaging/thresholds.hpp"

namespace pl::messaging {

// Empty: not device memory. Only answers for cuMemAlloc's memory (it has a context) are cached: a buffer id belongs to
// one allocation and is never reused, so an equal id makes the cached answer valid for the same memory object. Memory
// that was freed and allocated again has another id or none. VMM and pool memory may be remapped under one id, so the
// driver is asked for all of it.
std::optional<cu::pointer_info> memory_access::device_memory_at(std::uint64_t address, std::size_t bytes) noexcept {
  constexpr unsigned kNeighbourhood = 16;  // log2 of bytes
  if (const auto* const known = planner_->registered(address, bytes)) return *known;
  auto& recent = recent_[(address >> kNeighbourhood ^ address >> (kNeighbourhood + 6)) % recent_.size()];
  const address_range wanted{address, bytes};
  const bool is_of_recent = recent.buffer_id != 0 && recent.allocation.contains(wanted) &&
                            (recent.object.size_bytes == 0 || recent.object.contains(wanted));
  if (is_of_recent && cu::is_still_buffer(*cuda_, address, recent.buffer_id)) return recent;
  auto found = cu::find_device_memory(*cuda_, address);
  if (found && found->context != nullptr) recent = *found;
  return found;
}

result<memory> memory_access::inspect(const buffer& data) {
  memory found{data.address, data.bytes, data.kind == memory_kind::device, {}};
  if (data.bytes == 0) {
    found.is_device = false;
    return found;
  }
  if (data.address == 0) return failure{EINVAL, format("a message of %zu bytes at address 0: give its buffer", data.bytes)};
  if (!checked_add(data.address, data.bytes))
    return failure{EINVAL, format("a buffer of %zu bytes that leaves the address space: give its size", data.bytes)};
  if (planner_ == nullptr) {
    if (found.is_device)
      return failure{EINVAL,
                     "device memory, and this messenger was opened without CUDA: give messenger::open a driver table"};
    return found;
  }
  const bool is_asked = data.kind == memory_kind::detect ? !host_.contains(data.address, data.bytes) : found.is_device;
  if (!is_asked) return found;
  if (const auto device = device_memory_at(data.address, data.bytes)) {
    found.is_device = true;
    found.device = *device;
  }
  return found;
}

result<memory> memory_access::inspect_lasting(const buffer& data) {
  auto found = inspect(data);
  if (!found || data.bytes == 0 || planner_ == nullptr || data.kind == memory_kind::detect) return found;
  const bool is_device = cu::find_device_memory(*cuda_, data.address).has_value();
  if (is_device == found->is_device) return found;
  return failure{EINVAL, is_device ? "the buffer is declared as host memory, but the address is device memory: declare it so"
                                   : "the buffer is declared as device memory, but the driver knows none at its address"};
}

status memory_access::copy(const copy::transfer& transfer, const memory& device_side, touch access) const {
  // Another memory object may follow the first one, and its properties are unknown.
  const auto& known = device_side.device;
  const address_range place{transfer.way == copy::direction::to_device ? transfer.dst : transfer.src, transfer.bytes()};
  const bool is_known = known.device_ordinal >= 0 && (known.object.size_bytes == 0 || known.object.contains(place));

  // The CPU makes small copies in any case, and the planner's own path is the shortest.
  if (access == touch::any ||
      copy::is_by_cpu(planner_->costs()
                          .pick(transfer.way, copy::other_side::pageable, planner_->best_executor(), transfer.bytes())
                          .kind))
    return is_known ? planner_->copy(transfer, known) : planner_->copy(transfer);
  const auto method = transfer.way == copy::direction::to_device ? copy::method::cpu_store : copy::method::cpu_load;
  auto done = planner_->copy_by({method, 1}, transfer);
  // Not mapped, or not mappable: a copy engine moves it, at the cost of a context switch.
  if (done.code() == EAGAIN || done.code() == ENOTSUP || done.code() == ERANGE) return planner_->copy(transfer);
  return done;
}

status memory_access::read(const memory& source, std::size_t offset, void* destination, std::size_t bytes,
                           touch access) const {
  if (bytes == 0) return {};
  if (source.is_device)
    return copy({copy::direction::to_host, copy::address_of(destination), source.address + offset, bytes}, source, access);
  std::memcpy(destination, copy::host_pointer(source.address + offset), bytes);
  return {};
}

status memory_access::write(const memory& destination, std::size_t offset, const void* source, std::size_t bytes,
                            touch access) const {
  if (bytes == 0) return {};
  if (destination.is_device)
    return copy({copy::direction::to_device, destination.address + offset, copy::address_of(source), bytes}, destination,
                access);
  std::memcpy(copy::host_pointer(destination.address + offset), source, bytes);
  return {};
}

status memory_access::move(const memory& destination, const memory& source, std::size_t bytes) const {
  if (!destination.is_device) return read(source, 0, copy::host_pointer(destination.address), bytes, touch::any);
  if (!source.is_device) return write(destination, 0, copy::host_pointer(source.address), bytes, touch::any);
  return planner_->copy({copy::direction::on_device, destination.address, source.address, bytes});
}

}  // namespace pl::messaging
