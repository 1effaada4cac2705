// SPDX-License-Identifier: Apache-2.0
// A name that the processes of one MPI job on one host have in common, and no other processes of that host.
#pragma once

#include <string>

namespace pl::mpi {

// From what the launcher gave this process: PMIx's name space, Slurm's job step, the manager behind MPICH's PMI_FD. Empty:
// the launcher gives nothing that names a job. To be asked before MPI_Init, which may close PMI's descriptor.
std::string find_job_key();

}  // namespace pl::mpi
