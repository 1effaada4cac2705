/* SPDX-License-Identifier: Apache-2.0
 *
 * Peerlane's drop-in for libgdrapi.so.2 (API version 2.6): CPU mappings of GPU memory and copies through them.
 * Programs compiled against GDRCopy 2.0 to 2.6 run unchanged. What differs for the better: no kernel module is
 * needed, every call is thread-safe, sizes and pointers are checked, nothing aborts the process.
 *
 * Conventions for all calls
 *   Returns    0, or a positive errno value. Outputs are written on success only, but for *handle of the pin calls,
 *              which is zeroed on failure. errno itself is left alone.
 *   Sizes      bytes. Device addresses are CUDA device pointers as integers.
 *   Threads    any call from any thread, at the same time, on the same or different objects. The caller keeps an
 *              object alive while calls on it run: unmapping a range that another thread is copying is the caller's error.
 *   fork       objects belong to the process that made them. In a child every call on them returns EACCES, and the
 *              mappings are not inherited (access faults). A child may gdr_open() for itself.
 *   Errors     EINVAL for a gdr_t, handle, size, flag or address that is not valid here; EACCES in a forked child;
 *              ENOMEM when BAR1 or memory is exhausted; ENODEV/ENOSYS without GPU or driver; EOPNOTSUPP for a mapping
 *              type the platform does not have. gdr_last_error() (ours) gives the sentence that goes with the number.
 */
#ifndef GDRAPI_H
#define GDRAPI_H

#include <stddef.h>
#include <stdint.h>

#include "gdrconfig.h"

#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK 0xffff
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION ((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* Pins are rounded outwards to this granule. */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

/* A library instance. Owned by the caller until gdr_close. */
struct gdr;
typedef struct gdr* gdr_t;

/* A pinned range. A plain value; valid from pin to unpin or close. A valid handle is never 0. */
struct gdr_mh_s {
  unsigned long h;
};
typedef struct gdr_mh_s gdr_mh_t;

typedef enum gdr_pin_flags {
  GDR_PIN_FLAG_DEFAULT = 0,
  GDR_PIN_FLAG_FORCE_PCIE = 1, /* BAR1 even where CPU and GPU are coherent; EINVAL unless attribute 2 answers 1 */
} gdr_pin_flags_t;

typedef enum gdr_map_flags {
  GDR_MAP_FLAG_DEFAULT = 0,
  GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
  GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
  GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3,
} gdr_map_flags_t;

typedef enum gdr_mapping_type {
  GDR_MAPPING_TYPE_NONE = 0, /* not mapped */
  GDR_MAPPING_TYPE_WC = 1,   /* write-combining */
  GDR_MAPPING_TYPE_CACHING = 2,
  GDR_MAPPING_TYPE_DEVICE = 3,
  GDR_MAPPING_TYPE_MAX = 4,
} gdr_mapping_type_t;

typedef enum gdr_attr {
  GDR_ATTR_USE_PERSISTENT_MAPPING = 1, /* 1: pinned memory outlives cudaFree and stays readable until unpin */
  GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
  GDR_ATTR_USING_DMA_BUF_MMAP = 3, /* 1: isolation between processes rests on the dma-buf, not on an owner check */
  GDR_ATTR_MAX = 4,
} gdr_attr_t;

/* What is known of a pinned range. Before gdr_map: mapped 0, mapping_type NONE. */
struct gdr_info_v2 {
  uint64_t va;          /* device address of the first pinned byte (rounded down) */
  uint64_t mapped_size; /* bytes pinned (rounded up) */
  uint32_t page_size;   /* granule of the rounding, bytes */
  uint64_t tm_cycles;   /* CPU timestamp ticks the pin took, 0 if not known */
  uint32_t cycles_per_ms;
  unsigned mapped : 1;
  unsigned wc_mapping : 1;
  gdr_mapping_type_t mapping_type;
};
typedef struct gdr_info_v2 gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

/* The struct that programs compiled against 2.3 and older pass to the symbol gdr_get_info: never more than its 40
 * bytes are written. New code uses gdr_info_t. */
struct gdr_info_v1 {
  uint64_t va;
  uint64_t mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  unsigned mapped : 1;
  unsigned wc_mapping : 1;
};
typedef struct gdr_info_v1 gdr_info_v1_t;

/* Opens an instance on the best backend: gdrdrv, dma-buf mmap, or the resource manager (no module). NULL if none works;
 * `peerlane doctor` and GDRCOPY_ENABLE_LOGGING=1 say why. Does not initialise CUDA. */
gdr_t gdr_open(void);

/* Unmaps and unpins everything that is left in `g`, then frees it. Pointers into mappings that were left raise SIGBUS from
 * then on (the first 256 of a process; SIGSEGV behind that). EINVAL for a gdr_t that is not open. */
int gdr_close(gdr_t g);

/* Pins `size` bytes of device memory at `addr` (any alignment; rounded outwards to GPU_PAGE_SIZE). The two tokens are
 * ignored. The same memory may be pinned many times. `*handle` is 0 on failure. Takes tens of microseconds the first
 * time, about one while another pin of the same allocation lives.
 * EINVAL: size 0, address 0, not device memory of this process, managed or host memory, freed memory, or a range that
 * leaves the allocation. */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space, gdr_mh_t* handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t* handle);

/* Releases a pin; a live mapping of it is unmapped first, and pointers into it raise SIGBUS as after gdr_close. The handle
 * is dead afterwards, also when an error is returned. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* *flag = 1 if the driver revoked the pin because the memory was freed. Always 0 where mappings are persistent. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int* flag);

/* No system call, about 20 ns. The macro below sends source code to v2; the symbol gdr_get_info keeps the v1 struct. */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t* info);
#ifdef PEERLANE_GDRAPI_IMPLEMENTATION
int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_v1_t* info);
#else
#define gdr_get_info gdr_get_info_v2
#endif

