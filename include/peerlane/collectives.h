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
 * Conventions. As in <peerlane/communicator.h>. Every call begins an operation (<peerlane/operation.h>); its info has no
 * source, and size_bytes is what this rank was given.
 *
 * Order. All ranks begin the same collectives in the same order, with sizes that fit together; one thread of a rank at a
 * time begins them. Several may be under way. Messages of users and collectives never match each other.
 *
 * In place. Where a call names a form in place, source and destination are exactly as it says. Any other overlap is refused.
 *
 * Results. Every rank that gets a reduction gets the same bits, and the same call with the same ranks and table of
 * algorithms gets them again. 8- and 16-bit floats are combined as float, and every combination of two is rounded to nearest
 * even; float16 and bfloat16 overflow to infinity, the 8-bit ones (OCP e4m3, e5m2) saturate. Integers wrap. Minimum and
 * maximum are NaN if one of their operands is.
 *
 * GPU memory. Bytes move straight between GPU memories where messages do. Long reductions are combined by kernels of the GPU
 * that has source and destination, others by the CPU in host memory, to which the source is copied first. Nothing is ordered
 * with streams: what wrote the source has ended. <peerlane/stream_collectives.h> has collectives that streams execute.
 *
 * Failure. A collective that fails anywhere ends with an error at every rank that has not completed it, and so does whatever
 * else is under way: collectives are stopped. Until peerlane_comm_restore_collectives() each call returns that error.
 * Messages go on. The errors: ECONNRESET, a rank is gone; EMSGSIZE, the ranks' sizes differ; ECANCELED, a rank has released
 * an operation that had not ended. A wait that times out leaves the collective under way, as for every operation.
 *
 * Progress. Inside calls on the communicator and its operations. peerlane_op_cancel() answers EBUSY.
 */
#ifndef PEERLANE_COLLECTIVES_H
#define PEERLANE_COLLECTIVES_H

#include <peerlane/communicator.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Types of elements. */
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

/** Operations of reductions. */
enum peerlane_reduction {
  PEERLANE_SUM = 0,     /**< Integers wrap. */
  PEERLANE_PRODUCT = 1, /**< Integers wrap. */
  PEERLANE_MINIMUM = 2, /**< NaN if an operand is. */
  PEERLANE_MAXIMUM = 3  /**< NaN if an operand is. */
};

/**
 * @brief Begins a barrier: it ends once every rank has begun it.
 *
 * @param op  begins.
 * @return 0; or the error for which collectives are stopped.
 */
int peerlane_comm_ibarrier(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Begins to give the root's bytes to all.
 *
 * @param buffer  of one size at every rank: read at the root, written at the others.
 * @param root    a rank.
 * @return 0; EINVAL: no such rank, or no such memory; or the error for which collectives are stopped.
 */
int peerlane_comm_ibroadcast(peerlane_comm_t comm, struct peerlane_buffer buffer, int root, peerlane_op_t* op);

/**
 * @brief Begins to collect a block of every rank at the root.
 *
 * @param source       of one size at every rank. In place at the root: where its block lies in `destination`.
 * @param destination  at the root: size * source.size_bytes, the blocks by rank. Elsewhere not read.
 * @return as peerlane_comm_ibroadcast(). EINVAL: sizes that do not fit, memory that overlaps.
 */
int peerlane_comm_igather(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination, int root,
                          peerlane_op_t* op);

/**
 * @brief Begins to give each rank its block of the root's memory.
 *
 * @param source       at the root: size * destination.size_bytes, the blocks by rank. Elsewhere not read.
 * @param destination  of one size at every rank. In place at the root: its own block of `source`.
 */
int peerlane_comm_iscatter(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination, int root,
                           peerlane_op_t* op);

/**
 * @brief Begins to give every rank a block of every rank.
 *
 * @param source       of one size at every rank. In place: where this rank's block lies in `destination`.
 * @param destination  size * source.size_bytes, the blocks by rank.
 */
int peerlane_comm_iall_gather(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              peerlane_op_t* op);

/**
 * @brief Begins to combine the elements of all ranks at the root.
 *
 * @param source       of one size at every rank: whole elements.
 * @param destination  at the root: of the same size; in place: the source. Elsewhere not read.
 * @param type         enum peerlane_element.
 * @param reduction    enum peerlane_reduction.
 */
int peerlane_comm_ireduce(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                          uint32_t type, uint32_t reduction, int root, peerlane_op_t* op);

/** @brief Begins to combine the elements of all ranks, for all; else as peerlane_comm_ireduce(). */
int peerlane_comm_iall_reduce(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              uint32_t type, uint32_t reduction, peerlane_op_t* op);

/**
 * @brief Begins to combine the elements of all ranks, of which each gets a block.
 *
 * @param source       the blocks of all ranks, one after the other.
 * @param destination  this rank's block. In place: that block of `source`.
 * @param counts       the elements of each rank's block, the same at every rank; read within the call.
 */
int peerlane_comm_ireduce_scatter(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                                  const size_t* counts, uint32_t type, uint32_t reduction, peerlane_op_t* op);

/**
 * @brief Begins to give each rank a block of each rank.
 *
 * @param source       the blocks for each rank, all of one size, at every rank.
 * @param destination  of the same size, the blocks from each rank. In place: the source.
 */
int peerlane_comm_iall_to_all(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                              peerlane_op_t* op);

/** The blocks of one side: `size` lengths and offsets in bytes, by rank; read within the call. */
struct peerlane_block_sizes {
  const size_t* size_bytes;
  const size_t* offset_bytes;
};

/**
 * @brief The same with blocks of any sizes.
 *
 * @param sent         the blocks of `source`. What goes to rank r is as long as what r expects from this rank.
 * @param received     the blocks of `destination`, which do not overlap.
 * @param destination  in place: the source.
 */
int peerlane_comm_iall_to_allv(peerlane_comm_t comm, struct peerlane_buffer source, const struct peerlane_block_sizes* sent,
                               struct peerlane_buffer destination, const struct peerlane_block_sizes* received,
                               peerlane_op_t* op);

/**
 * @brief Lets collectives begin again after a failure. Collective: every rank calls it, whether it saw the failure or not.
 *
 * What is under way ends with ECANCELED. Nothing of what the ranks did before it reaches a collective that begins after it.
 *
 * In an elastic job (peerlane_comm_options::elastic) it waits until who is gone has come back, and takes it back as by
 * peerlane_comm_await_return(). There every loss of a rank stops collectives and barriers until this call, and a process
 * that has come back begins with it.
 *
 * @return 0; ECONNRESET: a rank is gone, so this communicator has no collectives any more; in an elastic job another
 * rank was lost meanwhile (peerlane_comm_peer_state() tells): call it again; ETIMEDOUT: not every rank came, and the
 * next call goes on with it.
 */
int peerlane_comm_restore_collectives(peerlane_comm_t comm, int64_t timeout_ms);

/**
 * @brief The table by which collectives choose an algorithm, as lines that PEERLANE_COLLECTIVES_TABLE reads.
 *
 * @param text    gets at most capacity - 1 characters and an end.
 * @param needed  may be NULL; becomes the full length.
 */
int peerlane_comm_algorithms(peerlane_comm_t comm, char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
