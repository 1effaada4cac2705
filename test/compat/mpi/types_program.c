/* SPDX-License-Identifier: Apache-2.0
 * Types of every constructor but MPI_Type_create_darray, and with MPI 4 also of those with MPI_Count arguments, which mpi4py
 * uses: a message of device memory must touch the same bytes as one of host memory. */
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
    CHECK(MPI_Type_free(&base) == 0);                                                                        \
  } while (0)
#define SUBARRAY(order) CHECK(MPI_Type_create_subarray(3, sizes, parts, starts, order, MPI_INT, &made) == 0)
#define SUBARRAY_c(order) CHECK(MPI_Type_create_subarray_c(3, sizes, parts, starts, order, MPI_INT, &made) == 0)

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  SEND_ALL(, int, MPI_Aint);
#if MPI_VERSION >= 4
  SEND_ALL(_c, MPI_Count, MPI_Count);
#endif
  MPI_Finalize();
  return 0;
}
