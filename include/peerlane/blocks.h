/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Blocks: thousands of pages between two paged memories as one operation, for example the blocks of a KV cache between GPU
 * and host. On a GPU whose DMA channels can be used a block costs the CPU some nanoseconds and the GPU no SM
 * (docs/dma.md). Link -lpeerlane. C++: <peerlane/blocks.hpp>.
 *
 * A paged memory is a number of planes, one for each layer and for K and V, say; each plane is an array of blocks at a
 * constant stride. The indices of a side serve all of its planes:
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
 * Conventions, threads and memory order as in <peerlane/copy.h>. The memory belongs to the operation until it has ended; the
 * arrays of planes and indices are free again when the call returns.
 */
#ifndef PEERLANE_BLOCKS_H
#define PEERLANE_BLOCKS_H

#include <peerlane/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One side of a transfer of blocks. */
struct peerlane_paged_memory {
  const uint64_t* planes;    /**< Address of block 0 of each plane (a pointer, or a peerlane_device_ptr_t, as a number). */
  size_t plane_size_bytes;   /**< From a plane's first byte to the end of its last block: indices are checked against it. */
  size_t stride_bytes;       /**< From one block of a plane to the next, at least a block. */
  uint32_t memory;           /**< enum peerlane_memory, of all planes; ANY: the driver is asked about plane 0. */
  uint32_t index_size_bytes; /**< 4: `indices` are int32_t, 8: int64_t. Not read where `indices` is NULL. */
  const void* indices;       /**< `count` numbers of blocks; NULL: 0, 1, 2, ... */
};

struct peerlane_blocks {
  struct peerlane_paged_memory destination;
  struct peerlane_paged_memory source;
  size_t plane_count;      /**< Of both sides, at most 4096. */
  size_t block_size_bytes; /**< Of every block. */
  size_t count;            /**< Blocks of each plane. */
};

/**
 * @brief Copies blocks, in any order among themselves. Complete on return.
 *
 * @return 0; EINVAL, with the place of the first mistake, before anything moves: an index outside of its plane, a
 * destination block that is written twice, planes of the destination that share bytes, a block that is both read and
 * written, a plane that leaves its allocation, memory that was freed, both sides in host memory; EIO: the GPU's reason.
 * After EIO nothing is in flight; part of the destination may be written.
 */
int peerlane_blocks_copy(peerlane_copier_t copier, const struct peerlane_blocks* blocks);

/**
 * @brief Begins to copy blocks.
 *
 * Lists of more than 1 MiB have a queue of their own for each direction of the link: short copies do not wait behind them.
 *
 * @param flags   enum peerlane_begin_flags; PEERLANE_BEGIN_URGENT: not behind other long lists.
 * @param stream  a CUstream or cudaStream_t; read with PEERLANE_BEGIN_AFTER_STREAM.
 * @param op      written on success. info->size_bytes is the sum of the blocks.
 * @return as peerlane_blocks_copy(); EBUSY: the stream is being captured into a graph; EAGAIN: 4 million operations are not
 *         ended. After a failure nothing is in flight.
 */
int peerlane_blocks_begin(peerlane_copier_t copier, const struct peerlane_blocks* blocks, uint32_t flags, void* stream,
                          peerlane_op_t* op);

/* ---- Blocks with an address each -------------------------------------------------------------------------------------- */

/**
 * Blocks as arrays of addresses and sizes: destinations[i] <- sources[i], sizes_bytes[i] bytes. For what planes and indices
 * cannot say.
 */
struct peerlane_block_list {
  const uint64_t* destinations; /**< Addresses (pointers, or peerlane_device_ptr_t, as numbers). */
  const uint64_t* sources;
  const uint64_t* sizes_bytes; /**< NULL: all blocks have block_size_bytes. 0 is allowed: such a block is not looked at. */
  size_t block_size_bytes;     /**< Read where sizes_bytes is NULL. */
  size_t count;                /**< Of each array. */
  uint32_t
      destination_memory; /**< enum peerlane_memory, of all destinations; ANY: the driver is asked about the first one. */
  uint32_t source_memory; /**< Likewise. */
};

/**
 * @brief Copies such blocks, in any order among themselves. Complete on return.
 *
 * @return as peerlane_blocks_copy(), with the place of the first mistake before anything moves: bytes that two blocks
 *         write, or that are both read and written; a block that is not within one allocation; memory that was freed.
 */
int peerlane_block_list_copy(peerlane_copier_t copier, const struct peerlane_block_list* list);

/** @brief Begins to copy such blocks; parameters and errors as peerlane_blocks_begin(). */
int peerlane_block_list_begin(peerlane_copier_t copier, const struct peerlane_block_list* list, uint32_t flags, void* stream,
                              peerlane_op_t* op);

#ifdef __cplusplus
}
#endif
#endif
