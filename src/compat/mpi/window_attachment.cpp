// SPDX-License-Identifier: Apache-2.0
// Device memory that a rank attaches to a dynamic window. Neither call is collective: other ranks find what is attached in
// memory that they share (window_regions.hpp).
#include "compat/mpi/windows.hpp"

using namespace pl;
using namespace pl::mpi;

namespace {

int refuse(MPI_Win handle, const failure& reason, int code) {
  complain("MPI_Win_attach", reason);
  return raise_on(handle, code);
}

int attach(MPI_Win handle, void* base, MPI_Aint size) {
  if (size < 0) return raise_on(handle, MPI_ERR_SIZE);
  const auto known = windows().find(handle);
  if (known == nullptr || !known->is_dynamic())
    return refuse(handle,
                  {ENOTSUP,
                   "device memory needs a window of MPI_Win_create_dynamic whose ranks are on one host, one of which "
                   "used CUDA before (docs/mpi-shim.md#windows)"},
                  MPI_ERR_BUFFER);
  const address_range bytes{reinterpret_cast<std::uint64_t>(base), static_cast<std::uint64_t>(size)};
  auto exported = export_memory(bytes);
  if (!exported) return refuse(handle, exported.error(), MPI_ERR_BUFFER);
  if (auto done = known->regions->attach(bytes, *exported); !done) return refuse(handle, done.error(), MPI_ERR_RMA_ATTACH);
  return MPI_SUCCESS;
}

}  // namespace

int MPI_Win_attach(MPI_Win handle, void* base, MPI_Aint size) {
  if (!on_device(base)) [[likely]]
    return PMPI_Win_attach(handle, base, size);
  return guarded_window(handle, [&] { return attach(handle, base, size); });
}

int MPI_Win_detach(MPI_Win handle, const void* base) {
  const auto known = windows().find(handle);
  if (known != nullptr && known->is_dynamic() && known->regions->detach(reinterpret_cast<std::uint64_t>(base)))
    return MPI_SUCCESS;
  return PMPI_Win_detach(handle, base);
}
