/* SPDX-License-Identifier: Apache-2.0
 * Types of every constructor, and with MPI 4 also of those with MPI_Count arguments, which mpi4py uses: a message of device
 * memory must touch the same bytes as one of host memory. Types whose elements lie in another order than their addresses
 * are received in part too, and reach windows. */
#include <sys/resource.h>

#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD

static void send(const char* name, MPI_Datatype type) {
  CHECK(MPI_Type_commit(&type) == 0);
  BOTH(Sendrecv, input, 2, type, next_rank, 7, output, 2, type, previous_rank, 7, WORLD, MPI_STATUS_IGNORE);
  int size = 0; /* and packed: the order of the bytes */
  CHECK(MPI_Type_size(type, &size) == 0);
  BOTH(Sendrecv, input, 1, type, next_rank, 7, output, size, MPI_BYTE, previous_rank, 7, WORLD, MPI_STATUS_IGNORE);
  printf("%s: ok\n", name);
  CHECK(MPI_Type_free(&type) == 0);
}

/* The constructors' names end in `suffix`; `number` and `bytes` are the types of their arguments. */
#define SEND_ALL(suffix, number, bytes)                                                                      \
  do {                                                                                                       \
    const number lengths[3] = {3, 1, 2}, places[3] = {0, 7, 20}, sizes[3] = {6, 5, 4}, parts[3] = {3, 2, 2}; \
    const number starts[3] = {2, 1, 1};                                                                      \
    const bytes offsets[3] = {8, 40, 96};                                                                    \
    MPI_Datatype made, base;                                                                                 \
    const MPI_Datatype fields[3] = {MPI_INT, MPI_DOUBLE, MPI_CHAR};                                          \
    CHECK(MPI_Type_vector##suffix(3, 2, 4, MPI_SHORT, &base) == 0);                                          \
    CHECK(MPI_Type_contiguous##suffix(5, base, &made) == 0);                                                 \
    send("contiguous" #suffix, made);                                                                        \
    CHECK(MPI_Type_vector##suffix(4, 2, 3, base, &made) == 0);                                               \
    send("vector" #suffix, made);                                                                            \
    CHECK(MPI_Type_create_hvector##suffix(4, 2, 52, MPI_INT, &made) == 0);                                   \
    send("hvector" #suffix, made);                                                                           \
    CHECK(MPI_Type_indexed##suffix(3, lengths, places, MPI_INT, &made) == 0);                                \
    send("indexed" #suffix, made);                                                                           \
    CHECK(MPI_Type_create_hindexed##suffix(3, lengths, offsets, MPI_INT, &made) == 0);                       \
    send("hindexed" #suffix, made);                                                                          \
    CHECK(MPI_Type_create_indexed_block##suffix(3, 2, places, MPI_INT, &made) == 0);                         \
    send("block" #suffix, made);                                                                             \
    CHECK(MPI_Type_create_hindexed_block##suffix(3, 2, offsets, MPI_INT, &made) == 0);                       \
    send("hblock" #suffix, made);                                                                            \
    CHECK(MPI_Type_create_struct##suffix(3, lengths, offsets, fields, &made) == 0);                          \
    send("struct" #suffix, made);                                                                            \
    CHECK(MPI_Type_create_resized##suffix(base, 0, 64, &made) == 0);                                         \
    send("resized" #suffix, made);                                                                           \
    SUBARRAY##suffix(MPI_ORDER_C);                                                                           \
    send("subarray" #suffix, made);                                                                          \
    SUBARRAY##suffix(MPI_ORDER_FORTRAN);                                                                     \
    send("subarray, order of Fortran" #suffix, made);                                                        \
    for (int order = 0; order < 2; ++order)                                                                  \
      for (unsigned draw = 0; draw < 40; ++draw) {                                                           \
        DARRAY##suffix(order ? MPI_ORDER_FORTRAN : MPI_ORDER_C);                                             \
        send("darray" #suffix, made);                                                                        \
      }                                                                                                      \
    CHECK(MPI_Type_free(&base) == 0);                                                                        \
  } while (0)
#define SUBARRAY(order) CHECK(MPI_Type_create_subarray(3, sizes, parts, starts, order, MPI_INT, &made) == 0)
#define SUBARRAY_c(order) CHECK(MPI_Type_create_subarray_c(3, sizes, parts, starts, order, MPI_INT, &made) == 0)

/* Arrays of all kinds of distribution; `draw` chooses one of 40. */
enum { kDimensions = 3 };
static const int grids[2][kDimensions] = {{2, 3, 1}, {3, 1, 2}};
static int distribution(unsigned draw, int dimension, int processes) {
  static const int all[3] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE};
  const int chosen = all[(draw + (unsigned)dimension * 2) % 3];
  return chosen == MPI_DISTRIBUTE_NONE && processes > 1 ? MPI_DISTRIBUTE_CYCLIC : chosen;
}
#define DARRAY_OF(function, number, order)                                                                           \
  do {                                                                                                               \
    const int* const grid = grids[draw % 2];                                                                         \
    number all[kDimensions] = {7, 5, 4};                                                                             \
    int ways[kDimensions], blocks[kDimensions];                                                                      \
    for (int i = 0; i < kDimensions; ++i) {                                                                          \
      ways[i] = distribution(draw / 2, i, grid[i]);                                                                  \
      blocks[i] = draw % 5 < 3 ? MPI_DISTRIBUTE_DFLT_DARG : ways[i] == MPI_DISTRIBUTE_BLOCK ? 5 : 1 + (int)draw % 3; \
      if (ways[i] == MPI_DISTRIBUTE_NONE) blocks[i] = MPI_DISTRIBUTE_DFLT_DARG;                                      \
      if (ways[i] == MPI_DISTRIBUTE_BLOCK && grid[i] == 1) blocks[i] = MPI_DISTRIBUTE_DFLT_DARG;                     \
    }                                                                                                                \
    CHECK(function(6, (int)draw % 6, kDimensions, all, ways, blocks, grid, order, MPI_INT, &made) == 0);             \
  } while (0)
#define DARRAY(order) DARRAY_OF(MPI_Type_create_darray, int, order)
#define DARRAY_c(order) DARRAY_OF(MPI_Type_create_darray_c, MPI_Count, order)

/* As large as the memory that they span, yet not one row of it. */
static void other_order(void) {
  enum { kRoom = 64, kPlace = 40 };
  const int ones[4] = {1, 1, 1, 1}, backwards[4] = {3, 2, 1, 0};
  MPI_Datatype list[3];
  MPI_Win of_device, of_host;
  CHECK(MPI_Type_indexed(4, ones, backwards, MPI_INT, &list[0]) == 0);
  CHECK(MPI_Type_vector(4, 1, -1, MPI_INT, &list[1]) == 0);
  CHECK(MPI_Type_contiguous(1, list[0], &list[2]) == 0);
  for (int i = 0; i < 3; ++i) {
    const MPI_Datatype type = list[i];
    CHECK(MPI_Type_commit(&list[i]) == 0);
    BOTH(Sendrecv, input, 3, MPI_INT, next_rank, 7, output + kRoom, 1, type, previous_rank, 7, WORLD, MPI_STATUS_IGNORE);
    BOTH(Sendrecv, input + kRoom, 1, type, next_rank, 7, output, 4, MPI_INT, previous_rank, 7, WORLD, MPI_STATUS_IGNORE);
    reset();
    CHECK(MPI_Win_create(device_out, kBytes, 1, MPI_INFO_NULL, WORLD, &of_device) == 0);
    CHECK(PMPI_Win_create(host_out, kBytes, 1, MPI_INFO_NULL, WORLD, &of_host) == 0);
    for (int is_host = 0; is_host < 2; ++is_host) {
      const MPI_Win window = is_host ? of_host : of_device;
      unsigned char* const input = is_host ? host_in : device_in;
      CHECK(MPI_Win_fence(0, window) == 0);
      CHECK(MPI_Put(input + kRoom, 1, type, next_rank, kPlace, 4, MPI_INT, window) == 0);
      CHECK(MPI_Put(input, 4, MPI_INT, next_rank, 2 * kPlace, 1, type, window) == 0);
      CHECK(MPI_Accumulate(input, 4, MPI_INT, next_rank, 4 * kPlace, 1, type, MPI_SUM, window) == 0);
      CHECK(MPI_Get(input + 2 * kRoom, 1, type, next_rank, 8 * kPlace, 4, MPI_INT, window) == 0);
      CHECK(MPI_Win_fence(0, window) == 0);
    }
    compare("one-sided, in another order", __LINE__);
    CHECK(MPI_Win_free(&of_device) == 0 && MPI_Win_free(&of_host) == 0);
  }
  for (int i = 0; i < 3; ++i) CHECK(MPI_Type_free(&list[i]) == 0);
}

static int class_of(int code) {
  int out = -1;
  MPI_Error_class(code, &out);
  return out;
}

static long peak_kib(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

/* Counts and displacements that leave the memory: refused, and neither the host memory for them nor a list of their rows is
 * made first. */
static void impossible(void) {
  const int length = 1;
  const MPI_Aint before = -4096;
  MPI_Datatype rows, earlier;
  MPI_Type_vector(10, 1, 2, MPI_INT, &rows);
  MPI_Type_create_hindexed(1, &length, &before, MPI_INT, &earlier);
  MPI_Type_commit(&rows);
  MPI_Type_commit(&earlier);
  MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_RETURN);
  const long peak = peak_kib();
  CHECK(class_of(MPI_Send(device_in, 1 << 28, MPI_DOUBLE, next_rank, 9, WORLD)) == MPI_ERR_BUFFER);
  CHECK(class_of(MPI_Send(device_in, 1 << 26, rows, next_rank, 9, WORLD)) == MPI_ERR_BUFFER);
  unsigned char* const alone = device_bytes(4 << 20); /* nothing lies before it */
  CHECK(class_of(MPI_Send(alone, 1, earlier, next_rank, 9, WORLD)) == MPI_ERR_BUFFER);
  MPI_Request request;
  CHECK(MPI_Irecv(device_out, 1 << 28, MPI_DOUBLE, previous_rank, 10, WORLD, &request) == 0);
  CHECK(MPI_Cancel(&request) == 0 && MPI_Wait(&request, MPI_STATUS_IGNORE) == 0);
#if MPI_VERSION >= 4
  CHECK(class_of(MPI_Send_c(device_in, ((MPI_Count)1 << 62) + 1, MPI_INT, next_rank, 9, WORLD)) == MPI_ERR_BUFFER);
  CHECK(class_of(MPI_Send_c(device_in, ((MPI_Count)1 << 62) + 1, rows, next_rank, 9, WORLD)) == MPI_ERR_BUFFER);
#endif
  CHECK(peak_kib() - peak < 256 << 10);
  CHECK(MPI_Sendrecv(alone + 4096, 1, earlier, next_rank, 9, device_out, 1, MPI_INT, previous_rank, 9, WORLD,
                     MPI_STATUS_IGNORE) == 0);
  MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_ARE_FATAL);
  MPI_Type_free(&rows);
  MPI_Type_free(&earlier);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  SEND_ALL(, int, MPI_Aint);
#if MPI_VERSION >= 4
  SEND_ALL(_c, MPI_Count, MPI_Count);
#endif
  other_order();
  impossible();
  MPI_Finalize();
  return 0;
}
