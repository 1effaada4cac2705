// SPDX-License-Identifier: Apache-2.0
// Operations that this library cannot do for device memory: they return an error, where MPI would fault.
#pragma once

#include <initializer_list>

#include "compat/mpi/collective.hpp"

namespace pl::mpi {

// Reports what was refused; the caller returns the error code.
void tell_refused(const char* name) noexcept;

// A buffer argument. With MPI_BOTTOM the types' addresses count.
class argument {
 public:
  argument(const void* buffer) : is_device_(on_device(buffer)) {}  // NOLINT(google-explicit-constructor)
  template <class Count>
  argument(const void* buffer, Count count, MPI_Datatype type) : is_device_(on_device(buffer, count, type)) {}
  bool is_device() const noexcept { return is_device_; }

 private:
  bool is_device_;
};

// MPI's own function unless one of the buffers is device memory.
template <auto Pmpi, class... Arguments>
int host_only(const char* name, MPI_Comm comm, std::initializer_list<argument> buffers, Arguments... arguments) {
  for (const auto& buffer : buffers)
    if (buffer.is_device()) return tell_refused(name), raise(comm, MPI_ERR_BUFFER);
  return Pmpi(arguments...);
}

template <auto Pmpi, class... Arguments>
int file_of_host(const char* name, MPI_File file, std::initializer_list<argument> buffers, Arguments... arguments) {
  for (const auto& buffer : buffers)
    if (buffer.is_device()) {
      tell_refused(name);
      PMPI_File_call_errhandler(file, MPI_ERR_BUFFER);
      return MPI_ERR_BUFFER;
    }
  return Pmpi(arguments...);
}

}  // namespace pl::mpi
