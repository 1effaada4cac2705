/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Collectives that CUDA streams execute: all-reduce, reduce-scatter, all-gather, all-to-all and barrier between GPUs of one
 * host that reach each other's memory. Each call queues one kernel; no CPU takes part, and calls may be captured in graphs.
 * Link -lpeerlane. C++: <peerlane/triggered.hpp>; guide: docs/stream-collectives.md.
 *
 * @code
 * peerlane_triggered_open(NULL, &context);                                            // collective
 * peerlane_stream_collectives_open(context, NULL, &all);                              // collective
 * struct peerlane_buffer values = peerlane_device_buffer(device_ptr, size_bytes);
 * peerlane_stream_all_reduce(context, all, stream, values, values, PEERLANE_BFLOAT16, PEERLANE_SUM);
 * cudaStreamSynchronize(stream);
 * if (peerlane_stream_collectives_state(context, all) != 0) puts(peerlane_last_error());
 * @endcode
 *
 * Conventions. As in <peerlane/triggered.h>: a `stream` is a CUstream or cudaStream_t, whose CUDA context is current; memory
 * is a struct peerlane_buffer of this GPU's memory, and free to use from the calling stream's next operation on.
 *
 * Order. All ranks queue the same calls in the same order, on one stream each or on streams that events order. A launch of a
 * graph counts as its calls. The kernels of one call run at the same time on all GPUs and wait for each other. Ranks that
 * share a GPU take turns on it, and a call takes milliseconds there: <peerlane/collectives.h> is for those.
 *
 * In place. Where a call names a form in place, source and destination are exactly as it says. Any other overlap is refused.
 *
 * Results. Every rank gets the same bits, and the same call gets them again: the elements are combined in the order of the
 * ranks. 8- and 16-bit floats are combined as float and rounded once, to nearest even; else as <peerlane/collectives.h>
 * says.
 *
 * Failure. A kernel that waits for longer than the time-out gives up. The collectives are then stopped: state() and every
 * call answer ETIMEDOUT, and what their destinations hold is of no use. ECONNRESET: a rank is gone, noticed by state() or by
 * a call. Close stopped collectives, and open others.
 *
 * Threads. One at a time for one object. Opening and closing are collective.
 */
#ifndef PEERLANE_STREAM_COLLECTIVES_H
#define PEERLANE_STREAM_COLLECTIVES_H

#include <peerlane/collectives.h>
#include <peerlane/triggered.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t peerlane_stream_collectives_t; /**< A number of one context, 0 is none: open .. close. */

/** Zero means the default everywhere. Where the ranks differ, the least value is used. */
struct peerlane_stream_collectives_options {
  size_t struct_bytes;       /**< sizeof(struct peerlane_stream_collectives_options): fields beyond it are not read. */
  uint32_t blocks;           /**< Most of a kernel, 64; at most 128: multiprocessors that a large collective keeps busy. */
  uint32_t reserved;         /**< 0. */
  uint64_t chunk_size_bytes; /**< Of each of the 2 * size * blocks * 2 chunks that GPU memory is kept for; 128 KiB. */
  int64_t timeout_ms;        /**< Of a kernel's wait; 0: the context's wait_timeout_ms; negative: no limit. */
};

/**
 * @brief Opens collectives between all ranks of the context. Collective.
 *
 * Takes GPU memory (70 MiB for two ranks with the defaults), which the other ranks write into.
 *
 * @param options      NULL: all defaults.
 * @param collectives  written on success.
 * @return 0; ENOTSUP: a GPU does not reach another one's memory, more than 16 ranks, or a build without nvcc; ENOMEM. The
 *         same at every rank.
 */
int peerlane_stream_collectives_open(peerlane_triggered_t context, const struct peerlane_stream_collectives_options* options,
                                     peerlane_stream_collectives_t* collectives);

/**
 * @brief Ends them. Collective, once everything queued has ended.
 * @return 0; the reason for which not all ranks came: the memory is then kept until the context closes.
 */
int peerlane_stream_collectives_close(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/** @brief Ends this rank's use without the others, once everything queued has ended: the memory stays until the context
 * closes.
 */
int peerlane_stream_collectives_release(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/** @brief 0, or the reason for which they are stopped. Does not wait. */
int peerlane_stream_collectives_state(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/**
 * @brief Stops them: kernels that wait here give up at once, those of other ranks by their time-out.
 * @param code  what later calls return; 0: ECANCELED.
 */
int peerlane_stream_collectives_cancel(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, int code);

/**
 * @brief Queues: combines the elements of all ranks, for all.
 *
 * @param source       whole elements, of one size at every rank.
 * @param destination  of the same size; in place: the source.
 * @param type         enum peerlane_element.
 * @param reduction    enum peerlane_reduction.
 * @return 0; EINVAL: not this GPU's memory, sizes, overlap; or the reason for which they are stopped.
 */
int peerlane_stream_all_reduce(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination, uint32_t type,
                               uint32_t reduction);

/**
 * @brief Queues: combines the elements of all ranks, of which each gets a block.
 * @param source       size * destination.size_bytes: a block for each rank.
 * @param destination  this rank's block; in place: that block of `source`.
 */
int peerlane_stream_reduce_scatter(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                                   struct peerlane_buffer source, struct peerlane_buffer destination, uint32_t type,
                                   uint32_t reduction);

/**
 * @brief Queues: gives every rank a block of every rank.
 * @param source       this rank's block; in place: where it lies in `destination`.
 * @param destination  size * source.size_bytes.
 */
int peerlane_stream_all_gather(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination);

/**
 * @brief Queues: gives each rank a block of each rank. Not in place.
 * @param source       a block for each rank.
 * @param destination  of the same size: a block of each rank.
 */
int peerlane_stream_all_to_all(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination);

/** @brief Queues: what is behind it begins once every rank's stream has come to it. */
int peerlane_stream_barrier(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream);

#ifdef __cplusplus
}
#endif
#endif
