// SPDX-License-Identifier: Apache-2.0
// C++ API of transfers that kernels start: RAII over the C calls of <peerlane/device.h>, which describes each call; link
// libpeerlane. Kernels include <peerlane/device.cuh>.
//
//   auto device = peerlane::device_rings::open();                                     // result<device_rings>
//   auto host = device->add_window(peerlane_host_buffer(pinned, size_bytes));        // result<device_window>
//   kernel<<<blocks, threads>>>(*device->ring(), *host);
//
// Failures are values. Windows and rings are plain structs, valid until the device is closed.
#pragma once

#include <peerlane/device.h>

#include <chrono>
#include <cstdint>
#include <peerlane/buffer.hpp>
#include <peerlane/peerlane.hpp>
#include <peerlane/result.hpp>
#include <string>
#include <utility>

namespace peerlane {

using device_ring = peerlane_device_ring;
using device_window = peerlane_device_window;

struct device_options {
  int device_ordinal = 0;
  std::uint32_t rings = 1;
  std::uint32_t segments = 4096;
  bool yields = false;
  std::chrono::nanoseconds timeout = std::chrono::seconds(2);
  bool by_proxy = false;  // a host thread executes the transfers; remote windows need it
};

struct device_ring_state {
  std::uint64_t posted = 0, completed = 0;
  status outcome;         // an error: why the ring has ended
  bool by_proxy = false;  // a host thread executes the transfers
};

// Rings of one GPU, and the windows that they can access. Move-only.
class device_rings {
 public:
  static result<device_rings> open(const device_options& options = {}) {
    peerlane_device_options given{};
    given.struct_bytes = sizeof given;
    given.device_ordinal = options.device_ordinal;
    given.rings = options.rings;
    given.segments = options.segments;
    given.yields = options.yields ? 1u : 0u;
    given.timeout_ns = static_cast<std::uint64_t>(options.timeout.count());
    given.by_proxy = options.by_proxy ? 1u : 0u;
    device_rings made;
    if (const int code = peerlane_device_open(&given, &made.handle_)) return failure{code, peerlane_last_error()};
    return made;
  }
  device_rings(device_rings&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  device_rings& operator=(device_rings&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~device_rings() {
    if (handle_ != nullptr) peerlane_device_close(handle_);
  }

  peerlane_device_t get() const noexcept { return handle_; }

  result<device_ring> ring(std::uint32_t index = 0) const {
    device_ring out{};
    if (const int code = peerlane_device_get_ring(handle_, index, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  result<device_window> add_window(const buffer& memory) const {
    device_window out{};
    if (const int code = peerlane_device_add_window(handle_, memory, &out)) return failure{code, peerlane_last_error()};
    return out;
  }
  // Memory that another rank exposes. `comm` is communicator::get(). Close the communicator after the window is released.
  result<device_window> add_remote_window(peerlane_comm_t comm, const peerlane_window_key& key) const {
    device_window out{};
    if (const int code = peerlane_device_add_remote_window(handle_, comm, &key, &out))
      return failure{code, peerlane_last_error()};
    return out;
  }
  status release_window(const device_window& window) const {
    return to_status(peerlane_device_release_window(handle_, &window));
  }
  status send_window(const device_window& window, int socket) const {
    return to_status(peerlane_device_send_window(handle_, &window, socket));
  }
  result<device_window> receive_window(int socket, std::chrono::milliseconds limit) const {
    device_window out{};
    if (const int code = peerlane_device_receive_window(handle_, socket, limit.count(), &out))
      return failure{code, peerlane_last_error()};
    return out;
  }
  result<device_ring_state> state(std::uint32_t index = 0) const {
    peerlane_device_ring_state now{};
    now.struct_bytes = sizeof now;
    char text[512] = {};
    if (const int code = peerlane_device_get_ring_state(handle_, index, &now, text, sizeof text))
      return failure{code, peerlane_last_error()};
    return device_ring_state{now.posted, now.completed, now.error == 0 ? status{} : status(failure{now.error, text}),
                             now.by_proxy != 0};
  }

 private:
  device_rings() = default;
  static status to_status(int code) { return code == 0 ? status{} : status(failure{code, peerlane_last_error()}); }
  peerlane_device_t handle_ = nullptr;
};

}  // namespace peerlane
