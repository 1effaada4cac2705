/* SPDX-License-Identifier: Apache-2.0
 *
 * libpeerlane's messages: tagged sends and receives, put, get and atomics between any mix of host and GPU memory of the
 * processes of one job. No MPI, no CUDA-aware transport, no kernel module. C++: <peerlane/link.hpp>; guide:
 * docs/messaging.md.
 *
 * Conventions as in <peerlane/peerlane.h>: 0 or a positive errno value; outputs are written on success only (and where a
 * call says so); peerlane_last_error() is the sentence behind a failure, with the next step. Sizes are bytes; times are
 * milliseconds, negative: without limit (the death of a peer still ends the wait).
 *
 * Threads: every call from any thread, but one request by one thread at a time. One call of a link works at a time. Opening
 * is collective; closing must not run beside other calls on the link. Progress: only inside calls. A process that makes none
 * takes no part in larger messages and answers no put or get. Memory order: when a receive, get or put has ended for its
 * waiter, later CPU loads see the bytes, and so does GPU work that is launched afterwards. What is sent or put is read at an
 * unspecified time between the call and the end of the request: order GPU work that makes it before the call (synchronise
 * its stream). Kernels that run meanwhile: docs/ordering.md. Fork: a link belongs to its process; in a child every call
 * answers EACCES.
 */
#ifndef PEERLANE_LINK_H
#define PEERLANE_LINK_H

#include <peerlane/copy.h>
#include <peerlane/peerlane.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_link* peerlane_link_t; /* owner: peerlane_link_open .. peerlane_link_close */
/* Numbers of objects of one link; 0 is none. A number that is not live is answered with EINVAL. */
typedef uint64_t peerlane_request_t;    /* until test, wait or free says it has ended */
typedef uint64_t peerlane_message_t;    /* a matched message: mprobe .. receive_matched or discard */
typedef uint64_t peerlane_window_t;     /* expose .. unexpose */
typedef uint64_t peerlane_registered_t; /* register .. unregister */

#define PEERLANE_ANY_SOURCE (-1)
#define PEERLANE_WHOLE_TAG UINT64_MAX /* mask: every bit of the tag counts */

/* What lies at an address. DETECT asks the driver at each call, unless the memory is registered. */
enum peerlane_memory {
  PEERLANE_MEMORY_DETECT = 0,
  PEERLANE_MEMORY_HOST = 1,
  PEERLANE_MEMORY_DEVICE = 2,
};

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

/* The caller's own way between the processes (MPI, a launcher, a socket of his). Each returns 0 or an errno value. The link
 * calls them from within peerlane_link_open and peerlane_link_all_gather only; they must stay callable until it is closed.
 */
struct peerlane_bootstrap {
  void* context;
  int32_t rank;
  int32_t size;
  /* Like MPI_Allgather: `bytes` of every rank, in rank order, into `all` (size * bytes). */
  int (*all_gather)(void* context, const void* mine, size_t bytes, void* all);
  int (*barrier)(void* context); /* NULL: an all_gather of one byte */
};

enum peerlane_choice {
  PEERLANE_AS_SET = 0,
  PEERLANE_NO = 1,
  PEERLANE_YES = 2,
};

/* Zero means the default everywhere, so options may be all zero; what is given wins over PEERLANE_LINK_* variables. */
struct peerlane_link_options {
  size_t struct_bytes; /* sizeof(struct peerlane_link_options): fields that come later are not read */

  /* Who takes part: */
  const struct peerlane_bootstrap* bootstrap; /* or, if NULL: */
  const char* rendezvous; /* "host:port" of rank 0 ("*:port" for rank 0 itself), "file:FOLDER" of a common file system; ranks
                             of several machines or users: PEERLANE_LINK_SECRET_FILE names their secret. NULL:
                             PEERLANE_LINK_RENDEZVOUS, else as mpirun, mpiexec or srun says */
  int32_t rank;           /* read if size is not 0 */
  int32_t size;           /* 0: rank and size from PEERLANE_LINK_RANK, _SIZE, else the launcher's */
  uint32_t open_timeout_s; /* default 60 */

  uint32_t host_only;       /* 1: CUDA is not touched; device memory is refused */
  peerlane_copier_t copier; /* its mappings and costs are shared; must stay open longer; NULL: one of the link's own */
  const char* cpus; /* where the calling thread is put: "none", "near" (the GPU's CPUs), "bunch", "scatter", "0-3,8", or
                       "0-3:8-11", an item for each rank of the node. NULL: PEERLANE_LINK_CPU, else none */

  /* Ways of messages (docs/messaging.md, Tunables): */
  const char* ucx_library; /* path of libucp.so.0 */
  const char* rails;       /* UCX's net devices, "mlx5_0:1,mlx5_1:1" */
  uint32_t network_only;   /* enum peerlane_choice, also below. YES: as if every peer were on another host */
  uint32_t use_ipc;
  uint32_t use_gpu_lanes;
  uint32_t fixed_rail;
  uint32_t calibrate; /* YES: measure what a packet and a handshake cost here (below 0.1 s, kept for later opens) */
  uint32_t peer_timeout_ms;
  uint64_t eager_limit;
  uint64_t gdr_send_limit;
  uint64_t gdr_receive_limit;
  uint64_t ipc_threshold;
  uint64_t chunk_bytes;
  uint64_t unexpected_bytes;
  uint64_t stripe_threshold;
};

