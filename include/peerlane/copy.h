/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Copies between host and GPU memory: one call for any size, direction and kind of memory. The planner chooses the fastest
 * method (loads and stores through a mapping, a DMA channel, a resident GPU kernel, CUDA's copies). Link -lpeerlane.
 * C++: <peerlane/copy.hpp>; guide: docs/which-call.md.
 *
 * @code
 * peerlane_copier_t copier;
 * if (peerlane_copier_open(NULL, &copier) != 0) return fprintf(stderr, "%s\n", peerlane_last_error()), 1;
 * peerlane_copy(copier, peerlane_host_buffer(&flag, sizeof flag), peerlane_device_buffer(device_ptr, sizeof flag));
 * peerlane_copier_close(copier);
 * @endcode
 *
 * Conventions. A call returns 0 or a positive errno value and writes its outputs only on success. peerlane_last_error()
 * explains the last failure. Memory is passed as a struct peerlane_buffer. Device memory may belong to any GPU, context and
 * allocator, except that managed memory is refused.
 *
 * Threads. Any thread may use a copier. Do not close a copier, or release one of its objects, while another thread is in a
 * call on the same object. fork: in a child process every call returns EACCES.
 *
 * Memory order. When a copy has ended, the CPU and GPU work launched afterwards see the copied bytes. For kernels that are
 * already running, see docs/ordering-copies.md.
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

/** In every field but struct_bytes, zero means the default. */
struct peerlane_copier_options {
  size_t struct_bytes;    /**< sizeof(struct peerlane_copier_options). Fields beyond this size are not read. */
  const char* backend;    /**< Mapping backend; NULL: PEERLANE_BACKEND, or the first backend that works. */
  uint32_t threads;       /**< CPU threads of one copy, the caller included; default: PEERLANE_COPY_THREADS, or 8 (half the
                               CPUs if that is less). */
  uint32_t lease_us;      /**< Longest stay of the resident kernel, in us; default: PEERLANE_COPY_LEASE_US, or 200. */
  uint32_t no_gpu_engine; /**< 1: never use the resident kernel. */
  uint32_t reserved;      /**< Must be 0. */
  uint64_t cache_bytes;   /**< Most memory that stays mapped between copies; default: 512 MiB. */
};

/**
 * @brief Opens a copier. One copier serves all threads and GPUs of a process.
 *
 * The process must have initialised the CUDA driver. The copier opens mappings and channels with the first copy that needs
 * them.
 *
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param copier   the new copier, owned by the caller; end it with peerlane_copier_close().
 * @return 0; ENFILE: 64 copiers are already open; EINVAL: an option is out of range; another errno if there is no driver.
 */
int peerlane_copier_open(const struct peerlane_copier_options* options, peerlane_copier_t* copier);

/**
 * @brief Waits for the copies in flight and closes the copier.
 * @return 0; EBUSY: operations, holds or registrations still exist, and the copier stays open; EINVAL: it is not open.
 */
int peerlane_copier_close(peerlane_copier_t copier);

/* ---- Copies that are complete on return ------------------------------------------------------------------------------ */

/**
 * @brief Copies source.size_bytes bytes; either side is host or device memory.
 *
 * Takes no lock and allocates nothing. A small copy makes a system call only if the device memory cannot be mapped. The call
 * returns when the bytes are at their destination. After a failure nothing is in flight, but part of the destination may
 * have been written.
 *
 * @param destination  at least source.size_bytes long.
 * @param source       must not overlap the destination. If its size is 0, the call does nothing.
 * @return 0; ERANGE: the destination is shorter than the source; EINVAL: a device buffer is not device memory, its memory
 * was freed, it leaves its allocation, or both sides are host memory; EIO: CUDA reported an error. Host buffers are not
 *         checked: if the address is device memory, or not mapped at all, the copy may fault.
 */
int peerlane_copy(peerlane_copier_t copier, struct peerlane_buffer destination, struct peerlane_buffer source);

/** One copy of a list: contiguous, or rows with a pitch. With `rows` 0 it copies source.size_bytes contiguous bytes. */
struct peerlane_transfer {
  struct peerlane_buffer destination;
  struct peerlane_buffer source;
  size_t rows;                    /**< Number of rows. 0 or 1: a contiguous copy; the fields below are not read. */
  size_t row_size_bytes;          /**< Bytes in each row. */
  size_t destination_pitch_bytes; /**< Distance between the starts of two rows in the destination. */
  size_t source_pitch_bytes;      /**< The same in the source. */
};

/** @brief Makes a transfer of one contiguous copy. */
static inline struct peerlane_transfer peerlane_plain_transfer(struct peerlane_buffer destination,
                                                               struct peerlane_buffer source) {
  struct peerlane_transfer transfer;
  memset(&transfer, 0, sizeof transfer);
  transfer.destination = destination;
  transfer.source = source;
  return transfer;
}

/**
 * @brief Copies rows with a pitch (a two-dimensional copy). Complete on return.
 * @param transfer  not kept after the call.
 * @return as peerlane_copy(); ERANGE: the rows leave one of the buffers; EINVAL: rows overlap.
 */
int peerlane_copy_rows(peerlane_copier_t copier, const struct peerlane_transfer* transfer);

/**
 * @brief Makes a list of copies in any order. Directions may be mixed. Complete on return.
 *
 * For small copies a list is much cheaper than one call for each. The call checks the fields of every transfer before it
 * copies the first one.
 *
 * @param transfers  array of `count` transfers; NULL if `count` is 0. Not kept after the call.
 * @return as peerlane_copy_rows().
 */
int peerlane_copy_list(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count);

/**
 * @brief Sets every byte of a range of device memory to one value. Complete on return.
 * @param byte_value  only its low 8 bits are used.
 * @return as peerlane_copy(); EINVAL: the destination is host memory.
 */
int peerlane_copy_fill(peerlane_copier_t copier, struct peerlane_buffer destination, int byte_value);

/* ---- Asynchronous copies --------------------------------------------------------------------------------------------- */

enum peerlane_begin_flags {
  PEERLANE_BEGIN_DEFAULT = 0,
  PEERLANE_BEGIN_AFTER_STREAM = 1, /**< The copies wait for the work that `stream` holds at the call. */
  PEERLANE_BEGIN_URGENT = 2        /**< Only for blocks (<peerlane/blocks.h>): do not queue behind other long lists. */
};

/**
 * @brief Starts copies and returns without waiting for them.
 *
 * The memory of all buffers must stay valid, and the sources unchanged, until the operation has ended. After a failure
 * nothing is in flight.
 *
 * @param transfers  array of `count` transfers, not kept after the call.
 * @param flags      PEERLANE_BEGIN_DEFAULT or PEERLANE_BEGIN_AFTER_STREAM.
 * @param stream     a CUstream or cudaStream_t; used only with PEERLANE_BEGIN_AFTER_STREAM.
 * @param op         written on success. The operation ends when all copies have; info->size_bytes is then their sum.
 * @return 0; EBUSY: the stream is being captured into a graph; EAGAIN: 4 million operations have not ended yet; otherwise as
 *         peerlane_copy_list().
 */
int peerlane_copy_begin(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count, uint32_t flags,
                        void* stream, peerlane_op_t* op);

/**
 * @brief Adds copies to the CUDA graph that a stream is being captured into. Each launch of the graph makes them again.
 *
 * The copies become CUDA's memcpy nodes, one after the other at the current point of the stream. The call starts nothing and
 * makes no operation: wait for the launch of the graph. DMA channels cannot be captured (docs/dma.md).
 *
 * @param transfers  array of `count` transfers, not kept after the call. Their memory must stay valid as long as the graph
 * is launched. Host memory must be pinned.
 * @param stream     a CUstream or cudaStream_t of the current context that is being captured.
 * @return 0; EINVAL: the stream is not being captured; ENOTSUP: host memory is not pinned; otherwise as
 *         peerlane_copy_list(). Invalid arguments leave the capture unchanged. If CUDA refuses a copy, the capture is
 *         invalid.
 */
int peerlane_copy_capture(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count, void* stream);

/**
 * @brief Makes a stream wait, on the GPU, for the copies of an operation. Work queued on the stream later sees the data.
 *
 * If a copy needs the CPU, this call waits for it (docs/ordering-copies.md lists these copies). It does not end the
 * operation: you still have to test or wait for it.
 *
 * @param op      an operation of peerlane_copy_begin(); an empty operation counts as ended.
 * @param stream  a CUstream or cudaStream_t of any GPU.
 * @return 0; EINVAL: not a live copy; EBUSY: the stream is being captured; or the error of the copies.
 */
int peerlane_copy_make_wait(const peerlane_op_t* op, void* stream);

/**
 * @brief Records an event after the copies of an operation; otherwise as peerlane_copy_make_wait().
 * @param event  a CUevent or cudaEvent_t.
 */
int peerlane_copy_record(const peerlane_op_t* op, void* event);

/**
 * @brief Returns a file descriptor for poll, epoll or an event loop. It becomes readable when the copies may have ended.
 *
 * Copies of a DMA channel signal it from a GPU interrupt, other copies from a thread or a timer of the library
 * (docs/dma.md). It may become readable too early: call peerlane_op_test(), which also resets it.
 *
 * @code
 * peerlane_copy_descriptor(&op, &descriptor);
 * struct pollfd waited = {descriptor, POLLIN, 0};
 * while ((code = peerlane_op_test(&op, &done, NULL)) == 0 && !done) poll(&waited, 1, -1);
 * @endcode
 *
 * @param op          an operation of peerlane_copy_begin() or peerlane_blocks_begin() that has not ended.
 * @param descriptor  owned by the library, which closes it in the call that reports the end. A duplicate (dup) belongs to
 * the caller.
 * @return 0; EINVAL: not a live copy; EBUSY: a callback of peerlane_op_then() is set; EMFILE: too many open files.
 */
int peerlane_copy_descriptor(const peerlane_op_t* op, int* descriptor);

/* ---- Control --------------------------------------------------------------------------------------------------------- */

/**
 * @brief Opens the mappings and channels of a GPU in advance (some 10 ms), so that the first copy does not pay for it.
 * @param device_ordinal  CUDA ordinal of the GPU.
 */
int peerlane_copier_prepare(peerlane_copier_t copier, int device_ordinal);

/**
 * @brief Keeps the resident kernel on a GPU between copies.
 *
 * The kernel still leaves at the end of each lease and is launched again. cudaFree and similar calls therefore wait at most
 * one lease.
 *
 * @param device_ordinal  CUDA ordinal of the GPU.
 * @param hold            owned by the caller; end it with peerlane_hold_release().
 * @return 0; ENOTSUP: the kernel is not available, and peerlane_last_error() says why.
 */
int peerlane_copier_keep_hot(peerlane_copier_t copier, int device_ordinal, peerlane_hold_t* hold);

/** @brief Ends a hold. */
int peerlane_hold_release(peerlane_hold_t hold);

/**
 * @brief Registers memory that many copies use, so that they do not have to ask the driver about it.
 *
 * Device memory stays mapped. Host memory is pinned if it is not already, so that its copies need no staging. Release the
 * registration before you free the memory.
 *
 * @param buffer        of a known kind, or PEERLANE_MEMORY_ANY.
 * @param registration  owned by the caller; end it with peerlane_registration_release().
 * @return 0; EBUSY: part of the host memory is already registered with CUDA; EINVAL: the buffer is empty or leaves its
 *         allocation.
 */
int peerlane_copier_register(peerlane_copier_t copier, struct peerlane_buffer buffer, peerlane_registration_t* registration);

/**
 * @brief Ends a registration: unmaps device memory, and unpins host memory that it pinned.
 *
 * Copies use a registration without taking a lock. Call this only when no copy of this memory is in progress, in any thread.
 */
int peerlane_registration_release(peerlane_registration_t registration);

/**
 * @brief Unmaps the memory that is kept mapped between copies. Freed memory then returns to the GPU now, not within 0.1 s.
 */
int peerlane_copier_trim(peerlane_copier_t copier);

enum peerlane_direction {
  PEERLANE_TO_DEVICE = 0,
  PEERLANE_TO_HOST = 1,
  PEERLANE_ON_DEVICE = 2 /**< Between two buffers of device memory, on one GPU or two. */
};

/**
 * @brief Explains in several lines of text which method a copy of this size would use, and why.
 *
 * @param direction   enum peerlane_direction.
 * @param pageable    1: the host memory is pageable (with PEERLANE_ON_DEVICE: the buffers are on two GPUs).
 * @param size_bytes  of the copy.
 * @param text        receives at most capacity - 1 characters and a terminating null.
 * @param needed      may be NULL; receives the full length without the terminating null.
 */
int peerlane_copier_explain(peerlane_copier_t copier, uint32_t direction, int pageable, size_t size_bytes, char* text,
                            size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
