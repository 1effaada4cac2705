/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Copies between host and GPU memory: one call for any size, direction and kind of memory. The library takes the way that
 * costs least (stores and loads through a mapping, a DMA channel, a resident GPU kernel, CUDA). Link -lpeerlane.
 * C++: <peerlane/copy.hpp>; guide: docs/which-call.md.
 *
 * @code
 * peerlane_copier_t copier;
 * if (peerlane_copier_open(NULL, &copier) != 0) return fprintf(stderr, "%s\n", peerlane_last_error()), 1;
 * peerlane_copy(copier, peerlane_host_buffer(&flag, sizeof flag), peerlane_device_buffer(device_ptr, sizeof flag));
 * peerlane_copier_close(copier);
 * @endcode
 *
 * Conventions. A call returns 0 or a positive errno value; outputs are written on success only; peerlane_last_error() is the
 * sentence behind a failure. Memory is a struct peerlane_buffer. Device memory is of any GPU, context and allocator; managed
 * memory is refused.
 *
 * Threads. Any thread may call a copier. Closing it, or releasing one of its objects, must not run beside other calls on the
 * same object. fork: in a child every call answers EACCES.
 *
 * Memory order. A copy that has ended is at its destination, for the CPU and for GPU work launched afterwards. Kernels that
 * run meanwhile: docs/ordering.md.
 */
#ifndef PEERLANE_COPY_H
#define PEERLANE_COPY_H

#include <peerlane/buffer.h>
#include <peerlane/operation.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_copier* peerlane_copier_t; /**< open .. close */
typedef struct peerlane_registration*
    peerlane_registration_t;                   /**< peerlane_copier_register .. peerlane_registration_release */
typedef struct peerlane_hold* peerlane_hold_t; /**< peerlane_copier_keep_hot .. peerlane_hold_release */

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

/** Zero means the default everywhere, so options may be all zero but struct_bytes. */
struct peerlane_copier_options {
  size_t struct_bytes;    /**< sizeof(struct peerlane_copier_options): fields that come later are not read. */
  const char* backend;    /**< Mapping backend; NULL: PEERLANE_BACKEND or the best. */
  uint32_t threads;       /**< CPU threads of one copy, the caller included; default PEERLANE_COPY_THREADS or 8. */
  uint32_t lease_us;      /**< How long the resident kernel stays at most; default PEERLANE_COPY_LEASE_US or 200. */
  uint32_t no_gpu_engine; /**< 1: no resident kernel. */
  uint32_t reserved;
  uint64_t cache_bytes; /**< Most that is kept mapped between copies; default 512 MiB. */
};

/**
 * @brief Opens a copier; one is enough for all threads and GPUs of a process.
 *
 * Needs an initialised CUDA driver. Opens nothing else before the first copy.
 *
 * @param options  NULL: all defaults.
 * @param copier   written on success.
 * @return 0; ENFILE: 64 copiers are open; EINVAL; or the reason why no driver answers.
 */
int peerlane_copier_open(const struct peerlane_copier_options* options, peerlane_copier_t* copier);

/**
 * @brief Waits for the copies under way, then ends the copier.
 * @return 0; EBUSY: operations, holds or registrations are left, and it stays open; EINVAL: not open.
 */
int peerlane_copier_close(peerlane_copier_t copier);

/* ---- Copies that are complete on return ------------------------------------------------------------------------------ */

/**
 * @brief Copies source.size_bytes bytes; either side is host or device memory.
 *
 * Takes no lock, allocates nothing and calls the system for small copies only where no
 * mapping can be had.
 *
 * @param destination  at least source.size_bytes long.
 * @param source       must not overlap the destination. Of size 0: nothing is done.
 * @return 0; ERANGE: the destination is shorter than the source; EINVAL: a device buffer that is
 *         no device memory, freed memory, bytes outside of the allocation, or both sides are host memory; EIO: CUDA's
 * reason. Nobody is asked about a host buffer: at an address of device memory, or of none, the copy may fault. After a
 * failure nothing is in flight; part of the destination may be written.
 */
