// SPDX-License-Identifier: Apache-2.0
// What a rank that has lost rank 0 tells a new process of rank 0, behind the host's name in its hello: of which run it is,
// and what it knows of every rank. So the new process learns that it has come back, and to whom.
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
    std::uint32_t incarnation = 0;  // of its last process that is known
    bool is_gone = false;
  };
  std::uint64_t run = 0;
  std::vector<rank_state> ranks{};
};

// What stands behind the nonce of a hello.
std::string introduction_of(const std::string& host, const survivor_claim* claim);
// And back: nothing, if it is no claim of a job of `size` ranks.
std::pair<std::string, std::optional<survivor_claim>> parse_introduction(const std::string& text, int size);

}  // namespace pl::messaging
