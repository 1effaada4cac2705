// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory, as far as they came with MPI 4: persistent collectives, partitioned
// communication, the non-blocking Sendrecv, one-sided communication with large counts.
#include "compat/mpi/refused.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

int MPI_Allgather_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                       MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Allgather_init>("MPI_Allgather_init", comm,
                                        {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                        send_count, send_type, recvbuf, recv_count, recv_type, comm, info, request);
}

int MPI_Allgatherv_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, const int recv_counts[],
                        const int offsets[], MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Allgatherv_init>(
      "MPI_Allgatherv_init", comm,
      {{sendbuf, send_count, send_type},
       argument::of_blocks([&] { return all_ranks(comm); }, recvbuf, recv_counts, offsets, recv_type)},
      sendbuf, send_count, send_type, recvbuf, recv_counts, offsets, recv_type, comm, info, request);
}

int MPI_Allreduce_init(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                       MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Allreduce_init>("MPI_Allreduce_init", comm, {{sendbuf, count, type}, {recvbuf, count, type}},
                                        sendbuf, recvbuf, count, type, op, comm, info, request);
}

int MPI_Alltoall_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                      MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Alltoall_init>("MPI_Alltoall_init", comm,
                                       {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
                                       send_count, send_type, recvbuf, recv_count, recv_type, comm, info, request);
}

int MPI_Alltoallv_init(const void* sendbuf, const int send_counts[], const int send_offsets[], MPI_Datatype send_type,
                       void* recvbuf, const int recv_counts[], const int recv_offsets[], MPI_Datatype recv_type,
                       MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Alltoallv_init>(
      "MPI_Alltoallv_init", comm,
      {argument::of_blocks([&] { return all_ranks(comm); }, sendbuf, send_counts, send_offsets, send_type),
       argument::of_blocks([&] { return all_ranks(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_counts, send_offsets, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm, info, request);
}

int MPI_Alltoallw_init(const void* sendbuf, const int send_counts[], const int send_offsets[],
                       const MPI_Datatype send_types[], void* recvbuf, const int recv_counts[], const int recv_offsets[],
                       const MPI_Datatype recv_types[], MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Alltoallw_init>(
      "MPI_Alltoallw_init", comm,
      {argument::of_blocks([&] { return all_ranks(comm); }, sendbuf, send_counts, send_offsets, send_types),
       argument::of_blocks([&] { return all_ranks(comm); }, recvbuf, recv_counts, recv_offsets, recv_types)},
      sendbuf, send_counts, send_offsets, send_types, recvbuf, recv_counts, recv_offsets, recv_types, comm, info, request);
}

int MPI_Bcast_init(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Info info,
                   MPI_Request* request) {
  return host_only<PMPI_Bcast_init>("MPI_Bcast_init", comm,
                                    {argument::if_significant(takes_part(comm, root), buffer, count, type)}, buffer, count,
                                    type, root, comm, info, request);
}

int MPI_Exscan_init(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                    MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Exscan_init>("MPI_Exscan_init", comm, {{sendbuf, count, type}, {recvbuf, count, type}}, sendbuf,
                                     recvbuf, count, type, op, comm, info, request);
}

int MPI_Gather_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                    MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Gather_init>("MPI_Gather_init", comm,
                                     {argument::if_significant(takes_part(comm, root), sendbuf, send_count, send_type),
                                      argument::if_significant(is_root(comm, root), recvbuf, recv_count, recv_type)},
                                     sendbuf, send_count, send_type, recvbuf, recv_count, recv_type, root, comm, info,
                                     request);
}

int MPI_Gatherv_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, const int recv_counts[],
                     const int offsets[], MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Info info,
                     MPI_Request* request) {
  return host_only<PMPI_Gatherv_init>("MPI_Gatherv_init", comm,
                                      {argument::if_significant(takes_part(comm, root), sendbuf, send_count, send_type),
                                       argument::of_blocks([&] { return is_root(comm, root) ? all_ranks(comm) : 0; },
                                                           recvbuf, recv_counts, offsets, recv_type)},
                                      sendbuf, send_count, send_type, recvbuf, recv_counts, offsets, recv_type, root, comm,
                                      info, request);
}

int MPI_Neighbor_allgather_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                                MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_allgather_init>(
      "MPI_Neighbor_allgather_init", comm, {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
      send_count, send_type, recvbuf, recv_count, recv_type, comm, info, request);
}

int MPI_Neighbor_allgatherv_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf,
                                 const int recv_counts[], const int offsets[], MPI_Datatype recv_type, MPI_Comm comm,
                                 MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_allgatherv_init>(
      "MPI_Neighbor_allgatherv_init", comm,
      {{sendbuf, send_count, send_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, offsets, recv_type)},
      sendbuf, send_count, send_type, recvbuf, recv_counts, offsets, recv_type, comm, info, request);
}

int MPI_Neighbor_alltoall_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                               MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoall_init>(
      "MPI_Neighbor_alltoall_init", comm, {{sendbuf, send_count, send_type}, {recvbuf, recv_count, recv_type}}, sendbuf,
      send_count, send_type, recvbuf, recv_count, recv_type, comm, info, request);
}