int peerlane_copy(peerlane_copier_t copier, struct peerlane_buffer destination, struct peerlane_buffer source);

/** One copy of a list, or rows of one. All zero but the buffers is a plain copy of source.size_bytes bytes. */
struct peerlane_transfer {
  struct peerlane_buffer destination;
  struct peerlane_buffer source;
  size_t rows;                    /**< 0 and 1: a plain copy, and the fields below are not read. */
  size_t row_size_bytes;          /**< Of each row. */
  size_t destination_pitch_bytes; /**< From one row's begin to the next one's. */
  size_t source_pitch_bytes;
};

/** @brief A plain copy as a transfer. */
static inline struct peerlane_transfer peerlane_plain_transfer(struct peerlane_buffer destination,
                                                               struct peerlane_buffer source) {
  struct peerlane_transfer transfer;
  memset(&transfer, 0, sizeof transfer);
  transfer.destination = destination;
  transfer.source = source;
  return transfer;
}

/**
 * @brief Copies rows.
 * @return as peerlane_copy(); ERANGE: the rows leave one of the buffers; EINVAL: rows that overlap.
 */
int peerlane_copy_rows(peerlane_copier_t copier, const struct peerlane_transfer* transfer);

/**
 * @brief Copies a list, in any order among themselves; directions may be mixed.
 *
 * Much cheaper than one by one where the copies are small.
 *
 * @param transfers  `count` of them; NULL if count is 0.
 * @return as peerlane_copy_rows(). Every transfer's fields are checked before the first one is copied.
 */
int peerlane_copy_list(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count);

/**
 * @brief Sets device memory to a byte.
 * @param byte_value  its low 8 bits count.
 * @return as peerlane_copy(); EINVAL: host memory.
 */
int peerlane_copy_fill(peerlane_copier_t copier, struct peerlane_buffer destination, int byte_value);

/* ---- Asynchronous copies --------------------------------------------------------------------------------------------- */

enum peerlane_begin_flags {
  PEERLANE_BEGIN_DEFAULT = 0,
  PEERLANE_BEGIN_AFTER_STREAM = 1, /**< The copies wait for what `stream` has queued so far. */
  PEERLANE_BEGIN_URGENT = 2        /**< Blocks alone (<peerlane/blocks.h>): not behind other long lists. */
};

/**
 * @brief Begins copies, and returns once they are under way.
 *
 * @param transfers  read before the call returns.
 * @param flags      PEERLANE_BEGIN_DEFAULT or PEERLANE_BEGIN_AFTER_STREAM.
 * @param stream     a CUstream or cudaStream_t; read with PEERLANE_BEGIN_AFTER_STREAM.
 * @param op         written on success; ends with all of the copies. info->size_bytes is their sum.
 * @return 0; EBUSY: the stream is being captured into a graph; EAGAIN: 4 million operations are not ended; as
 *         peerlane_copy_list() else. After a failure nothing is in flight.
 */
int peerlane_copy_begin(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count, uint32_t flags,
                        void* stream, peerlane_op_t* op);

/**
 * @brief Adds copies to the graph that a stream is being captured into: each launch of the graph makes them anew.
 *
 * They are CUDA's own copies, one behind the other at the stream's place. Nothing is under way when the call returns, and
 * there is no operation: wait for the launch. DMA channels cannot be captured (docs/dma.md).
 *
 * @param transfers  read before the call returns; their memory must stay as long as the graph is launched. Host memory must
 *                   be pinned.
 * @param stream     a CUstream or cudaStream_t that is being captured, of the current context.
 * @return 0; EINVAL: the stream is not being captured; ENOTSUP: host memory that is not pinned; as peerlane_copy_list()
 *         else. Bad arguments leave the capture as it was; where CUDA refuses a copy, the capture cannot be used any more.
 */
int peerlane_copy_capture(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count, void* stream);

