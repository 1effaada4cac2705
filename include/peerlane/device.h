/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Transfers that kernels start and a copy engine moves: the host's side. It opens rings, makes windows of memory, and passes
 * both to kernels by value; kernels call <peerlane/device.cuh>. Link -lpeerlane. C++: <peerlane/device.hpp>; guide:
 * docs/device.md.
 *
 * @code
 * peerlane_device_t device;
 * struct peerlane_device_ring ring;
 * struct peerlane_device_window results, host;
 * if (peerlane_device_open(NULL, &device) != 0) return fprintf(stderr, "%s\n", peerlane_last_error()), 1;
 * peerlane_device_get_ring(device, 0, &ring);
 * peerlane_device_add_window(device, peerlane_device_buffer(device_ptr, size_bytes), &results);
 * peerlane_device_add_window(device, peerlane_host_buffer(pinned, size_bytes), &host);
 * kernel<<<blocks, threads>>>(ring, results, host);
 * @endcode
 *
 * Conventions. A call returns 0 or a positive errno value; outputs are written on success only; peerlane_last_error() is the
 * sentence behind a failure.
 *
 * Threads. Any thread may call. Closing must not run beside other calls on the same object. A thread of the library refills
 * rings; it sleeps 0.3 to 10 ms between its looks, or until the engine's interrupt (PEERLANE_DEVICE_WAKEUPS). fork: in a
 * child every call answers EACCES.
 *
 * Memory order: docs/ordering-copies.md, "Transfers that kernels start".
 */
#ifndef PEERLANE_DEVICE_H
#define PEERLANE_DEVICE_H

#include <peerlane/buffer.h>
#include <peerlane/communicator.h>
#include <peerlane/device_types.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_device* peerlane_device_t; /**< open .. close */

/** Zero means the default everywhere, so options may be all zero but struct_bytes. */
struct peerlane_device_options {
  size_t struct_bytes;    /**< sizeof(struct peerlane_device_options): fields that come later are not read. */
  int32_t device_ordinal; /**< CUDA's number of the GPU; default 0. */
  uint32_t rings;         /**< 1 to 16, on the GPU's copy engines in turn; default 1. */
  uint32_t segments;      /**< Posted and not done in a ring: a power of two, 64 to 4096; default 4096. */
  uint32_t yields;        /**< 1: rings that wait for kernels leave their engine to others meanwhile, and react later. */
  uint64_t timeout_ns;    /**< Longest wait inside a call of a kernel, in nanoseconds; default 2 s. */
  uint32_t by_proxy;      /**< 1: a thread of the host carries out what kernels post, also where a copy engine could.
                               Remote windows need it. */
  uint32_t reserved;      /**< 0 */
};

/**
 * @brief Opens rings of a GPU. Some 10 ms for each. Makes the device's primary context if there is none.
 *
 * @param options  NULL: all defaults.
 * @param device   becomes the handle.
 * Where DMA channels cannot be had (driver, GPU, MIG, MPS: docs/dma.md#limits) a thread of the host carries out what kernels
 * post, by CUDA's copies; peerlane_device_get_ring_state() says so. PEERLANE_DEVICE_RINGS chooses: auto, dma, proxy.
 *
 * @return 0; ENOTSUP: neither can be had, or not the one that the variable asks for; EINVAL: the options;
 *         ENODEV, ENOSYS: no GPU; EACCES: the device files; ENOMEM; ENFILE: 64 are open.
 */
int peerlane_device_open(const struct peerlane_device_options* options, peerlane_device_t* device);

/**
 * @brief Closes it with its rings and windows. Kernels that post or wait get PEERLANE_DEVICE_ESHUTDOWN; what is under way
 * may be left half done. Waits until kernels that run on the GPU have ended, since it frees GPU memory. Kernels launched
 *        afterwards must not use the rings.
 *
 * @return 0; EINVAL: not open.
 */
int peerlane_device_close(peerlane_device_t device);

/**
 * @brief A ring, to be passed to kernels by value.
 *
 * @param index  below the number of rings that were opened.
 * @param ring   written; valid until the close.
 * @return 0; EINVAL: no such ring.
 */
int peerlane_device_get_ring(peerlane_device_t device, uint32_t index, struct peerlane_device_ring* ring);

