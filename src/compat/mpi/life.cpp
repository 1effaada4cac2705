// SPDX-License-Identifier: Apache-2.0
// MPI functions: the beginning and the end.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

int MPI_Init(int* argc, char*** argv) {
  find_mpi();
  prepare_pipeline();
  const int code = PMPI_Init(argc, argv);
  if (code == MPI_SUCCESS) begin_pipeline();
  return code;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  find_mpi();
  prepare_pipeline();
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  if (code == MPI_SUCCESS) begin_pipeline();
  return code;
}

// Freed requests end here at the latest; MPI_Finalize waits for them too.
int MPI_Finalize() {
  requests().progress(true);
  const int code = PMPI_Finalize();
  requests().clear();
  end_pipeline();
  close_devices();
  return code;
}

// Programs call this to decide whether they may pass device memory. Not every mpi.h declares it.
extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void) { return 1; }
