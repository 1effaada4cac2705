// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/collective.hpp"

namespace pl::mpi {

group::group(MPI_Comm comm) {
  PMPI_Comm_rank(comm, &rank_);
  PMPI_Comm_test_inter(comm, &is_inter_);
  if (is_inter_ != 0) PMPI_Comm_remote_size(comm, &size_);
  else PMPI_Comm_size(comm, &size_);
}

namespace {

struct degrees {
  int incoming = 0, outgoing = 0;
};

degrees degrees_of(MPI_Comm comm) {
  degrees found;
  int kind = MPI_UNDEFINED, weighted = 0, rank = 0;
  PMPI_Topo_test(comm, &kind);
  if (kind == MPI_DIST_GRAPH) {
    PMPI_Dist_graph_neighbors_count(comm, &found.incoming, &found.outgoing, &weighted);
  } else if (kind == MPI_GRAPH) {
    PMPI_Comm_rank(comm, &rank);
    PMPI_Graph_neighbors_count(comm, rank, &found.incoming);
    found.outgoing = found.incoming;
  } else if (kind == MPI_CART) {
    PMPI_Cartdim_get(comm, &found.incoming);
    found.incoming *= 2;
    found.outgoing = found.incoming;
  }
  return found;
}

}  // namespace

int neighbours::outgoing(MPI_Comm comm) { return degrees_of(comm).outgoing; }
int neighbours::incoming(MPI_Comm comm) { return degrees_of(comm).incoming; }

int take_source(staged& data, const void* buffer, const parts& blocks) {
  data = staged(buffer);
  data.read_at_start();
  if (buffer == MPI_IN_PLACE) return MPI_SUCCESS;
  const int code = data.attach(buffer, blocks);
  return code == MPI_SUCCESS ? data.load() : code;
}

int take_target(staged& data, void* buffer, const parts& blocks, bool is_source_too) {
  data = staged(buffer);
  if (is_source_too) data.read_at_start();
  if (buffer == MPI_IN_PLACE) return MPI_SUCCESS;
  const int code = data.attach(buffer, blocks);
  return code == MPI_SUCCESS && is_source_too ? data.load() : code;
}

}  // namespace pl::mpi
