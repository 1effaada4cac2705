// SPDX-License-Identifier: Apache-2.0
// UCX opens its descriptors without close-on-exec. A program that this process starts would hold its connections open beyond
// its death, which its peers would then not see. So they are found and marked.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace pl::link {

// TCP ports on which a process listens for its peers, 0 where there are fewer.
using port_list = std::array<std::uint16_t, 8>;

// Descriptors of this process, in order.
std::vector<int> open_descriptors();
// Marks what is open now and was not `before`, and names the ports on which it listens. Another thread's that was opened
// meanwhile is marked too.
port_list close_on_exec_since(const std::vector<int>& before);
// Marks the TCP connections that came in on one of the ports `own`, or went out to one of `theirs`.
void close_on_exec_connections(const port_list& own, const port_list& theirs);

}  // namespace pl::link
