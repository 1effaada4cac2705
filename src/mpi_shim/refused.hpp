// SPDX-License-Identifier: Apache-2.0
// Operations that this library cannot do for device memory: an error that says so, where MPI would fault.
#pragma once

#include <initializer_list>

#include "guarded.hpp"

namespace pl::mpi {

// Tells what was refused; the error code is told by the caller.
void tell_refused(const char* name) noexcept;

// MPI's own function unless one of the buffers is device memory.
template <auto Pmpi, class... Arguments>
int host_only(const char* name, MPI_Comm comm, std::initializer_list<const void*> buffers, Arguments... arguments) {
  for (const void* buffer : buffers)
    if (on_device(buffer)) return tell_refused(name), raise(comm, MPI_ERR_BUFFER);
  return Pmpi(arguments...);
}

template <auto Pmpi, class... Arguments>
int window_of_host(const char* name, MPI_Win window, std::initializer_list<const void*> buffers, Arguments... arguments) {
  for (const void* buffer : buffers)
    if (on_device(buffer)) {
      tell_refused(name);
      PMPI_Win_call_errhandler(window, MPI_ERR_BUFFER);
      return MPI_ERR_BUFFER;
    }
  return Pmpi(arguments...);
}

}  // namespace pl::mpi
