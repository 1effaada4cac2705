// SPDX-License-Identifier: Apache-2.0
// Lets rings of kernels access a window of another rank, on any host, by the put and get of the messaging layer.
//
// A word that a kernel signals is a put of 4 bytes. The ring begins it when everything before it has ended at the target.
#pragma once

#include <memory>

#include "device/remote_target.hpp"
#include "messaging/messenger.hpp"

namespace pl::triggered {

// `messages` must outlive it and the operations that it has begun. EINVAL: no such rank, or a window of no bytes.
result<std::shared_ptr<device::remote_target>> reach_window(messaging::messenger& messages,
                                                            const messaging::window::key_t& key);

}  // namespace pl::triggered
