/* SPDX-License-Identifier: Apache-2.0
 * Device memory beside host memory in neighbourhood and persistent collectives, the exchanges of MPI 4, external packing,
 * attached buffers and files. */
#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

enum { kInts = 40 };

static void among_neighbours(MPI_Comm comm, int in, int out) {
  int counts[8], places[8];
  MPI_Aint bytes_at[8];
  MPI_Datatype types[8];
  for (int i = 0; i < 8; ++i) counts[i] = i % 3 + 1, places[i] = 5 * i, bytes_at[i] = 24 * i, types[i] = MPI_INT;
  CHECK(in <= 8 && out <= 8);
  BOTH(Neighbor_allgather, input, kInts, MPI_INT, output, kInts, MPI_INT, comm);
  BOTH(Neighbor_alltoall, input, kInts, MPI_INT, output, kInts, MPI_INT, comm);
  BOTH_LATER(Ineighbor_allgather, input, kInts, MPI_INT, output, kInts, MPI_INT, comm, &request);
  BOTH_LATER(Ineighbor_alltoall, input, kInts, MPI_INT, output, kInts, MPI_INT, comm, &request);
  for (int i = 0; i < 8; ++i) counts[i] = 2;
  BOTH(Neighbor_allgatherv, input, 2, MPI_INT, output, counts, places, MPI_INT, comm);
  BOTH(Neighbor_alltoallv, input, counts, places, MPI_INT, output, counts, places, MPI_INT, comm);
  BOTH(Neighbor_alltoallw, input, counts, bytes_at, types, output, counts, bytes_at, types, comm);
  BOTH_LATER(Ineighbor_allgatherv, input, 2, MPI_INT, output, counts, places, MPI_INT, comm, &request);
  BOTH_LATER(Ineighbor_alltoallv, input, counts, places, MPI_INT, output, counts, places, MPI_INT, comm, &request);
  BOTH_LATER(Ineighbor_alltoallw, input, counts, bytes_at, types, output, counts, bytes_at, types, comm, &request);
}

static void neighbourhoods(void) {
  const int periodic[2] = {1, 0}, sides[2] = {ranks, 1}, next[] = {next_rank}, previous[] = {previous_rank};
  const int weight[] = {1};
  MPI_Comm grid, graph;
  MPI_Cart_create(WORLD, 2, sides, periodic, 0, &grid);
  among_neighbours(grid, 4, 4);
  MPI_Dist_graph_create_adjacent(WORLD, 1, previous, weight, 1, next, weight, MPI_INFO_NULL, 0, &graph);
  among_neighbours(graph, 1, 1);
  MPI_Comm_free(&graph);
  MPI_Comm_free(&grid);
}

#if MPI_VERSION >= 4
/* A few starts, beside the ordinary operation on host memory. MPICH 4.0.2 copies what a rank sends to itself when the
 * request is made, and not when it is started: so all starts have the same data, but for operations without such a copy. It
 * also ends the program at a second start of MPI_Scatter_init. Both with host memory too. */
