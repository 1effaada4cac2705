/* SPDX-License-Identifier: Apache-2.0
 * One-sided calls of several threads at once: operations on host memory whose buffers at the origin are device memory, which
 * each thread ends by itself; and threads that attach memory to a dynamic window while others work on it. */
#include <pthread.h>

#include "test/compat/mpi/mpi_program.h"

#define WORLD MPI_COMM_WORLD
enum { kThreads = 3, kMemory = 1 << 16, kMaxInts = 2048, kGets = 150, kAttached = 30, kPart = 100, kParts = 3 };

static MPI_Win window;
static int memory[kMemory];

static void run_threads(int n, void* (*one)(void*), void* (*other)(void*)) {
  pthread_t threads[2 * kThreads];
  int begun = 0;
  CHECK(MPI_Win_lock_all(0, window) == 0);
  for (long i = 0; i < n; ++i) {
    CHECK(pthread_create(&threads[begun++], NULL, one, (void*)i) == 0);
    if (other != NULL) CHECK(pthread_create(&threads[begun++], NULL, other, (void*)i) == 0);
  }
  for (int i = 0; i < begun; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(MPI_Win_unlock_all(window) == 0 && MPI_Win_free(&window) == 0);
}

/* The flush of one thread must not take the get of another one for ended. */
static void* get_and_flush(void* index) {
  int seen[kMaxInts];
  begin_gpu();
  int* const device = device_bytes(sizeof seen);
  for (int turn = 0; turn < kGets; ++turn) {
    const int n = 1 + (turn * 37 + (int)(long)index * 11) % kMaxInts, first = (turn * 101) % (kMemory - kMaxInts);
    MPI_Request request;
    memset(seen, 255, sizeof seen);
    to_device(device, seen, (size_t)n * sizeof *seen);
    if (turn % 3 == 2) {
      CHECK(MPI_Rget(device, n, MPI_INT, next_rank, first, n, MPI_INT, window, &request) == 0);
      CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == 0);
    } else {
      CHECK(MPI_Get(device, n, MPI_INT, next_rank, first, n, MPI_INT, window) == 0);
      CHECK((turn % 3 ? MPI_Win_flush_local(next_rank, window) : MPI_Win_flush(next_rank, window)) == 0);
    }
    to_host(seen, device, (size_t)n * sizeof *seen);
    for (int i = 0; i < n; ++i) CHECK(seen[i] == next_rank * 1000000 + first + i);
  }
  return NULL;
}

static int is_host_turn(int turn) { return turn % 4 == 3; }

static void* attach_and_detach(void* index) {
  int seen[kParts * kPart];
  begin_gpu();
  for (int turn = 0; turn < kAttached; ++turn) {
    int* const attached = is_host_turn(turn) ? malloc(sizeof seen) : device_bytes(sizeof seen);
    MPI_Aint address;
    for (int i = 0; i < kParts * kPart; ++i) seen[i] = rank * 1000 + i;
    if (is_host_turn(turn)) memcpy(attached, seen, sizeof seen);
    else to_device(attached, seen, sizeof seen);
    CHECK(MPI_Win_attach(window, attached, sizeof seen) == 0 && MPI_Get_address(attached, &address) == 0);
    CHECK(MPI_Send(&address, 1, MPI_AINT, previous_rank, (int)(long)index, WORLD) == 0);
    CHECK(MPI_Recv(NULL, 0, MPI_INT, previous_rank, kThreads + (int)(long)index, WORLD, MPI_STATUS_IGNORE) == 0);
    CHECK(MPI_Win_sync(window) == 0);
    if (is_host_turn(turn)) memcpy(seen, attached, sizeof seen);
    else to_host(seen, attached, sizeof seen);
    for (int i = 0; i < kParts * kPart; ++i)
      CHECK(seen[i] == (i < kPart ? previous_rank * 7 + turn + i : rank * 1000 + i + (i < 2 * kPart ? 1 : 0)));
    CHECK(MPI_Win_detach(window, attached) == 0);
    if (is_host_turn(turn)) free(attached);
    else CHECK(cuMemFree_v2((unsigned long long)attached) == 0);
  }
  return NULL;
}

static void* use_attached(void* index) {
  int values[kParts * kPart];
  const MPI_Aint part = kPart * (MPI_Aint)sizeof(int);
  begin_gpu();
  int* const device = device_bytes(sizeof values);
  for (int turn = 0; turn < kAttached; ++turn) {
    MPI_Aint place;
    CHECK(MPI_Recv(&place, 1, MPI_AINT, next_rank, (int)(long)index, WORLD, MPI_STATUS_IGNORE) == 0);
    for (int i = 0; i < kPart; ++i) values[i] = rank * 7 + turn + i, values[kPart + i] = 1;
    to_device(device, values, sizeof values);
    CHECK(MPI_Put(device, kPart, MPI_INT, next_rank, place, kPart, MPI_INT, window) == 0);
    CHECK(MPI_Accumulate(device + kPart, kPart, MPI_INT, next_rank, place + part, kPart, MPI_INT, MPI_SUM, window) == 0);
    CHECK(MPI_Get(device + 2 * kPart, kPart, MPI_INT, next_rank, place + 2 * part, kPart, MPI_INT, window) == 0);
    CHECK(MPI_Win_flush(next_rank, window) == 0);
    to_host(values, device, sizeof values);
    for (int i = 2 * kPart; i < kParts * kPart; ++i) CHECK(values[i] == next_rank * 1000 + i);
    CHECK(MPI_Send(NULL, 0, MPI_INT, next_rank, kThreads + (int)(long)index, WORLD) == 0);
  }
  return NULL;
}

int main(int argc, char** argv) {
  begin_test(&argc, &argv, MPI_THREAD_MULTIPLE);
  for (int i = 0; i < kMemory; ++i) memory[i] = rank * 1000000 + i;
  CHECK(MPI_Win_create(memory, sizeof memory, sizeof *memory, MPI_INFO_NULL, WORLD, &window) == 0);
  run_threads(kThreads, get_and_flush, NULL);
  CHECK(MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &window) == 0);
  run_threads(2, attach_and_detach, use_attached);
  MPI_Finalize();
  return 0;
}
