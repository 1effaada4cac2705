// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory, as far as they came with MPI 4: persistent collectives, partitioned
// communication, the non-blocking Sendrecv, one-sided communication with large counts.
#include "compat/mpi/refused.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

int MPI_Allgather_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                       MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Allgather_init>("MPI_Allgather_init", comm, {{in, in_count, in_type}, {out, out_count, out_type}},
                                        in, in_count, in_type, out, out_count, out_type, comm, info, request);
}

int MPI_Allgatherv_init(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                        const int offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Allgatherv_init>(
      "MPI_Allgatherv_init", comm,
      {{in, in_count, in_type}, argument::of_blocks([&] { return all_ranks(comm); }, out, out_counts, offsets, out_type)},
      in, in_count, in_type, out, out_counts, offsets, out_type, comm, info, request);
}

int MPI_Allreduce_init(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Info info,
                       MPI_Request* request) {
  return host_only<PMPI_Allreduce_init>("MPI_Allreduce_init", comm, {{in, count, type}, {out, count, type}}, in, out, count,
                                        type, op, comm, info, request);
}

int MPI_Alltoall_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                      MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Alltoall_init>("MPI_Alltoall_init", comm, {{in, in_count, in_type}, {out, out_count, out_type}}, in,
                                       in_count, in_type, out, out_count, out_type, comm, info, request);
}

int MPI_Alltoallv_init(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                       const int out_counts[], const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Info info,
                       MPI_Request* request) {
  return host_only<PMPI_Alltoallv_init>(
      "MPI_Alltoallv_init", comm,
      {argument::of_blocks([&] { return all_ranks(comm); }, in, in_counts, in_offsets, in_type),
       argument::of_blocks([&] { return all_ranks(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm, info, request);
}

int MPI_Alltoallw_init(const void* in, const int in_counts[], const int in_offsets[], const MPI_Datatype in_types[],
                       void* out, const int out_counts[], const int out_offsets[], const MPI_Datatype out_types[],
                       MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Alltoallw_init>(
      "MPI_Alltoallw_init", comm,
      {argument::of_blocks([&] { return all_ranks(comm); }, in, in_counts, in_offsets, in_types),
       argument::of_blocks([&] { return all_ranks(comm); }, out, out_counts, out_offsets, out_types)},
      in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm, info, request);
}

int MPI_Bcast_init(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Info info,
                   MPI_Request* request) {
  return host_only<PMPI_Bcast_init>("MPI_Bcast_init", comm,
                                    {argument::if_significant(takes_part(comm, root), buffer, count, type)}, buffer, count,
                                    type, root, comm, info, request);
}

int MPI_Exscan_init(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Info info,
                    MPI_Request* request) {
  return host_only<PMPI_Exscan_init>("MPI_Exscan_init", comm, {{in, count, type}, {out, count, type}}, in, out, count, type,
                                     op, comm, info, request);
}

int MPI_Gather_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                    int root, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Gather_init>("MPI_Gather_init", comm,
                                     {argument::if_significant(takes_part(comm, root), in, in_count, in_type),
                                      argument::if_significant(is_root(comm, root), out, out_count, out_type)},
                                     in, in_count, in_type, out, out_count, out_type, root, comm, info, request);
}

int MPI_Gatherv_init(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                     const int offsets[], MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Info info,
                     MPI_Request* request) {
  return host_only<PMPI_Gatherv_init>(
      "MPI_Gatherv_init", comm,
      {argument::if_significant(takes_part(comm, root), in, in_count, in_type),
       argument::of_blocks([&] { return is_root(comm, root) ? all_ranks(comm) : 0; }, out, out_counts, offsets, out_type)},
      in, in_count, in_type, out, out_counts, offsets, out_type, root, comm, info, request);
}

int MPI_Neighbor_allgather_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                                MPI_Datatype out_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_allgather_init>("MPI_Neighbor_allgather_init", comm,
                                                 {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count,
                                                 in_type, out, out_count, out_type, comm, info, request);
}

int MPI_Neighbor_allgatherv_init(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                                 const int offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Info info,
                                 MPI_Request* request) {
  return host_only<PMPI_Neighbor_allgatherv_init>(
      "MPI_Neighbor_allgatherv_init", comm,
      {{in, in_count, in_type},
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, offsets, out_type)},
      in, in_count, in_type, out, out_counts, offsets, out_type, comm, info, request);
}

int MPI_Neighbor_alltoall_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count,
                               MPI_Datatype out_type, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoall_init>("MPI_Neighbor_alltoall_init", comm,
                                                {{in, in_count, in_type}, {out, out_count, out_type}}, in, in_count, in_type,
                                                out, out_count, out_type, comm, info, request);
}

int MPI_Neighbor_alltoallv_init(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type,
                                void* out, const int out_counts[], const int out_offsets[], MPI_Datatype out_type,
                                MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoallv_init>(
      "MPI_Neighbor_alltoallv_init", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_type),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_type)},
      in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm, info, request);
}

