// SPDX-License-Identifier: Apache-2.0
// Rank, size and job of this process, from the environment that mpirun, mpiexec, srun or torchrun sets.
//
// Owns: nothing. Threads: any. Errors: none; what the environment does not say keeps its default.
#pragma once

#include <cstdint>
#include <string>

namespace pl::messaging {

struct launcher {
  std::string name;         // "Open MPI's mpirun", "srun", ...; empty: no launcher
  bool starts_mpi = false;  // MPI_Init can find the other ranks
  int rank = -1;
  int size = 0;
  int ranks_here = 0;          // on this host; 0: unknown
  int local_rank = -1;         // among the ranks of this host; -1: unknown
  std::string job_key;         // shared by all ranks of this run, unique among the runs on this host
  bool is_key_global = false;  // job_key is the same on all hosts
  std::string first_host;      // host of rank 0, if the launcher names it (srun, torchrun)
  int first_port = 0;          // a free port on it, if the launcher names one (torchrun); 0: use free_port()

  std::uint64_t job_number() const;  // hash of job_key
  // A port below the ephemeral range, derived from the job so that all ranks get the same one. It may be in use by another
  // program.
  int free_port() const;
};

// Reads the environment; all fields keep their defaults if no launcher is recognised.
launcher read_launcher();

// The first host of a Slurm host list: "node[07-09,12],gpu3" -> "node07". Empty: the list cannot be parsed.
std::string first_of_host_list(const std::string& list);

}  // namespace pl::messaging
