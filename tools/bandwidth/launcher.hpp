// SPDX-License-Identifier: Apache-2.0
// What mpirun, mpiexec or srun told this process about itself, in the environment.
#pragma once

#include <cstdint>
#include <string>

namespace pl::bandwidth {

struct launcher {
  std::string name;         // "Open MPI's mpirun", "srun", ...; empty: none
  bool starts_mpi = false;  // MPI_Init finds the other ranks
  int rank = -1;
  int size = 0;
  int ranks_here = 0;          // on this host; 0: not told
  std::string job_key;         // the same for all ranks of this run and for no other run on this host
  bool is_key_global = false;  // the same on other hosts, too
};

launcher read_launcher();

}  // namespace pl::bandwidth
