/* SPDX-License-Identifier: Apache-2.0
 *
 * libpeerlane's copies between host and GPU memory: one call for any size, direction and kind of host memory; the library
 * takes the way that costs least (stores and loads through a mapping, a resident GPU kernel, DMA). C++: <peerlane/copy.hpp>.
 *
 * Conventions as in <peerlane/peerlane.h>. Sizes and pitches are bytes. Device pointers are CUDA's, of any GPU, context and
 * allocator (managed memory is refused). A copier's calls may come from any thread; closing it or ending one of its objects
 * must not run beside other calls on the same object. In a forked child every call answers EACCES. What a copy means for
 * memory order: docs/ordering.md.
 */
#ifndef PEERLANE_COPY_H
#define PEERLANE_COPY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_copier* peerlane_copier_t;             /* owner: peerlane_copier_open .. close */
typedef struct peerlane_completion* peerlane_completion_t;     /* owner: peerlane_copy_begin .. peerlane_completion_free */
typedef struct peerlane_registration* peerlane_registration_t; /* owner: peerlane_copier_register .. unregister */
typedef struct peerlane_hold* peerlane_hold_t; /* owner: peerlane_copier_keep_hot .. peerlane_copier_let_go */

/* Zero means the default everywhere, so options may be all zero. */
struct peerlane_copier_options {
  size_t struct_bytes;    /* sizeof(struct peerlane_copier_options): fields that come later are not read */
  const char* backend;    /* mapping backend, NULL: PEERLANE_BACKEND or the best */
  uint32_t threads;       /* CPU threads of one copy, the caller included; default PEERLANE_COPY_THREADS or 8 */
  uint32_t lease_us;      /* how long the resident kernel stays at most; default PEERLANE_COPY_LEASE_US or 200 */
  uint32_t no_gpu_engine; /* 1: no resident kernel */
  uint32_t reserved;
  uint64_t cache_bytes; /* most that is kept mapped between copies; default 512 MiB */
};

enum peerlane_direction {
  PEERLANE_TO_DEVICE = 0, /* dst: device pointer, src: host pointer */
  PEERLANE_TO_HOST = 1,   /* dst: host pointer, src: device pointer */
  PEERLANE_ON_DEVICE = 2  /* both device pointers, of one GPU or of two */
};

/* `rows` rows of `row_bytes`; with one row the pitches are not read. Source and destination must not overlap. */
struct peerlane_transfer {
  uint64_t dst;
  uint64_t src;
  size_t row_bytes;
  size_t rows;
  size_t dst_pitch;
  size_t src_pitch;
  uint32_t direction; /* enum peerlane_direction */
  uint32_t reserved;  /* 0 */
};

/* Needs an initialised CUDA driver; opens nothing else yet. NULL options: all defaults. ENFILE: 64 copiers are open. */
int peerlane_copier_open(const struct peerlane_copier_options* options, peerlane_copier_t* copier);
/* Waits for what is under way. Completions, registrations and holds must have been ended: EBUSY, and it stays open. */
int peerlane_copier_close(peerlane_copier_t copier);

/* ---- Copies, complete on return: the data is at its destination, for the CPU and for GPU work launched afterwards. ----
 * EINVAL: an address that is not what the direction says, freed memory, bytes outside the allocation, rows that overlap.
 * EIO: CUDA's reason. After a failure nothing is in flight; part of the destination may be written. */
int peerlane_copy_to_device(peerlane_copier_t copier, uint64_t dst, const void* src, size_t bytes);
int peerlane_copy_to_host(peerlane_copier_t copier, void* dst, uint64_t src, size_t bytes);
int peerlane_copy_on_device(peerlane_copier_t copier, uint64_t dst, uint64_t src, size_t bytes);
int peerlane_copy_2d(peerlane_copier_t copier, const struct peerlane_transfer* transfer);
/* Any order among themselves; directions may be mixed. Much cheaper than one by one where they are small. */
int peerlane_copy_list(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count);
int peerlane_copy_fill(peerlane_copier_t copier, uint64_t dst, int byte_value, size_t bytes);

/* ---- Asynchronous copies --------------------------------------------------------------------------------------------
 * The memory must stay until the completion says done; freeing the completion before waits. */
enum peerlane_begin_flags {
  PEERLANE_BEGIN_DEFAULT = 0,
  PEERLANE_BEGIN_AFTER_STREAM = 1 /* the copies wait for a stream */
};
/* `stream`: a CUstream; with PEERLANE_BEGIN_AFTER_STREAM the copies wait for what it has queued so far. EBUSY: it is being
 * captured into a graph. */
int peerlane_copy_begin(peerlane_copier_t copier, const struct peerlane_transfer* transfers, size_t count, uint32_t flags,
                        void* stream, peerlane_completion_t* completion);
/* *done becomes 1 or 0. A failure of the copies is reported once and ends them. */
int peerlane_completion_test(peerlane_completion_t completion, int* done);
int peerlane_completion_wait(peerlane_completion_t completion);
/* The CUstream waits on the GPU for the copies. / Records the CUevent behind them. Copies that need a CPU are waited for
 * here (docs/ordering.md lists them). */
int peerlane_completion_make_wait(peerlane_completion_t completion, void* stream);
int peerlane_completion_record(peerlane_completion_t completion, void* event);
/* Waits if need be; the handle is dead afterwards. Returns what wait would. */
int peerlane_completion_free(peerlane_completion_t completion);

/* ---- Control ------------------------------------------------------------------------------------------------------- */
/* Opens what copies with this GPU's memory will need (some 10 ms), so that none of them pays for it. */
int peerlane_copier_prepare(peerlane_copier_t copier, int device_ordinal);
/* Keeps the resident kernel there without use. It still leaves at the end of each lease and is relaunched, so cudaFree and
 * the like wait one lease at most. ENOTSUP with the reason if there can be none. */
int peerlane_copier_keep_hot(peerlane_copier_t copier, int device_ordinal, peerlane_hold_t* hold);
int peerlane_copier_let_go(peerlane_hold_t hold);
/* Keeps device memory mapped and saves each copy a question to the driver. Unregister before freeing it. */
int peerlane_copier_register(peerlane_copier_t copier, uint64_t device_ptr, size_t bytes, peerlane_registration_t* handle);
/* The same for host memory: it is pinned unless it is already, and its copies need neither a look nor a detour.
 * `device_ordinal`: any GPU, all of them can use it. Unregister before unmapping or freeing it. EBUSY: CUDA has registered
 * part of it. */
int peerlane_copier_register_host(peerlane_copier_t copier, void* pointer, size_t bytes, int device_ordinal,
                                  peerlane_registration_t* handle);
int peerlane_copier_unregister(peerlane_registration_t handle);
/* Unmaps what is kept between copies: memory that was freed goes back to the GPU now instead of within 0.1 s. */
int peerlane_copier_trim(peerlane_copier_t copier);

/* What a copy of this size would do and why, as text of several lines. `pageable`: 1 if the host memory is not pinned (on
 * the device: 1 if the GPUs differ). Writes at most capacity - 1 characters; *needed becomes the full length. */
int peerlane_copier_explain(peerlane_copier_t copier, uint32_t direction, int pageable, size_t bytes, char* text,
                            size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
