// SPDX-License-Identifier: Apache-2.0
// A window of another rank as kernels' rings reach it: by the put and get of messages, so on any host.
//
// A word that a kernel signals is a put of 4 bytes. The ring begins it when everything before it has ended at the target.
#pragma once

#include <memory>

#include "device/remote_target.hpp"
#include "messaging/messenger.hpp"

namespace pl::triggered {

// `messages` must outlive it and what it has begun. EINVAL: no such rank, or a window of no bytes.
result<std::shared_ptr<device::remote_target>> reach_window(messaging::messenger& messages,
                                                            const messaging::window::key_t& key);

}  // namespace pl::triggered
