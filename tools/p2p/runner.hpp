// SPDX-License-Identifier: Apache-2.0
// A whole run on one rank: every size, every library, the table and the result file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "measure/result_file.hpp"
#include "tools/p2p/buffers.hpp"
#include "tools/p2p/settings.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// One of the libraries that are compared, opened.
struct contender {
  arm kind = arm::ours;
  std::unique_ptr<transport> world;
};

// Collective: every rank with the same settings and libraries. Rank 0 prints, and fills `file` if it is not null. Returns
// the exit code: 1 after wrong data.
int run_benchmark(const settings& asked, const std::vector<contender>& arms, buffer_source& memory,
                  const std::string& program, result_file* file);

}  // namespace pl::p2p
