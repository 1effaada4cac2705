/* SPDX-License-Identifier: Apache-2.0
 * Dynamic windows: each rank attaches device memory, and host memory that MPI alone reaches, to one window.
 * `dynamic_program [refused]`: where no device memory can be attached. */
#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
enum { kInts = 256, kMaxRanks = 8, kMaxRegions = 128 };
enum epoch { by_fence, by_post, by_lock, by_exclusive_lock, by_lock_all, epochs };

static MPI_Win window;
static MPI_Group everyone;
static int host_part[kInts]; /* attached, too */
static MPI_Aint device_of[kMaxRanks], host_of[kMaxRanks];

#define FAILS(wanted, call)                                                                                   \
  do {                                                                                                        \
    int class = -1;                                                                                           \
    MPI_Error_class(call, &class);                                                                            \
    if (class != wanted) fprintf(stderr, "line %d: error class %d of %s\n", __LINE__, class, #call), exit(1); \
  } while (0)

/* What all ranks attached: its address there is the displacement. */
static void tell(void* memory, MPI_Aint* all) {
  MPI_Aint own;
  MPI_Get_address(memory, &own);
  PMPI_Allgather(&own, 1, MPI_AINT, all, 1, MPI_AINT, WORLD);
}

static void fill(void) {
  int values[kInts];
  for (int i = 0; i < kInts; ++i) values[i] = host_part[i] = rank * 1000 + i;
  to_device(device_out, values, sizeof values);
  for (int i = 0; i < kInts; ++i) values[i] = -rank * 1000 - i;
  to_device(device_in, values, sizeof values);
  PMPI_Barrier(WORLD);
}

static void begin_epoch(enum epoch kind) {
  CHECK(MPI_Win_fence(kind == by_fence ? 0 : MPI_MODE_NOSUCCEED, window) == 0);
  if (kind == by_post) CHECK(MPI_Win_post(everyone, 0, window) == 0 && MPI_Win_start(everyone, 0, window) == 0);
  if (kind == by_lock) CHECK(MPI_Win_lock(MPI_LOCK_SHARED, next_rank, 0, window) == 0);
  if (kind == by_exclusive_lock) CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next_rank, 0, window) == 0);
  if (kind == by_lock_all) CHECK(MPI_Win_lock_all(0, window) == 0);
}

static void end_epoch(enum epoch kind) {
  if (kind == by_fence) CHECK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window) == 0);
  if (kind == by_post) CHECK(MPI_Win_complete(window) == 0 && MPI_Win_wait(window) == 0);
  if (kind == by_lock || kind == by_exclusive_lock) CHECK(MPI_Win_unlock(next_rank, window) == 0);
  if (kind == by_lock_all) CHECK(MPI_Win_flush_all(window) == 0 && MPI_Win_unlock_all(window) == 0);
  PMPI_Barrier(WORLD);
}

/* In one epoch, to device memory and to host memory of the next rank, from device memory. */
static void puts_and_gets(enum epoch kind) {
  int seen[kInts], got[20];
  fill();
  begin_epoch(kind);
  const MPI_Aint device = device_of[next_rank], host = host_of[next_rank];
  CHECK(MPI_Put(device_in, 10, MPI_INT, next_rank, device, 10, MPI_INT, window) == 0);
  CHECK(MPI_Put(device_in, 10, MPI_INT, next_rank, host, 10, MPI_INT, window) == 0);
  CHECK(MPI_Accumulate(device_in, 5, MPI_INT, next_rank, device + 400, 5, MPI_INT, MPI_SUM, window) == 0);
  CHECK(MPI_Get(device_in + 800, 10, MPI_INT, next_rank, device + 80, 10, MPI_INT, window) == 0);
  CHECK(MPI_Get(device_in + 840, 10, MPI_INT, next_rank, host + 80, 10, MPI_INT, window) == 0);
  end_epoch(kind);
  to_host(seen, device_out, sizeof seen);
  for (int i = 0; i < kInts; ++i) {
    const int plain = rank * 1000 + i, put = -previous_rank * 1000 - i, i_sum = i - 100;
    CHECK(seen[i] == (i < 10 ? put : i_sum >= 0 && i_sum < 5 ? plain - previous_rank * 1000 - i_sum : plain));
    CHECK(host_part[i] == (i < 10 ? put : plain));
  }
  to_host(got, device_in + 800, sizeof got);
  for (int i = 0; i < 20; ++i) CHECK(got[i] == next_rank * 1000 + 20 + i % 10);
}