int MPI_Neighbor_alltoallw_init(const void* in, const int in_counts[], const MPI_Aint in_offsets[],
                                const MPI_Datatype in_types[], void* out, const int out_counts[],
                                const MPI_Aint out_offsets[], const MPI_Datatype out_types[], MPI_Comm comm, MPI_Info info,
                                MPI_Request* request) {
  return host_only<PMPI_Neighbor_alltoallw_init>(
      "MPI_Neighbor_alltoallw_init", comm,
      {argument::of_blocks([&] { return out_neighbours(comm); }, in, in_counts, in_offsets, in_types),
       argument::of_blocks([&] { return in_neighbours(comm); }, out, out_counts, out_offsets, out_types)},
      in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm, info, request);
}

int MPI_Reduce_init(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                    MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_init>("MPI_Reduce_init", comm,
                                     {argument::if_significant(takes_part(comm, root), in, count, type),
                                      argument::if_significant(is_root(comm, root), out, count, type)},
                                     in, out, count, type, op, root, comm, info, request);
}

int MPI_Reduce_scatter_block_init(const void* in, void* out, int out_count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                  MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_scatter_block_init>("MPI_Reduce_scatter_block_init", comm,
                                                   {{in, out_count, type}, {out, out_count, type}}, in, out, out_count, type,
                                                   op, comm, info, request);
}

int MPI_Reduce_scatter_init(const void* in, void* out, const int out_counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                            MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Reduce_scatter_init>("MPI_Reduce_scatter_init", comm, {in, out}, in, out, out_counts, type, op, comm,
                                             info, request);
}

int MPI_Scan_init(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Info info,
                  MPI_Request* request) {
  return host_only<PMPI_Scan_init>("MPI_Scan_init", comm, {{in, count, type}, {out, count, type}}, in, out, count, type, op,
                                   comm, info, request);
}

int MPI_Scatter_init(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                     int root, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Scatter_init>("MPI_Scatter_init", comm,
                                      {argument::if_significant(is_root(comm, root), in, in_count, in_type),
                                       argument::if_significant(takes_part(comm, root), out, out_count, out_type)},
                                      in, in_count, in_type, out, out_count, out_type, root, comm, info, request);
}

int MPI_Scatterv_init(const void* in, const int in_counts[], const int offsets[], MPI_Datatype in_type, void* out,
                      int out_count, MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Scatterv_init>(
      "MPI_Scatterv_init", comm,
      {argument::of_blocks([&] { return is_root(comm, root) ? all_ranks(comm) : 0; }, in, in_counts, offsets, in_type),
       argument::if_significant(takes_part(comm, root), out, out_count, out_type)},
      in, in_counts, offsets, in_type, out, out_count, out_type, root, comm, info, request);
}

int MPI_Psend_init(const void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                   MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Psend_init>("MPI_Psend_init", comm, {buffer}, buffer, partitions, count, type, to, tag, comm, info,
                                    request);
}

int MPI_Precv_init(void* buffer, int partitions, MPI_Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                   MPI_Info info, MPI_Request* request) {
  return host_only<PMPI_Precv_init>("MPI_Precv_init", comm, {buffer}, buffer, partitions, count, type, to, tag, comm, info,
                                    request);
}

int MPI_Isendrecv(const void* in, int in_count, MPI_Datatype in_type, int to, int out_tag, void* out, int out_count,
                  MPI_Datatype out_type, int from, int in_tag, MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Isendrecv>("MPI_Isendrecv", comm, {in, out}, in, in_count, in_type, to, out_tag, out, out_count,
                                   out_type, from, in_tag, comm, request);
}

int MPI_Isendrecv_replace(void* buffer, int count, MPI_Datatype type, int to, int out_tag, int from, int in_tag,
                          MPI_Comm comm, MPI_Request* request) {
  return host_only<PMPI_Isendrecv_replace>("MPI_Isendrecv_replace", comm, {buffer}, buffer, count, type, to, out_tag, from,
                                           in_tag, comm, request);
}

#endif
