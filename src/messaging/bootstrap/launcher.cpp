// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/launcher.hpp"

#include <unistd.h>

#include <array>

#include "base/env.hpp"
#include "base/fnv1a.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

int number(const char* name, int otherwise) {
  if (name == nullptr) return otherwise;
  const auto value = env_read(name);
  const auto parsed = value.is_set ? parse_integer(value.text) : std::nullopt;
  return parsed && *parsed >= 0 && *parsed < (1 << 20) ? static_cast<int>(*parsed) : otherwise;
}

struct launcher_names {
  const char* program;
  bool starts_mpi;
  const char *rank, *size, *ranks_here, *local_rank;
};
constexpr std::array kLaunchers = {
    launcher_names{"Open MPI's mpirun", true, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                   "OMPI_COMM_WORLD_LOCAL_RANK"},
    launcher_names{"MVAPICH2's mpirun_rsh", true, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE",
                   "MV2_COMM_WORLD_LOCAL_RANK"},
    launcher_names{"MPICH's mpiexec", true, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    // Not SLURM_NTASKS, which is also set in a batch script, a single process.
    launcher_names{"srun", false, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr, "SLURM_LOCALID"},
};

void add_job_key(launcher& found) {
  found.is_key_global = true;
  if (const auto space = env_read("PMIX_NAMESPACE"); space.is_set) {
    found.job_key = space.text;
  } else if (const auto job = env_read("SLURM_JOB_ID"); job.is_set) {
    found.job_key = "slurm-" + job.text + "." + env_read("SLURM_STEP_ID").text;
  } else {  // mpirun and mpiexec start the ranks of a host from one process
    found.job_key = "launcher-" + std::to_string(getppid());
    found.is_key_global = false;
  }
}

// srun lists the hosts of its step. With block and cyclic distribution, rank 0 is on the first.
void add_slurm_facts(launcher& found) {
  if (number("SLURM_STEP_NUM_TASKS", 0) != found.size) return;
  if (found.ranks_here == 0 && number("SLURM_STEP_NUM_NODES", 0) == 1) found.ranks_here = found.size;
  if (found.local_rank < 0) found.local_rank = number("SLURM_LOCALID", -1);
  found.first_host = first_of_host_list(env_read("SLURM_STEP_NODELIST").text);
}

// torchrun, and other programs that set the variables of torch.distributed (env://). Its processes may also inherit
// variables of another launcher, each of whose processes is a torchrun that starts several processes.
launcher read_torchrun() {
  launcher found;
  found.size = number("WORLD_SIZE", 0);
  found.rank = number("RANK", -1);
  const int port = number("MASTER_PORT", 0);
  const std::string host = env_read("MASTER_ADDR").text;
  if (found.size < 1 || found.rank < 0 || found.rank >= found.size || host.empty() || port < 1 || port >= 65535) return {};
  found.name = "torchrun";
  found.ranks_here = number("LOCAL_WORLD_SIZE", 0);
  found.local_rank = number("LOCAL_RANK", -1);
  found.job_key = "torchrun-" + env_read("TORCHELASTIC_RUN_ID").text + "." + env_read("TORCHELASTIC_RESTART_COUNT").text +
                  "-" + host + ":" + std::to_string(port);
  found.is_key_global = true;
  found.first_host = host.find(':') != std::string::npos ? "[" + host + "]" : host;  // an IPv6 address
  found.first_port = port + 1;  // torch.distributed listens on the port itself
  return found;
}

}  // namespace

std::uint64_t launcher::job_number() const { return fnv1a(job_key); }

int launcher::free_port() const { return 18000 + static_cast<int>(job_number() % 12000); }

std::string first_of_host_list(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const auto digits_end = list.find_first_not_of("0123456789", bracket + 1);
  const auto close = list.find(']', bracket);
  if (digits_end == bracket + 1 || digits_end == std::string::npos || close == std::string::npos) return {};
  // A second pair of brackets would be part of the same name.
  const auto behind = list.substr(close + 1, list.find(',', close) - close - 1);
  if (behind.find('[') != std::string::npos) return {};
  return list.substr(0, bracket) + list.substr(bracket + 1, digits_end - bracket - 1) + behind;
}

launcher read_launcher() {
  if (env_read("TORCHELASTIC_RUN_ID").is_set)
    if (auto found = read_torchrun(); found.size != 0) return found;
  for (const auto& names : kLaunchers) {
    launcher found;
    found.size = number(names.size, 0);
    found.rank = number(names.rank, -1);
    if (found.size < 1 || found.rank < 0 || found.rank >= found.size) continue;
    found.name = names.program;
    found.starts_mpi = names.starts_mpi || env_read("PMIX_NAMESPACE").is_set;  // srun --mpi=pmix
    found.ranks_here = number(names.ranks_here, 0);
    found.local_rank = number(names.local_rank, -1);
    add_slurm_facts(found);
    add_job_key(found);
    return found;
  }
  return read_torchrun();
}

}  // namespace pl::messaging