int MPI_Neighbor_alltoallv_init(const void* sendbuf, const int send_counts[], const int send_offsets[],
                                MPI_Datatype send_type, void* recvbuf, const int recv_counts[], const int recv_offsets[],
                                MPI_Datatype recv_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoallv_init>(
      "MPI_Neighbor_alltoallv_init", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_type)},
      sendbuf, send_counts, send_offsets, send_type, recvbuf, recv_counts, recv_offsets, recv_type, comm, info, request);
}

int MPI_Neighbor_alltoallw_init(const void* sendbuf, const int send_counts[], const MPI_Aint send_offsets[],
                                const MPI_Datatype send_types[], void* recvbuf, const int recv_counts[],
                                const MPI_Aint recv_offsets[], const MPI_Datatype recv_types[], MPI_Comm comm, MPI_Info info,
                                MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoallw_init>(
      "MPI_Neighbor_alltoallw_init", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, sendbuf, send_counts, send_offsets, send_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, recvbuf, recv_counts, recv_offsets, recv_types)},
      sendbuf, send_counts, send_offsets, send_types, recvbuf, recv_counts, recv_offsets, recv_types, comm, info, request);
}

int MPI_Reduce_init(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                    MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_init>("MPI_Reduce_init", comm,
                                     {argument::if_significant(takes_part(comm, root), sendbuf, count, type),
                                      argument::if_significant(is_root(comm, root), recvbuf, count, type)},
                                     sendbuf, recvbuf, count, type, op, root, comm, info, request);
}

int MPI_Reduce_scatter_block_init(const void* sendbuf, void* recvbuf, int recv_count, MPI_Datatype type, MPI_Op op,
                                  MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_scatter_block_init>("MPI_Reduce_scatter_block_init", comm,
                                                   {{sendbuf, recv_count, type}, {recvbuf, recv_count, type}}, sendbuf,
                                                   recvbuf, recv_count, type, op, comm, info, request);
}

int MPI_Reduce_scatter_init(const void* sendbuf, void* recvbuf, const int recv_counts[], MPI_Datatype type, MPI_Op op,
                            MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_scatter_init>("MPI_Reduce_scatter_init", comm, {sendbuf, recvbuf}, sendbuf, recvbuf,
                                             recv_counts, type, op, comm, info, request);
}

int MPI_Scan_init(const void* sendbuf, void* recvbuf, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Info info,
                  MPI_Request* request) {
  return host_only<PMPI_Scan_init>("MPI_Scan_init", comm, {{sendbuf, count, type}, {recvbuf, count, type}}, sendbuf, recvbuf,
                                   count, type, op, comm, info, request);
}

int MPI_Scatter_init(const void* sendbuf, int send_count, MPI_Datatype send_type, void* recvbuf, int recv_count,
                     MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Scatter_init>("MPI_Scatter_init", comm,
                                      {argument::if_significant(is_root(comm, root), sendbuf, send_count, send_type),
                                       argument::if_significant(takes_part(comm, root), recvbuf, recv_count, recv_type)},
                                      sendbuf, send_count, send_type, recvbuf, recv_count, recv_type, root, comm, info,
                                      request);
}

int MPI_Scatterv_init(const void* sendbuf, const int send_counts[], const int offsets[], MPI_Datatype send_type,
                      void* recvbuf, int recv_count, MPI_Datatype recv_type, int root, MPI_Comm comm, MPI_Info info,
                      MPI_Request* request) {
  return host_only<PMPI_Scatterv_init>("MPI_Scatterv_init", comm,
                                       {argument::of_blocks([&] { return is_root(comm, root) ? all_ranks(comm) : 0; },
                                                            sendbuf, send_counts, offsets, send_type),
                                        argument::if_significant(takes_part(comm, root), recvbuf, recv_count, recv_type)},
                                       sendbuf, send_counts, offsets, send_type, recvbuf, recv_count, recv_type, root, comm,
                                       info, request);
}

int MPI_Psend_init(const void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Psend_init>("MPI_Psend_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

int MPI_Precv_init(void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm,
                   MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Precv_init>("MPI_Precv_init", comm, {buffer}, buffer, partitions, count, type, destination, tag,
                                    comm, info, request);
}

int MPI_Isendrecv(const void* sendbuf, int send_count, MPI_Datatype send_type, int destination, int recv_tag, void* recvbuf,
                  int recv_count, MPI_Datatype recv_type, int source, int send_tag, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Isendrecv>("MPI_Isendrecv", comm, {sendbuf, recvbuf}, sendbuf, send_count, send_type, destination,
                                   recv_tag, recvbuf, recv_count, recv_type, source, send_tag, comm, request);
}

int MPI_Isendrecv_replace(void* buffer, int count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag,
                          MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Isendrecv_replace>("MPI_Isendrecv_replace", comm, {buffer}, buffer, count, type, destination,
                                           out_tag, source, in_tag, comm, request);
}

#endif
