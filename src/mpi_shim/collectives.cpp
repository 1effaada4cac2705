// SPDX-License-Identifier: Apache-2.0
// MPI functions: collective operations.
#include "collectives.hpp"

using namespace pl::mpi;

int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  return broadcast<PMPI_Bcast>(buffer, count, type, root, comm);
}

int MPI_Ibcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  return broadcast<PMPI_Ibcast>(buffer, count, type, root, comm, request);
}

int MPI_Gather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type, int root,
               MPI_Comm comm) {
  return gather<PMPI_Gather>(in, in_count, in_type, out, out_count, out_type, root, comm);
}

int MPI_Igather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                int root, MPI_Comm comm, MPI_Request* request) {
  return gather<PMPI_Igather>(in, in_count, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Gatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                const int out_offsets[], MPI_Datatype out_type, int root, MPI_Comm comm) {
  return gather_v<PMPI_Gatherv>(in, in_count, in_type, out, out_counts, out_offsets, out_type, root, comm);
}

int MPI_Igatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                 const int out_offsets[], MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return gather_v<PMPI_Igatherv>(in, in_count, in_type, out, out_counts, out_offsets, out_type, root, comm, request);
}

int MPI_Scatter(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                int root, MPI_Comm comm) {
  return scatter<PMPI_Scatter>(in, in_count, in_type, out, out_count, out_type, root, comm);
}

int MPI_Iscatter(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                 int root, MPI_Comm comm, MPI_Request* request) {
  return scatter<PMPI_Iscatter>(in, in_count, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Scatterv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                 int out_count, MPI_Datatype out_type, int root, MPI_Comm comm) {
  return scatter_v<PMPI_Scatterv>(in, in_counts, in_offsets, in_type, out, out_count, out_type, root, comm);
}

int MPI_Iscatterv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                  int out_count, MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return scatter_v<PMPI_Iscatterv>(in, in_counts, in_offsets, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Allgather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm) {
  return all_gather<PMPI_Allgather>(in, in_count, in_type, out, out_count, out_type, comm);
}

int MPI_Iallgather(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                   MPI_Comm comm, MPI_Request* request) {
  return all_gather<PMPI_Iallgather>(in, in_count, in_type, out, out_count, out_type, comm, request);
}

int MPI_Allgatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                   const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm) {
  return all_gather_v<PMPI_Allgatherv>(in, in_count, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Iallgatherv(const void* in, int in_count, MPI_Datatype in_type, void* out, const int out_counts[],
                    const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return all_gather_v<PMPI_Iallgatherv>(in, in_count, in_type, out, out_counts, out_offsets, out_type, comm, request);
}

int MPI_Alltoall(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                 MPI_Comm comm) {
  return all_to_all<PMPI_Alltoall>(in, in_count, in_type, out, out_count, out_type, comm);
}

int MPI_Ialltoall(const void* in, int in_count, MPI_Datatype in_type, void* out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm, MPI_Request* request) {
  return all_to_all<PMPI_Ialltoall>(in, in_count, in_type, out, out_count, out_type, comm, request);
}

int MPI_Alltoallv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                  const int out_counts[], const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm) {
  return all_to_all_v<PMPI_Alltoallv>(in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Ialltoallv(const void* in, const int in_counts[], const int in_offsets[], MPI_Datatype in_type, void* out,
                   const int out_counts[], const int out_offsets[], MPI_Datatype out_type, MPI_Comm comm,
                   MPI_Request* request) {
  return all_to_all_v<PMPI_Ialltoallv>(in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm,
                                       request);
}

int MPI_Alltoallw(const void* in, const int in_counts[], const int in_offsets[], const MPI_Datatype in_types[], void* out,
                  const int out_counts[], const int out_offsets[], const MPI_Datatype out_types[], MPI_Comm comm) {
  return all_to_all_v<PMPI_Alltoallw>(in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm);
}

int MPI_Ialltoallw(const void* in, const int in_counts[], const int in_offsets[], const MPI_Datatype in_types[], void* out,
                   const int out_counts[], const int out_offsets[], const MPI_Datatype out_types[], MPI_Comm comm,
                   MPI_Request* request) {
  return all_to_all_v<PMPI_Ialltoallw>(in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm,
                                       request);
}

int MPI_Reduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
  return reduce<PMPI_Reduce>(in, out, count, type, op, root, comm);
}

int MPI_Ireduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request* request) {
  return reduce<PMPI_Ireduce>(in, out, count, type, op, root, comm, request);
}

int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Allreduce, false>(in, out, count, type, op, comm);
}

int MPI_Iallreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return reduce_for_all<PMPI_Iallreduce, false>(in, out, count, type, op, comm, request);
}

int MPI_Scan(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Scan, false>(in, out, count, type, op, comm);
}

int MPI_Iscan(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return reduce_for_all<PMPI_Iscan, false>(in, out, count, type, op, comm, request);
}

int MPI_Exscan(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Exscan, true>(in, out, count, type, op, comm);
}

int MPI_Iexscan(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return reduce_for_all<PMPI_Iexscan, true>(in, out, count, type, op, comm, request);
}

int MPI_Reduce_scatter(const void* in, void* out, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_scatter<PMPI_Reduce_scatter>(in, out, counts, type, op, comm);
}

int MPI_Ireduce_scatter(const void* in, void* out, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                        MPI_Request* request) {
  return reduce_scatter<PMPI_Ireduce_scatter>(in, out, counts, type, op, comm, request);
}

int MPI_Reduce_scatter_block(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_scatter_block<PMPI_Reduce_scatter_block>(in, out, count, type, op, comm);
}

int MPI_Ireduce_scatter_block(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              MPI_Request* request) {
  return reduce_scatter_block<PMPI_Ireduce_scatter_block>(in, out, count, type, op, comm, request);
}
