// SPDX-License-Identifier: Apache-2.0
// Which link a transfer crosses, and what that link carries. expect() and judge() share it.
#pragma once

#include <optional>
#include <string>

#include "tools/bandwidth/efficiency_table.hpp"
#include "tools/bandwidth/judgement.hpp"

namespace pl::bandwidth {

// The narrowest link of a path. `gpu` is the GPU whose link it is; `peer` the other GPU, -1 if there is none.
struct crossed_link {
  traffic kind = traffic::local_copy;
  int gpu = 0;
  int peer = -1;
};
// Nothing between two host places, and for GPUs that `links` does not have.
std::optional<crossed_link> find_crossed_link(const machine_links& links, const transfer_path& path);

bool is_pcie(traffic kind);
// What is left of a direction when the other one is busy too, 0..1.
double duplex_factor(const machine_links& links, const crossed_link& crossed, executor_kind kind);
// GB/s of one direction before any overhead, as the link is at its best; 0 if not known.
double raw_rate(const machine_links& links, const crossed_link& crossed);
std::string describe_link(const machine_links& links, const crossed_link& crossed);

// Smallest power of two for which start-up takes at most 3 % of the time at `rate` GB/s.
std::uint64_t enough_bytes(double start_up, double rate);

}  // namespace pl::bandwidth
