/* SPDX-License-Identifier: Apache-2.0
 * A program that does without CUDA pays next to nothing and never gets libcuda; when it loads libcuda later, its device
 * memory is known at once; a forked child gets an error instead of a fault. Not linked with libcuda. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test/abi/c_check.h"

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

typedef int (*send_function)(const void*, int, MPI_Datatype, int, int, MPI_Comm);

static double best_of(send_function send) {
  enum { kCalls = 20000, kTries = 15 };
  static int data[16];
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    const double begin = now_ns();
    for (int j = 0; j < kCalls; ++j) send(data, 16, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    const double took = (now_ns() - begin) / kCalls;
    if (took < best) best = took;
  }
  return best;
}

static void* call(void* library, const char* name) {
  void* const found = dlsym(library, name);
  CHECK(found != NULL);
  return found;
}

int main(int argc, char** argv) {
  CHECK(MPI_Init(&argc, &argv) == 0);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const double with_library = best_of(MPI_Send), without_library = best_of(PMPI_Send);
  printf("a call on host memory costs %.1f ns more\n", with_library - without_library);
  CHECK(with_library - without_library < 50);
  CHECK(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) == NULL);

  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(library != NULL);
  void* context;
  unsigned long long device;
  CHECK(((int (*)(unsigned))call(library, "cuInit"))(0) == 0);
  CHECK(((int (*)(void**, int))call(library, "cuDevicePrimaryCtxRetain"))(&context, 0) == 0);
  CHECK(((int (*)(void*))call(library, "cuCtxSetCurrent"))(context) == 0);
  CHECK(((int (*)(unsigned long long*, size_t))call(library, "cuMemAlloc_v2"))(&device, 4096) == 0);
  int sent[5] = {1, 2, 3, 4, 5}, got[5] = {0};
  int* const ints = (int*)device;
  CHECK(MPI_Sendrecv(sent, 5, MPI_INT, 0, 0, ints, 5, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE) == 0);
  CHECK(MPI_Sendrecv(ints, 5, MPI_INT, 0, 0, got, 5, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE) == 0);
  CHECK(got[0] == 1 && got[4] == 5);

  const pid_t child = fork();
  if (child == 0) _exit(MPI_Send(ints, 5, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD) == MPI_ERR_BUFFER ? 0 : 1);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  MPI_Finalize();
  return 0;
}
