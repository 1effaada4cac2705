// SPDX-License-Identifier: Apache-2.0
// The object behind the C handle of rings into which kernels post.
#pragma once

#include <peerlane/device.h>

#include <memory>

#include "capi/capi_call.hpp"
#include "capi/open_table.hpp"
#include "device/session.hpp"

namespace pl {

struct open_device {
  const cu::driver_table* cuda = nullptr;
  std::unique_ptr<device::session> rings;
};

}  // namespace pl

struct peerlane_device : pl::open_slot<pl::open_device> {};

namespace pl {

// The device, or null with `code` and the thread's last error set: EINVAL; EACCES in a forked child.
open_device* device_of(peerlane_device_t handle, int& code) noexcept;

// Common entry for the calls of a device: with_open() of `act(open_device&)`.
template <class Act>
int with_device(peerlane_device_t handle, Act&& act) {
  return with_open(handle, device_of, act);
}

}  // namespace pl
