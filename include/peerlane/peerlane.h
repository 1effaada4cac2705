/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Sessions and mappings: GPU memory in the CPU's address space, for C and any language that can call C. Link -lpeerlane.
 * C++ programs use <peerlane/peerlane.hpp>, a thin layer over these calls.
 *
 * @code
 * peerlane_session_t session;
 * peerlane_mapping_t flag;
 * if (peerlane_session_open(NULL, &session) != 0) return fprintf(stderr, "%s\n", peerlane_last_error()), 1;
 * peerlane_map(session, device_ptr, sizeof(int), PEERLANE_MAP_DEFAULT, &flag);   // any address, any length
 * peerlane_mapping_write(flag, 0, &one, sizeof one);                              // 0.13 us on an H100, no CUDA call
 * peerlane_unmap(flag);
 * peerlane_session_close(session);
 * @endcode
 *
 * Conventions of all Peerlane headers:
 *  - A call returns 0 or a positive errno value. It writes its outputs only on success. After a failure,
 *    peerlane_last_error() returns one sentence with the object, the cause and the next step.
 *  - Sizes and offsets are in bytes. Device addresses are peerlane_device_ptr_t. Timeouts are int64_t in milliseconds; a
 *    negative timeout means no limit.
 *  - `peerlane_<thing>_open(options, &thing)` opens an object. Close what you opened, unmap what you mapped, and release
 *    everything else. Options may be NULL. Each options struct begins with its own size, so that programs and libraries of
 *    different releases work together.
 *  - A call on a handle that is closed, or was never open, returns EINVAL.
 *
 * Threads. Any thread may make any call at any time, on the same or on different objects. Do not unmap a mapping, or close
 * its session, while another thread is in a call on the mapping or accesses its memory. Closing a session waits for calls on
 * the session. fork: an object belongs to the process that created it. In a child process every call on it returns EACCES.
 *
 * Memory order. docs/ordering.md defines the order of loads and stores through a mapping.
 */
#ifndef PEERLANE_H
#define PEERLANE_H

#include <peerlane/buffer.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEERLANE_VERSION_MAJOR 0
#define PEERLANE_VERSION_MINOR 2

typedef struct peerlane_session* peerlane_session_t; /**< peerlane_session_open .. peerlane_session_close */
typedef struct peerlane_mapping* peerlane_mapping_t; /**< peerlane_map .. peerlane_unmap */

/* ---- Sessions -------------------------------------------------------------------------------------------------------- */

/** In every field, zero means the default. */
struct peerlane_session_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_session_options). Fields beyond this size are not read. */
  const char* backend; /**< "gdrdrv", "dmabuf", "rm" or "auto"; NULL: PEERLANE_BACKEND, or the first backend that works. */
};

/**
 * @brief Opens a session. Makes no CUDA call.
 *
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param session  the new session, owned by the caller; end it with peerlane_session_close().
 * @return 0; ENODEV, ENOSYS or EACCES: no backend works, and peerlane_last_error() says why; EINVAL: unknown backend.
 */
int peerlane_session_open(const struct peerlane_session_options* options, peerlane_session_t* session);

/**
 * @brief Unmaps the remaining mappings and closes the session.
 *
 * A later access through a pointer into one of those mappings raises SIGBUS (SIGSEGV beyond the first 256 in a process).
 *
 * @return 0; EINVAL: the session is not open.
 */
int peerlane_session_close(peerlane_session_t session);

/** @brief Returns the name of the session's backend, a static string; "" if the session is not open. */
const char* peerlane_session_backend_name(peerlane_session_t session);

/**
 * @brief Tells whether the session uses the simulated GPU.
 * @param simulated  set to 1 on the simulated GPU, else to 0.
 * @return 0; EINVAL: the session is not open.
 */
int peerlane_session_is_simulated(peerlane_session_t session, int* simulated);

/* ---- Mappings -------------------------------------------------------------------------------------------------------- */

enum peerlane_map_flags {
  PEERLANE_MAP_DEFAULT = 0,
  PEERLANE_MAP_FORCE_PCIE = 1, /**< Map through BAR1 even where CPU and GPU are coherent. */
  PEERLANE_MAP_VERIFY = 2 /**< Verify the mapping: write a nonce, read it through CUDA, restore the bytes. Nothing else may
                               use the first 64 bytes of the range meanwhile. ETIMEDOUT if CUDA does not answer in 2 s. */
};

/**
 * @brief Maps GPU memory into the CPU's address space, at any alignment and length.
 *
 * The range lies inside one allocation, or covers cuMemCreate pieces that are mapped next to each other. The process must
 * have initialised the CUDA driver; no context has to be current. The call takes tens of microseconds, or about one if the
 * allocation is already mapped.
 *
 * The mapping keeps the memory alive and readable until peerlane_unmap(), even after cuMemFree. Several mappings of one
 * allocation may share CPU addresses. Do not use a pointer after its own mapping has ended, even if it still works.
 *
 * @param device_ptr  address of the first byte to map.
 * @param size_bytes  length of the range, more than 0.
 * @param flags       enum peerlane_map_flags.
 * @param mapping     the new mapping, owned by the caller; end it with peerlane_unmap().
 * @return 0; EINVAL: the size is 0, or the range is not device memory, was freed, or leaves its allocation; ENOMEM: BAR1 is
 *         full; ETIMEDOUT: the first mapping could not be verified because a kernel is running (docs/architecture.md): map
 *         while the GPU is idle.
 */
