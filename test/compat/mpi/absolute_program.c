/* SPDX-License-Identifier: Apache-2.0
 * MPI_BOTTOM: types of absolute addresses that lie in device memory, for every kind of call that takes them, beside the same
 * calls on host memory; what is not supported is an error and no fault. */
#include "test/compat/mpi/mpi_program.h"

enum { kInts = 40 };

/* `count` ints at `address`, which each process has elsewhere. */
static MPI_Datatype absolute(const void* address, int count) {
  MPI_Datatype made;
  const MPI_Aint displacement = (MPI_Aint)address;
  MPI_Type_create_hindexed(1, &count, &displacement, MPI_INT, &made);
  MPI_Type_commit(&made);
  return made;
}

/* As BOTH, with types `source_type` and `target_type` of kInts ints for all ranks together, and `source_types` and
 * `target_types`, an int for each rank.
 */
#define BOTH_ABSOLUTE(function, ...)                                                                     \
  do {                                                                                                   \
    reset();                                                                                             \
    for (int use_host = 0; use_host < 2; ++use_host) {                                                   \
      unsigned char *input = use_host ? host_in : device_in, *output = use_host ? host_out : device_out; \
      MPI_Datatype source_type = absolute(input, kInts), target_type = absolute(output, kInts);          \
      MPI_Datatype source_types[16], target_types[16];                                                   \
      for (int i = 0; i < ranks; ++i)                                                                    \
        source_types[i] = absolute(input + 8 * i, 1), target_types[i] = absolute(output + 12 * i, 1);    \
      (void)source_type, (void)target_type;                                                              \
      if (use_host) CHECK(PMPI_##function(__VA_ARGS__) == 0);                                            \
      else CHECK(MPI_##function(__VA_ARGS__) == 0);                                                      \
      MPI_Type_free(&source_type), MPI_Type_free(&target_type);                                          \
      for (int i = 0; i < ranks; ++i) MPI_Type_free(&source_types[i]), MPI_Type_free(&target_types[i]);  \
    }                                                                                                    \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__);                                                   \
  } while (0)

static int ones[16], zeros[16];

static void supported(void) {
  const MPI_Comm world = MPI_COMM_WORLD;
  BOTH_ABSOLUTE(Sendrecv, MPI_BOTTOM, 1, source_type, next_rank, 1, MPI_BOTTOM, 1, target_type, previous_rank, 1, world,
                MPI_STATUS_IGNORE);
  BOTH_ABSOLUTE(Alltoallw, MPI_BOTTOM, ones, zeros, source_types, MPI_BOTTOM, ones, zeros, target_types, world);
  BOTH_ABSOLUTE(Alltoallw, MPI_IN_PLACE, ones, zeros, source_types, MPI_BOTTOM, ones, zeros, target_types, world);
  MPI_Datatype ints[16];
  int steps[16];
  for (int i = 0; i < ranks; ++i) ints[i] = MPI_INT, steps[i] = i;
  BOTH_ABSOLUTE(Alltoallw, input, ones, zeros, ints, MPI_BOTTOM, ones, zeros, target_types, world);
  for (int root = 0; root < ranks; ++root) {
    BOTH_ABSOLUTE(Bcast, MPI_BOTTOM, 1, source_type, root, world);
    BOTH_ABSOLUTE(Gather, MPI_BOTTOM, 1, source_types[0], output, 1, MPI_INT, root, world);
    BOTH_ABSOLUTE(Gatherv, MPI_BOTTOM, 1, source_types[0], rank == root ? output : NULL, ones, steps, MPI_INT, root, world);
    BOTH_ABSOLUTE(Scatter, input, 1, MPI_INT, MPI_BOTTOM, 1, target_types[0], root, world);
    BOTH_ABSOLUTE(Scatterv, rank == root ? input : NULL, ones, steps, MPI_INT, MPI_BOTTOM, 1, target_types[0], root, world);
  }
  BOTH_ABSOLUTE(Allgather, MPI_BOTTOM, 1, source_types[0], output, 1, MPI_INT, world);
  BOTH_ABSOLUTE(Allgatherv, MPI_BOTTOM, 1, source_types[0], output, ones, steps, MPI_INT, world);
}

#define REFUSED(call)                                                            \
  do {                                                                           \
    const int code_ = (call);                                                    \
    int class_ = MPI_SUCCESS;                                                    \
    MPI_Error_class(code_, &class_);                                             \
    if (class_ != MPI_ERR_BUFFER) {                                              \
      fprintf(stderr, "line %d: %s: error class %d\n", __LINE__, #call, class_); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

/* Arguments that mean nothing on this rank are not looked at, and absolute addresses are, in operations with neighbours and
 * in persistent ones. */
static void supported_since(void) {
  MPI_Comm ring;
  const int periodic = 1;
  const MPI_Aint none[2] = {0, 0};
  MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &periodic, 0, &ring);
  BOTH_ABSOLUTE(Neighbor_alltoallw, MPI_BOTTOM, ones, none, source_types, MPI_BOTTOM, ones, none, target_types, ring);
  BOTH_ABSOLUTE(Neighbor_alltoall, MPI_BOTTOM, 1, source_type, output, kInts, MPI_INT, ring);
  BOTH_ABSOLUTE(Neighbor_allgather, MPI_BOTTOM, 1, source_type, output, kInts, MPI_INT, ring);
#if MPI_VERSION >= 4
  MPI_Request request;
  MPI_Datatype source_type = absolute(device_in, kInts);
  reset();
  CHECK(MPI_Bcast_init(MPI_BOTTOM, 1, source_type, 0, ring, MPI_INFO_NULL, &request) == 0);
  CHECK(MPI_Start(&request) == 0 && MPI_Wait(&request, MPI_STATUS_IGNORE) == 0 && MPI_Request_free(&request) == 0);
  CHECK(PMPI_Bcast(host_in, kInts, MPI_INT, 0, ring) == 0);
  compare("Bcast_init", __LINE__);
  const int root = 0, is_root = rank == root;
  reset();
  CHECK(MPI_Gather_init(MPI_BOTTOM, 1, source_type, is_root ? device_out : NULL, kInts,
                        is_root ? MPI_INT : MPI_DATATYPE_NULL, root, ring, MPI_INFO_NULL, &request) == 0);
  CHECK(MPI_Start(&request) == 0 && MPI_Wait(&request, MPI_STATUS_IGNORE) == 0 && MPI_Request_free(&request) == 0);
  CHECK(PMPI_Gather(host_in, kInts, MPI_INT, host_out, kInts, MPI_INT, root, ring) == 0);
  compare("Gather_init", __LINE__);
  MPI_Type_free(&source_type);
#endif
  MPI_Comm_free(&ring);
}

static void refused(void) {
  MPI_Comm ring;
  const int periodic = 1;
  MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &periodic, 0, &ring);
  MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  /* Device and host memory in one argument: nothing can stand for both. */
  const int lengths[2] = {1, 1};
  for (int turn = 0; turn < 2; ++turn) {
    const MPI_Aint displacements[2] = {(MPI_Aint)(turn ? device_in : host_in), (MPI_Aint)(turn ? host_in : device_in)};
    MPI_Datatype mixed, mixed_each[16];
    MPI_Type_create_hindexed(2, lengths, displacements, MPI_INT, &mixed);
    MPI_Type_commit(&mixed);
    for (int i = 0; i < ranks; ++i) mixed_each[i] = mixed;
    REFUSED(MPI_Send(MPI_BOTTOM, 1, mixed, next_rank, 1, MPI_COMM_WORLD));
    REFUSED(MPI_Bcast(MPI_BOTTOM, 1, mixed, 0, MPI_COMM_WORLD));
    REFUSED(MPI_Alltoallw(MPI_BOTTOM, ones, zeros, mixed_each, MPI_BOTTOM, ones, zeros, mixed_each, MPI_COMM_WORLD));
    MPI_Type_free(&mixed);
  }
  MPI_Comm_free(&ring);
}

/* The origin by its address, to a window of device memory and to one of host memory, and from there. */
static void one_sided(void) {
  enum { kHalf = kBytes / 2 };
  for (int of_host = 0; of_host < 2; ++of_host) {
    static unsigned char exposed[kHalf];
    MPI_Win window;
    reset();
    MPI_Datatype source_type = absolute(device_in, kInts), back_type = absolute(device_in + kHalf, kInts);
    memcpy(exposed, host_out, kHalf);
    CHECK(MPI_Win_create(of_host ? exposed : device_out, kHalf, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window) == 0);
    MPI_Win_fence(0, window);
    CHECK(MPI_Put(MPI_BOTTOM, 1, source_type, next_rank, 8, kInts, MPI_INT, window) == 0);
    MPI_Win_fence(0, window);
    CHECK(MPI_Get(MPI_BOTTOM, 1, back_type, next_rank, 8, kInts, MPI_INT, window) == 0);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    MPI_Win_free(&window);
    if (of_host) to_device(device_out, exposed, kHalf);
    memcpy(host_in + kHalf, host_in, kInts * 4);
    PMPI_Sendrecv(host_in, kInts, MPI_INT, next_rank, 1, host_out + 8, kInts, MPI_INT, previous_rank, 1, MPI_COMM_WORLD,
                  MPI_STATUS_IGNORE);
    compare(of_host ? "window of host memory" : "window of device memory", __LINE__);
    MPI_Type_free(&source_type);
    MPI_Type_free(&back_type);
  }
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  for (int i = 0; i < ranks; ++i) ones[i] = 1;
  if (ranks == 1) ones[1] = 1;
  supported();
  supported_since();
  one_sided();
  refused();
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
