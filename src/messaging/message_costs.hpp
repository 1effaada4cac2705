// SPDX-License-Identifier: Apache-2.0
// The cost of a message without its copies, whose cost the copy planner knows. Measured once for a machine, and stored next
// to the calibration of the planner.
//
// Owns: only the file. Threads: any; plain values. Errors: EINVAL for a text that cannot be parsed, errno values for a file.
#pragma once

#include <optional>
#include <string>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::messaging {

// One-way costs between host memories of two processes, in nanoseconds.
struct message_costs {
  double packet_ns = 200;           // of an empty message
  double eager_ns_per_byte = 0.1;   // into and out of the shm queue, or through UCX's fragments
  double handshake_ns = 700;        // RTS, RTR and ATS, in addition to packet_ns
  double chunks_ns_per_byte = 0.1;  // rendezvous: through a ring of chunks, or UCX in place
};

struct handshake_costs {
  std::optional<message_costs> near;  // between processes of a node
  std::optional<message_costs> far;   // between hosts
  std::string origin;                 // source of the numbers, for display

  // Formats and parses the content of the file. EINVAL: the text cannot be parsed, or has another key.
  std::string text(const std::string& key) const;
  static result<handshake_costs> parse(const std::string& text, const std::string& key);
};

// Identifies the machine that such costs are valid for: the copy planner's key (the CPU alone without `cuda`) and the
// network library, in one line.
std::string handshake_key(const cu::driver_table* cuda, const std::string& network);
// messages-<hash>.txt in the folder of the planner's calibration file; empty if there is none.
std::string handshake_path(const std::string& key);
// Reads the file. Empty if it is missing, damaged or from another machine; the last two are logged.
handshake_costs load_handshakes(const std::string& key);
status save_handshakes(const handshake_costs& costs, const std::string& key);

}  // namespace pl::messaging
