// SPDX-License-Identifier: Apache-2.0
// Windows of other ranks for transfers that kernels start; the contract is in peerlane/device.h.
#include <peerlane/device.h>

#include "capi/open_comm.hpp"
#include "capi/open_device.hpp"
#include "triggered/messenger_window.hpp"

PL_EXPORT int peerlane_device_add_remote_window(peerlane_device_t device, peerlane_comm_t comm,
                                                const struct peerlane_window_key* key,
                                                struct peerlane_device_window* window) {
  if (key == nullptr || window == nullptr) return pl::fail(EINVAL, pl::kNullPointer);
  return pl::with_device(device, [&](pl::open_device& opened) {
    return pl::with_comm(comm, [&](pl::open_comm& communicator) {
      auto reached = pl::triggered::reach_window(*communicator.messenger, {key->rank, key->id, key->size_bytes});
      if (!reached) return pl::fail(reached.error());
      auto made = opened.rings->add_remote(*std::move(reached));
      if (!made) return pl::fail(made.error());
      *window = *made;
      return 0;
    });
  });
}
