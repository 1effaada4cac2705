/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Transfers that kernels start and a copy engine carries out: the host interface. Open rings and make windows of memory
 * here, and pass both to kernels by value. Kernels call the functions of <peerlane/device.cuh>. Link -lpeerlane. C++:
 * <peerlane/device.hpp>; guide: docs/device.md.
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
 * Conventions. A call returns 0 or a positive errno value and writes its outputs only on success. peerlane_last_error()
 * explains the last failure.
 *
 * Threads. Any thread may make any call. Do not close an object while another thread is in a call on it. A thread of the
 * library refills the rings; it sleeps until the engine's interrupt, or 0.3 to 10 ms at a time (PEERLANE_DEVICE_WAKEUPS).
 * fork: in a child process every call returns EACCES.
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

/** In every field but struct_bytes, zero means the default. */
struct peerlane_device_options {
  size_t struct_bytes;    /**< sizeof(struct peerlane_device_options). Fields beyond this size are not read. */
  int32_t device_ordinal; /**< CUDA ordinal of the GPU; default 0. */
  uint32_t rings;         /**< Number of rings, 1 to 16, on the GPU's copy engines in turn; default 1. */
  uint32_t segments;      /**< Segments of a ring: a power of two, 64 to 4096; default 4096. */
  uint32_t yields;        /**< 1: a ring that waits for kernels gives its engine to others meanwhile, and reacts later. */
  uint64_t timeout_ns;    /**< Longest wait inside a device function, in nanoseconds; default 2 s. */
  uint32_t by_proxy;      /**< 1: a host thread carries out the transfers, even if a copy engine could. Remote windows need
                               it. */
  uint32_t reserved;      /**< Must be 0. */
};

/**
 * @brief Opens the rings of a GPU. Takes some 10 ms for each ring. Creates the device's primary context if necessary.
 *
 * If DMA channels are not available (driver, GPU, MIG, MPS: docs/dma.md#limits), a host thread carries out the transfers by
 * CUDA's copies; peerlane_device_get_ring_state() reports it. PEERLANE_DEVICE_RINGS selects auto, dma or proxy.
 *
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param device   owned by the caller; end it with peerlane_device_close().
 * @return 0; ENOTSUP: neither kind is available, or not the one that the variable selects; EINVAL: an option is invalid;
 *         ENODEV, ENOSYS: no GPU; EACCES: no access to the device files; ENOMEM; EMFILE: the process may open no more
 *         descriptors; ENFILE: 64 devices are already open.
 */
int peerlane_device_open(const struct peerlane_device_options* options, peerlane_device_t* device);

/**
 * @brief Closes the device with its rings and windows.
 *
 * Kernels that post or wait get PEERLANE_DEVICE_ESHUTDOWN. Transfers in progress may be left incomplete. The call frees GPU
 * memory, so it waits until the kernels that run on the GPU have ended. Later kernels must not use the rings.
 *
 * @return 0; EINVAL: the device is not open.
 */
int peerlane_device_close(peerlane_device_t device);

/**
 * @brief Returns a ring, to be passed to kernels by value.
 *
 * @param index  0 to the number of rings - 1.
 * @param ring   valid until peerlane_device_close().
 * @return 0; EINVAL: no such ring.
 */
int peerlane_device_get_ring(peerlane_device_t device, uint32_t index, struct peerlane_device_ring* ring);

/**
 * @brief Makes a window of this process's memory, which rings can access.
 *
 * @param memory  device memory in one allocation, of the rings' GPU or of another GPU that it can access; or host memory of
 *                any kind and alignment, which is pinned until the release. Kernels can wait for words in host memory only
 * if CUDA has pinned it too. For memory of another GPU, `address` of the window is 0: kernels can put and get, but not load.
 * @param window  valid until peerlane_device_release_window(). The memory must stay allocated until then.
 * @return 0; EINVAL: invalid memory; EXDEV: memory of another GPU that this one cannot access; ENOTSUP: managed memory, a
 *         mapping of a file, or memory of several driver objects; ENOMEM.
 */
int peerlane_device_add_window(peerlane_device_t device, struct peerlane_buffer memory,
                               struct peerlane_device_window* window);

