// SPDX-License-Identifier: Apache-2.0
#include "compat/gdrapi/gdrapi_planner.hpp"

#include <atomic>
#include <exception>

#include "base/env.hpp"
#include "base/log.hpp"
#include "capi/errno_guard.hpp"
#include "copy/channel_reader.hpp"
#include "copy/planner.hpp"
#include "map/registry.hpp"
#include "os/fork_guard.hpp"

namespace pl {
namespace {

copy::planner* make_planner() {
  auto cuda = cu::driver();
  if (!cuda) return nullptr;
  auto opened = copy::planner::open(**cuda, copy::planner::options_from_environment());
  if (opened) return opened->release();  // for the life of the process
  PL_LOG(warn, "PEERLANE_GDRAPI_PLANNER: %s", opened.error().message.c_str());
  return nullptr;
}

bool is_wanted() {
  static const bool wanted = env_read("PEERLANE_GDRAPI_PLANNER").integer != 0;
  return wanted;
}

// Null if it is not wanted, could not be created, or is the parent's.
copy::planner* planner() {
  if (!is_wanted()) return nullptr;
  static const std::uint32_t epoch = claim_process_epoch();
  static copy::planner* const made = make_planner();
  return process_epoch() == epoch ? made : nullptr;
}

// Whether the device addresses still are those of the pinned memory. Freed memory stays behind its mapping, while its
// addresses may be those of another allocation: only stores and loads reach it then.
bool is_still_there(const region* target, std::uint64_t address, std::size_t size_bytes) noexcept {
  if (target->buffer_id == 0) return false;
  const auto cuda = cu::driver();
  if (!cuda) return false;
  const auto now = cu::find_device_memory(**cuda, address);
  return now && now->buffer_id == target->buffer_id && now->block_id == target->block_id &&
         now->allocation.contains({address, size_bytes}) &&
         (now->block_id == 0 || now->object.contains({address, size_bytes}));
}

// The device address behind `mapped`, which the region's own checks have accepted.
std::uint64_t device_address(const region* target, const void* mapped) {
  return target->pin->range().begin +
         static_cast<std::uint64_t>(static_cast<const char*>(mapped) - static_cast<const char*>(target->view.address));
}

bool planned(const region* target, std::uint64_t address, const copy::transfer& transfer) noexcept try {
  auto* const instance = planner();
  if (instance == nullptr || !is_still_there(target, address, transfer.bytes())) return false;
  const auto done = instance->copy(transfer);
  if (!done) PL_LOG(debug, "PEERLANE_GDRAPI_PLANNER: by the CPU, because %s", done.error().message.c_str());
  return done.ok();
} catch (const std::exception&) { return false; }

}  // namespace

void note_memory(region* fresh) noexcept try {
  fresh->buffer_id = fresh->block_id = 0;
  if (!is_wanted()) return;
  const auto cuda = cu::driver();
  if (!cuda) return;
  const auto found = cu::find_device_memory(**cuda, fresh->device_ptr);
  if (!found) return;
  fresh->buffer_id = found->buffer_id;
  fresh->block_id = found->block_id;
} catch (const std::exception&) {}  // copies go by the CPU

bool planned_write(const region* target, const void* mapped, const void* source, std::size_t size_bytes) noexcept {
  if (check_copy_range(target, mapped, source, size_bytes) != 0) return false;
  const errno_guard keeper;
  const std::uint64_t address = device_address(target, mapped);
  return planned(target, address, {copy::direction::to_device, address, copy::address_of(source), size_bytes});
}

bool planned_read(const region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept {
  if (check_copy_range(target, mapped, destination, size_bytes) != 0) return false;
  const errno_guard keeper;
  const auto offset =
      static_cast<std::uint64_t>(static_cast<const char*>(mapped) - static_cast<const char*>(target->view.address));
  if (copy::read_by_channel(*target->pin, offset, mapped, destination, size_bytes))
    return count_region_read(size_bytes), true;
  const std::uint64_t address = device_address(target, mapped);
  return planned(target, address, {copy::direction::to_host, copy::address_of(destination), address, size_bytes});
}

}  // namespace pl