/* Collective; NULL options: all defaults. CUDA is initialised (cuInit) unless host_only; the calling thread's current
 * context tells the process's GPU, so set the device first. Where no driver answers, messages are of host memory only.
 * ENODATA: nothing says who takes part. ENOSYS: built without UCX's headers, UCX is missing (only jobs of several hosts need
 * it), or no way to meet. ETIMEDOUT, ECONNRESET: a rank that did not come. EINVAL, EADDRINUSE, EEXIST, EPROTO: ranks that do
 * not fit together. ENFILE: 64 links are open. */
int peerlane_link_open(const struct peerlane_link_options* options, peerlane_link_t* link);
/* Not collective: what others have under way with this process ends with ECONNRESET there (a barrier before it lets all
 * finish). What this link has under way is cancelled, or its memory is taken back as by peerlane_link_free; its windows and
 * registrations end. A process that does not answer delays that by some seconds at most, however much is under way with it.
 */
int peerlane_link_close(peerlane_link_t link);

/* Both -1 if the link is not open. */
int peerlane_link_rank(peerlane_link_t link);
int peerlane_link_size(peerlane_link_t link);
/* 0, ECONNRESET: that process is dead or has closed; EINVAL: no such rank. */
int peerlane_link_peer_state(peerlane_link_t link, int peer);
/* *same becomes 1 if the peer shares this process's node, else 0. */
int peerlane_link_is_same_node(peerlane_link_t link, int peer, int* same);

/* ---- Messages --------------------------------------------------------------------------------------------------------
 * A receive takes the message that was sent first of those that fit its source, tag and mask ((tag ^ sent) & mask == 0); a
 * message goes to the receive that was posted first. A message longer than the buffer ends the receive with EMSGSIZE: the
 * first bytes are there, and info->bytes is the message's length. The end of a send says that its buffer may be used again.
 */

struct peerlane_message_info {
  int32_t source;
  int32_t error; /* what the operation ended with: 0 or an errno value */
  uint64_t tag;
  uint64_t bytes; /* of the message, also when it was truncated */
};

int peerlane_link_isend(peerlane_link_t link, int peer, const void* data, size_t bytes, uint32_t memory, uint64_t tag,
                        peerlane_request_t* request);
int peerlane_link_irecv(peerlane_link_t link, int source, void* data, size_t bytes, uint32_t memory, uint64_t tag,
                        uint64_t mask, peerlane_request_t* request);
/* Blocking forms. ETIMEDOUT: given up; the buffer is free again some 0.2 s after the limit at the latest, also where the
 * peer answers nothing (its receive then ends with ECANCELED). Over a network, where the peer takes nothing of what UCX has
 * begun to move, it is after 1.2 s, and the connection with the peer is closed. `info` may be NULL here and below; recv
 * writes it for EMSGSIZE too: info->bytes is the message's true length. */
int peerlane_link_send(peerlane_link_t link, int peer, const void* data, size_t bytes, uint32_t memory, uint64_t tag,
                       int64_t timeout_ms);
int peerlane_link_recv(peerlane_link_t link, int source, void* data, size_t bytes, uint32_t memory, uint64_t tag,
                       uint64_t mask, int64_t timeout_ms, struct peerlane_message_info* info);

/* Ends of requests. The answer is the operation's: 0, EMSGSIZE truncated, ECONNRESET peer gone, ECANCELED, EIO, ...;
 * *request becomes 0 once it has ended, and info is then written whatever the answer. ETIMEDOUT with *request left: it goes
 * on. A request of 0 has ended well. */
int peerlane_link_test(peerlane_link_t link, peerlane_request_t* request, int* done, struct peerlane_message_info* info);
int peerlane_link_wait(peerlane_link_t link, peerlane_request_t* request, int64_t timeout_ms,
                       struct peerlane_message_info* info);
/* The first of them that has ended: *index, or `count` if all are 0 already. */
int peerlane_link_wait_any(peerlane_link_t link, peerlane_request_t* requests, size_t count, int64_t timeout_ms,
                           size_t* index, struct peerlane_message_info* info);
/* All of them; the first error that one ended with. infos: NULL or `count` of them. */
int peerlane_link_wait_all(peerlane_link_t link, peerlane_request_t* requests, size_t count, int64_t timeout_ms,
                           struct peerlane_message_info* infos);
/* A receive that nothing has matched and a send that has not left end with ECANCELED at once (wait still frees them). EBUSY:
 * too late, it goes on. */
int peerlane_link_cancel(peerlane_link_t link, peerlane_request_t request);
/* Cancels, takes the memory back within the bounds of peerlane_link_send's time-out where that is too late, and forgets the
 * outcome. A message or put that was under way ends with ECANCELED at its peer; of a put's range the bytes are then unknown.
 */
int peerlane_link_free(peerlane_link_t link, peerlane_request_t* request);

