// SPDX-License-Identifier: Apache-2.0
// MPI functions: the beginning and the end.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

int MPI_Init(int* argc, char*** argv) {
  find_mpi();
  return PMPI_Init(argc, argv);
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  find_mpi();
  return PMPI_Init_thread(argc, argv, required, provided);
}

// Freed requests end here at the latest; MPI_Finalize waits for them too.
int MPI_Finalize() {
  requests().progress(true);
  const int code = PMPI_Finalize();
  requests().clear();
  close_devices();
  return code;
}

// Programs call this to decide whether they may pass device memory. Not every mpi.h declares it.
extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void) { return 1; }
