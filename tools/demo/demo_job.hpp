// SPDX-License-Identifier: Apache-2.0
// One job of the demo that another command of this program does: a separate process, so that a job that fails or hangs
// does not end the others, and its result file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace pl::tools {

struct demo_job {
  std::string title;
  std::vector<std::string> arguments;                            // as typed after `peerlane`
  std::vector<std::pair<std::string, std::string>> environment;  // set for this process alone
  int timeout_s = 60;
  std::vector<int> findings;  // exit codes of a job that was done and has something to report, a slow link for example
};

// The command as a user would type it.
std::string command_text(const demo_job& job);

// Runs the job with this process's standard output and error, and returns its result file, which has `passed` true unless
// the exit code is one of `findings`. Throws tool_failure: the job could not be started, failed, took longer than its time,
// or wrote no result. A job that is ended by the time limit, or by the end of this process, leaves no process behind.
nlohmann::json run_demo_job(const demo_job& job);

}  // namespace pl::tools
