/* SPDX-License-Identifier: Apache-2.0
 * What the C programs of this folder share: the few driver calls they make on the simulated GPU, and a check that ends the
 * program with the line that failed. They include no header of ours but gdrapi.h. */
#ifndef PEERLANE_TEST_C_PROGRAM_H
#define PEERLANE_TEST_C_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include "test/abi/c_check.h"

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes);
int cuMemFree_v2(unsigned long long pointer);
int cuMemcpyDtoH_v2(void* host, unsigned long long device, size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long device, const void* host, size_t bytes);

/* A zeroed buffer that starts on a 64 KiB boundary, in the primary context of device 0. */
static inline unsigned long long device_memory(size_t bytes) {
  void* context = NULL;
  unsigned long long pointer = 0;
  void* zeros = calloc(1, bytes + 65536);
  CHECK(cuInit(0) == 0);
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
  CHECK(cuCtxSetCurrent(context) == 0);
  CHECK(cuMemAlloc_v2(&pointer, bytes + 65536) == 0);
  CHECK(cuMemcpyHtoD_v2(pointer, zeros, bytes + 65536) == 0);
  free(zeros);
  return (pointer + 65535) & ~65535ull;
}

#endif
