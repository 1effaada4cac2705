// SPDX-License-Identifier: Apache-2.0
// The options of `peerlane p2p` and of OSU's programs.
#pragma once

#include <optional>

#include "tools/common/tool.hpp"
#include "tools/p2p/settings.hpp"

namespace pl::p2p {

struct parsed_command {
  settings asked;
  std::optional<int> exit_code;  // help was asked for, or an error was printed: nothing to run
};

// Throws tool_failure for options that exclude each other.
parsed_command parse_command(const tools::invocation& call);

// "osu_latency" -> latency; nothing for other names.
std::optional<benchmark> benchmark_of_program(const std::string& name);

}  // namespace pl::p2p
