/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Host pools: large host buffers for copies to and from a GPU, for example the host side of a KV cache. A pool uses huge
 * pages if the kernel offers them, lies on the NUMA node of the GPU, and is pinned in the background. Even a pool of 100 GB
 * can therefore be used at once. Link -lpeerlane. C++: <peerlane/host_pool.hpp>.
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
 * // info.data is usable now; copies become faster as info.pinned_bytes grows
 * @endcode
 *
 * The memory is pinned piece by piece, from its beginning. The part that is not pinned yet is ordinary pageable memory, and
 * is copied as such. Any thread may make any call. fork: a child process does not inherit the memory. There an access is a
 * segmentation fault, and every call returns EACCES.
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
  size_t struct_bytes;     /**< sizeof(struct peerlane_host_pool_options). Fields beyond this size are not read. */
  size_t size_bytes;       /**< Size of the pool. */
  size_t piece_size_bytes; /**< Bytes pinned at a time: a power of two, at least 64 KiB; 0: 256 MiB. */
  int32_t device_ordinal;  /**< The pool is near this GPU. All GPUs can access it. */
  uint32_t reserved;       /**< Must be 0. */
  /** NULL, or a copier whose lists will use the pool. Pinned pieces are then also registered with its DMA channels, in the
   * background. Otherwise the first list waits for this (some 20 ms for each 256 MiB that it uses). Close the pool before
   * the copier: peerlane_copier_close() returns EBUSY until then. */
  peerlane_copier_t copier;
};

struct peerlane_host_pool_info {
  void* data; /**< Aligned to 2 MiB. Zeros where nothing was written. */
  size_t size_bytes;
  size_t pinned_bytes; /**< Bytes pinned so far, from the beginning. */
  int32_t numa_node;   /**< -1: unknown, or the kernel does not let the process choose. */
  /** 0: pinning continues or is complete. Otherwise the errno value that stopped it (ENOMEM, EIO, ...): the rest of the pool
   * stays pageable. */
  int32_t pinning;
};

/**
 * @brief Creates a pool. The time this takes does not depend on the size.
 *
 * @param options  not kept after the call.
 * @param pool     owned by the caller; end it with peerlane_host_pool_close().
 * @return 0; EINVAL: the size is 0, or the piece size is invalid; ENOMEM: more than the process may use or address; ENODEV:
 *         no such GPU.
 */
int peerlane_host_pool_open(const struct peerlane_host_pool_options* options, peerlane_host_pool_t* pool);

/**
 * @brief Describes a pool and how far it is pinned.
 * @param info  written on success. info->data stays valid until peerlane_host_pool_close().
 * @return 0; EINVAL: the pool is not open; EACCES: in a child of fork.
 */
int peerlane_host_pool_get_info(peerlane_host_pool_t pool, struct peerlane_host_pool_info* info);

/**
 * @brief Waits until the whole pool is pinned. You never have to call it.
 *
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ETIMEDOUT; or the errno value that stopped pinning, with the number of pinned bytes in peerlane_last_error().
 */
int peerlane_host_pool_wait(peerlane_host_pool_t pool, int64_t timeout_ms);

/**
 * @brief Unpins and frees the memory. No copy may use it during or after the call.
 * @return 0; EINVAL: the pool is not open; EACCES: in a child of fork.
 */
int peerlane_host_pool_close(peerlane_host_pool_t pool);

#ifdef __cplusplus
}
#endif
#endif
