// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/collective.hpp"

namespace pl::mpi {

group::group(MPI_Comm comm) {
  PMPI_Comm_rank(comm, &rank_);
  PMPI_Comm_test_inter(comm, &is_inter_);
  if (is_inter_ != 0) PMPI_Comm_remote_size(comm, &size_);
  else PMPI_Comm_size(comm, &size_);
}

int take_source(staged& data, const void* buffer, const parts& blocks) {
  data = staged(buffer);
  if (buffer == MPI_IN_PLACE) return MPI_SUCCESS;
  const int code = data.attach(buffer, blocks);
  return code == MPI_SUCCESS ? data.load() : code;
}

int take_target(staged& data, void* buffer, const parts& blocks, bool is_source_too) {
  data = staged(buffer);
  if (buffer == MPI_IN_PLACE) return MPI_SUCCESS;
  const int code = data.attach(buffer, blocks);
  return code == MPI_SUCCESS && is_source_too ? data.load() : code;
}

}  // namespace pl::mpi
