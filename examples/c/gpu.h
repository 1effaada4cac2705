/* SPDX-License-Identifier: Apache-2.0
 * What the examples call of the CUDA driver, so that they need no toolkit. In your program, include <cuda.h> instead. */
#ifndef EXAMPLE_GPU_H
#define EXAMPLE_GPU_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(unsigned long long* device_ptr, size_t size_bytes);
int cuMemFree_v2(unsigned long long device_ptr);
int cuMemsetD8_v2(unsigned long long device_ptr, unsigned char value, size_t size_bytes);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamSynchronize(void* stream);
int cuStreamWaitValue32_v2(void* stream, unsigned long long device_ptr, uint32_t value, unsigned flags);
int cuStreamWriteValue32_v2(void* stream, unsigned long long device_ptr, uint32_t value, unsigned flags);
#ifdef __cplusplus
}
#endif

/* Zeroed memory of a GPU, whose context is current afterwards: of GPU `number`, counted round where there are fewer. */
static inline unsigned long long gpu_memory(int number, size_t size_bytes) {
  void* context = NULL;
  int count = 0;
  unsigned long long device_ptr = 0;
  if (cuInit(0) != 0 || cuDeviceGetCount(&count) != 0 || count == 0 ||
      cuDevicePrimaryCtxRetain(&context, number % count) != 0 || cuCtxSetCurrent(context) != 0 ||
      cuMemAlloc_v2(&device_ptr, size_bytes) != 0 || cuMemsetD8_v2(device_ptr, 0, size_bytes) != 0) {
    fprintf(stderr, "there is no GPU memory: start it with PEERLANE_GPU=sim for a simulated GPU\n");
    exit(2);
  }
  return device_ptr;
}

#endif
