// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory: one-sided communication, neighbourhood collectives, buffers to attach.
#include "compat/mpi/refused.hpp"

namespace pl::mpi {

void tell_refused(const char* name) noexcept {
  complain(name, {ENOTSUP, "device memory is not supported here: docs/mpi-shim.md lists what is"});
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

int out_neighbours(MPI_Comm comm) { return degrees_of(comm).outgoing; }
int in_neighbours(MPI_Comm comm) { return degrees_of(comm).incoming; }

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

int MPI_Neighbor_allgather(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                           MPI_Datatype recv_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_allgather>("MPI_Neighbor_allgather", comm,
                                            {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                            send_count, send_type, recvbuf, recv_count, recv_type, comm);
}

int MPI_Neighbor_allgatherv(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf,
                            const int recv_counts[], const int recv_offsets[], MPI_Datatype recv_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_allgatherv>(
      "MPI_Neighbor_allgatherv", comm,
      {{sendbuf, send_count, send_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_count, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm);
}

int MPI_Neighbor_alltoall(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                          MPI_Datatype recv_type, MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoall>("MPI_Neighbor_alltoall", comm,
                                           {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                           send_count, send_type, recvbuf, recv_count, recv_type, comm);
}

int MPI_Neighbor_alltoallv(const void* sendbuf, const int send_counts[], const int send_offsets[], MPI_Datatype send_type,
                           void* recvbuf, const int recv_counts[], const int recv_offsets[], MPI_Datatype recv_type,
                           MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoallv>(
      "MPI_Neighbor_alltoallv", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_counts, send_offsets, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm);
}

int MPI_Neighbor_alltoallw(const void* sendbuf, const int send_counts[], const MPI_Aint send_offsets[],
                           const MPI_Datatype send_types[], void* recvbuf, const int recv_counts[],
                           const MPI_Aint recv_offsets[], const MPI_Datatype recv_types[], MPI_Comm comm) {
  return host_only<PMPI_Neighbor_alltoallw>(
      "MPI_Neighbor_alltoallw", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_types)},
      sendbuf, send_counts, send_offsets, send_types, recvbuf, recv_counts, recv_offsets, recv_types, comm);
}

int MPI_Ineighbor_allgather(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                            MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_allgather>("MPI_Ineighbor_allgather", comm,
                                             {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                             send_count, send_type, recvbuf, recv_count, recv_type, comm, request);
}

int MPI_Ineighbor_allgatherv(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf,
                             const int recv_counts[], const int recv_offsets[], MPI_Datatype recv_type, MPI_Comm comm,
                             MPI_Request* request) {
  return host_only<PMPI_Ineighbor_allgatherv>(
      "MPI_Ineighbor_allgatherv", comm,
      {{sendbuf, send_count, send_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_count, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm, request);
}

int MPI_Ineighbor_alltoall(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                           MPI_Datatype recv_type, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoall>("MPI_Ineighbor_alltoall", comm,
                                            {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                            send_count, send_type, recvbuf, recv_count, recv_type, comm, request);
}

int MPI_Ineighbor_alltoallv(const void* sendbuf, const int send_counts[], const int send_offsets[], MPI_Datatype send_type,
                            void* recvbuf, const int recv_counts[], const int recv_offsets[], MPI_Datatype recv_type,
                            MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoallv>(
      "MPI_Ineighbor_alltoallv", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_counts, send_offsets, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm, request);
}

int MPI_Ineighbor_alltoallw(const void* sendbuf, const int send_counts[], const MPI_Aint send_offsets[],
                            const MPI_Datatype send_types[], void* recvbuf, const int recv_counts[],
                            const MPI_Aint recv_offsets[], const MPI_Datatype recv_types[], MPI_Comm comm,
                            MPI_Request* request) {
  return host_only<PMPI_Ineighbor_alltoallw>(
      "MPI_Ineighbor_alltoallw", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_types)},
      sendbuf, send_counts, send_offsets, send_types, recvbuf, recv_counts, recv_offsets, recv_types, comm, request);
}

#define PL_FUNCTIONS "refused.inc"
#include "compat/mpi/both_counts.inc"
