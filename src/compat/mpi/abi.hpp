// SPDX-License-Identifier: Apache-2.0
// The MPI library over which this one is preloaded: its header, and the symbols that must not be bound at load time. A
// preloaded library is loaded into every process under mpirun, including shells without MPI, and Python loads MPI where
// other libraries do not see it. So nothing here links libmpi: functions are bound at their first call, and the
// library's objects are looked up.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
// Everything here is compiled as hidden, and not every mpi.h declares its functions otherwise.
#pragma GCC visibility push(default)
#include <mpi.h>
#pragma GCC visibility pop

#include <cstdint>

namespace pl::mpi {

// Makes the loaded libmpi visible to this library. Ends the process with a message if it is of the other kind.
void find_mpi();

#ifdef OPEN_MPI
// Open MPI's handles are addresses of objects in libmpi.
struct predefined {
  MPI_Comm comm_world, comm_null;
  MPI_Request request_null;
  MPI_Datatype byte, type_null;
  MPI_Info info_null;
  MPI_Op replace, no_op;
};
const predefined& handles();
inline MPI_Comm comm_world() { return handles().comm_world; }
inline MPI_Comm comm_null() { return handles().comm_null; }
inline MPI_Request request_null() { return handles().request_null; }
inline MPI_Datatype byte_type() { return handles().byte; }
inline MPI_Datatype type_null() { return handles().type_null; }
inline MPI_Info info_null() { return handles().info_null; }
inline MPI_Op op_replace() { return handles().replace; }
inline MPI_Op op_no_op() { return handles().no_op; }
#else
inline MPI_Comm comm_world() { return MPI_COMM_WORLD; }
inline MPI_Comm comm_null() { return MPI_COMM_NULL; }
inline MPI_Request request_null() { return MPI_REQUEST_NULL; }
inline MPI_Datatype byte_type() { return MPI_BYTE; }
inline MPI_Datatype type_null() { return MPI_DATATYPE_NULL; }
inline MPI_Info info_null() { return MPI_INFO_NULL; }
inline MPI_Op op_replace() { return MPI_REPLACE; }
inline MPI_Op op_no_op() { return MPI_NO_OP; }
#endif

// A handle as a number: Open MPI's are pointers, MPICH's integers.
template <class Handle>
std::uint64_t number_of(Handle handle) {
  if constexpr (sizeof handle == sizeof(int))
    return static_cast<std::uint64_t>(static_cast<unsigned>(reinterpret_cast<const int&>(handle)));
  else return reinterpret_cast<std::uint64_t>(handle);
}

// Runs the communicator's error handler, as the MPI function that failed would have, and returns the code.
inline int raise(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace pl::mpi
