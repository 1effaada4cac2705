/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Sessions and mappings: GPU memory in the CPU's address space, for C and for every language that calls C. Link -lpeerlane.
 * C++: <peerlane/peerlane.hpp>, a thin layer over these calls.
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
 * Conventions, of all headers of Peerlane:
 *  - A call returns 0 or a positive errno value. Outputs are written on success only. peerlane_last_error() is the sentence
 *    behind a failure: object, cause, next step.
 *  - Sizes are `size_bytes`, in bytes. Device addresses are peerlane_device_ptr_t. Time-outs are int64_t in milliseconds; a
 *    negative one is no limit.
 *  - `peerlane_<thing>_open(options, &thing)` opens. What was opened is closed, what was mapped is unmapped, everything else
 *    is released. Options may be NULL; each struct begins with its own size, so that programs and libraries of different
 *    releases fit together.
 *  - A handle that is not live is answered with EINVAL.
 *
 * Threads. Every call may come from any thread at any time. fork: objects belong to the process that made them; in a child
 * every call answers EACCES.
 *
 * Memory order. docs/ordering.md says what loads and stores through a mapping give.
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

/** Zero means the default everywhere. */
struct peerlane_session_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_session_options): fields that come later are not read. */
  const char* backend; /**< "gdrdrv", "dmabuf", "rm" or "auto"; NULL: PEERLANE_BACKEND or the best. */
};

/**
 * @brief Opens a session. Cheap: no CUDA call is made.
 *
 * @param options  NULL: all defaults.
 * @param session  written on success.
 * @return 0; ENODEV, ENOSYS, EACCES: no backend works, with the reason; EINVAL: no such backend.
 */
int peerlane_session_open(const struct peerlane_session_options* options, peerlane_session_t* session);

/**
 * @brief Unmaps what is left, then ends the session.
 *
 * Pointers into mappings that were left raise SIGBUS from then on (the first 256 of a process; SIGSEGV behind that).
 *
 * @return 0; EINVAL: not open.
 */
int peerlane_session_close(peerlane_session_t session);

/** @brief Name of the session's backend: static text; "" if it is not open. */
const char* peerlane_session_backend_name(peerlane_session_t session);

/** @param simulated  becomes 1 if the session runs on the simulated GPU, else 0. */
int peerlane_session_is_simulated(peerlane_session_t session, int* simulated);

/* ---- Mappings -------------------------------------------------------------------------------------------------------- */

enum peerlane_map_flags {
  PEERLANE_MAP_DEFAULT = 0,
  PEERLANE_MAP_FORCE_PCIE = 1, /**< BAR1 even where CPU and GPU are coherent. */
  PEERLANE_MAP_VERIFY = 2 /**< Prove the mapping by a nonce (written, read through CUDA, restored). Nobody else may use the
                               first 64 bytes of the range meanwhile. ETIMEDOUT if CUDA does not answer in 2 s. */
};

/**
 * @brief Maps GPU memory: any alignment, inside one allocation or over adjacent cuMemCreate pieces that are mapped next to
 *        each other.
 *
 * The memory stays alive (and readable) until it is unmapped, even after cuMemFree. Needs an initialised CUDA driver in the
 * process; a current context is not needed. Takes tens of microseconds; about one if the allocation has a live mapping.
 * Mappings of one allocation may share CPU addresses: use a pointer no longer than its own mapping lives, though it may go
 * on working while another one does.
 *
 * @param flags    enum peerlane_map_flags.
 * @param mapping  written on success.
 * @return 0; EINVAL: size 0, not device memory, managed or host memory, freed, or leaving the allocation; ENOMEM: BAR1 is
 *         full; ETIMEDOUT: a first mapping waits for its proof, which a running kernel holds up (docs/architecture.md): map
 *         while the GPU is idle.
 */
int peerlane_map(peerlane_session_t session, peerlane_device_ptr_t device_ptr, size_t size_bytes, uint32_t flags,
                 peerlane_mapping_t* mapping);

/** @brief Ends a mapping; its memory lives on if CUDA has not freed it. */
int peerlane_unmap(peerlane_mapping_t mapping);

/**
 * @brief Maps memory that another process made.
 *
 * The exporting process must still hold the memory. Backend rm proves that the mapping shows this memory by comparing bytes
 * with what CUDA reads.
 *
 * @param device_ptr  in what cuIpcOpenMemHandle returned here.
 * @param ipc_handle  the 64 bytes (CUipcMemHandle, cudaIpcMemHandle_t) with which it was opened.
 * @return as peerlane_map(); EAGAIN: all bytes compared are alike, which proves nothing: write something first, or give
 *         PEERLANE_MAP_VERIFY; EIO: they differ: the handle is of other memory, or this driver's handles are not the known
 *         ones; EINVAL: not a handle, or of another size; EACCES, ENOENT: the driver does not share the memory, or its
 *         exporter is gone.
 */
int peerlane_map_ipc(peerlane_session_t session, peerlane_device_ptr_t device_ptr, size_t size_bytes, uint32_t flags,
                     const void* ipc_handle, peerlane_mapping_t* mapping);

enum peerlane_mapping_type {
  PEERLANE_MAPPING_NONE = 0,
  PEERLANE_MAPPING_WC = 1,
  PEERLANE_MAPPING_CACHED = 2,
  PEERLANE_MAPPING_DEVICE = 3
};

struct peerlane_mapping_info {
  peerlane_device_ptr_t device_ptr; /**< As given to peerlane_map. */
  size_t size_bytes;                /**< As given to peerlane_map. */
  void* data;                       /**< CPU address of device_ptr's byte. */
  peerlane_device_ptr_t pinned_ptr; /**< The pinned range around it, page granular. */
  size_t pinned_size_bytes;
  uint32_t mapping_type;  /**< enum peerlane_mapping_type. */
  int32_t device_ordinal; /**< CUDA ordinal of the memory's GPU. */
  const char* backend;    /**< "gdrdrv", "dmabuf" or "rm"; static. */
};

/** @brief Says what is mapped. No system call. */
int peerlane_mapping_get_info(peerlane_mapping_t mapping, struct peerlane_mapping_info* info);

/**
 * @return the CPU address of the first mapped byte, for plain loads and stores; NULL: not live.
 */
void* peerlane_mapping_data(peerlane_mapping_t mapping);

/**
 * @brief Writes bytes; ends with a store fence. No lock, no system call, no allocation; also the four calls below.
 * @return 0; ERANGE unless offset_bytes + size_bytes lies inside the mapping; EINVAL: not live.
 */
int peerlane_mapping_write(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);

/** @brief Reads bytes; later loads come after the data. */
int peerlane_mapping_read(peerlane_mapping_t mapping, size_t offset_bytes, void* destination, size_t size_bytes);

/** @brief Sets bytes; ends with a store fence. */
int peerlane_mapping_fill(peerlane_mapping_t mapping, size_t offset_bytes, int byte_value, size_t size_bytes);

/** @brief Writes without the fence; a later peerlane_mapping_flush() by the same thread orders all of them. */
int peerlane_mapping_write_unfenced(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);
int peerlane_mapping_flush(peerlane_mapping_t mapping);

/* ---- Errors and version ---------------------------------------------------------------------------------------------- */

/** @brief The sentence behind this thread's last failure; valid until its next failing call. Never NULL. */
const char* peerlane_last_error(void);

void peerlane_get_version(int* major, int* minor);

#ifdef __cplusplus
}
#endif
#endif
