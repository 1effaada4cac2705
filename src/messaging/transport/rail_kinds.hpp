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
  kPacketsAcknowledged,  // all packets below (number) have arrived
  kPartAcknowledged,     // the part (tag) has arrived
  kPing,                 // asks for kPong by the same rail (time of the sender)
  kPong,                 // (the same time)
  kRailDown,             // the sender no longer uses the rail (its index in the list)
};

// Whether the kernel reports the link state of this net device. RDMA adapters have no such file.
bool has_link_state(const std::string& device);
// Whether the device has a link. Also false if the kernel does not report it.
bool has_link(const std::string& device);

}  // namespace pl::messaging
