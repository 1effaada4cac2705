// SPDX-License-Identifier: Apache-2.0
// Operations that this library cannot do for device memory: an error that says so, where MPI would fault.
#pragma once

#include <initializer_list>

#include "compat/mpi/collective.hpp"

namespace pl::mpi {

// Reports what was refused; the caller returns the error code.
void tell_refused(const char* name) noexcept;

// A buffer argument. With MPI_BOTTOM the types' addresses count, if the argument means anything on this rank.
class argument {
 public:
  argument(const void* buffer) : is_device_(on_device(buffer)) {}  // NOLINT(google-explicit-constructor)
  template <class Count>
  argument(const void* buffer, Count count, MPI_Datatype type) : is_device_(on_device(buffer, count, type)) {}
  bool is_device() const noexcept { return is_device_; }

  template <class Count>
  static argument if_significant(bool is_here, const void* buffer, Count count, MPI_Datatype type) {
    return is_here ? argument(buffer, count, type) : argument(false);
  }
  // `n()` blocks, described as blocks() takes them.
  template <class N, class Count, class Offset, class Type>
  static argument of_blocks(N n, const void* buffer, const Count* counts, const Offset* offsets, Type type) {
    return argument(concerns(buffer, [&] {
      const int count = n();  // none where the argument means nothing: its type may be none, too
      return count > 0 ? blocks(count, counts, offsets, type) : parts{};
    }));
  }

 private:
  explicit argument(bool is_device) : is_device_(is_device) {}
  bool is_device_;
};

// How many blocks a neighbourhood collective sends and receives.
int out_neighbours(MPI_Comm comm);
int in_neighbours(MPI_Comm comm);
inline int all_ranks(MPI_Comm comm) { return group(comm).size(); }
inline bool is_root(MPI_Comm comm, int root) { return group(comm).is_root(root); }
inline bool takes_part(MPI_Comm comm, int root) { return group(comm).gives_or_gets(root); }

// MPI's own function unless one of the buffers is device memory.
template <auto Pmpi, class... Arguments>
int host_only(const char* name, MPI_Comm comm, std::initializer_list<argument> buffers, Arguments... arguments) {
  for (const auto& buffer : buffers)
    if (buffer.is_device()) return tell_refused(name), raise(comm, MPI_ERR_BUFFER);
  return Pmpi(arguments...);
}

template <auto Pmpi, class... Arguments>
int window_of_host(const char* name, MPI_Win window, std::initializer_list<argument> buffers, Arguments... arguments) {
  for (const auto& buffer : buffers)
    if (buffer.is_device()) {
      tell_refused(name);
      PMPI_Win_call_errhandler(window, MPI_ERR_BUFFER);
      return MPI_ERR_BUFFER;
    }
  return Pmpi(arguments...);
}

}  // namespace pl::mpi
