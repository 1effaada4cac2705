// SPDX-License-Identifier: Apache-2.0
// A name that the processes of one MPI job on a host share, and no other processes of that host.
#pragma once

#include <string>

namespace pl::mpi {

// Derived from what the launcher gave this process: PMIx's namespace, Slurm's job step, or the manager behind MPICH's
// PMI_FD. Empty if the launcher gives nothing that names a job. Call before MPI_Init, which may close PMI's descriptor.
std::string find_job_key();

}  // namespace pl::mpi
