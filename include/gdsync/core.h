/* SPDX-License-Identifier: Apache-2.0
 * Included by <gdsync.h>: value operations on streams and on the CPU, and the names of queue pairs. */
#ifndef GDSYNC_CORE_H
#define GDSYNC_CORE_H

#include <gdsync/platform.h>

GDS_BEGIN_DECLS

#define GDS_API_MAJOR_VERSION 2U
#define GDS_API_MINOR_VERSION 2U
#define GDS_API_VERSION ((GDS_API_MAJOR_VERSION << 16) | GDS_API_MINOR_VERSION)
/* v: what gds_query_param(GDS_PARAM_VERSION) gave. */
#define GDS_API_VERSION_COMPATIBLE(v) \
  (((((v)&0xffff0000U) >> 16) == GDS_API_MAJOR_VERSION) && (((v)&0x0000ffffU) >= GDS_API_MINOR_VERSION))

typedef enum gds_param { GDS_PARAM_VERSION, GDS_NUM_PARAMS } gds_param_t;
/* EINVAL: no such parameter, or no place for its value. */
int gds_query_param(gds_param_t param, int* value);

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

/* What lies at a pointer, in every `flags`. */
typedef enum gds_memory_type {
  GDS_MEMORY_GPU = 1, /* a device address; also of cuMemHostAlloc and cudaMallocHost */
  GDS_MEMORY_HOST =
      2, /* any host memory. Not known to CUDA yet: its page is registered, and stays so until the process ends */
  GDS_MEMORY_IO = 4, /* a device's registers, mapped for the CPU; registered like host memory */
  GDS_MEMORY_MASK = 7
} gds_memory_type_t;

typedef enum gds_wait_flags {
  GDS_WAIT_POST_FLUSH_REMOTE = 1 << 3, /* writes of other devices that came before the word are visible behind the wait */
  GDS_WAIT_POST_FLUSH = GDS_WAIT_POST_FLUSH_REMOTE
} gds_wait_flags_t;

/* Every write has these barriers here, asked for or not. */
typedef enum gds_write_flags {
  GDS_WRITE_PRE_BARRIER_SYS = 1 << 4,
  GDS_WRITE_PRE_BARRIER = GDS_WRITE_PRE_BARRIER_SYS
} gds_write_flags_t;
typedef enum gds_write_memory_flags {
  GDS_WRITE_MEMORY_POST_BARRIER_SYS = 1 << 4,
  GDS_WRITE_MEMORY_PRE_BARRIER_SYS = 1 << 5
} gds_write_memory_flags_t;

typedef enum gds_membar_flags {
  GDS_MEMBAR_FLUSH_REMOTE = 1 << 4,
  GDS_MEMBAR_DEFAULT = 1 << 5,
  GDS_MEMBAR_SYS = 1 << 6,
  GDS_MEMBAR_MLX5 = 1 << 7
} gds_membar_flags_t;

typedef enum gds_wait_cond_flag {
  GDS_WAIT_COND_GEQ = 0, /* (int32_t)(*ptr - value) >= 0 */
  GDS_WAIT_COND_EQ,
  GDS_WAIT_COND_AND, /* (*ptr & value) != 0 */
  GDS_WAIT_COND_NOR  /* ~(*ptr | value) != 0 */
} gds_wait_cond_flag_t;

typedef struct gds_wait_value32 {
  uint32_t* ptr; /* 4-byte aligned, also below */
  uint32_t value;
  gds_wait_cond_flag_t cond_flags;
  int flags; /* gds_memory_type_t | gds_wait_flags_t */
} gds_wait_value32_t;
typedef struct gds_write_value32 {
  uint32_t* ptr;
  uint32_t value;
  int flags; /* gds_memory_type_t | gds_write_flags_t */
} gds_write_value32_t;
typedef struct gds_write_memory {
  uint8_t* dest;
  const uint8_t* src; /* host memory; read when the descriptor is posted */
  size_t count;       /* bytes: a multiple of 4, at most 1024 */
  int flags;          /* gds_memory_type_t | gds_write_memory_flags_t */
} gds_write_memory_t;

/* Fill in a descriptor, nothing else. EINVAL: null or unaligned pointers, no single memory type, unknown flags or condition.
 */
int gds_prepare_wait_value32(gds_wait_value32_t* desc, uint32_t* ptr, uint32_t value, gds_wait_cond_flag_t cond_flags,
                             int flags);
int gds_prepare_write_value32(gds_write_value32_t* desc, uint32_t* ptr, uint32_t value, int flags);
int gds_prepare_write_memory(gds_write_memory_t* desc, uint8_t* dest, const uint8_t* src, size_t count, int flags);

