// SPDX-License-Identifier: Apache-2.0
// An MPI opened at run time, so that one build measures whatever flavour is installed. Two binary interfaces: Open MPI's,
// where handles are addresses of objects of the library, and MPICH's (also Intel MPI, MVAPICH, Cray), where they are
// numbers.
#pragma once

#include <memory>
#include <string>

#include "messaging/bootstrap/bootstrap.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

struct mpi_options {
  bool through_preload = false;  // the functions of a preloaded library rather than the MPI's own
};

// Initialises MPI (once in a process) and finalises it at the end of the last object. Throws: none opens, or the preload is
// missing.
std::unique_ptr<transport> open_mpi(const mpi_options& options);

// Does this MPI take device pointers by its own account (MPIX_Query_cuda_support)? Call after open_mpi.
bool mpi_takes_device_memory();

// MPI as the way by which others find each other. Initialises MPI.
std::unique_ptr<messaging::bootstrap> open_mpi_bootstrap();

}  // namespace pl::p2p
