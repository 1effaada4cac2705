/* SPDX-License-Identifier: Apache-2.0
 *
 * libpeerlane: GPU memory in the CPU's address space, for C and for every language that calls C.
 * C++ programs include <peerlane/peerlane.hpp>, which is a thin layer over these calls.
 *
 * Conventions: 0 or a positive errno value is returned; outputs are written on success only; every call may come from any
 * thread at any time; sizes are bytes. Objects belong to the process that made them: after fork the child gets EACCES.
 */
#ifndef PEERLANE_H
#define PEERLANE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEERLANE_VERSION_MAJOR 0
#define PEERLANE_VERSION_MINOR 1

typedef struct peerlane_session* peerlane_session_t; /* owner: peerlane_open .. peerlane_close */
typedef struct peerlane_mapping* peerlane_mapping_t; /* owner: peerlane_map .. peerlane_unmap */

enum peerlane_mapping_type {
  PEERLANE_MAPPING_NONE = 0,
  PEERLANE_MAPPING_WC = 1,
  PEERLANE_MAPPING_CACHED = 2,
  PEERLANE_MAPPING_DEVICE = 3
};

enum peerlane_map_flags {
  PEERLANE_MAP_DEFAULT = 0,
  PEERLANE_MAP_FORCE_PCIE = 1, /* BAR1 even where CPU and GPU are coherent */
  PEERLANE_MAP_VERIFY = 2,     /* prove the mapping by a nonce (written, read through CUDA, restored): nobody else may use
                                  the first 64 bytes of the range meanwhile; ETIMEDOUT if CUDA does not answer in 2 s */
};

struct peerlane_mapping_info {
  uint64_t device_ptr; /* as given to peerlane_map */
  size_t size_bytes;   /* as given to peerlane_map */
  void* data;          /* CPU address of device_ptr's byte */
  uint64_t pinned_ptr; /* the pinned range around it, page granular */
  size_t pinned_bytes;
  uint32_t mapping_type;  /* enum peerlane_mapping_type */
  int32_t device_ordinal; /* CUDA ordinal of the memory's GPU */
  const char* backend;    /* "gdrdrv", "dmabuf" or "rm"; static */
};

/* Opens a session on the best backend. `backend`: NULL or "auto", or the name of one. Cheap: no CUDA call is made.
 * ENODEV/ENOSYS/EACCES with a reason if no backend works. */
int peerlane_open(const char* backend, peerlane_session_t* session);

/* Unmaps what is left, then frees the session. Pointers into mappings that were left raise SIGBUS from then on (the first
 * 256 of a process; SIGSEGV behind that). EINVAL if it is not open. */
int peerlane_close(peerlane_session_t session);

/* Maps [device_ptr, device_ptr + size_bytes): any alignment, inside one allocation or over adjacent cuMemCreate pieces that
 * are mapped next to each other. The memory stays alive (and readable) until unmapped, even after cuMemFree. Needs an
 * initialised CUDA driver in the process; a current context is not needed. Tens of microseconds; about one if the
 * allocation has a live mapping already.
 * Mappings of one allocation may share CPU addresses: a pointer is to be used no longer than its own mapping lives, though
 * it may go on working while another one does. EINVAL size 0, not device memory, managed or host memory, freed, or leaving
 * the allocation; ENOMEM BAR1 is full; ETIMEDOUT a first mapping waits for its proof, which a running kernel holds up
 * (docs/architecture.md): map while the GPU is idle. */
int peerlane_map(peerlane_session_t session, uint64_t device_ptr, size_t size_bytes, uint32_t flags,
                 peerlane_mapping_t* mapping);
int peerlane_unmap(peerlane_mapping_t mapping);

/* peerlane_map for memory that another process made: device_ptr lies in what cuIpcOpenMemHandle returned here, ipc_handle
 * points to the 64 bytes (CUipcMemHandle, cudaIpcMemHandle_t) with which it was opened. The exporting process must still
 * hold the memory when it is mapped. Backend rm proves that the mapping shows this memory by comparing bytes with what CUDA
 * reads. EAGAIN all bytes compared are alike, which proves nothing: write something first, or give PEERLANE_MAP_VERIFY; EIO
 * they differ: the handle is of other memory, or this driver's handles are not the known ones; EINVAL not a handle, or of
 * another size; EACCES/ENOENT the driver does not share the memory, or its exporter is gone; else as peerlane_map. */
int peerlane_map_ipc(peerlane_session_t session, uint64_t device_ptr, size_t size_bytes, uint32_t flags,
                     const void* ipc_handle, peerlane_mapping_t* mapping);

/* No system call. */
int peerlane_mapping_get_info(peerlane_mapping_t mapping, struct peerlane_mapping_info* info);

/* CPU address of the first mapped byte, NULL if `mapping` is not live. Plain loads and stores through it are allowed;
 * docs/ordering.md says what they give. */
void* peerlane_data(peerlane_mapping_t mapping);

/* Copies; no lock, no system call, no allocation. ERANGE unless offset_bytes + size_bytes lies inside the mapping.
 * write: ends with a store fence. read: later loads come after the data. */
int peerlane_write(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);
int peerlane_read(peerlane_mapping_t mapping, size_t offset_bytes, void* destination, size_t size_bytes);
int peerlane_fill(peerlane_mapping_t mapping, size_t offset_bytes, int byte_value, size_t size_bytes);

/* write without the fence; a later peerlane_flush by the same thread orders all of them. */
int peerlane_write_unfenced(peerlane_mapping_t mapping, size_t offset_bytes, const void* source, size_t size_bytes);
int peerlane_flush(peerlane_mapping_t mapping);

/* Name of the session's backend and whether it runs on the simulated GPU (1) or not (0). */
const char* peerlane_backend_name(peerlane_session_t session);
int peerlane_is_simulated(peerlane_session_t session, int* simulated);

/* The sentence behind this thread's last failure; valid until its next failing call. Never NULL. */
const char* peerlane_last_error(void);

void peerlane_get_version(int* major, int* minor);

#ifdef __cplusplus
}
#endif
#endif
