// SPDX-License-Identifier: Apache-2.0
// Words that kernels wait for and release. Fences are the caller's.
#pragma once

#include <gdsync.h>

#ifdef __cplusplus

#ifdef __CUDACC__
#define GDS_HOST_DEVICE __host__ __device__
#else
#define GDS_HOST_DEVICE
#endif

namespace gdsync {

// What waits answer besides 0.
enum { ERROR_TIMEOUT = 11, ERROR_INVALID = 22 };

typedef gds_wait_cond_flag_t wait_cond_t;

// A word and what it is compared with, or becomes.
struct sem32 {
  typedef uint32_t T;
  typedef int32_t Tsigned;
  T sem;
  T value;
  GDS_HOST_DEVICE volatile T* access_once() { return &sem; }
};
typedef sem32 sem32_t;

// The same, of a word that lies elsewhere.
template <class Word, class Signed>
struct indirect_semaphore {
  typedef Word T;
  typedef Signed Tsigned;
  T* ptr;
  T value;
  GDS_HOST_DEVICE indirect_semaphore() : ptr(nullptr), value(0) {}
  GDS_HOST_DEVICE volatile T* access_once() { return ptr; }
};
struct isem32 : indirect_semaphore<uint32_t, int32_t> {};
struct isem64 : indirect_semaphore<uint64_t, int64_t> {};
typedef isem32 isem32_t;
typedef isem64 isem64_t;

#ifdef __CUDACC__
namespace device {

// So many clocks of the multiprocessor, a few seconds, then ERROR_TIMEOUT.
constexpr long long kMaxClocks = 1ll << 32;

template <class S>
__device__ inline void release(S& sem) {
  *sem.access_once() = sem.value;
}

template <class S>
__device__ inline bool is_met(typename S::T word, typename S::T value, wait_cond_t cond) {
  switch (cond) {
    case GDS_WAIT_COND_EQ:
      return word == value;
    case GDS_WAIT_COND_GEQ:
      return static_cast<typename S::Tsigned>(word - value) >= 0;
    case GDS_WAIT_COND_AND:
      return (word & value) != 0;
    default:
      return static_cast<typename S::T>(~(word | value)) != 0;
  }
}

// 0, ERROR_TIMEOUT, or ERROR_INVALID for no condition.
template <class S>
__device__ inline int wait(S& sem, wait_cond_t cond) {
  if (cond < GDS_WAIT_COND_GEQ || cond > GDS_WAIT_COND_NOR) return ERROR_INVALID;
  const long long begin = clock64();
  while (!is_met<S>(*sem.access_once(), sem.value, cond))
    if (clock64() - begin > kMaxClocks) return ERROR_TIMEOUT;
  return 0;
}
template <class S>
__device__ inline int wait_eq(S& sem) {
  return wait(sem, GDS_WAIT_COND_EQ);
}
template <class S>
__device__ inline int wait_geq(S& sem) {
  return wait(sem, GDS_WAIT_COND_GEQ);
}
template <class S>
__device__ inline int wait_and(S& sem) {
  return wait(sem, GDS_WAIT_COND_AND);
}
template <class S>
__device__ inline int wait_nor(S& sem) {
  return wait(sem, GDS_WAIT_COND_NOR);
}

}  // namespace device
#endif

}  // namespace gdsync

#endif
