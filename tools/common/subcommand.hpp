// SPDX-License-Identifier: Apache-2.0
// Commands whose first argument names what to do: `peerlane async pingpong`, `peerlane store put`.
#pragma once

#include <span>

#include "tools/common/tool.hpp"

namespace pl::tools {

struct subcommand {
  const char *name, *help;
  int (*run)(const invocation&);
};

// Runs the one that the first argument names, with the arguments behind it. Otherwise prints what there is: to stdout if
// asked for by -h or --help (exit code 0), to stderr without a word; an unknown word gets one line. `noun` is what the text
// calls one
// ("benchmark").
int run_subcommand(const invocation& call, const char* noun, std::span<const subcommand> all);

// "; did you mean "bandwidth"?" if one of them is near, else nothing.
std::string did_you_mean(const std::string& word, std::span<const std::string> known);

}  // namespace pl::tools
