/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Host pools: large pieces of host memory for copies to and from a GPU, for example the host side of a KV cache. Huge pages
 * where the kernel has them, on the NUMA node of the GPU, and pinned in the background, so that 100 GB are there at once.
 * Link -lpeerlane. C++: <peerlane/host_pool.hpp>.
 *
 * @code
 * struct peerlane_host_pool_options options;
 * memset(&options, 0, sizeof options);
 * options.struct_bytes = sizeof options;
 * options.size_bytes = (size_t)64 << 30;
 * peerlane_host_pool_t pool;
 * struct peerlane_host_pool_info info;
 * if (peerlane_host_pool_open(&options, &pool) != 0 || peerlane_host_pool_get_info(pool, &info) != 0)
 *   puts(peerlane_last_error());
 * // info.data is memory now; it becomes faster while info.pinned_bytes grows
 * @endcode
 *
 * The memory is pinned piece by piece from its beginning on. What is not pinned yet is ordinary memory, whose copies take
 * the way of pageable memory. Any thread may call. The memory is not there in a child of fork: touching it there is a
 * segmentation fault, and the calls answer EACCES.
 */
#ifndef PEERLANE_HOST_POOL_H
#define PEERLANE_HOST_POOL_H

#include <peerlane/copy.h>
#include <peerlane/peerlane.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_host_pool* peerlane_host_pool_t; /**< peerlane_host_pool_open .. peerlane_host_pool_close */

struct peerlane_host_pool_options {
  size_t struct_bytes;     /**< sizeof(struct peerlane_host_pool_options): fields that come later are not read. */
  size_t size_bytes;       /**< Of the pool. */
  size_t piece_size_bytes; /**< What is pinned at a time, a power of two from 64 KiB on; 0: 256 MiB. */
  int32_t device_ordinal;  /**< The GPU near which it lies. All GPUs reach it. */
  uint32_t reserved;
  /** Null, or whose lists will use the pool: what is pinned is made known to its channels too, in the background, so that
   * the first list does not wait for that (some 20 ms for each 256 MiB that it touches). It must not be closed before the
   * pool, which EBUSY tells. */
  peerlane_copier_t copier;
};

struct peerlane_host_pool_info {
  void* data; /**< Aligned to 2 MiB. Zeros where nothing was written. */
  size_t size_bytes;
  size_t pinned_bytes; /**< From the beginning on. */
  int32_t numa_node;   /**< -1: not known, or the kernel does not let the process choose. */
  int32_t
      pinning; /**< 0: goes on, or is done; else why it has stopped (ENOMEM, EIO, ...): the rest stays ordinary memory. */
};

/**
 * @brief Makes a pool, in a time that does not depend on its size.
 *
 * @param pool  written on success; end it with peerlane_host_pool_close().
 * @return 0; EINVAL: no bytes, or a wrong piece size; ENOMEM: more than the process may use or address; ENODEV: no such GPU.
 */
int peerlane_host_pool_open(const struct peerlane_host_pool_options* options, peerlane_host_pool_t* pool);

/** @return 0; EINVAL: no live pool; EACCES: in a child of fork. */
int peerlane_host_pool_get_info(peerlane_host_pool_t pool, struct peerlane_host_pool_info* info);

/**
 * @brief Waits until all is pinned. Nothing requires it.
 *
 * @param timeout_ms  negative: without a limit.
 * @return 0; ETIMEDOUT; or why pinning has stopped, with peerlane_last_error() saying how far it came.
 */
int peerlane_host_pool_wait(peerlane_host_pool_t pool, int64_t timeout_ms);

/**
 * @brief Unpins and gives the memory back. No copy of it may be under way, and nobody may touch it afterwards.
 * @return 0; EINVAL: no live pool; EACCES: in a child of fork.
 */
int peerlane_host_pool_close(peerlane_host_pool_t pool);

#ifdef __cplusplus
}
#endif
#endif
