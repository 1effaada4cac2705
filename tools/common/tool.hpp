// SPDX-License-Identifier: Apache-2.0
// What every subcommand of `peerlane` shares: how it is called and how it fails.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl::tools {

constexpr int kExitOk = 0;
constexpr int kExitFailed =
    1;  // bad options, missing pieces, mismatches: as the stock tools; command_facts.cpp has them all

struct command_facts;

// How the program was started.
struct invocation {
  std::string program;                    // for messages and help: "peerlane copybw" or "gdrcopy_copybw"
  bool drop_in = false;                   // started under a name of GDRCopy's tools: stock output shape only
  std::vector<std::string> arguments;     // after the program or subcommand name
  std::vector<std::string> command_line;  // everything, for result files
  command_facts* facts = nullptr;         // not null: nothing is to run, the command only says here what it takes
};

// Ends a tool with one line on stderr. Thrown by the helpers, caught in main: the tools are programs, so an exception is
// the short way out that still runs destructors (pins and mappings are released).
struct tool_failure : std::runtime_error {
  explicit tool_failure(const std::string& message, int code = kExitFailed) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

// The value, or a tool_failure with the error's sentence.
template <class T>
T must(result<T> outcome) {
  if (!outcome) throw tool_failure(outcome.error().message);
  return std::move(*outcome);
}
inline void must(const status& outcome) {
  if (!outcome) throw tool_failure(outcome.error().message);
}

// Subcommands. Each parses, calls the library, prints, and returns the exit code.
int run_info(const invocation& call);
int run_doctor(const invocation& call);
int run_env(const invocation& call);
int run_sanity(const invocation& call);
int run_copybw(const invocation& call);
int run_copylat(const invocation& call);
int run_apiperf(const invocation& call);
int run_pplat(const invocation& call);
int run_demo(const invocation& call);
int run_copy(const invocation& call);
int run_blocks(const invocation& call);
int run_calibrate(const invocation& call);
int run_explain_copy(const invocation& call);
int run_topo(const invocation& call);
int run_bandwidth(const invocation& call);
int run_gate(const invocation& call);
int run_p2p(const invocation& call);
int run_async(const invocation& call);
int run_report(const invocation& call);
int run_top(const invocation& call);
int run_store(const invocation& call);
int run_soak(const invocation& call);

}  // namespace pl::tools