int peerlane_map(peerlane_session_t session, peerlane_device_ptr_t device_ptr, size_t size_bytes, uint32_t flags,
                 peerlane_mapping_t* mapping);

/**
 * @brief Ends a mapping. The GPU memory stays allocated unless CUDA has freed it.
 * @return 0; EINVAL: the mapping is not live.
 */
int peerlane_unmap(peerlane_mapping_t mapping);

/**
 * @brief Maps GPU memory of another process that this process opened through CUDA IPC.
 *
 * The exporting process must still hold the memory. The rm backend verifies the mapping: it compares bytes with those that
 * CUDA reads.
 *
 * @param device_ptr  an address inside the range that cuIpcOpenMemHandle returned in this process.
 * @param size_bytes  length of the range, more than 0.
 * @param flags       enum peerlane_map_flags.
 * @param ipc_handle  the 64-byte handle (CUipcMemHandle, cudaIpcMemHandle_t) that cuIpcOpenMemHandle opened.
 * @param mapping     the new mapping, owned by the caller; end it with peerlane_unmap().
 * @return as peerlane_map(); EAGAIN: all compared bytes have the same value, which proves nothing: write something first, or
 *         pass PEERLANE_MAP_VERIFY; EIO: the bytes differ, so the handle belongs to other memory or this driver's handle
 *         format is unknown; EINVAL: not a handle, or one of memory of another size; EACCES, ENOENT: the driver does not
 *         share the memory, or the exporting process has ended.
 */
int peerlane_map_ipc(peerlane_session_t session, peerlane_device_ptr_t device_ptr, size_t size_bytes, uint32_t flags,
                     const void* ipc_handle, peerlane_mapping_t* mapping);

/** How the CPU caches accesses to a mapping. */
enum peerlane_mapping_type {
  PEERLANE_MAPPING_NONE = 0,
  PEERLANE_MAPPING_WC = 1,     /**< Write-combining (x86-64). */
  PEERLANE_MAPPING_CACHED = 2, /**< Cached: CPU and GPU are coherent. */
  PEERLANE_MAPPING_DEVICE = 3  /**< Device memory (arm64). */
};

struct peerlane_mapping_info {
  peerlane_device_ptr_t device_ptr; /**< As given to peerlane_map. */
  size_t size_bytes;                /**< As given to peerlane_map. */
  void* data;                       /**< CPU address of the byte at device_ptr. */
  peerlane_device_ptr_t pinned_ptr; /**< Begin of the pinned pages that contain the range. */
  size_t pinned_size_bytes;         /**< Length of those pages. */
  uint32_t mapping_type;            /**< enum peerlane_mapping_type. */
  int32_t device_ordinal;           /**< CUDA ordinal of the memory's GPU. */
  const char* backend;              /**< "gdrdrv", "dmabuf" or "rm"; static. */
};

/**
 * @brief Describes a mapping. Makes no system call.
 * @param info  written on success; its strings are static.
 * @return 0; EINVAL: the mapping is not live.
 */
int peerlane_mapping_get_info(peerlane_mapping_t mapping, struct peerlane_mapping_info* info);

/**
 * @brief Returns the CPU address of the first mapped byte, for plain loads and stores.
 * @return the address, valid until peerlane_unmap(); NULL: the mapping is not live.
 */
void* peerlane_mapping_data(peerlane_mapping_t mapping);

/**
 * @brief Copies host memory into a mapping, then executes a store fence: later stores of this thread reach the GPU after
 *        these bytes.
 *
 * This call and the four below take no lock, make no system call and allocate nothing.
 *
 * @param offset_bytes  from the begin of the mapping.
 * @param source        host memory of `size_bytes` bytes; may be reused on return.
 * @return 0; ERANGE: the bytes leave the mapping; EINVAL: the mapping is not live.
 */
int peerlane_mapping_write(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);

/**
 * @brief Copies bytes of a mapping into host memory. Later loads of this thread are ordered after these loads.
 * @param destination  host memory of `size_bytes` bytes.
 * @return as peerlane_mapping_write().
 */
int peerlane_mapping_read(peerlane_mapping_t mapping, size_t offset_bytes, void* destination, size_t size_bytes);

/**
 * @brief Sets bytes of a mapping to one value, then executes a store fence, as peerlane_mapping_write() does.
 * @param byte_value  only its low 8 bits are used.
 * @return as peerlane_mapping_write().
 */
int peerlane_mapping_fill(peerlane_mapping_t mapping, size_t offset_bytes, int byte_value, size_t size_bytes);

/**
 * @brief Writes as peerlane_mapping_write() does, without the fence. Such writes may reach the GPU in any order.
 * @return as peerlane_mapping_write().
 */
int peerlane_mapping_write_unfenced(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);

/**
 * @brief Executes the store fence for all earlier unfenced writes of this thread.
 * @return 0; EINVAL: the mapping is not live.
 */
int peerlane_mapping_flush(peerlane_mapping_t mapping);

/* ---- Errors and version ---------------------------------------------------------------------------------------------- */

/**
 * @brief Returns the error message of the last call that failed in this thread: one sentence with the next step.
 * @return never NULL. The library owns the text; it is valid until the next failing call of this thread.
 */
const char* peerlane_last_error(void);

/**
 * @brief Tells the version of the library that is loaded, to compare with PEERLANE_VERSION_MAJOR and _MINOR.
 */
void peerlane_get_version(int* major, int* minor);

#ifdef __cplusplus
}
#endif
#endif
