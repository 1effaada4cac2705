// SPDX-License-Identifier: Apache-2.0
// Rank, size and job from the environment that mpirun, mpiexec, srun or torchrun sets.
#pragma once

#include <cstdint>
#include <string>

namespace pl::messaging {

struct launcher {
  std::string name;         // "Open MPI's mpirun", "srun", ...; empty: none
  bool starts_mpi = false;  // MPI_Init finds the other ranks
  int rank = -1;
  int size = 0;
  int ranks_here = 0;          // on this host; 0: unknown
  int local_rank = -1;         // among them; -1: unknown
  std::string job_key;         // the same for all ranks of this run and for no other run on this host
  bool is_key_global = false;  // the same on other hosts, too
  std::string first_host;      // rank 0's, if the launcher names it (srun, torchrun)
  int first_port = 0;          // a free one there, if the launcher names it (torchrun); 0: free_port()

  std::uint64_t job_number() const;  // hash of job_key
  // A port that all ranks derive from the job, below the ephemeral range. Another program may already use it.
  int free_port() const;
};

launcher read_launcher();

// "node[07-09,12],gpu3" -> "node07". Empty: not understood.
std::string first_of_host_list(const std::string& list);

}  // namespace pl::messaging