/**
 * @brief Makes a window of memory of this process, which rings reach.
 *
 * @param memory  device memory of the rings' GPU or of another that it reaches, in one allocation; or host memory, of any
 *                kind and alignment, which is pinned until the release. Kernels wait for words in host memory only if CUDA
 *                has pinned it too. Of another GPU's memory `address` is 0: they put and get.
 * @param window  written; valid until peerlane_device_release_window(). The memory must live as long.
 * @return 0; EINVAL: no memory; EXDEV: another GPU's that this one does not reach; ENOTSUP: managed memory, mappings of
 *         files, memory of several objects of the driver; ENOMEM.
 */
int peerlane_device_add_window(peerlane_device_t device, struct peerlane_buffer memory,
                               struct peerlane_device_window* window);

/**
 * @brief Makes a window of memory that another rank exposes (peerlane_comm_expose(), peerlane_comm_allocate()), on this host
 *        or another one.
 *
 * Kernels put, get and signal; they wait for words in windows of their own memory. The thread of the rings hands what they
 * post to the communicator, as peerlane_comm_put() and _get(): who carries it out at the other rank is said there. That
 * rank's communicator makes progress inside its calls or by a thread of its own (peerlane_comm_options.progress_thread); so
 * while it waits for its GPU it needs the thread. If the rank is gone, or its window has ended, the ring ends: kernels get
 * PEERLANE_DEVICE_ECONNRESET or PEERLANE_DEVICE_EIO.
 *
 * @param comm    not closed before the window is released, or the device closed.
 * @param key     copied.
 * @param window  written; its `address` is 0. Valid until peerlane_device_release_window().
 * @return 0; ENOTSUP: copy engines carry out these rings: open others with peerlane_device_options.by_proxy; EINVAL: no such
 *         rank, or a key of no bytes; ENOSYS: libpeerlane was built without UCX's headers.
 */
int peerlane_device_add_remote_window(peerlane_device_t device, peerlane_comm_t comm, const struct peerlane_window_key* key,
                                      struct peerlane_device_window* window);

/**
 * @brief Releases a window. Waits until what was posted before is done, at most the time-out. A put or get that is posted
 *        later ends its ring: kernels get PEERLANE_DEVICE_EIO, and peerlane_device_get_ring_state() has the address.
 *
 * @return 0; EINVAL: not a window of this device.
 */
int peerlane_device_release_window(peerlane_device_t device, const struct peerlane_device_window* window);

/**
 * @brief Sends a window of GPU memory to another process, over a connected Unix socket.
 *
 * The other process gets the whole of the driver's memory object, which may hold neighbours of the window: use it among
 * processes that trust each other.
 *
 * @return 0; EINVAL: not a window of this device, or its address or size is no multiple of 64 KiB; ENOTSUP: host memory;
 *         EPIPE: the other end is gone.
 */
int peerlane_device_send_window(peerlane_device_t device, const struct peerlane_device_window* window, int socket);

/**
 * @brief Receives a window that another process sends. Kernels put and get; they cannot load from it (address is 0).
 *
 * @param timeout_ms  limit in milliseconds; negative: none.
 * @return 0; ETIMEDOUT: none came; EPROTO: what came is no window; EXDEV: it lies on a GPU that this one does not reach;
 *         ENODEV, EACCES: on one that this process does not see; EPIPE: the other end is gone; ENOTSUP: GPU memory, and the
 *         rings are carried out by the host; EINVAL.
 */
int peerlane_device_receive_window(peerlane_device_t device, int socket, int64_t timeout_ms,
                                   struct peerlane_device_window* window);

/** What peerlane_device_get_ring_state() tells. */
struct peerlane_device_ring_state {
  size_t struct_bytes; /**< Set it to sizeof before the call: fields that come later are not written. */
  uint64_t posted;     /**< Segments that kernels have taken. */
  uint64_t completed;  /**< Segments that the engine has done. */
  int32_t error;       /**< 0: it works; else why it takes nothing any more: EIO, ECONNRESET, ETIMEDOUT, ESHUTDOWN. */
  uint32_t by_proxy;   /**< 1: no DMA channels could be had, and a thread of the host carries out what kernels post. */
};

/**
 * @brief Says how far a ring is. Costs some microseconds: it reads GPU memory.
 *
 * @param text      NULL, or room for the sentence behind state->error (empty without one), cut to `capacity` with its end.
 * @return 0; EINVAL: no such ring.
 */
int peerlane_device_get_ring_state(peerlane_device_t device, uint32_t index, struct peerlane_device_ring_state* state,
                                   char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
