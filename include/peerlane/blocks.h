/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Blocks: copies thousands of pages between two paged memories in one operation, for example the blocks of a KV cache
 * between GPU and host. With DMA channels (docs/dma.md), a block costs the CPU some nanoseconds and uses no SM. Link
 * -lpeerlane. C++: <peerlane/blocks.hpp>; guide: docs/blocks.md.
 *
 * A paged memory consists of planes, for example one for each layer and for K and V. Each plane is an array of blocks with a
 * constant stride. The indices of a side apply to all of its planes:
 *
 *     for each plane p, for each i < count:
 *       destination.planes[p] + destination index i * stride  <-  source.planes[p] + source index i * stride
 *
 * @code
 * // Blocks 7, 3 and 900 of 32 layers, K and V, to blocks 0, 1 and 2 of a pinned host pool in which a page holds all planes.
 * struct peerlane_blocks blocks;
 * memset(&blocks, 0, sizeof blocks);
 * blocks.block_size_bytes = 8192;
 * blocks.count = 3;
 * blocks.plane_count = 64;
 * blocks.source = (struct peerlane_paged_memory){planes, pages * 8192, 8192, PEERLANE_MEMORY_DEVICE, 4, gpu_blocks};
 * blocks.destination =
 *     (struct peerlane_paged_memory){host_planes, host_plane_bytes, 64 * 8192, PEERLANE_MEMORY_HOST, 4, host_blocks};
 * peerlane_op_t op;
 * if (peerlane_blocks_begin(copier, &blocks, PEERLANE_BEGIN_AFTER_STREAM, stream, &op) != 0) puts(peerlane_last_error());
 * @endcode
 *
 * Conventions, threads and memory order are those of <peerlane/copy.h>. The memory belongs to the operation until it has
 * ended. The arrays of planes and indices are not kept after the call.
 */
#ifndef PEERLANE_BLOCKS_H
#define PEERLANE_BLOCKS_H

#include <peerlane/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One side of a copy of blocks. */
struct peerlane_paged_memory {
  const uint64_t* planes;    /**< Address of block 0 of each plane (a pointer, or a peerlane_device_ptr_t, as a number). */
  size_t plane_size_bytes;   /**< From a plane's first byte to the end of its last block: indices are checked against it. */
  size_t stride_bytes;       /**< From one block of a plane to the next, at least a block. */
  uint32_t memory;           /**< enum peerlane_memory of all planes; ANY: the driver is asked about plane 0. */
  uint32_t index_size_bytes; /**< 4: `indices` are int32_t; 8: int64_t. Not read if `indices` is NULL. */
  const void* indices;       /**< `count` block numbers; NULL: 0, 1, 2, ... */
};

/** A copy of blocks. */
struct peerlane_blocks {
  struct peerlane_paged_memory destination;
  struct peerlane_paged_memory source;
  size_t plane_count;      /**< Planes of each side, at most 4096. */
  size_t block_size_bytes; /**< Size of every block. */
  size_t count;            /**< Blocks to copy in each plane. */
};

/**
 * @brief Copies blocks, in any order. Complete on return.
 *
 * All arguments are checked before anything moves; the error names the first invalid one.
 *
 * @return 0; EINVAL: an index is outside its plane, a destination block is written twice, planes of the destination share
 *         bytes, a block is both read and written, a plane leaves its allocation, the memory was freed, or both sides are in
 *         host memory; EIO: the GPU reported an error. After EIO nothing is in flight; part of the destination may have been
 *         written.
 */
int peerlane_blocks_copy(peerlane_copier_t copier, const struct peerlane_blocks* blocks);

/**
 * @brief Starts a copy of blocks and returns without waiting for it.
 *
 * Lists of more than 1 MiB use a separate queue for each direction of the link, so short copies do not wait for them.
 *
 * @param flags   enum peerlane_begin_flags. PEERLANE_BEGIN_URGENT: do not queue behind other long lists.
 * @param stream  a CUstream or cudaStream_t; used only with PEERLANE_BEGIN_AFTER_STREAM.
 * @param op      written on success. info->size_bytes is the sum of the blocks.
 * @return as peerlane_blocks_copy(); EBUSY: the stream is being captured into a graph; EAGAIN: 4 million operations have not
 *         ended yet. After a failure nothing is in flight.
 */
int peerlane_blocks_begin(peerlane_copier_t copier, const struct peerlane_blocks* blocks, uint32_t flags, void* stream,
                          peerlane_op_t* op);

/* ---- Blocks by address ------------------------------------------------------------------------------------------------ */

/**
 * Blocks as arrays of addresses and sizes: destinations[i] <- sources[i], sizes_bytes[i] bytes. For layouts without planes
 * and indices.
 */
struct peerlane_block_list {
  const uint64_t* destinations; /**< Addresses (pointers, or peerlane_device_ptr_t, as numbers). */
  const uint64_t* sources;      /**< Addresses, as above. */
  const uint64_t* sizes_bytes;  /**< NULL: all blocks have block_size_bytes. A block of size 0 is ignored. */
  size_t block_size_bytes;      /**< Used if sizes_bytes is NULL. */
  size_t count;                 /**< Length of each array. */
  uint32_t
      destination_memory; /**< enum peerlane_memory, of all destinations; ANY: the driver is asked about the first one. */
  uint32_t source_memory; /**< Likewise. */
};

/**
 * @brief Copies blocks by address, in any order. Complete on return.
 *
 * @param list  not kept after the call.
 * @return as peerlane_blocks_copy(); EINVAL: two blocks write the same bytes, bytes are both read and written, a block is
 *         not within one allocation, or the memory was freed.
 */
int peerlane_block_list_copy(peerlane_copier_t copier, const struct peerlane_block_list* list);

/** @brief Starts a copy of blocks by address; parameters and errors are those of peerlane_blocks_begin(). */
int peerlane_block_list_begin(peerlane_copier_t copier, const struct peerlane_block_list* list, uint32_t flags, void* stream,
                              peerlane_op_t* op);

#ifdef __cplusplus
}
#endif
#endif
