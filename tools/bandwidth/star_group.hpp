// SPDX-License-Identifier: Apache-2.0
// Collective calls over a star of messages with rank 0 in the middle.
//
// Why a star and not a tree: rank 0 hears every rank itself, so it can name the one that is missing, and a group has as many
// ranks as one NVLink domain has GPUs (72), not thousands.
#pragma once

#include <memory>

#include "group.hpp"
#include "star_channel.hpp"

namespace pl::bandwidth {

std::unique_ptr<group> make_star_group(std::unique_ptr<star_channel> channel, unsigned timeout_s);

}  // namespace pl::bandwidth
