/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Collectives between all ranks of a communicator (<peerlane/communicator.h>), on host or GPU memory: barrier, broadcast,
 * gather, scatter, all-gather, reduce, all-reduce, reduce-scatter, all-to-all. Link -lpeerlane. C++ and Python have them as
 * members of their communicators; guide: docs/collectives.md.
 *
 * @code
 * peerlane_op_t op = PEERLANE_OP_INIT;
 * struct peerlane_buffer gradients = peerlane_host_buffer(values, count * sizeof(float));
 * peerlane_comm_iall_reduce(comm, gradients, gradients, PEERLANE_FLOAT32, PEERLANE_SUM, &op);   // in place
 * if (peerlane_op_wait(&op, 10000, NULL) != 0) puts(peerlane_op_last_error(&op));
 * @endcode
 *
 * Conventions. As in <peerlane/communicator.h>. Every call starts an operation (<peerlane/operation.h>) and writes `op` on
 * success. The buffers belong to the operation until it has ended. Its info has no source; size_bytes is the number of bytes
 * that this rank received.
 *
 * Order. All ranks must start the same collectives in the same order, with matching sizes. Only one thread of a rank at a
 * time may start them. Several may be in progress. Messages and collectives never match each other.
 *
 * In place. If a call has an in-place form, source and destination must be exactly as described. Any other overlap is
 * refused.
 *
 * Results. Every rank that gets the result of a reduction gets the same bits. The same call with the same ranks and table of
 * algorithms gets the same bits again. 8- and 16-bit floats are combined as float, and each combination of two is rounded to
 * nearest even; float16 and bfloat16 overflow to infinity, 8-bit floats (OCP e4m3, e5m2) saturate. Integers wrap. Minimum
 * and maximum are NaN if an operand is NaN.
 *
 * GPU memory. Bytes move directly between GPU memories if messages do. A kernel combines long reductions on the GPU that
 * holds source and destination. The CPU combines others in host memory, after copying the source there. Collectives are not
 * ordered with streams: the work that writes the source must have ended. <peerlane/stream_collectives.h> has collectives
 * that streams execute.
 *
 * Failure. If a collective fails, it ends with an error at every rank that has not completed it, and so do all others in
 * progress: collectives are *stopped*. Until peerlane_comm_restore_collectives(), each call returns that error. Messages
 * continue. ECONNRESET: a rank has gone; EMSGSIZE: the ranks' sizes differ; ECANCELED: a rank released an operation before
 * its end. After a wait that times out, the collective continues.
 *
 * Progress happens inside calls on the communicator and its operations. Collectives cannot be cancelled (EBUSY).
 */
#ifndef PEERLANE_COLLECTIVES_H
#define PEERLANE_COLLECTIVES_H

#include <peerlane/communicator.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Element types. */
enum peerlane_element {
  PEERLANE_INT8 = 0,
  PEERLANE_INT16 = 1,
  PEERLANE_INT32 = 2,
  PEERLANE_INT64 = 3,
  PEERLANE_UINT8 = 4,
  PEERLANE_UINT16 = 5,
  PEERLANE_UINT32 = 6,
  PEERLANE_UINT64 = 7,
  PEERLANE_FLOAT16 = 8,
  PEERLANE_BFLOAT16 = 9,
  PEERLANE_FLOAT32 = 10,
  PEERLANE_FLOAT64 = 11,
  PEERLANE_FLOAT8_E4M3 = 12,
  PEERLANE_FLOAT8_E5M2 = 13
};

/** Reduction operations. */
enum peerlane_reduction {
  PEERLANE_SUM = 0,     /**< Integers wrap. */
  PEERLANE_PRODUCT = 1, /**< Integers wrap. */
  PEERLANE_MINIMUM = 2, /**< NaN if an operand is NaN. */
  PEERLANE_MAXIMUM = 3  /**< NaN if an operand is NaN. */
};

/**
 * @brief Starts a barrier. It ends when every rank has started it.
 * @return 0; or the error that stopped the collectives.
 */
