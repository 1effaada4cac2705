// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory, as far as they came with MPI 4: partitioned communication.
#include "compat/mpi/refused.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

int MPI_Psend_init(const void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Psend_init>("MPI_Psend_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

int MPI_Precv_init(void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
                   MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Precv_init>("MPI_Precv_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

#endif
