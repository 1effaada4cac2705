/* SPDX-License-Identifier: Apache-2.0
 * Four threads of each rank exchange messages of device memory at the same time, without a CUDA context of their own. */
#include <pthread.h>

#include "test/compat/mpi/mpi_program.h"

enum { kThreads = 4, kRounds = 25, kInts = 3000 };

struct worker {
  int id;
  MPI_Comm comm;
  int *source, *target;
};

static void* run(void* argument) {
  struct worker* const worker = argument;
  int* const data = malloc(kInts * sizeof(int));
  for (int round = 0; round < kRounds; ++round) {
    const int n = 1 + (round * 131 + worker->id * 977) % kInts;
    MPI_Request list[4];
    int some, indices[4], sum[2], flag = 0;
    for (int i = 0; i < n; ++i) data[i] = rank * 1000000 + worker->id * 100000 + round + i;
    /* MPI itself puts the data there. */
    CHECK(MPI_Sendrecv(data, n, MPI_INT, 0, worker->id, worker->source, n, MPI_INT, 0, worker->id, MPI_COMM_SELF,
                       MPI_STATUS_IGNORE) == 0);
    CHECK(MPI_Irecv(worker->target, kInts, MPI_INT, previous_rank, 1, worker->comm, &list[0]) == 0);
    CHECK(MPI_Irecv(worker->target + kInts, kInts, MPI_INT, MPI_ANY_SOURCE, 2, worker->comm, &list[1]) == 0);
    CHECK(MPI_Isend(worker->source, n, MPI_INT, next_rank, 1, worker->comm, &list[2]) == 0);
    CHECK(MPI_Isend(worker->source, n / 2, MPI_INT, next_rank, 2, worker->comm, &list[3]) == 0);
    if (round % 2) do
        CHECK(MPI_Testsome(4, list, &some, indices, MPI_STATUSES_IGNORE) == 0);
      while (some != MPI_UNDEFINED);
    else do
        CHECK(MPI_Testall(4, list, &flag, MPI_STATUSES_IGNORE) == 0);
      while (!flag);
    CHECK(MPI_Allreduce(worker->source, worker->target + 2 * kInts, 2, MPI_INT, MPI_MAX, worker->comm) == 0);
    CHECK(MPI_Sendrecv(worker->target, n, MPI_INT, 0, worker->id, data, n, MPI_INT, 0, worker->id, MPI_COMM_SELF,
                       MPI_STATUS_IGNORE) == 0);
    for (int i = 0; i < n; ++i) CHECK(data[i] == previous_rank * 1000000 + worker->id * 100000 + round + i);
    CHECK(MPI_Sendrecv(worker->target + 2 * kInts, 2, MPI_INT, 0, worker->id, sum, 2, MPI_INT, 0, worker->id, MPI_COMM_SELF,
                       MPI_STATUS_IGNORE) == 0);
    CHECK(sum[0] == (ranks - 1) * 1000000 + worker->id * 100000 + round);
  }
  free(data);
  return NULL;
}

int main(int argc, char** argv) {
  struct worker workers[kThreads];
  pthread_t threads[kThreads];
  begin_test(&argc, &argv, MPI_THREAD_MULTIPLE);
  for (int i = 0; i < kThreads; ++i) {
    workers[i].id = i;
    CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &workers[i].comm) == 0);
    workers[i].source = device_bytes(kInts * sizeof(int));
    workers[i].target = device_bytes(3 * kInts * sizeof(int));
  }
  for (int i = 0; i < kThreads; ++i) CHECK(pthread_create(&threads[i], NULL, run, &workers[i]) == 0);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  MPI_Finalize();
  return 0;
}
