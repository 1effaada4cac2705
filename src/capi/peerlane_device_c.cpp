// SPDX-License-Identifier: Apache-2.0
// The C interface of transfers that kernels start; the contract is in peerlane/device.h.
#include <peerlane/device.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/text.hpp"
#include "capi/open_device.hpp"
#include "cuda/pointer.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_device;
using pl::with_device;

pl::open_table<peerlane_device, 64> g_devices;

constexpr const char* kForeignDevice =
    "the rings belong to another process (made before fork): open some in this process, after the fork";

pl::result<std::unique_ptr<open_device>> open_device_with(const peerlane_device_options* options) {
  peerlane_device_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(int32_t))
      return pl::failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_device_options)"};
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.device_ordinal < 0) return pl::failure{EINVAL, "device_ordinal is negative: devices count from 0"};
  if (given.yields > 1) return pl::failure{EINVAL, "yields is neither 0 nor 1"};
  if (given.by_proxy > 1) return pl::failure{EINVAL, "by_proxy is neither 0 nor 1"};
  if (given.reserved != 0) return pl::failure{EINVAL, "reserved must be 0"};
  const auto cuda = pl::cu::driver();
  if (!cuda) return cuda.error();
  if (auto ready = pl::cu::initialize(**cuda); !ready) return ready.error();
  pl::device::session_options wanted;
  wanted.device_ordinal = given.device_ordinal;
  if (given.rings != 0) wanted.rings = given.rings;
  if (given.segments != 0) wanted.ring.segments = given.segments;
  if (given.timeout_ns != 0) wanted.ring.timeout_ns = given.timeout_ns;
  wanted.ring.yields = given.yields != 0;
  if (given.by_proxy != 0) wanted.backend = pl::device::ring_backend::proxy;
  auto opened = pl::device::session::open(**cuda, wanted);
  if (!opened) return opened.error();
  auto made = std::make_unique<open_device>();
  made->cuda = *cuda;
  made->rings = std::move(*opened);
  return made;
}

int check_index(const open_device& opened, std::uint32_t index) {
  if (index < opened.rings->ring_count()) return 0;
  return fail(pl::failure{EINVAL, pl::format("ring %u does not exist: %u were opened", index, opened.rings->ring_count())});
}

}  // namespace

pl::open_device* pl::device_of(peerlane_device_t handle, int& code) noexcept {
  return g_devices.find(handle, kForeignDevice, code);
}

PL_EXPORT int peerlane_device_open(const struct peerlane_device_options* options, peerlane_device_t* device) try {
  const pl::errno_guard guard;
  if (device == nullptr) return fail(EINVAL, kNullPointer);
  auto* const slot = g_devices.reserve();
  if (slot == nullptr) return fail(ENFILE, "64 devices are open: close one, or use one for all threads");
  auto made = open_device_with(options);
  g_devices.publish(*slot, made ? made->release() : nullptr);
  if (!made) return fail(made.error());
  *device = slot;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_device_close(peerlane_device_t device) {
  return with_device(device, [&](open_device& opened) {
    g_devices.publish(*device, nullptr);
    delete &opened;
    return 0;
  });
}

PL_EXPORT int peerlane_device_get_ring(peerlane_device_t device, uint32_t index, struct peerlane_device_ring* ring) {
  if (ring == nullptr) return fail(EINVAL, kNullPointer);
  return with_device(device, [&](const open_device& opened) {
    if (const int code = check_index(opened, index)) return code;
    *ring = opened.rings->ring(index).handle();
    return 0;
  });
}

PL_EXPORT int peerlane_device_add_window(peerlane_device_t device, struct peerlane_buffer memory,
                                         struct peerlane_device_window* window) {
  if (window == nullptr) return fail(EINVAL, kNullPointer);
  return with_device(device, [&](open_device& opened) {
    if (memory.memory > PEERLANE_MEMORY_DEVICE)
      return fail(EINVAL, "a buffer's memory is not one of PEERLANE_MEMORY_ANY, _HOST, _DEVICE");
    if (memory.memory == PEERLANE_MEMORY_DEVICE)
      if (auto known = pl::cu::inspect_pointer(*opened.cuda, memory.address); !known) return fail(known.error());
    if (memory.memory == PEERLANE_MEMORY_HOST && pl::cu::find_device_memory(*opened.cuda, memory.address))
      return fail(EINVAL,
                  "the buffer is declared as host memory, but the address is device memory: use peerlane_device_buffer()");
    auto made = opened.rings->add_window(memory.address, memory.size_bytes);
    if (!made) return fail(made.error());
    *window = *made;
    return 0;
  });
}

PL_EXPORT int peerlane_device_release_window(peerlane_device_t device, const struct peerlane_device_window* window) {
  if (window == nullptr) return fail(EINVAL, kNullPointer);
  return with_device(device, [&](open_device& opened) { return pl::return_code(opened.rings->remove_window(*window)); });
}

PL_EXPORT int peerlane_device_send_window(peerlane_device_t device, const struct peerlane_device_window* window,
                                          int socket) {
  if (window == nullptr) return fail(EINVAL, kNullPointer);
  return with_device(device, [&](open_device& opened) {
    auto shared = opened.rings->share(*window);
    if (!shared) return fail(shared.error());
    return pl::return_code(pl::dma::send_region(socket, *shared));
  });
}

PL_EXPORT int peerlane_device_receive_window(peerlane_device_t device, int socket, int64_t timeout_ms,
                                             struct peerlane_device_window* window) {
  if (window == nullptr) return fail(EINVAL, kNullPointer);
  return with_device(device, [&](open_device& opened) {
    constexpr std::int64_t kLongestMs = 1 << 30;
    auto shared = pl::dma::receive_region(socket, timeout_ms < 0 ? -1 : static_cast<int>(std::min(timeout_ms, kLongestMs)));
    if (!shared) return fail(shared.error());
    auto made = opened.rings->add_shared(*shared);
    if (!made) return fail(made.error());
    *window = *made;
    return 0;
  });
}

PL_EXPORT int peerlane_device_get_ring_state(peerlane_device_t device, uint32_t index,
                                             struct peerlane_device_ring_state* state, char* text, size_t capacity) {
  if (state == nullptr) return fail(EINVAL, kNullPointer);
  if (state->struct_bytes < sizeof(size_t) + sizeof(uint64_t))
    return fail(EINVAL, "state->struct_bytes is not sizeof(struct peerlane_device_ring_state)");
  return with_device(device, [&](const open_device& opened) {
    if (const int code = check_index(opened, index)) return code;
    const auto now = opened.rings->ring(index).read();
    const peerlane_device_ring_state out{state->struct_bytes, now.posted, now.completed, now.reason ? now.reason->code : 0,
                                         opened.rings->ring(index).handle().by_proxy};
    std::memcpy(state, &out, std::min(state->struct_bytes, sizeof out));
    return text == nullptr ? 0 : pl::give_text(now.reason ? now.reason->message : std::string(), text, capacity, nullptr);
  });
}
