// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/job_key.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::mpi {
namespace {

// When the process began, in the kernel's ticks, because process numbers are reused.
std::string start_of(pid_t process) {
  std::ifstream file(format("/proc/%d/stat", process));
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return {};
  std::size_t place = name_end + 1;
  for (int field = 2; field < 21 && place != std::string::npos; ++field) place = text.find(' ', place + 1);
  return place == std::string::npos ? std::string{} : text.substr(place + 1, text.find(' ', place + 1) - place - 1);
}

// MPICH's mpiexec gives each rank a socket to the manager of the host's ranks.
std::string find_manager() {
  const auto variable = env_read("PMI_FD");
  const auto fd = variable.is_set ? parse_integer(variable.text) : std::nullopt;
  if (!fd || *fd < 0 || *fd > 1 << 20) return {};
  ucred other{};
  socklen_t size = sizeof other;
  if (getsockopt(static_cast<int>(*fd), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.pid <= 0) return {};
  const auto start = start_of(other.pid);
  return start.empty() ? std::string{} : format("%d.%s", other.pid, start.c_str());
}

}  // namespace

std::string find_job_key() {
  std::string out;
  const auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) out += format("%s=%s;", label, value.c_str());
  };
  if (const auto space = env_read("PMIX_NAMESPACE"); space.is_set) {
    add("pmix", space.text);
    add("server", env_read("PMIX_SERVER_TMPDIR").text);
    add("key", env_read("OMPI_MCA_orte_precondition_transports").text);
  }
  if (const auto job = env_read("SLURM_JOB_ID"); job.is_set && env_read("SLURM_STEP_ID").is_set)
    add("slurm", job.text + "." + env_read("SLURM_STEP_ID").text);
  add("manager", find_manager());
  return out;
}

}  // namespace pl::mpi