/* ---- Queue pairs: of software, between processes of one node (gdsync/soft.h). ENOSYS: `context` is an adapter's, or this
 * library was built without infiniband/verbs.h. One thread at a time per queue pair; requests end before their queue pair.
 *
 * gds_create_qp: RC or UD, no shared receive queue, flags 0; NULL with errno otherwise. *qp_init_attr gets the queues that
 * were made. A send leaves when its stream comes to it, in the order in which sends were prepared. A wait is for the
 * completion after all those that were waited for before; the CPU gets that completion (ibv_poll_cq) once the stream is past
 * it, or gds_post_wait_cq has given the wait up. ENOMEM: max_send_wr (of it, at most 4096) or max_recv_wr are under way.
 * EFAULT: no memory lies where sg_list says. gds_destroy_qp: streams that still wait for completions of the pair continue.
 */

struct ibv_pd;
struct ibv_context;
struct ibv_qp;
struct ibv_cq;
struct ibv_recv_wr;
struct ibv_exp_send_wr;
typedef struct ibv_qp_init_attr gds_qp_init_attr_t;
typedef struct ibv_exp_send_wr gds_send_wr; /* infiniband/verbs_exp.h */

enum gds_create_qp_flags {
  GDS_CREATE_QP_DEFAULT = 0,
  GDS_CREATE_QP_WQ_ON_GPU = 1 << 0,
  GDS_CREATE_QP_TX_CQ_ON_GPU = 1 << 1,
  GDS_CREATE_QP_RX_CQ_ON_GPU = 1 << 2,
  GDS_CREATE_QP_WQ_DBREC_ON_GPU = 1 << 5
};

struct gds_cq {
  struct ibv_cq* cq;
  uint32_t curr_offset;
};
struct gds_qp {
  struct ibv_qp* qp;
  struct gds_cq send_cq;
  struct gds_cq recv_cq;
  void* res_domain;
  struct ibv_context* dev_context;
};
/* For arrays of a request's parts; a request of a soft queue pair has one. */
enum { GDS_SEND_INFO_MAX_OPS = 32, GDS_WAIT_INFO_MAX_OPS = 32 };
typedef struct gds_send_request {
  uint64_t reserved[128];
} gds_send_request_t;
typedef struct gds_wait_request {
  uint64_t reserved[128];
} gds_wait_request_t;

struct gds_qp* gds_create_qp(struct ibv_pd* pd, struct ibv_context* context, gds_qp_init_attr_t* qp_init_attr, int gpu_id,
                             int flags);
int gds_destroy_qp(struct gds_qp* qp);
int gds_post_send(struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr);
int gds_post_recv(struct gds_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad_wr);
int gds_stream_queue_send(CUstream stream, struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr);
int gds_stream_wait_cq(CUstream stream, struct gds_cq* cq, int flags);
int gds_prepare_send(struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr, gds_send_request_t* request);
int gds_stream_post_send(CUstream stream, gds_send_request_t* request);
int gds_stream_post_send_all(CUstream stream, int count, gds_send_request_t* request);
int gds_prepare_wait_cq(struct gds_cq* cq, gds_wait_request_t* request, int flags);
int gds_stream_post_wait_cq(CUstream stream, gds_wait_request_t* request);
int gds_stream_post_wait_cq_all(CUstream stream, int count, gds_wait_request_t* request);
int gds_post_wait_cq(struct gds_cq* cq, gds_wait_request_t* request, int flags);

/* ---- Posting --------------------------------------------------------------------------------------------------------- */

typedef enum gds_tag {
  GDS_TAG_SEND,
  GDS_TAG_WAIT,
  GDS_TAG_WAIT_VALUE32,
  GDS_TAG_WRITE_VALUE32,
  GDS_TAG_WRITE_MEMORY
} gds_tag_t;

#ifdef __GNUC__
#define GDS_UNNAMED __extension__ /* C before 2011 has no unnamed members */
#else
#define GDS_UNNAMED
#endif
typedef struct gds_descriptor {
  gds_tag_t tag; /* which of these */
  GDS_UNNAMED union {
    gds_send_request_t* send;
    gds_wait_request_t* wait;
    gds_wait_value32_t wait32;
    gds_write_value32_t write32;
    gds_write_memory_t writemem;
  };
} gds_descriptor_t;

/* Queues them on the stream, in order, as stream memory operations; lists of up to 255 are one driver call. Returns at once.
 * flags: 0. EINVAL: a descriptor is none; nothing was queued then. ENOTSUP: the driver has no stream
 * memory operations. Nothing but its word ends such a wait. */
int gds_stream_post_descriptors(CUstream stream, size_t n_descs, gds_descriptor_t* descs, int flags);
/* The same list carried out by the CPU before it returns; waits spin. GPU memory: of gds_alloc_mapped_memory, or host memory
 * that CUDA allocated; other device memory is EFAULT, and nothing was done then. */
int gds_post_descriptors(size_t n_descs, gds_descriptor_t* descs, int flags);

GDS_END_DECLS
#endif
