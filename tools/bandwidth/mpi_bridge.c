// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/mpi_bridge.h"

#include <limits.h>
#include <mpi.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

// Waiting: without a pause first, as messages between ranks that measure together take microseconds; then with pauses, so
// that ranks that wait for minutes leave the CPU to those that measure.
enum { SPIN_NS = 200 * 1000, PAUSE_NS = 100 * 1000, LONG_WAIT_NS = 100 * 1000 * 1000, LONG_PAUSE_NS = 2 * 1000 * 1000 };
enum { TAG = 1 };

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_after(int64_t waited) {
  struct timespec pause = {0, waited < LONG_WAIT_NS ? PAUSE_NS : LONG_PAUSE_NS};
  if (waited > SPIN_NS) nanosleep(&pause, NULL);
}

__attribute__((visibility("default"))) int peerlane_mpi_init(struct peerlane_mpi_world* world) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int provided = 0, length = 0;
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return PL_MPI_ERROR;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world->size);
  MPI_Get_library_version(text, &length);
  size_t end = strcspn(text, ",\n");  // Open MPI goes on with its package and its date
  if (end > sizeof world->library - 1) end = sizeof world->library - 1;
  memcpy(world->library, text, end);
  world->library[end] = 0;
  return PL_MPI_OK;
}

__attribute__((visibility("default"))) int peerlane_mpi_send(int destination, const void* bytes, size_t count,
                                                             unsigned timeout_ms) {
  MPI_Request request;
  int done = 0;
  if (count > INT_MAX || MPI_Isend(bytes, (int)count, MPI_BYTE, destination, TAG, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
    return PL_MPI_ERROR;
  for (int64_t begin = now_ns();;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return PL_MPI_ERROR;
    if (done) return PL_MPI_OK;
    const int64_t waited = now_ns() - begin;
    if (waited > (int64_t)timeout_ms * 1000000) return PL_MPI_TIMEOUT;
    pause_after(waited);
  }
}

__attribute__((visibility("default"))) int peerlane_mpi_probe(int* source, size_t* count, unsigned timeout_ms) {
  MPI_Status status;
  int has_message = 0, length = 0;
  for (int64_t begin = now_ns();;) {
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &has_message, &status) != MPI_SUCCESS) return PL_MPI_ERROR;
    if (has_message) break;
    const int64_t waited = now_ns() - begin;
    if (waited > (int64_t)timeout_ms * 1000000) return PL_MPI_TIMEOUT;
    pause_after(waited);
  }
  if (MPI_Get_count(&status, MPI_BYTE, &length) != MPI_SUCCESS) return PL_MPI_ERROR;
  *source = status.MPI_SOURCE;
  *count = (size_t)length;
  return PL_MPI_OK;
}

// Blocks while the bytes of a message whose head has arrived are in transit.
__attribute__((visibility("default"))) int peerlane_mpi_take(int source, void* bytes, size_t count) {
  const int rc = MPI_Recv(bytes, (int)count, MPI_BYTE, source, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return rc == MPI_SUCCESS ? PL_MPI_OK : PL_MPI_ERROR;
}

__attribute__((visibility("default"))) void peerlane_mpi_finalize(void) { MPI_Finalize(); }

__attribute__((visibility("default"))) void peerlane_mpi_abort(void) { MPI_Abort(MPI_COMM_WORLD, 1); }