/* The first message that such a receive would get, if one is here: *found 1 and info, else *found 0. Makes progress once. */
int peerlane_link_probe(peerlane_link_t link, int source, uint64_t tag, uint64_t mask, int* found,
                        struct peerlane_message_info* info);
/* The same, and takes it out of the matching; *message becomes 0 if none is here. */
int peerlane_link_mprobe(peerlane_link_t link, int source, uint64_t tag, uint64_t mask, peerlane_message_t* message,
                         struct peerlane_message_info* info);
/* *message becomes 0. */
int peerlane_link_receive_matched(peerlane_link_t link, peerlane_message_t* message, void* data, size_t bytes,
                                  uint32_t memory, peerlane_request_t* request);
int peerlane_link_discard(peerlane_link_t link, peerlane_message_t* message);

/* ---- Put, get, atomics -----------------------------------------------------------------------------------------------
 * A request that has ended is complete at the target too. The target's process answers inside its calls. */

/* Plain bytes: goes to the others by any way (a message, peerlane_link_all_gather). Valid until the window ends. */
struct peerlane_window_key {
  int32_t rank;
  uint32_t id;
  uint64_t bytes;
};

int peerlane_link_expose(peerlane_link_t link, void* data, size_t bytes, uint32_t memory, peerlane_window_t* window,
                         struct peerlane_window_key* key);
/* What arrives later is refused with EINVAL at its origin; what is under way ends there with ECANCELED, of a put some bytes
 * may have come. On return nothing touches the memory any more. ETIMEDOUT, after 2 s: the window takes nothing new, but a
 * peer that does not answer may still read the memory; the sentence names it. The number stays: call again before the memory
 * is used for something else. */
int peerlane_link_unexpose(peerlane_link_t link, peerlane_window_t window);
int peerlane_link_put(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset, const void* data,
                      size_t bytes, uint32_t memory, peerlane_request_t* request);
int peerlane_link_get(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset, void* data, size_t bytes,
                      uint32_t memory, peerlane_request_t* request);
/* Returns once everything that was put to `peer` by requests that are still alive is there. */
int peerlane_link_flush(peerlane_link_t link, int peer, int64_t timeout_ms);

enum peerlane_atomic {
  PEERLANE_ATOMIC_ADD = 0,
  PEERLANE_ATOMIC_AND = 1,
  PEERLANE_ATOMIC_OR = 2,
  PEERLANE_ATOMIC_XOR = 3,
  PEERLANE_ATOMIC_SWAP = 4,
  PEERLANE_ATOMIC_COMPARE_SWAP = 5 /* writes `operand` where the word equals `compare` */
};
/* On an aligned 64-bit word of a window. *before (may be NULL) gets its old value and must live until the request ends.
 * Atomic towards every other peerlane_link_atomic on the word, not towards kernels or other CPU threads. */
int peerlane_link_atomic(peerlane_link_t link, const struct peerlane_window_key* key, uint64_t offset, uint32_t operation,
                         uint64_t operand, uint64_t compare, uint64_t* before, peerlane_request_t* request);

/* ---- Control --------------------------------------------------------------------------------------------------------- */

/* Device memory stays mapped and its messages do not ask the driver. Unregister before freeing it. Host memory: nothing to
 * do, and it works. */
int peerlane_link_register(peerlane_link_t link, const void* data, size_t bytes, uint32_t memory,
                           peerlane_registered_t* registered);
int peerlane_link_unregister(peerlane_link_t link, peerlane_registered_t registered);

/* Advances everything once; *moved (may be NULL) becomes 1 if something did. */
int peerlane_link_progress(peerlane_link_t link, int* moved);
/* Collective, by messages. ECONNRESET: a process is gone. ETIMEDOUT: not every process came; the next call goes on with the
 * same barrier. */
int peerlane_link_barrier(peerlane_link_t link, int64_t timeout_ms);
/* Collective, for setting up (keys of windows): `bytes` of every rank, in rank order, into `all`. By the bootstrap, so some
 * 0.1 ms, from one thread, and at most 16 MiB. */
int peerlane_link_all_gather(peerlane_link_t link, const void* mine, size_t bytes, void* all);

struct peerlane_link_statistics {
  size_t struct_bytes; /* by the caller: sizeof(struct peerlane_link_statistics); later fields are not written */
  uint64_t eager;      /* messages sent, by way */
  uint64_t self;
  uint64_t shared_ring;
  uint64_t network_ring;
  uint64_t ipc;
  uint64_t ucx_direct;
  uint64_t unexpected;       /* arrived before their receive */
  uint64_t waiting_sends;    /* sends that had to wait until the peer had taken what it was sent before */
  uint64_t unexpected_bytes; /* held now */
  uint64_t operations;       /* under way now */
};
int peerlane_link_get_statistics(peerlane_link_t link, struct peerlane_link_statistics* statistics);

/* Which way messages to this peer take, from which size, where the numbers come from, and the CPUs of the thread that opened
 * the link: lines for people. Writes at most capacity - 1 characters; *needed becomes the full length. */
int peerlane_link_plan(peerlane_link_t link, int peer, char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
