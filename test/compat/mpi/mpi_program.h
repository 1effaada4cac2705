/* SPDX-License-Identifier: Apache-2.0
 * What the programs of this folder share: two buffers in device memory, their twins in host memory, and a call made on both.
 * The MPI function (through the preloaded library) gets the device's, the PMPI function (the MPI library itself) the host's;
 * then every byte must be the same, also those that the call must not touch. */
#ifndef PEERLANE_TEST_MPI_PROGRAM_H
#define PEERLANE_TEST_MPI_PROGRAM_H

#include <mpi.h>
#include <string.h>

#include "test/abi/c_program.h"

enum { kBytes = 32 * 1024 };

static unsigned char *device_in, *device_out, *host_in, *host_out;
static int rank, ranks, next_rank, previous_rank;
static unsigned round_number;

static inline void to_device(void* device, const void* host, size_t bytes) {
  CHECK(cuMemcpyHtoD_v2((unsigned long long)device, host, bytes) == 0 && cuCtxSynchronize() == 0);
}

static inline void to_host(void* host, const void* device, size_t bytes) {
  CHECK(cuMemcpyDtoH_v2(host, (unsigned long long)device, bytes) == 0);
}

static inline void reset(void) {
  ++round_number;
  for (unsigned i = 0; i < kBytes; ++i) {
    host_in[i] = (unsigned char)(i * 7 + (unsigned)rank * 31 + round_number * 13);
    host_out[i] = (unsigned char)(i * 11 + 100 + round_number);
  }
  to_device(device_in, host_in, kBytes);
  to_device(device_out, host_out, kBytes);
}

static inline void compare(const char* label, int line) {
  static unsigned char seen[kBytes];
  for (int buffer_index = 0; buffer_index < 2; ++buffer_index) {
    const unsigned char* wanted = buffer_index ? host_out : host_in;
    to_host(seen, buffer_index ? device_out : device_in, kBytes);
    for (int i = 0; i < kBytes; ++i)
      if (seen[i] != wanted[i]) {
        fprintf(stderr, "line %d, rank %d: %s: byte %d of the %s buffer is %d, with host memory %d\n", line, rank, label, i,
                buffer_index ? "second" : "first", seen[i], wanted[i]);
        exit(1);
      }
  }
}

/* The arguments name `input` and `output`. */
#define BOTH(function, ...)                                 \
  do {                                                      \
    reset();                                                \
    unsigned char *input = device_in, *output = device_out; \
    (void)input, (void)output;                              \
    CHECK(MPI_##function(__VA_ARGS__) == 0);                \
    input = host_in, output = host_out;                     \
    CHECK(PMPI_##function(__VA_ARGS__) == 0);               \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__);      \
  } while (0)

/* Functions that make a request, which must be `&request`. */
#define BOTH_LATER(function, ...)                           \
  do {                                                      \
    MPI_Request request;                                    \
    reset();                                                \
    unsigned char *input = device_in, *output = device_out; \
    (void)input, (void)output;                              \
    CHECK(MPI_##function(__VA_ARGS__) == 0);                \
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == 0);      \
    CHECK(request == MPI_REQUEST_NULL);                     \
    input = host_in, output = host_out;                     \
    CHECK(PMPI_##function(__VA_ARGS__) == 0);               \
    CHECK(PMPI_Wait(&request, MPI_STATUS_IGNORE) == 0);     \
    compare(#function "(" #__VA_ARGS__ ")", __LINE__);      \
  } while (0)

static inline void begin_gpu(void) {
  void* context = NULL;
  CHECK(cuInit(0) == 0);
  CHECK(cuDevicePrimaryCtxRetain(&context, rank % 2) == 0 && cuCtxSetCurrent(context) == 0);
}

static inline void* device_bytes(size_t bytes) {
  unsigned long long pointer = 0;
  CHECK(cuMemAlloc_v2(&pointer, bytes) == 0);
  return (void*)pointer;
}

static inline void begin_test(int* argc, char*** argv, int threads) {
  int provided = 0;
  CHECK(MPI_Init_thread(argc, argv, threads, &provided) == 0 && provided >= threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  next_rank = (rank + 1) % ranks;
  previous_rank = (rank + ranks - 1) % ranks;
  begin_gpu();
  device_in = device_bytes(kBytes);
  device_out = device_bytes(kBytes);
  host_in = malloc(kBytes);
  host_out = malloc(kBytes);
}

#endif
