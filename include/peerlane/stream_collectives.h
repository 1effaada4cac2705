/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Collectives that CUDA streams execute: all-reduce, reduce-scatter, all-gather, all-to-all and barrier between GPUs of one
 * host that can access each other's memory. Each call queues one kernel. No CPU takes part, and graphs can capture calls.
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
 * Conventions. As in <peerlane/triggered.h>. A `stream` is a CUstream or cudaStream_t whose CUDA context is current. Memory
 * is passed as a struct peerlane_buffer of this GPU's memory. The next operation of the stream may use it again.
 *
 * Order. All ranks must queue the same calls in the same order, on one stream each or on streams that events order. The
 * launch of a graph counts as its calls. The kernels of one call run at the same time on all GPUs and wait for each other.
 * Ranks that share a GPU take turns on it, and a call then takes milliseconds: use <peerlane/collectives.h> there.
 *
 * In place. If a call has an in-place form, source and destination must be exactly as described. Any other overlap is
 * refused.
 *
 * Results. Every rank gets the same bits, and the same call gets the same bits again: the elements are combined in rank
 * order. 8- and 16-bit floats are combined as float and rounded once, to nearest even. Otherwise the rules of
 * <peerlane/collectives.h> apply.
 *
 * Failure. A kernel that waits for longer than the timeout gives up. The collectives are then *stopped*: state() and every
 * call return ETIMEDOUT, and the contents of the destinations are undefined. ECONNRESET: state() or a call has noticed that
 * a rank has gone. Close stopped collectives, and open others.
 *
 * Threads. Only one thread at a time may use an object. Opening and closing are collective.
 */
#ifndef PEERLANE_STREAM_COLLECTIVES_H
#define PEERLANE_STREAM_COLLECTIVES_H

#include <peerlane/collectives.h>
#include <peerlane/triggered.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t peerlane_stream_collectives_t; /**< A number within one context; 0 means none: open .. close. */

/** In every field, zero means the default. If the ranks differ, the smallest value is used. */
struct peerlane_stream_collectives_options {
  size_t struct_bytes;       /**< sizeof(struct peerlane_stream_collectives_options). Fields beyond it are not read. */
  uint32_t blocks;           /**< Most blocks of a kernel, so most multiprocessors that a large collective uses; default 64,
                                  at most 128. */
  uint32_t reserved;         /**< Must be 0. */
  uint64_t chunk_size_bytes; /**< Size of each of the 2 * size * blocks * 2 chunks in GPU memory; default 128 KiB. */
  int64_t timeout_ms;        /**< Of a kernel's wait, in ms; 0: the context's wait_timeout_ms; negative: no limit. */
};

/**
 * @brief Opens collectives between all ranks of the context. Collective.
 *
 * Allocates GPU memory into which the other ranks write (70 MiB for two ranks with the defaults).
 *
 * @param options      may be NULL: all defaults. Not kept after the call.
 * @param collectives  end it with peerlane_stream_collectives_close().
 * @return the same at every rank: 0; EINVAL: the options of a rank are invalid; ENOTSUP: a GPU cannot access the memory of
 * another, there are more than 16 ranks, or the library was built without nvcc; ENOMEM.
 */
int peerlane_stream_collectives_open(peerlane_triggered_t context, const struct peerlane_stream_collectives_options* options,
                                     peerlane_stream_collectives_t* collectives);

/**
 * @brief Closes the collectives. Collective; call it when everything queued has ended.
 * @return 0; otherwise the reason why not all ranks called: the memory then stays allocated until the context closes.
 */
int peerlane_stream_collectives_close(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/**
 * @brief Ends this rank's use without the other ranks, when everything queued has ended. The memory stays allocated until
 *        the context closes.
 */
int peerlane_stream_collectives_release(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/** @brief Tells without waiting whether the collectives are stopped. @return 0, or the error that stopped them. */
int peerlane_stream_collectives_state(peerlane_triggered_t context, peerlane_stream_collectives_t collectives);

/**
 * @brief Stops the collectives: kernels that wait on this GPU give up at once, those of other ranks at their timeout.
 * @param code  errno value that later calls return; 0: ECANCELED.
 */
int peerlane_stream_collectives_cancel(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, int code);

/**
 * @brief Queues an all-reduce: combines the elements of all ranks; every rank gets the result.
 *
 * @param source       whole elements, of the same size at every rank.
 * @param destination  of the same size; in place: the source.
 * @param type         enum peerlane_element.
 * @param reduction    enum peerlane_reduction.
 * @return 0; EINVAL: memory of another kind or GPU, sizes that do not match, or buffers that overlap; or the error that
 *         stopped the collectives.
 */
int peerlane_stream_all_reduce(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination, uint32_t type,
                               uint32_t reduction);

/**
 * @brief Queues a reduce-scatter: combines the elements of all ranks; each rank gets one block of the result.
 * @param source       size * destination.size_bytes bytes: a block for each rank.
 * @param destination  this rank's block; in place: that block of `source`.
 * @return as peerlane_stream_all_reduce().
 */
int peerlane_stream_reduce_scatter(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                                   struct peerlane_buffer source, struct peerlane_buffer destination, uint32_t type,
                                   uint32_t reduction);

/**
 * @brief Queues an all-gather: collects one block from every rank at every rank.
 * @param source       this rank's block; in place: that block in `destination`.
 * @param destination  size * source.size_bytes bytes.
 * @return as peerlane_stream_all_reduce().
 */
int peerlane_stream_all_gather(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination);

/**
 * @brief Queues an all-to-all: every rank sends one block to each rank. There is no in-place form.
 * @param source       a block for each rank.
 * @param destination  of the same size: a block from each rank.
 * @return as peerlane_stream_all_reduce().
 */
int peerlane_stream_all_to_all(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream,
                               struct peerlane_buffer source, struct peerlane_buffer destination);

/** @brief Queues a barrier: later work of the stream starts when the stream of every rank has reached the barrier. */
int peerlane_stream_barrier(peerlane_triggered_t context, peerlane_stream_collectives_t collectives, void* stream);

#ifdef __cplusplus
}
#endif
#endif
