/* SPDX-License-Identifier: Apache-2.0
 * Every collective operation on device memory, beside the same one on host memory. */
#include "test/compat/mpi/mpi_program.h"

static int counts[16], offsets[16], total;
static MPI_Datatype types[16], column;

static void sum(void* from, void* to, int* count, MPI_Datatype* type) { /* a user's operation on a type with gaps */
  (void)type;
  for (int i = 0; i < *count; ++i)
    for (int row = 0; row < 10; ++row) ((int*)to)[i * 30 + row * 3] += ((int*)from)[i * 30 + row * 3];
}

static void rooted(int root) {
  BOTH(Bcast, in, 1000, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Bcast, in, 3, column, root, MPI_COMM_WORLD);
  BOTH(Bcast, in, 0, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gather, in, 50, MPI_INT, out, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gather, rank == root ? MPI_IN_PLACE : in, 50, MPI_INT, out, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gatherv, in, counts[rank], MPI_INT, out, counts, offsets, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatter, in, 50, MPI_INT, out, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatter, in, 50, MPI_INT, rank == root ? MPI_IN_PLACE : out, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatterv, in, counts, offsets, MPI_INT, out, counts[rank], MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Reduce, in, out, 777, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
#ifdef MPICH_VERSION
  if (root == 0) /* in place on another root, MPICH 4.0.2 reads MPI_IN_PLACE itself, with host memory too */
#endif
    BOTH(Reduce, rank == root ? MPI_IN_PLACE : in, out, 777, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
  BOTH_LATER(Ibcast, in, 1000, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Igather, in, 50, MPI_INT, out, 50, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Igatherv, in, counts[rank], MPI_INT, out, counts, offsets, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscatter, in, 50, MPI_INT, out, 50, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscatterv, in, counts, offsets, MPI_INT, out, counts[rank], MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce, in, out, 777, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD, &request);
}

static void every_to_every(void) {
  BOTH(Allgather, in, 50, MPI_INT, out, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgather, MPI_IN_PLACE, 0, MPI_INT, out, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgather, in, 10, MPI_INT, out, 1, column, MPI_COMM_WORLD);
  BOTH(Allgatherv, in, counts[rank], MPI_INT, out, counts, offsets, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgatherv, MPI_IN_PLACE, 0, MPI_INT, out, counts, offsets, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoall, in, 20, MPI_INT, out, 20, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoall, MPI_IN_PLACE, 0, MPI_INT, out, 20, MPI_INT, MPI_COMM_WORLD);
  int to_each[16], at[16], bytes_at[16];
  for (int i = 0; i < ranks; ++i) to_each[i] = rank + i, at[i] = 30 * i, bytes_at[i] = 400 * i;
  BOTH(Alltoallv, in, to_each, at, MPI_INT, out, to_each, at, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoallw, in, to_each, bytes_at, types, out, to_each, bytes_at, types, MPI_COMM_WORLD);
  BOTH_LATER(Iallgather, in, 50, MPI_INT, out, 50, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iallgatherv, in, counts[rank], MPI_INT, out, counts, offsets, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ialltoall, in, 20, MPI_INT, out, 20, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ialltoallv, in, to_each, at, MPI_INT, out, to_each, at, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ialltoallw, in, to_each, bytes_at, types, out, to_each, bytes_at, types, MPI_COMM_WORLD, &request);
}

static void reductions(void) {
  MPI_Op own;
  MPI_Op_create(sum, 1, &own);
  BOTH(Allreduce, in, out, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Allreduce, MPI_IN_PLACE, out, 100, MPI_UNSIGNED_CHAR, MPI_BXOR, MPI_COMM_WORLD);
  BOTH(Allreduce, in, out, 40, MPI_SHORT_INT, MPI_MAXLOC, MPI_COMM_WORLD);
  BOTH(Allreduce, in, out, 4, column, own, MPI_COMM_WORLD);
  BOTH(Scan, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Scan, MPI_IN_PLACE, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Exscan, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_scatter_block, in, out, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_scatter, in, out, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_local, in, out, 60, MPI_INT, MPI_SUM);
  BOTH_LATER(Iallreduce, in, out, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iallreduce, MPI_IN_PLACE, out, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscan, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iexscan, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce_scatter_block, in, out, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce_scatter, in, out, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  /* In place, only the own part of the buffer is defined afterwards. */
  reset();
  CHECK(MPI_Reduce_scatter_block(MPI_IN_PLACE, device_out, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == 0);
  unsigned char* before = malloc(kBytes);
  memcpy(before, host_out, kBytes);
  CHECK(PMPI_Reduce_scatter_block(MPI_IN_PLACE, host_out, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == 0);
  memcpy(host_out + 240, before + 240, kBytes - 240);
  compare("Reduce_scatter_block in place", __LINE__);
  free(before);
  MPI_Op_free(&own);
}

/* Two groups: the root sends, the other group receives. */
static void between_groups(void) {
  MPI_Comm local, inter;
  const int side = rank == 0 ? 0 : 1;
  MPI_Comm_split(MPI_COMM_WORLD, side, rank, &local);
  MPI_Intercomm_create(local, 0, MPI_COMM_WORLD, side == 0 ? 1 : 0, 5, &inter);
  const int root = side == 0 ? MPI_ROOT : 0;
  BOTH(Bcast, in, 100, MPI_INT, root, inter);
  BOTH(Gather, in, 9, MPI_INT, out, 9, MPI_INT, root, inter);
  BOTH(Allgather, in, 9, MPI_INT, out, 9, MPI_INT, inter);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&local);
}

#if MPI_VERSION >= 4
static void large_counts(void) {
  MPI_Count large[16];
  MPI_Aint at[16];
  for (int i = 0; i < ranks; ++i) large[i] = counts[i], at[i] = offsets[i];
  BOTH(Bcast_c, in, 1000, MPI_INT, 0, MPI_COMM_WORLD);
  BOTH(Allgather_c, in, 50, MPI_INT, out, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgatherv_c, in, large[rank], MPI_INT, out, large, at, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allreduce_c, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH_LATER(Iallreduce_c, in, out, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
}
#else
static void large_counts(void) {}
#endif

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  MPI_Type_vector(10, 1, 3, MPI_INT, &types[0]);
  MPI_Type_create_resized(types[0], 0, 120, &column);
  MPI_Type_commit(&column);
  MPI_Type_free(&types[0]);
  for (int i = 0; i < ranks; ++i) {
    counts[i] = 5 + 3 * i;
    offsets[i] = total + i; /* one element of gap between blocks */
    total += counts[i];
    types[i] = MPI_INT;
  }
  for (int root = 0; root < ranks; ++root) rooted(root);
  every_to_every();
  reductions();
  if (ranks > 1) between_groups();
  large_counts();
  MPI_Type_free(&column);
  MPI_Finalize();
  return 0;
}