/* Every operation with a previous value, with a request, and by a type of absolute addresses. */
static void other_operations(void) {
  int seen[kInts], one = 1, expected, found = -1;
  MPI_Request request;
  MPI_Datatype absolute;
  fill();
  const MPI_Aint device = device_of[next_rank], places[2] = {device + 16, device + 64};
  const int lengths[2] = {1, 2};
  CHECK(MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &absolute) == 0 && MPI_Type_commit(&absolute) == 0);
  CHECK(MPI_Win_lock_all(0, window) == 0);
  CHECK(MPI_Put(device_in, 3, MPI_INT, next_rank, 0, 1, absolute, window) == 0);
  CHECK(MPI_Fetch_and_op(&one, &found, MPI_INT, next_rank, device + 200, MPI_SUM, window) == 0);
  CHECK(MPI_Win_flush(next_rank, window) == 0 && found == next_rank * 1000 + 50);
  expected = next_rank * 1000 + 51;
  CHECK(MPI_Compare_and_swap(&one, &expected, &found, MPI_INT, next_rank, device + 200, window) == 0);
  CHECK(MPI_Win_flush(next_rank, window) == 0 && found == expected);
  CHECK(MPI_Get_accumulate(&one, 1, MPI_INT, &found, 1, MPI_INT, next_rank, device + 204, 1, MPI_INT, MPI_REPLACE, window) ==
        0);
  CHECK(MPI_Win_flush(next_rank, window) == 0 && found == next_rank * 1000 + 51);
  CHECK(MPI_Rput(device_in, 2, MPI_INT, next_rank, device + 240, 2, MPI_INT, window, &request) == 0);
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == 0);
  CHECK(MPI_Put(device_in, 1, MPI_INT, MPI_PROC_NULL, device, 1, MPI_INT, window) == 0);
  CHECK(MPI_Win_unlock_all(window) == 0);
  PMPI_Barrier(WORLD);
  to_host(seen, device_out, sizeof seen);
  CHECK(seen[4] == -previous_rank * 1000 && seen[16] == -previous_rank * 1000 - 1 && seen[17] == -previous_rank * 1000 - 2);
  CHECK(seen[50] == 1 && seen[51] == 1 && seen[60] == -previous_rank * 1000 && seen[61] == -previous_rank * 1000 - 1);
  MPI_Type_free(&absolute);
}

/* Under an exclusive lock, a read and a write are one, in device memory and in host memory; and accumulates lose nothing. */
static void exclusion(void) {
  enum { kTurns = 30 };
  int values[3] = {0, 0, 0}, one = 1;
  to_device(device_out, values, sizeof values);
  host_part[0] = 0;
  PMPI_Barrier(WORLD);
  for (int i = 0; i < kTurns; ++i) {
    CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window) == 0);
    CHECK(MPI_Get(&values[0], 1, MPI_INT, 0, device_of[0], 1, MPI_INT, window) == 0);
    CHECK(MPI_Get(&values[1], 1, MPI_INT, 0, host_of[0], 1, MPI_INT, window) == 0 && MPI_Win_flush(0, window) == 0);
    ++values[0], ++values[1];
    CHECK(MPI_Put(&values[0], 1, MPI_INT, 0, device_of[0], 1, MPI_INT, window) == 0);
    CHECK(MPI_Put(&values[1], 1, MPI_INT, 0, host_of[0], 1, MPI_INT, window) == 0);
    CHECK(MPI_Win_unlock(0, window) == 0);
    CHECK(MPI_Win_lock_all(0, window) == 0);
    CHECK(MPI_Accumulate(&one, 1, MPI_INT, 0, device_of[0] + 8, 1, MPI_INT, MPI_SUM, window) == 0);
    CHECK(MPI_Win_unlock_all(window) == 0);
  }
  PMPI_Barrier(WORLD);
  if (rank == 0) to_host(values, device_out, sizeof values);
  if (rank == 0) CHECK(values[0] == kTurns * ranks && host_part[0] == kTurns * ranks && values[2] == kTurns * ranks);
}