#define BOTH_STARTED_WITH(is_same, starts, function, ...)                    \
  do {                                                                       \
    MPI_Request request;                                                     \
    unsigned char *input = device_in, *output = device_out;                  \
    (void)input, (void)output;                                               \
    reset();                                                                 \
    CHECK(MPI_##function##_init(__VA_ARGS__, MPI_INFO_NULL, &request) == 0); \
    for (int start = 0; start < starts; ++start) {                           \
      if (is_same) --round_number;                                           \
      reset();                                                               \
      CHECK(MPI_Start(&request) == 0);                                       \
      CHECK(MPI_Wait(&request, IGNORE) == 0 && request != MPI_REQUEST_NULL); \
      input = host_in, output = host_out;                                    \
      CHECK(PMPI_##function(__VA_ARGS__) == 0);                              \
      compare(#function "_init(" #__VA_ARGS__ ")", __LINE__);                \
    }                                                                        \
    CHECK(MPI_Request_free(&request) == 0 && request == MPI_REQUEST_NULL);   \
  } while (0)
#define BOTH_STARTED(...) BOTH_STARTED_WITH(1, 3, __VA_ARGS__)
#define BOTH_STARTED_ANEW(...) BOTH_STARTED_WITH(0, 3, __VA_ARGS__)

static void persistent(void) {
  int counts[8], places[8], bytes_at[8];
  MPI_Aint far[8];
  MPI_Datatype types[8];
  MPI_Comm grid;
  const int periodic = 1;
  for (int i = 0; i < 8; ++i) counts[i] = 2, places[i] = 5 * i, bytes_at[i] = 24 * i, far[i] = 24 * i, types[i] = MPI_INT;
  for (int root = 0; root < ranks; ++root) {
    BOTH_STARTED_ANEW(Bcast, input, kInts, MPI_INT, root, WORLD);
    BOTH_STARTED(Gather, input, kInts, MPI_INT, output, kInts, MPI_INT, root, WORLD);
    BOTH_STARTED(Gather, rank == root ? MPI_IN_PLACE : (void*)input, kInts, MPI_INT, output, kInts, MPI_INT, root, WORLD);
    BOTH_STARTED(Gatherv, input, 2, MPI_INT, output, counts, places, MPI_INT, root, WORLD);
    BOTH_STARTED_WITH(1, 1, Scatter, input, kInts, MPI_INT, output, kInts, MPI_INT, root, WORLD);
    BOTH_STARTED(Scatterv, input, counts, places, MPI_INT, output, 2, MPI_INT, root, WORLD);
    BOTH_STARTED(Reduce, input, output, kInts, MPI_INT, MPI_SUM, root, WORLD);
  }
  BOTH_STARTED(Allgather, input, kInts, MPI_INT, output, kInts, MPI_INT, WORLD);
  BOTH_STARTED(Allgather, MPI_IN_PLACE, 0, MPI_INT, output, kInts, MPI_INT, WORLD);
  BOTH_STARTED(Allgatherv, input, 2, MPI_INT, output, counts, places, MPI_INT, WORLD);
  BOTH_STARTED(Alltoall, input, kInts, MPI_INT, output, kInts, MPI_INT, WORLD);
  BOTH_STARTED(Alltoallv, input, counts, places, MPI_INT, output, counts, places, MPI_INT, WORLD);
  BOTH_STARTED(Alltoallw, input, counts, bytes_at, types, output, counts, bytes_at, types, WORLD);
  BOTH_STARTED_ANEW(Allreduce, input, output, kInts, MPI_INT, MPI_SUM, WORLD);
  BOTH_STARTED_ANEW(Allreduce, MPI_IN_PLACE, output, kInts, MPI_INT, MPI_MAX, WORLD);
  BOTH_STARTED(Scan, input, output, kInts, MPI_INT, MPI_SUM, WORLD);
  BOTH_STARTED(Exscan, input, output, kInts, MPI_INT, MPI_SUM, WORLD);
  BOTH_STARTED(Reduce_scatter, input, output, counts, MPI_INT, MPI_SUM, WORLD);
  BOTH_STARTED(Reduce_scatter_block, input, output, 7, MPI_INT, MPI_SUM, WORLD);
  BOTH_STARTED_ANEW(Allreduce, input, output, kInts, MPI_INT, MPI_SUM, WORLD);
  MPI_Cart_create(WORLD, 1, &ranks, &periodic, 0, &grid);
  BOTH_STARTED(Neighbor_allgather, input, kInts, MPI_INT, output, kInts, MPI_INT, grid);
  BOTH_STARTED(Neighbor_allgatherv, input, 2, MPI_INT, output, counts, places, MPI_INT, grid);
  BOTH_STARTED(Neighbor_alltoall, input, kInts, MPI_INT, output, kInts, MPI_INT, grid);
  BOTH_STARTED(Neighbor_alltoallv, input, counts, places, MPI_INT, output, counts, places, MPI_INT, grid);
  BOTH_STARTED(Neighbor_alltoallw, input, counts, far, types, output, counts, far, types, grid);
  MPI_Comm_free(&grid);
}

static void exchanges(void) {
  for (int count = 0; count < 8000; count = count * 9 + 1) {
    BOTH_LATER(Isendrecv, input, count, MPI_INT, next_rank, 4, output, count, MPI_INT, previous_rank, 4, WORLD, &request);
    BOTH_LATER(Isendrecv, input, count / 2, MPI_INT, next_rank, 4, output, count, MPI_INT, previous_rank, 4, WORLD,
               &request);
    BOTH_LATER(Isendrecv_replace, input, count, MPI_INT, next_rank, 4, previous_rank, 4, WORLD, &request);
  }
}
#else
static void persistent(void) {}
static void exchanges(void) {}
#endif

static void external(void) {
  MPI_Datatype rows;
  MPI_Aint position = 0;
  MPI_Type_vector(20, 2, 5, MPI_INT, &rows);
  MPI_Type_commit(&rows);
  BOTH(Pack_external, "external32", input, 3, rows, output, 1000, (position = 8, &position));
  CHECK(position == 8 + 3 * 40 * 4);
  BOTH(Unpack_external, "external32", input, 1000, (position = 8, &position), output, 3, rows);
  CHECK(position == 8 + 3 * 40 * 4);
  MPI_Type_free(&rows);
}

/* A buffer on the device, for sends from the host and from the device. */
static void attached(void) {
  void* detached = NULL;
  int bytes = 0;
  unsigned char* const room = device_bytes(kBytes);
  for (int round = 0; round < 2; ++round) {
    CHECK(MPI_Buffer_attach(room, kBytes) == 0);
    reset();
    CHECK(MPI_Bsend(device_in, 500, MPI_INT, next_rank, 5, WORLD) == 0);
    CHECK(MPI_Bsend(host_in, 500, MPI_INT, next_rank, 6, WORLD) == 0);
    CHECK(MPI_Recv(device_out, 500, MPI_INT, previous_rank, 5, WORLD, IGNORE) == 0);
    CHECK(MPI_Recv(device_out + 4000, 500, MPI_INT, previous_rank, 6, WORLD, IGNORE) == 0);
    CHECK(MPI_Buffer_detach(&detached, &bytes) == 0 && detached == room && bytes == kBytes);
    for (int i = 0; i < 2; ++i)
      PMPI_Sendrecv(host_in, 500, MPI_INT, next_rank, 7, host_out + 4000 * i, 500, MPI_INT, previous_rank, 7, WORLD, IGNORE);
    compare("attached", __LINE__);
  }
}

/* Written from the device, read to the host, and the other way round. */
static void files(void) {
  char path[] = "/tmp/peerlane-mpi-XXXXXX";
  MPI_File file;
  MPI_Status status;
  MPI_Request request;
  MPI_Datatype rows;
  enum { kSome = 800 };
  if (rank == 0) {
    const int made = mkstemp(path);
    CHECK(made >= 0);
  }
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, WORLD);
  CHECK(MPI_File_open(WORLD, path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file) == 0);
  MPI_Type_vector(kSome / 4, 4, 6, MPI_INT, &rows);
  MPI_Type_commit(&rows);
  const MPI_Offset place = (MPI_Offset)rank * kSome * 4;
  for (int way = 0; way < 4; ++way) {
    reset();
    if (way == 0) CHECK(MPI_File_write_at(file, place, device_in, kSome, MPI_INT, &status) == 0);
    if (way == 1) CHECK(MPI_File_write_at_all(file, place, device_in, kSome, MPI_INT, &status) == 0);
    if (way == 2)
      CHECK(MPI_File_iwrite_at(file, place, device_in, kSome, MPI_INT, &request) == 0 && MPI_Wait(&request, &status) == 0);
    if (way == 3) {
      CHECK(MPI_File_seek(file, place, MPI_SEEK_SET) == 0);
      CHECK(MPI_File_write(file, device_in, 1, rows, &status) == 0);
      for (int i = 0; i < kSome; ++i) memcpy(host_out + 4 * i, host_in + (i / 4 * 6 + i % 4) * 4, 4);
      to_device(device_out, host_out, kBytes);
      to_device(device_in, host_in, kBytes);
    }
    int count = 0;
    CHECK(MPI_Get_count(&status, MPI_INT, &count) == 0 && count == kSome);
    MPI_Barrier(WORLD);
    CHECK(MPI_File_sync(file) == 0);
    if (way == 0) CHECK(MPI_File_read_at(file, place, device_out, kSome, MPI_INT, &status) == 0);
    if (way == 1) CHECK(MPI_File_read_at_all(file, place, device_out, kSome, MPI_INT, &status) == 0);
    if (way == 2)
      CHECK(MPI_File_iread_at(file, place, device_out, kSome, MPI_INT, &request) == 0 && MPI_Wait(&request, &status) == 0);
    if (way == 3) CHECK(MPI_File_read_at(file, place, device_out, kSome, MPI_INT, &status) == 0);
    CHECK(MPI_Get_count(&status, MPI_INT, &count) == 0 && count == kSome);
    if (way < 3) memcpy(host_out, host_in, kSome * 4);
    compare(way == 0 ? "file 0" : way == 1 ? "file 1" : way == 2 ? "file 2" : "file 3", __LINE__);
    MPI_Barrier(WORLD);
  }
  MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
  CHECK(MPI_File_write_at_all_begin(file, place, device_in, kSome, MPI_INT) == MPI_ERR_BUFFER);
  CHECK(MPI_File_write_at(file, place, device_in + kBytes - 4, 1 << 20, MPI_INT, &status) == MPI_ERR_BUFFER);
  MPI_Type_free(&rows);
  MPI_File_close(&file);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  neighbourhoods();
  persistent();
  exchanges();
  external();
  attached();
  files();
  MPI_Finalize();
  return 0;
}
