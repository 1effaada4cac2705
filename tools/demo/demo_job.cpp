// SPDX-License-Identifier: Apache-2.0
#include "tools/demo/demo_job.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/text.hpp"
#include "tools/common/command_process.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {

std::string command_text(const demo_job& job) {
  std::string out;
  for (const auto& [name, value] : job.environment) out += name + "='" + value + "' ";
  out += "peerlane";
  for (const auto& word : job.arguments) out += " " + word;
  return out;
}

nlohmann::json run_demo_job(const demo_job& job) {
  const temporary_folder folder("demo");
  const std::string results = folder.path() + "/results.json";
  command_process::settings wanted{
      .arguments = job.arguments, .output_path = {}, .environment = job.environment, .end_signal = SIGTERM};
  wanted.arguments.insert(wanted.arguments.end(), {"--json", results});
  std::fflush(stdout);
  std::fflush(stderr);
  command_process child(wanted);
  const auto ended = child.wait_ms(static_cast<std::uint64_t>(job.timeout_s) * 1000);
  if (!ended) throw tool_failure(format("took longer than %d s", job.timeout_s));
  const int state = *ended;
  if (WIFSIGNALED(state)) throw tool_failure(format("ended by signal %d", WTERMSIG(state)));
  const int code = WEXITSTATUS(state);
  const bool has_findings = std::find(job.findings.begin(), job.findings.end(), code) != job.findings.end();
  if (code != kExitOk && !has_findings) throw tool_failure(format("failed with exit code %d; the reason is above", code));
  std::ifstream file(results);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || (!has_findings && !json.value("passed", false)))
    throw tool_failure("its result file does not say that it passed");
  return json;
}

}  // namespace pl::tools
