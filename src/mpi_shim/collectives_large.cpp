// SPDX-License-Identifier: Apache-2.0
// MPI functions: collective operations with counts of MPI_Count, where the MPI below has them (MPI 4).
#include "collectives.hpp"

#if MPI_VERSION >= 4
using namespace pl::mpi;

int MPI_Bcast_c(void* buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm) {
  return broadcast<PMPI_Bcast_c>(buffer, count, type, root, comm);
}

int MPI_Ibcast_c(void* buffer, MPI_Count count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  return broadcast<PMPI_Ibcast_c>(buffer, count, type, root, comm, request);
}

int MPI_Gather_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                 MPI_Datatype out_type, int root, MPI_Comm comm) {
  return gather<PMPI_Gather_c>(in, in_count, in_type, out, out_count, out_type, root, comm);
}

int MPI_Igather_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                  MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return gather<PMPI_Igather_c>(in, in_count, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Gatherv_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, const MPI_Count out_counts[],
                  const MPI_Aint out_offsets[], MPI_Datatype out_type, int root, MPI_Comm comm) {
  return gather_v<PMPI_Gatherv_c>(in, in_count, in_type, out, out_counts, out_offsets, out_type, root, comm);
}

int MPI_Igatherv_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, const MPI_Count out_counts[],
                   const MPI_Aint out_offsets[], MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return gather_v<PMPI_Igatherv_c>(in, in_count, in_type, out, out_counts, out_offsets, out_type, root, comm, request);
}

int MPI_Scatter_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                  MPI_Datatype out_type, int root, MPI_Comm comm) {
  return scatter<PMPI_Scatter_c>(in, in_count, in_type, out, out_count, out_type, root, comm);
}

int MPI_Iscatter_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                   MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return scatter<PMPI_Iscatter_c>(in, in_count, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Scatterv_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], MPI_Datatype in_type, void* out,
                   MPI_Count out_count, MPI_Datatype out_type, int root, MPI_Comm comm) {
  return scatter_v<PMPI_Scatterv_c>(in, in_counts, in_offsets, in_type, out, out_count, out_type, root, comm);
}

int MPI_Iscatterv_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], MPI_Datatype in_type,
                    void* out, MPI_Count out_count, MPI_Datatype out_type, int root, MPI_Comm comm, MPI_Request* request) {
  return scatter_v<PMPI_Iscatterv_c>(in, in_counts, in_offsets, in_type, out, out_count, out_type, root, comm, request);
}

int MPI_Allgather_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                    MPI_Datatype out_type, MPI_Comm comm) {
  return all_gather<PMPI_Allgather_c>(in, in_count, in_type, out, out_count, out_type, comm);
}

int MPI_Iallgather_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                     MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return all_gather<PMPI_Iallgather_c>(in, in_count, in_type, out, out_count, out_type, comm, request);
}

int MPI_Allgatherv_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, const MPI_Count out_counts[],
                     const MPI_Aint out_offsets[], MPI_Datatype out_type, MPI_Comm comm) {
  return all_gather_v<PMPI_Allgatherv_c>(in, in_count, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Iallgatherv_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, const MPI_Count out_counts[],
                      const MPI_Aint out_offsets[], MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return all_gather_v<PMPI_Iallgatherv_c>(in, in_count, in_type, out, out_counts, out_offsets, out_type, comm, request);
}

int MPI_Alltoall_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                   MPI_Datatype out_type, MPI_Comm comm) {
  return all_to_all<PMPI_Alltoall_c>(in, in_count, in_type, out, out_count, out_type, comm);
}

int MPI_Ialltoall_c(const void* in, MPI_Count in_count, MPI_Datatype in_type, void* out, MPI_Count out_count,
                    MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  return all_to_all<PMPI_Ialltoall_c>(in, in_count, in_type, out, out_count, out_type, comm, request);
}

int MPI_Alltoallv_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], MPI_Datatype in_type,
                    void* out, const MPI_Count out_counts[], const MPI_Aint out_offsets[], MPI_Datatype out_type,
                    MPI_Comm comm) {
  return all_to_all_v<PMPI_Alltoallv_c>(in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm);
}

int MPI_Ialltoallv_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], MPI_Datatype in_type,
                     void* out, const MPI_Count out_counts[], const MPI_Aint out_offsets[], MPI_Datatype out_type,
                     MPI_Comm comm, MPI_Request* request) {
  return all_to_all_v<PMPI_Ialltoallv_c>(in, in_counts, in_offsets, in_type, out, out_counts, out_offsets, out_type, comm,
                                         request);
}

int MPI_Alltoallw_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], const MPI_Datatype in_types[],
                    void* out, const MPI_Count out_counts[], const MPI_Aint out_offsets[], const MPI_Datatype out_types[],
                    MPI_Comm comm) {
  return all_to_all_v<PMPI_Alltoallw_c>(in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm);
}

int MPI_Ialltoallw_c(const void* in, const MPI_Count in_counts[], const MPI_Aint in_offsets[], const MPI_Datatype in_types[],
                     void* out, const MPI_Count out_counts[], const MPI_Aint out_offsets[], const MPI_Datatype out_types[],
                     MPI_Comm comm, MPI_Request* request) {
  return all_to_all_v<PMPI_Ialltoallw_c>(in, in_counts, in_offsets, in_types, out, out_counts, out_offsets, out_types, comm,
                                         request);
}

int MPI_Reduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
  return reduce<PMPI_Reduce_c>(in, out, count, type, op, root, comm);
}

int MPI_Ireduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                  MPI_Request* request) {
  return reduce<PMPI_Ireduce_c>(in, out, count, type, op, root, comm, request);
}

int MPI_Allreduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Allreduce_c, false>(in, out, count, type, op, comm);
}

int MPI_Iallreduce_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                     MPI_Request* request) {
  return reduce_for_all<PMPI_Iallreduce_c, false>(in, out, count, type, op, comm, request);
}

int MPI_Scan_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Scan_c, false>(in, out, count, type, op, comm);
}

int MPI_Iscan_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                MPI_Request* request) {
  return reduce_for_all<PMPI_Iscan_c, false>(in, out, count, type, op, comm, request);
}

int MPI_Exscan_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_for_all<PMPI_Exscan_c, true>(in, out, count, type, op, comm);
}

int MPI_Iexscan_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                  MPI_Request* request) {
  return reduce_for_all<PMPI_Iexscan_c, true>(in, out, count, type, op, comm, request);
}

int MPI_Reduce_scatter_c(const void* in, void* out, const MPI_Count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_scatter<PMPI_Reduce_scatter_c>(in, out, counts, type, op, comm);
}

int MPI_Ireduce_scatter_c(const void* in, void* out, const MPI_Count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                          MPI_Request* request) {
  return reduce_scatter<PMPI_Ireduce_scatter_c>(in, out, counts, type, op, comm, request);
}

int MPI_Reduce_scatter_block_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  return reduce_scatter_block<PMPI_Reduce_scatter_block_c>(in, out, count, type, op, comm);
}

int MPI_Ireduce_scatter_block_c(const void* in, void* out, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                MPI_Request* request) {
  return reduce_scatter_block<PMPI_Ireduce_scatter_block_c>(in, out, count, type, op, comm, request);
}

#endif
