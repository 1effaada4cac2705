// SPDX-License-Identifier: Apache-2.0
#include "compat/gdrapi/gdrapi_planner.hpp"

#include <atomic>
#include <exception>

#include "base/env.hpp"
#include "base/log.hpp"
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

// Null if it is not wanted, could not be created, or is the parent's.
copy::planner* planner() {
  static const bool is_wanted = env_read("PEERLANE_GDRAPI_PLANNER").integer != 0;
  if (!is_wanted) return nullptr;
  static const std::uint32_t epoch = claim_process_epoch();
  static copy::planner* const made = make_planner();
  return process_epoch() == epoch ? made : nullptr;
}

// The device address behind `mapped`, which the region's own checks have accepted.
std::uint64_t device_address(const region* target, const void* mapped) {
  return target->pin->range().begin +
         static_cast<std::uint64_t>(static_cast<const char*>(mapped) - static_cast<const char*>(target->view.address));
}

bool planned(const copy::transfer& transfer) noexcept try {
  auto* const instance = planner();
  if (instance == nullptr) return false;
  const auto done = instance->copy(transfer);
  if (!done) PL_LOG(debug, "PEERLANE_GDRAPI_PLANNER: by the CPU, because %s", done.error().message.c_str());
  return done.ok();
} catch (const std::exception&) { return false; }

}  // namespace

bool planned_write(const region* target, const void* mapped, const void* source, std::size_t size_bytes) noexcept {
  if (check_copy_range(target, mapped, source, size_bytes) != 0) return false;
  return planned({copy::direction::to_device, device_address(target, mapped), copy::address_of(source), size_bytes});
}

bool planned_read(const region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept {
  if (check_copy_range(target, mapped, destination, size_bytes) != 0) return false;
  const auto offset =
      static_cast<std::uint64_t>(static_cast<const char*>(mapped) - static_cast<const char*>(target->view.address));
  if (copy::read_by_channel(*target->pin, offset, mapped, destination, size_bytes))
    return count_region_read(size_bytes), true;
  return planned({copy::direction::to_host, copy::address_of(destination), device_address(target, mapped), size_bytes});
}

}  // namespace pl
