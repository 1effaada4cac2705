// SPDX-License-Identifier: Apache-2.0
// Memory that the application registered with the planner.
#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {

namespace {

template <class Slots>
result<unsigned> free_slot(const Slots& slots) {
  for (unsigned i = 0; i < slots.size(); ++i)
    if (slots[i].is_free()) return i;
  return failure{ENOSPC, format("%zu ranges are registered already: register larger ones", slots.size())};
}

void raise_to(std::atomic<unsigned>& used, unsigned slot) {
  if (slot >= used.load(std::memory_order_relaxed)) used.store(slot + 1, std::memory_order_release);
}

}  // namespace

result<planner::registration> planner::register_memory(std::uint64_t pointer, std::size_t bytes) {
  if (!is_mine()) return failure{EACCES, "this planner belongs to the parent process"};
  const std::lock_guard lock(shared_->mutex);
  auto maps = shared_->open_maps(cuda_, options_.maps.backend);
  if (!maps) return maps.error();
  auto slot = free_slot(shared_->ranges);
  if (!slot) return slot.error();
  auto info = cu::inspect_pointer(cuda_, pointer);
  if (!info) return info.error();
  pin_request request;
  request.range = {pointer, bytes};
  auto pin = (*maps)->pin(request);
  if (!pin) return pin.error();
  auto view = (*pin)->map((*pin)->range().size_bytes, arch::mapping_type::none);
  if (!view) return view.error();
  char* const data = static_cast<char*>(view->address) + (pointer - (*pin)->range().begin);
  shared_->ranges[*slot].set(*info, pointer, pointer + bytes, data, *std::move(pin), *view);
  raise_to(shared_->ranges_used, *slot);
  return registration(this, *slot, false);
}

result<planner::registration> planner::register_host_memory(void* pointer, std::size_t bytes, int device_ordinal) {
  if (!is_mine()) return failure{EACCES, "this planner belongs to the parent process"};
  if (pointer == nullptr || bytes == 0) return failure{EINVAL, "no host memory to register: a null pointer or no bytes"};
  auto context = find_context(cuda_, device_ordinal, nullptr);
  if (!context) return context.error();
  const std::lock_guard lock(shared_->mutex);
  auto slot = free_slot(shared_->host_ranges);
  if (!slot) return slot.error();
  auto pinning = host_pinning::make(*context, pointer, bytes);
  if (!pinning) return pinning.error();
  shared_->host_ranges[*slot].set(address_of(pointer), address_of(pointer) + bytes, *std::move(pinning));
  raise_to(shared_->host_ranges_used, *slot);
  return registration(this, *slot, true);
}

// The result of inspect_host without a driver call, for registered memory.
bool planner::find_registered_host(std::uint64_t pointer, std::size_t bytes, host_memory& out) const noexcept {
  const unsigned used = shared_->host_ranges_used.load(std::memory_order_acquire);
  auto type = arch::mapping_type::none;
  for (unsigned i = 0; i < used; ++i)
    if (const char* const device = shared_->host_ranges[i].find(pointer, bytes, type)) {
      out = shared_->host_ranges[i].info();  // no race: the application does not end this range while it is copied
      out.device_ptr = address_of(device);
      return true;
    }
  return false;
}

result<std::uint64_t> planner::prepare_host_memory(void* pointer, std::uint64_t size_bytes, int device_ordinal) {
  if (!is_mine()) return failure{EACCES, "this planner belongs to the parent process"};
  if (!uses_channels_) return failure{ENOTSUP, "copies go without DMA channels"};
  auto context = find_context(cuda_, device_ordinal, nullptr);
  if (!context) return context.error();
  cu::pointer_info device;
  device.device_ordinal = device_ordinal;
  device.context = context->handle;
  auto state = state_of(device);
  if (!state) return state.error();
  auto channels = (*state)->channels();
  if (!channels) return failure{ENOTSUP, channels.error().message};
  std::uint64_t fresh_bytes = 0;
  for (std::uint64_t done = 0; done < size_bytes;) {  // memory that was pinned in pieces
    const std::uint64_t place = address_of(pointer) + done;
    const host_memory known = inspect_host(cuda_, host_pointer(place), 1, &*context);
    if (!known.is_pinned || !known.allocation.contains({place, 1}))
      return failure{ENOTSUP, format("the host memory at 0x%llx is not pinned", static_cast<unsigned long long>(place))};
    const std::uint64_t some = std::min(size_bytes - done, known.allocation.end() - place);
    auto fresh = (*channels)->prepare(known, place, some);
    if (!fresh) return fresh;
    fresh_bytes += *fresh;
    done += some;
  }
  return fresh_bytes;
}

planner::registration::registration(registration&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), slot_(other.slot_), is_host_(other.is_host_) {}

planner::registration& planner::registration::operator=(registration&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(slot_, other.slot_);
  std::swap(is_host_, other.is_host_);
  return *this;
}

planner::registration::~registration() {
  if (owner_ == nullptr || !owner_->is_mine()) return;
  const std::lock_guard lock(owner_->shared_->mutex);
  if (is_host_) owner_->shared_->host_ranges[slot_].clear();
  else owner_->shared_->ranges[slot_].clear();
}

}  // namespace pl::copy
