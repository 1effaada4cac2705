// SPDX-License-Identifier: Apache-2.0
// The kinds of messages between two rail sets, and the state of a link.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>

namespace pl::messaging {

// rail_head::kind; the number is in parentheses.
enum rail_kind : std::uint32_t {
  kPacket,               // a packet (its own, from 0 on), packed
  kPart,                 // a part (tag)
  kPacketsAcknowledged,  // all packets below (number) have come
  kPartAcknowledged,     // the part (tag) has come
  kPing,                 // asks for kPong by the same rail (time of the sender)
  kPong,                 // (the same time)
  kRailDown,             // the sender does not use the rail (its place in the list) any more
};

// Whether the kernel says if this net device has a link. Adapters for RDMA have no such file.
bool has_link_state(const std::string& device);
// False also where the kernel does not say it.
bool has_link(const std::string& device);

}  // namespace pl::messaging