/**
 * @brief Makes a stream wait, on the GPU, for the copies of an operation; work that it queues later sees the data.
 *
 * Copies that need a CPU are waited for within this call (docs/ordering.md lists them). The operation is still to be ended.
 *
 * @param op      of peerlane_copy_begin(); an empty one has ended.
 * @param stream  a CUstream or cudaStream_t of any GPU.
 * @return 0; EINVAL: not a live copy; EBUSY: the stream is being captured; or what the copies ended with.
 */
int peerlane_copy_make_wait(const peerlane_op_t* op, void* stream);

/**
 * @brief Records an event (CUevent, cudaEvent_t) behind the copies of an operation; else as peerlane_copy_make_wait().
 */
int peerlane_copy_record(const peerlane_op_t* op, void* event);

/**
 * @brief A descriptor for poll, epoll or an event loop, for who sleeps until copies have ended: readable when they may have.
 *
 * A DMA channel's copies wake by an interrupt of the GPU, others by a thread or a clock of the library (docs/dma.md). It
 * becomes readable too often rather than too rarely: peerlane_op_test() tells, and makes it wait for the next time.
 *
 * @code
 * peerlane_copy_descriptor(&op, &descriptor);
 * struct pollfd waited = {descriptor, POLLIN, 0};
 * while ((code = peerlane_op_test(&op, &done, NULL)) == 0 && !done) poll(&waited, 1, -1);
 * @endcode
 *
 * @param op          of peerlane_copy_begin() or peerlane_blocks_begin(), not ended.
 * @param descriptor  the library's: it is closed by the call that reports the end. A duplicate (dup) stays the caller's.
 * @return 0; EINVAL: not a live copy; EBUSY: a function of peerlane_op_then() waits for it; EMFILE: the limit of open files.
 */
int peerlane_copy_descriptor(const peerlane_op_t* op, int* descriptor);

/* ---- Control --------------------------------------------------------------------------------------------------------- */

/** @brief Opens what copies with this GPU's memory will need (some 10 ms), so that none of them pays for it. */
int peerlane_copier_prepare(peerlane_copier_t copier, int device_ordinal);

/**
 * @brief Keeps the resident kernel on a GPU without use.
 *
 * It still leaves at the end of each lease and is launched again, so cudaFree and the like wait one lease at most.
 *
 * @param hold  written on success; end it with peerlane_hold_release().
 * @return 0; ENOTSUP: there can be none, with the reason.
 */
int peerlane_copier_keep_hot(peerlane_copier_t copier, int device_ordinal, peerlane_hold_t* hold);
int peerlane_hold_release(peerlane_hold_t hold);

/**
 * @brief Registers memory that many copies use: they need not ask what lies there.
 *
 * Device memory stays mapped. Host memory is pinned, unless it is already, and its copies need no detour. Release the
 * registration before the memory is freed.
 *
 * @param buffer        of a known kind or PEERLANE_MEMORY_ANY.
 * @param registration  written on success; end it with peerlane_registration_release().
 * @return 0; EBUSY: CUDA has registered part of the host memory; EINVAL: empty, or it leaves its allocation.
 */
int peerlane_copier_register(peerlane_copier_t copier, struct peerlane_buffer buffer, peerlane_registration_t* registration);
int peerlane_registration_release(peerlane_registration_t registration);

/** @brief Unmaps what is kept between copies: memory that was freed goes back to the GPU now instead of within 0.1 s. */
int peerlane_copier_trim(peerlane_copier_t copier);

enum peerlane_direction {
  PEERLANE_TO_DEVICE = 0,
  PEERLANE_TO_HOST = 1,
  PEERLANE_ON_DEVICE = 2 /**< Between device memory, of one GPU or of two. */
};

/**
 * @brief Says what a copy of this size would do and why, as text of several lines.
 *
 * @param direction  enum peerlane_direction.
 * @param pageable   1: the host memory is not pinned (PEERLANE_ON_DEVICE: the GPUs differ).
 * @param text       gets at most capacity - 1 characters and an end.
 * @param needed     may be NULL; becomes the full length.
 */
int peerlane_copier_explain(peerlane_copier_t copier, uint32_t direction, int pageable, size_t size_bytes, char* text,
                            size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