/**
 * @brief Makes a window of memory that another rank exposes (peerlane_comm_expose(), peerlane_comm_allocate()), on this host
 *        or another one.
 *
 * Kernels can put, get and signal. They can wait only for words in windows of their own process. The proxy thread passes
 * transfers to the communicator, as peerlane_comm_put() and peerlane_comm_get() do; these calls define which process carries
 * them out. If the other rank waits for its GPU, it needs a progress thread (peerlane_comm_options.progress_thread). If the
 * rank dies, or its window is released, the ring ends: kernels get PEERLANE_DEVICE_ECONNRESET or PEERLANE_DEVICE_EIO.
 *
 * @param comm    must stay open until the window is released or the device is closed.
 * @param key     not kept after the call.
 * @param window  its `address` is 0. Valid until peerlane_device_release_window().
 * @return 0; ENOTSUP: copy engines carry out these rings: open the device with peerlane_device_options.by_proxy; EINVAL: no
 *         such rank, or an empty window; ENOSYS: libpeerlane was built without UCX's headers.
 */
int peerlane_device_add_remote_window(peerlane_device_t device, peerlane_comm_t comm, const struct peerlane_window_key* key,
                                      struct peerlane_device_window* window);

/**
 * @brief Releases a window. Waits for earlier transfers, at most for the timeout of the device.
 *
 * A later put or get with this window ends its ring: kernels get PEERLANE_DEVICE_EIO, and peerlane_device_get_ring_state()
 * has the address.
 *
 * @return 0; EINVAL: not a window of this device.
 */
int peerlane_device_release_window(peerlane_device_t device, const struct peerlane_device_window* window);

/**
 * @brief Sends a window of GPU memory to another process, over a connected Unix socket.
 *
 * The other process gets access to the driver's whole memory object, which may contain neighbours of the window. Use this
 * only between processes that trust each other.
 *
 * @param socket  a connected Unix socket; stays open.
 * @return 0; EINVAL: not a window of this device, or its address or size is not a multiple of 64 KiB; ENOTSUP: host memory;
 *         EPIPE, ECONNREFUSED (datagrams): the other end is closed; EBADF, ENOTSOCK: not a socket.
 */
int peerlane_device_send_window(peerlane_device_t device, const struct peerlane_device_window* window, int socket);

/**
 * @brief Receives a window from another process. Kernels can put and get, but not load from it (its address is 0).
 *
 * @param socket      a connected Unix socket; stays open.
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @param window      valid until peerlane_device_release_window(), even if the other process ends.
 * @return 0; ETIMEDOUT: no window came; EPROTO: the message is not a window; EXDEV: it lies on a GPU that this one cannot
 *         access; ENODEV, EACCES: it lies on a GPU that is not visible to this process; EPIPE: the other end is closed;
 *         ENOTSUP: it is GPU memory, and the proxy carries out these rings; EBADF, ENOTSOCK: not a socket; EINVAL.
 */
int peerlane_device_receive_window(peerlane_device_t device, int socket, int64_t timeout_ms,
                                   struct peerlane_device_window* window);

/** State of a ring. */
struct peerlane_device_ring_state {
  size_t struct_bytes; /**< Set by the caller: sizeof(struct peerlane_device_ring_state). Later fields are not written. */
  uint64_t posted;     /**< Segments that kernels have taken. */
  uint64_t completed;  /**< Segments that the engine has completed. */
  int32_t error;       /**< 0: the ring works. Otherwise why it has ended: EIO, ECONNRESET, ETIMEDOUT or ESHUTDOWN. */
  uint32_t by_proxy;   /**< 1: a host thread carries out the transfers, by CUDA. */
};

/**
 * @brief Reads the state of a ring. Takes some microseconds, because it reads GPU memory.
 *
 * @param index     of the ring.
 * @param text      NULL, or receives the message for state->error (empty if there is none): at most capacity - 1 characters
 *                  and a terminating null.
 * @param capacity  of text, in bytes.
 * @return 0; EINVAL: no such ring.
 */
int peerlane_device_get_ring_state(peerlane_device_t device, uint32_t index, struct peerlane_device_ring_state* state,
                                   char* text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