/* Maps the first `size` bytes of the pin (rounded up to the host page). One mapping per handle at a time: EAGAIN if it is
 * mapped. Each mapping has addresses of its own, also where several pins share memory. *va corresponds to info.va, not to
 * the address given to pin. EINVAL if the pinned address is not a multiple of GPU_PAGE_SIZE (as GDRCopy; peerlane::map takes
 * any address), size is 0 or larger than the pin. */
int gdr_map(gdr_t g, gdr_mh_t handle, void** va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void** va, size_t size, int flags);

/* The addresses are free for other uses afterwards. EINVAL if not mapped, or if va or size are not those of the mapping
 * (nothing is unmapped then). */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void* va, size_t size);

/* Copies through a live mapping. No lock, no system call, no allocation. Host pointer: any alignment. `map_d_ptr` and
 * size must lie inside the mapping (EINVAL otherwise, nothing is copied). Size 0 does nothing.
 * to_mapping: on return the data is on its way and ordered before later stores of this thread (store fence); a kernel that
 * already runs sees it within about a microsecond if it reads with system scope (docs/ordering.md).
 * from_mapping: ordered after earlier stores of this thread through mappings; later loads come after the data. */
int gdr_copy_to_mapping(gdr_mh_t handle, void* map_d_ptr, const void* h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void* h_ptr, const void* map_d_ptr, size_t size);

/* Version of this library (2.6). NULL outputs are skipped. */
void gdr_runtime_get_version(int* major, int* minor);

/* Version of the kernel driver; 2.6 where no module is involved. */
int gdr_driver_get_version(gdr_t g, int* major, int* minor);

/* EINVAL, and *v = 0, for an unknown attribute. */
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int* v);

/* Static string, never freed. EINVAL for a value outside the enum. */
int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char** pstr);

/* ---- Peerlane's additions: absent in GDRCopy, so look them up (dlsym) where the other library may be loaded -------- */

/* The sentence behind the last non-zero return value in this thread: object, cause, what to do. Valid until this
 * thread's next failing call. Never NULL. */
const char* gdr_last_error(void);

/* gdr_copy_to_mapping without the fence: for several writes in a row, then one gdr_flush_mapping. */
int gdr_copy_to_mapping_unfenced(gdr_mh_t handle, void* map_d_ptr, const void* h_ptr, size_t size);
int gdr_flush_mapping(gdr_mh_t handle);

#ifdef __cplusplus
}
#endif
#endif