int peerlane_comm_ibarrier(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Starts a broadcast: copies the root's buffer to all ranks.
 *
 * @param buffer  of the same size at every rank; read at the root, written at the others.
 * @param root    a rank.
 * @return 0; EINVAL: no such rank, or invalid memory; or the error that stopped the collectives.
 */
int peerlane_comm_ibroadcast(peerlane_comm_t comm, struct peerlane_buffer buffer, int root, peerlane_op_t* op);

/**
 * @brief Starts a gather: collects one block from every rank at the root.
 *
 * @param source       of the same size at every rank. In place at the root: its own block in `destination`.
 * @param destination  at the root size * source.size_bytes bytes, the blocks in rank order; ignored at other ranks.
 * @return as peerlane_comm_ibroadcast(); EINVAL: the sizes do not match, or the buffers overlap.
 */
int peerlane_comm_igather(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination, int root,
                          peerlane_op_t* op);

/**
 * @brief Starts a scatter: sends one block of the root's memory to each rank.
 *
 * @param source       at the root size * destination.size_bytes bytes, the blocks in rank order; ignored at other ranks.
 * @param destination  of the same size at every rank. In place at the root: its own block of `source`.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_iscatter(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination, int root,
                           peerlane_op_t* op);

/**
 * @brief Starts an all-gather: collects one block from every rank at every rank.
 *
 * @param source       of the same size at every rank. In place: this rank's block in `destination`.
 * @param destination  size * source.size_bytes bytes, the blocks in rank order.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_iall_gather(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              peerlane_op_t* op);

/**
 * @brief Starts a reduce: combines the elements of all ranks at the root.
 *
 * @param source       whole elements, of the same size at every rank.
 * @param destination  at the root of the same size (in place: the source); ignored at other ranks.
 * @param type         enum peerlane_element.
 * @param reduction    enum peerlane_reduction.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_ireduce(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                          uint32_t type, uint32_t reduction, int root, peerlane_op_t* op);

/** @brief Starts an all-reduce: every rank gets the result; otherwise as peerlane_comm_ireduce(). */
int peerlane_comm_iall_reduce(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              uint32_t type, uint32_t reduction, peerlane_op_t* op);

/**
 * @brief Starts a reduce-scatter: combines the elements of all ranks, and each rank gets one block of the result.
 *
 * @param source       the blocks of all ranks, one after the other.
 * @param destination  this rank's block. In place: that block of `source`.
 * @param counts       number of elements in each rank's block, the same at every rank; not kept after the call.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_ireduce_scatter(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                                  const size_t* counts, uint32_t type, uint32_t reduction, peerlane_op_t* op);

/**
 * @brief Starts an all-to-all: every rank sends one block to each rank.
 *
 * @param source       the blocks for the ranks, all of the same size at every rank.
 * @param destination  of the same size: the blocks from the ranks. In place: the source.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_iall_to_all(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              peerlane_op_t* op);

/** The blocks of one side, in rank order. The arrays have one entry for each rank and are not kept after the call. */
struct peerlane_block_sizes {
  const size_t* size_bytes;   /**< Length of each block. */
  const size_t* offset_bytes; /**< Of each block, from the begin of the buffer. */
};

/**
 * @brief Starts an all-to-all with blocks of different sizes.
 *
 * @param sent         the blocks of `source`. The block for rank r must be as long as r expects from this rank.
 * @param destination  in place: the source.
 * @param received     the blocks of `destination`, which must not overlap.
 * @return as peerlane_comm_igather().
 */
int peerlane_comm_iall_to_allv(peerlane_comm_t comm, struct peerlane_buffer source, const struct peerlane_block_sizes* sent,
                               struct peerlane_buffer destination, const struct peerlane_block_sizes* received,
                               peerlane_op_t* op);

/**
 * @brief Enables collectives again after a failure. Collective: every rank calls it, whether it saw the failure or not.
 *
 * Collectives in progress end with ECANCELED. Their data never reaches a collective that starts afterwards.
 *
 * In an elastic job (peerlane_comm_options::elastic) the call waits until lost ranks have come back, and accepts them as
 * peerlane_comm_await_return() does. In such a job every loss of a rank stops collectives and barriers until this call. A
 * process that has come back calls it first.
 *
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ECONNRESET: a rank has gone, and this communicator has no collectives any more. In an elastic job: another rank
 *         was lost meanwhile (peerlane_comm_peer_state() tells which): call again; ETIMEDOUT: not every rank has called, and
 *         the next call continues.
 */
int peerlane_comm_restore_collectives(peerlane_comm_t comm, int64_t timeout_ms);

/**
 * @brief Returns the table that selects algorithms, in the format that PEERLANE_COLLECTIVES_TABLE reads.
 *
 * @param text      receives at most capacity - 1 characters and a terminating null.
 * @param capacity  of text, in bytes.
 * @param needed    may be NULL; receives the full length without the terminating null.
 */
int peerlane_comm_algorithms(peerlane_comm_t comm, char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
