// SPDX-License-Identifier: Apache-2.0
// The claim of a survivor: a rank that has lost rank 0 sends it to a new process of rank 0, appended to the host name in its
// hello. It identifies the run and gives the last known state of every rank. From it the new process learns that it replaces
// an earlier process, and which ranks are still alive.
//
// Owns: nothing. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pl::messaging {

struct survivor_claim {
  struct rank_state {
    std::uint32_t incarnation = 0;  // of the last process of this rank that the survivor knows
    bool is_gone = false;
  };
  std::uint64_t run = 0;            // star_frame_head::nonce of the run
  std::vector<rank_state> ranks{};  // by rank
};

// Encodes what follows the nonce of a hello: the host name, and the claim unless it is null.
std::string peer_info_of(const std::string& host, const survivor_claim* claim);
// Decodes it. No claim is returned if the text contains none, or one that does not fit a job of `size` ranks.
std::pair<std::string, std::optional<survivor_claim>> parse_peer_info(const std::string& text, int size);

}  // namespace pl::messaging
