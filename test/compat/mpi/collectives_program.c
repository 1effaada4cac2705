/* SPDX-License-Identifier: Apache-2.0
 * Every collective operation on device memory, beside the same one on host memory. */
#include "test/compat/mpi/mpi_program.h"

static int counts[16], offsets[16], total;
static MPI_Datatype types[16], column;

static void sum(void* operand, void* result, int* count, MPI_Datatype* type) { /* a user's operation on a type with gaps */
  (void)type;
  for (int i = 0; i < *count; ++i)
    for (int row = 0; row < 10; ++row) ((int*)result)[i * 30 + row * 3] += ((int*)operand)[i * 30 + row * 3];
}

static void rooted(int root) {
  BOTH(Bcast, input, 1000, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Bcast, input, 3, column, root, MPI_COMM_WORLD);
  BOTH(Bcast, input, 0, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gather, input, 50, MPI_INT, output, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gather, rank == root ? MPI_IN_PLACE : input, 50, MPI_INT, output, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Gatherv, input, counts[rank], MPI_INT, output, counts, offsets, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatter, input, 50, MPI_INT, output, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatter, input, 50, MPI_INT, rank == root ? MPI_IN_PLACE : output, 50, MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Scatterv, input, counts, offsets, MPI_INT, output, counts[rank], MPI_INT, root, MPI_COMM_WORLD);
  BOTH(Reduce, input, output, 777, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
#ifdef MPICH_VERSION
  if (root == 0) /* in place on another root, MPICH 4.0.2 reads MPI_IN_PLACE itself, with host memory too */
#endif
    BOTH(Reduce, rank == root ? MPI_IN_PLACE : input, output, 777, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
  BOTH_LATER(Ibcast, input, 1000, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Igather, input, 50, MPI_INT, output, 50, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Igatherv, input, counts[rank], MPI_INT, output, counts, offsets, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscatter, input, 50, MPI_INT, output, 50, MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscatterv, input, counts, offsets, MPI_INT, output, counts[rank], MPI_INT, root, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce, input, output, 777, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD, &request);
}

static void every_to_every(void) {
  BOTH(Allgather, input, 50, MPI_INT, output, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgather, MPI_IN_PLACE, 0, MPI_INT, output, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgather, input, 10, MPI_INT, output, 1, column, MPI_COMM_WORLD);
  BOTH(Allgatherv, input, counts[rank], MPI_INT, output, counts, offsets, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgatherv, MPI_IN_PLACE, 0, MPI_INT, output, counts, offsets, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoall, input, 20, MPI_INT, output, 20, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoall, MPI_IN_PLACE, 0, MPI_INT, output, 20, MPI_INT, MPI_COMM_WORLD);
  int to_each[16], displacements[16], bytes_at[16];
  for (int i = 0; i < ranks; ++i) to_each[i] = rank + i, displacements[i] = 30 * i, bytes_at[i] = 400 * i;
  BOTH(Alltoallv, input, to_each, displacements, MPI_INT, output, to_each, displacements, MPI_INT, MPI_COMM_WORLD);
  BOTH(Alltoallw, input, to_each, bytes_at, types, output, to_each, bytes_at, types, MPI_COMM_WORLD);
  BOTH_LATER(Iallgather, input, 50, MPI_INT, output, 50, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iallgatherv, input, counts[rank], MPI_INT, output, counts, offsets, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ialltoall, input, 20, MPI_INT, output, 20, MPI_INT, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ialltoallv, input, to_each, displacements, MPI_INT, output, to_each, displacements, MPI_INT, MPI_COMM_WORLD,
             &request);
  BOTH_LATER(Ialltoallw, input, to_each, bytes_at, types, output, to_each, bytes_at, types, MPI_COMM_WORLD, &request);
}

static void reductions(void) {
  MPI_Op own;
  MPI_Op_create(sum, 1, &own);
  BOTH(Allreduce, input, output, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Allreduce, MPI_IN_PLACE, output, 100, MPI_UNSIGNED_CHAR, MPI_BXOR, MPI_COMM_WORLD);
  BOTH(Allreduce, input, output, 40, MPI_SHORT_INT, MPI_MAXLOC, MPI_COMM_WORLD);
  BOTH(Allreduce, input, output, 4, column, own, MPI_COMM_WORLD);
  BOTH(Scan, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Scan, MPI_IN_PLACE, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Exscan, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_scatter_block, input, output, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_scatter, input, output, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH(Reduce_local, input, output, 60, MPI_INT, MPI_SUM);
  BOTH_LATER(Iallreduce, input, output, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iallreduce, MPI_IN_PLACE, output, 5000, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iscan, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Iexscan, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce_scatter_block, input, output, 60, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  BOTH_LATER(Ireduce_scatter, input, output, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
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
  BOTH(Bcast, input, 100, MPI_INT, root, inter);
  BOTH(Gather, input, 9, MPI_INT, output, 9, MPI_INT, root, inter);
  BOTH(Allgather, input, 9, MPI_INT, output, 9, MPI_INT, inter);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&local);
}

#if MPI_VERSION >= 4
static void large_counts(void) {
  MPI_Count large[16];
  MPI_Aint displacements[16];
  for (int i = 0; i < ranks; ++i) large[i] = counts[i], displacements[i] = offsets[i];
  BOTH(Bcast_c, input, 1000, MPI_INT, 0, MPI_COMM_WORLD);
  BOTH(Allgather_c, input, 50, MPI_INT, output, 50, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allgatherv_c, input, large[rank], MPI_INT, output, large, displacements, MPI_INT, MPI_COMM_WORLD);
  BOTH(Allreduce_c, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  BOTH_LATER(Iallreduce_c, input, output, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
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
