// SPDX-License-Identifier: Apache-2.0
// Everything of gdsync/device.cuh, so that a compiler has seen it.
#include <gdsync/device.cuh>

static_assert(sizeof(gdsync::sem32) == 8 && sizeof(gdsync::isem32) == 16 && sizeof(gdsync::isem64) == 16,
              "kernels get them by value, from programs that were compiled with the original's header");

#ifdef __CUDACC__
__global__ void hand_on(gdsync::isem32 waited, gdsync::isem64 written, gdsync::sem32* own, int* answers) {
  answers[0] = gdsync::device::wait(waited, GDS_WAIT_COND_GEQ);
  answers[1] = gdsync::device::wait_eq(waited);
  answers[2] = gdsync::device::wait_geq(written);
  answers[3] = gdsync::device::wait_and(*own);
  answers[4] = gdsync::device::wait_nor(waited);
  gdsync::device::release(written);
  gdsync::device::release(*own);
}
#else
int read_all(gdsync::isem32& waited, gdsync::isem64& written, gdsync::sem32& own);
int read_all(gdsync::isem32& waited, gdsync::isem64& written, gdsync::sem32& own) {
  return *waited.access_once() == *own.access_once() && *written.access_once() != 0 ? gdsync::ERROR_TIMEOUT
                                                                                    : gdsync::ERROR_INVALID;
}
#endif
