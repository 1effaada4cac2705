// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <unistd.h>

#include "env.hpp"
#include "text.hpp"

namespace pl::bandwidth {
namespace {

int number(const char* name, int otherwise) {
  const auto value = env_read(name);
  const auto parsed = value.is_set ? parse_integer(value.text) : std::nullopt;
  return parsed && *parsed >= 0 && *parsed < (1 << 20) ? static_cast<int>(*parsed) : otherwise;
}

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

}  // namespace

launcher read_launcher() {
  launcher found;
  if (number("OMPI_COMM_WORLD_SIZE", 0) > 0) {
    found = {"Open MPI's mpirun",
             true,
             number("OMPI_COMM_WORLD_RANK", -1),
             number("OMPI_COMM_WORLD_SIZE", 0),
             number("OMPI_COMM_WORLD_LOCAL_SIZE", 0),
             "",
             false};
  } else if (number("PMI_SIZE", 0) > 0) {
    found = {
        "MPICH's mpiexec", true, number("PMI_RANK", -1), number("PMI_SIZE", 0), number("MPI_LOCALNRANKS", 0), "", false};
  } else if (number("SLURM_STEP_NUM_TASKS", 0) > 0) {
    // Not SLURM_NTASKS: a batch script has it too, and is a single process. PMIx: srun --mpi=pmix.
    const int nodes = number("SLURM_STEP_NUM_NODES", 0), tasks = number("SLURM_STEP_NUM_TASKS", 0);
    found = {"srun", env_read("PMIX_NAMESPACE").is_set, number("SLURM_PROCID", -1), tasks, nodes == 1 ? tasks : 0, "",
             false};
  }
  if (found.rank < 0 || found.rank >= found.size) return {};
  add_job_key(found);
  return found;
}

}  // namespace pl::bandwidth