static void errors(void) {
  const int value = 1;
  CHECK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN) == 0);
  FAILS(MPI_ERR_RMA_ATTACH, MPI_Win_attach(window, device_out, kBytes));
  FAILS(MPI_ERR_RMA_ATTACH, MPI_Win_attach(window, device_out + 16, 16));
  FAILS(MPI_ERR_BUFFER, MPI_Win_attach(window, device_in, (MPI_Aint)1 << 40));
  FAILS(MPI_ERR_RMA_SYNC, MPI_Put(&value, 1, MPI_INT, next_rank, device_of[next_rank], 1, MPI_INT, window));
  CHECK(MPI_Win_lock(MPI_LOCK_SHARED, next_rank, 0, window) == 0);
  FAILS(MPI_ERR_RMA_RANGE, MPI_Put(device_in, 2, MPI_INT, next_rank, device_of[next_rank] + kBytes - 4, 2, MPI_INT, window));
  FAILS(MPI_ERR_RMA_RANGE, MPI_Put(device_in, 2, MPI_INT, next_rank, device_of[next_rank] - 4, 2, MPI_INT, window));
  CHECK(MPI_Win_unlock(next_rank, window) == 0);
  PMPI_Barrier(WORLD);
}

/* Memory that is detached and freed; then more regions than fit, and new memory, perhaps at the same address. */
static void attach_again(void) {
  enum { kTurns = 5 };
  MPI_Aint all[kMaxRanks];
  for (int turn = 0; turn < kTurns; ++turn) {
    int value = 100 * turn + rank, seen = -1;
    unsigned char* const memory = device_bytes(4096 << turn);
    CHECK(MPI_Win_attach(window, memory + 1024, 1024) == 0);
    CHECK(MPI_Win_attach(window, memory + 2048, 1024) == 0); /* of the same allocation */
    tell(memory + 1024, all);
    CHECK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next_rank, 0, window) == 0);
    CHECK(MPI_Put(&value, 1, MPI_INT, next_rank, all[next_rank], 1, MPI_INT, window) == 0);
    CHECK(MPI_Put(&value, 1, MPI_INT, next_rank, all[next_rank] + 1024, 1, MPI_INT, window) == 0);
    CHECK(MPI_Win_unlock(next_rank, window) == 0);
    PMPI_Barrier(WORLD);
    to_host(&seen, memory + 1024, 4);
    CHECK(seen == 100 * turn + previous_rank);
    to_host(&seen, memory + 2048, 4);
    CHECK(seen == 100 * turn + previous_rank);
    CHECK(MPI_Win_detach(window, memory + 2048) == 0 && MPI_Win_detach(window, memory + 1024) == 0);
    CHECK(cuMemFree_v2((unsigned long long)memory) == 0);
  }
  for (int i = 1; i < kMaxRegions; ++i) CHECK(MPI_Win_attach(window, device_in + 16 * i, 16) == 0);
  FAILS(MPI_ERR_RMA_ATTACH, MPI_Win_attach(window, device_in, 16));
  for (int i = 1; i < kMaxRegions; ++i) CHECK(MPI_Win_detach(window, device_in + 16 * i) == 0);
  PMPI_Barrier(WORLD);
}

static void attributes(void) {
  void* base = &base;
  MPI_Aint* size = NULL;
  int *flavor = NULL, flag = 0;
  CHECK(MPI_Win_get_attr(window, MPI_WIN_BASE, &base, &flag) == 0 && flag && base == MPI_BOTTOM);
  CHECK(MPI_Win_get_attr(window, MPI_WIN_SIZE, &size, &flag) == 0 && flag && *size == 0);
  CHECK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, &flavor, &flag) == 0 && flag && *flavor == MPI_WIN_FLAVOR_DYNAMIC);
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_SINGLE);
  MPI_Comm_group(WORLD, &everyone);
  CHECK(ranks <= kMaxRanks && MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &window) == 0);
  if (argc > 1) {
    CHECK(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN) == 0);
    FAILS(MPI_ERR_BUFFER, MPI_Win_attach(window, device_out, kBytes));
  } else {
    attributes();
    CHECK(MPI_Win_attach(window, device_out, kBytes) == 0 && MPI_Win_attach(window, host_part, sizeof host_part) == 0);
    tell(device_out, device_of), tell(host_part, host_of);
    for (enum epoch kind = 0; kind < epochs; ++kind) puts_and_gets(kind);
    other_operations();
    exclusion();
    errors();
    attach_again();
    CHECK(MPI_Win_detach(window, device_out) == 0 && MPI_Win_detach(window, host_part) == 0);
  }
  CHECK(MPI_Win_free(&window) == 0);
  MPI_Group_free(&everyone);
  MPI_Finalize();
  return 0;
}
