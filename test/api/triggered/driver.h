/* SPDX-License-Identifier: Apache-2.0
 * What these programs call of the CUDA driver, so that no toolkit is needed. */
#ifndef PL_TEST_DRIVER_H
#define PL_TEST_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuCtxSetCurrent(void* context);
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes);
int cuMemFree_v2(unsigned long long pointer);
int cuMemcpyDtoH_v2(void* host, unsigned long long device, size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long device, const void* host, size_t bytes);
int cuMemsetD8_v2(unsigned long long device, unsigned char value, size_t bytes);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamQuery(void* stream);
#ifdef __cplusplus
}
#endif
#endif
