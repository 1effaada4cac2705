// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/abi.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "base/log.hpp"
#include "compat/mpi/fortran_calls.hpp"

namespace pl::mpi {
namespace {

#ifdef OPEN_MPI
constexpr const char* kNames[] = {"libmpi.so.40"};
constexpr const char* kOtherKind = "MPIR_Err_return_comm";
constexpr const char* kWanted = "libpeerlane-mpi-mpich.so";
#else
constexpr const char* kNames[] = {"libmpi.so.12", "libmpich.so.12"};
constexpr const char* kOtherKind = "ompi_mpi_comm_world";
constexpr const char* kWanted = "libpeerlane-mpi-ompi.so";
#endif

// Python loads MPI for one module only; such an MPI is made visible to all.
void promote() {
  for (const char* name : kNames)
    if (dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr) return;
}

// A Fortran program's first call is one of its bindings, which may not lead here.
[[gnu::constructor]] void prepare() {
  promote();
  redirect_fortran_calls();
}

}  // namespace

void find_mpi() {
  promote();
  redirect_fortran_calls();  // of a library that was loaded since
  if (dlsym(RTLD_DEFAULT, kOtherKind) == nullptr) return;
  log_line(log_level::error, "peerlane-mpi: the program's MPI has another binary interface: preload %s instead", kWanted);
  std::abort();
}

#ifdef OPEN_MPI
const predefined& handles() {
  static const predefined found{static_cast<MPI_Comm>(dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world")),
                                static_cast<MPI_Comm>(dlsym(RTLD_DEFAULT, "ompi_mpi_comm_null")),
                                static_cast<MPI_Request>(dlsym(RTLD_DEFAULT, "ompi_request_null")),
                                static_cast<MPI_Datatype>(dlsym(RTLD_DEFAULT, "ompi_mpi_byte")),
                                static_cast<MPI_Datatype>(dlsym(RTLD_DEFAULT, "ompi_mpi_datatype_null")),
                                static_cast<MPI_Info>(dlsym(RTLD_DEFAULT, "ompi_mpi_info_null")),
                                static_cast<MPI_Op>(dlsym(RTLD_DEFAULT, "ompi_mpi_op_replace")),
                                static_cast<MPI_Op>(dlsym(RTLD_DEFAULT, "ompi_mpi_op_no_op"))};
  return found;
}
#endif

}  // namespace pl::mpi
