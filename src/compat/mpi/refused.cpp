// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory: one-sided communication, neighbourhood collectives, buffers to attach.
#include "compat/mpi/refused.hpp"

namespace pl::mpi {

void tell_refused(const char* name) noexcept {
  complain(name, {ENOTSUP, "device memory is not supported here: docs/mpi-shim.md lists what is"});
}

namespace {

struct degrees {
  int in = 0, out = 0;
};

degrees degrees_of(MPI_Comm comm) {
  degrees of;
  int kind = MPI_UNDEFINED, weighted = 0, rank = 0;
  PMPI_Topo_test(comm, &kind);
  if (kind == MPI_DIST_GRAPH) {
    PMPI_Dist_graph_neighbors_count(comm, &of.in, &of.out, &weighted);
  } else if (kind == MPI_GRAPH) {
    PMPI_Comm_rank(comm, &rank);
    PMPI_Graph_neighbors_count(comm, rank, &of.in);
    of.out = of.in;
  } else if (kind == MPI_CART) {
    PMPI_Cartdim_get(comm, &of.in);
    of.in *= 2;
    of.out = of.in;
  }
  return of;
}

}  // namespace

int out_neighbours(MPI_Comm comm) { return degrees_of(comm).out; }
int in_neighbours(MPI_Comm comm) { return degrees_of(comm).in; }

}  // namespace pl::mpi

using namespace pl::mpi;

int MPI_Win_attach(MPI_Win window, void* base, MPI_Aint size) {
  return window_of_host<PMPI_Win_attach>("MPI_Win_attach", window, {base}, window, base, size);
}

int MPI_Fetch_and_op(const void* origin, void* result, MPI_Datatype type, int target, MPI_Aint offset, MPI_Op op,
                     MPI_Win window) {
  return window_of_host<PMPI_Fetch_and_op>("MPI_Fetch_and_op", window, {origin, result}, origin, result, type, target,
                                           offset, op, window);
}

int MPI_Compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type, int target,
                         MPI_Aint offset, MPI_Win window) {
  return window_of_host<PMPI_Compare_and_swap>("MPI_Compare_and_swap", window, {origin, compare, result}, origin, compare,
                                               result, type, target, offset, window);
}

int MPI_Neighbor_allgather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                           MPI_Datatype out_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_allgather>("MPI_Neighbor_allgather", comm,
                                            {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count, in_type,
                                            out, out_count, out_type, comm);
}

int MPI_Neighbor_allgatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                            const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_allgatherv>(
      "MPI_Neighbor_allgatherv", comm,
      {{in, in_count, in_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_count, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Neighbor_alltoall(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                          MPI_Datatype out_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoall>("MPI_Neighbor_alltoall", comm,
                                           {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count, in_type, out,
                                           out_count, out_type, comm);
}

int MPI_Neighbor_alltoallv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                           const int out_counts[], const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoallv>(
      "MPI_Neighbor_alltoallv", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Neighbor_alltoallw(const void* in, const int in_counts[], const MPI_Aint in_offsets[], const MPI_Datatype in_types[],
                           void* out, const int out_counts[], const MPI_Aint out_offsets[], const MPI_Datatype out_types[],
                           MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoallw>(
      "MPI_Neighbor_alltoallw", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_types)},
      in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm);
}

int MPI_Ineighbor_allgather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                            MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_allgather>("MPI_Ineighbor_allgather", comm,
                                             {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count, in_type,
                                             out, out_count, out_type, comm, request);
}

int MPI_Ineighbor_allgatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                             const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_allgatherv>(
      "MPI_Ineighbor_allgatherv", comm,
      {{in, in_count, in_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_count, in_type, out, out_counts, out_offsets, out_type, comm, request);
}

int MPI_Ineighbor_alltoall(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                           MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoall>("MPI_Ineighbor_alltoall", comm,
                                            {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count, in_type,
                                            out, out_count, out_type, comm, request);
}

int MPI_Ineighbor_alltoallv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                            const int out_counts[], const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm,
                            MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoallv>(
      "MPI_Ineighbor_alltoallv", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm, request);
}

int MPI_Ineighbor_alltoallw(const void* in, const int in_counts[], const MPI_Aint in_offsets[],
                            const MPI_Datatype in_types[], void* out, const int out_counts[], const MPI_Aint out_offsets[],
                            const MPI_Datatype out_types[], MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoallw>(
      "MPI_Ineighbor_alltoallw", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_types)},
      in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm, request);
}

#define PL_FUNCTIONS "refused.inc"
#include "compat/mpi/both_counts.inc"
