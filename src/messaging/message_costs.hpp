// SPDX-License-Identifier: Apache-2.0
// What a message costs besides the copies that the copy planner knows: measured once for a machine, kept beside the
// planner's own calibration.
#pragma once

#include <optional>
#include <string>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::link {

// Of messages between host memories of two processes, one way. Nanoseconds.
struct message_costs {
  double packet_ns = 200;           // that carry nothing
  double eager_ns_per_byte = 0.1;   // with their header: into the lane and out of it; over a network through its fragments
  double handshake_ns = 700;        // an announcement, its answer and its end, beyond the packet
  double chunks_ns_per_byte = 0.1;  // announced: through a ring of chunks, or UCX in place
};

struct handshake_costs {
  std::optional<message_costs> near;  // between processes of a node
  std::optional<message_costs> far;   // between hosts
  std::string origin;                 // where they come from, for people

  // The file's text, and back. EINVAL: not understood.
  std::string text(const std::string& key) const;
  static result<handshake_costs> parse(const std::string& text, const std::string& key);
};

// What such costs are good for, one line: the copy planner's key, or the CPU alone (`cuda` null), and the network library.
std::string handshake_key(const cu::driver_table* cuda, const std::string& network);
// messages-<hash>.txt in the folder of the planner's calibration file; empty if there is none.
std::string handshake_path(const std::string& key);
// Nothing, with a log line if something is there, where the file is missing, damaged or of another machine.
handshake_costs load_handshakes(const std::string& key);
status save_handshakes(const handshake_costs& costs, const std::string& key);

}  // namespace pl::link
