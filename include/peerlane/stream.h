/* SPDX-License-Identifier: Apache-2.0
 *
 * libpeerlane's stream-triggered communication: puts, signals and waits that CUDA streams execute, between the GPUs of one
 * job. No CPU takes part between a kernel and the peer's next kernel. C++: <peerlane/stream.hpp>; guide: docs/async-api.md.
 *
 * Conventions as in <peerlane/peerlane.h>: 0 or a positive errno value; outputs are written on success only;
 * peerlane_last_error() explains a failure and names the next step. Sizes are bytes, times milliseconds. A
 * `stream` is a CUstream or cudaStream_t, NULL the default stream; memory is named by its device address. The CUDA context
 * of the stream must be current on the calling thread.
 *
 * EAGAIN (put_signal, signal, wait_signal): the channel has as many queued operations as its options allow. Nothing was
 * queued and the channel stays usable: do other work or synchronise a stream, then try again.
 *
 * A channel's error is permanent: ETIMEDOUT (a stream stayed in one wait for too long), ECONNRESET (the peer is gone),
 * ECANCELED, EPIPE (the peer's end failed, or it was closed while a stream waited for an operation that will not come), EIO.
 * Waiting streams have then been released and continue with whatever data has arrived; every later call on the channel
 * returns the error. Check the state after synchronising, before using data. A closed peer is not an error by itself: waits
 * for its earlier puts succeed; waits for more, and new puts, return EPIPE.
 *
 * Threads: any thread may call a context. One thread at a time may use one channel, or one batch; cancel, get_state,
 * arrived, host_wait and diag may run on other threads at the same time. Opening is collective; no other call may use an
 * object while it is being closed. Calls with a stream return once queued and do not wait, except the first call on a
 * channel, which waits for the peer unless peerlane_channel_ready() did.
 *
 * Memory order: a stream's work before its put or signal n is visible to the peer stream's work after wait n, and to the CPU
 * once host_wait(n) or arrived(n) has reported it (bytes in GPU memory: to a copy that starts afterwards). Puts and signals
 * of one end must come from one stream, or from streams that events order. A put into bytes that the peer still reads is a
 * race: release the bytes and set `depth`, or answer with a signal.
 *
 * Fork: a context belongs to its process; in a child every call returns EACCES.
 */
#ifndef PEERLANE_STREAM_H
#define PEERLANE_STREAM_H

#include <peerlane/link.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_stream* peerlane_stream_t; /* a context; owner: peerlane_stream_open .. peerlane_stream_close */
/* Object numbers of one context; 0 is none. Calls return EINVAL for a number that is not live. */
typedef uint64_t peerlane_exposed_t; /* own memory that peers may put into: expose .. withdraw */
typedef uint64_t peerlane_remote_t;  /* a peer's: import .. drop */
typedef uint64_t peerlane_channel_t; /* connect .. close */
typedef uint64_t peerlane_batch_t;   /* begin .. submit or drop */

/* ---- Contexts -------------------------------------------------------------------------------------------------------- */

enum peerlane_stream_mode {
  PEERLANE_STREAM_PERFORMANCE = 0, /* the proxy thread polls while there is work for it: least latency, one core */
  PEERLANE_STREAM_ECONOMY = 1      /* it sleeps when idle */
};

/* Zero means the default everywhere. */
struct peerlane_stream_options {
  size_t struct_bytes; /* sizeof(struct peerlane_stream_options): fields beyond it are not read */
  /* The members of the job and the message transports, as for peerlane_link_open(); host_only, copier and cpus are not read.
   * NULL: all defaults, so PEERLANE_LINK_* variables or the launcher. A link and a context of one job meet one after the
   * other, in the same order everywhere. */
  const struct peerlane_link_options* link;
  uint32_t mode;       /* enum peerlane_stream_mode */
  uint32_t has_device; /* 1: `device` is the GPU; 0: the device of the current CUDA context */
  int32_t device;
  uint32_t has_service_cpu; /* 1: the proxy thread runs on `service_cpu`; 0: near the GPU */
  int32_t service_cpu;
  uint32_t channels;          /* most at a time; 64 */
  int64_t wait_timeout_ms;    /* of channels that name none; 0: 30 s, negative: never */
  int64_t connect_timeout_ms; /* of the first call on a channel; 0: 30 s, negative: without limit */
};

/* Collective; NULL options: all defaults. ENOSYS: built without UCX's headers. ENOTSUP: the driver has no 64-bit stream
 * memory operations (11.7 and newer have). ENODEV: no driver, or no such device. EINVAL: no context is current and no device
 * named. ENFILE: 64 contexts are open. Else as peerlane_link_open(). */
int peerlane_stream_open(const struct peerlane_stream_options* options, peerlane_stream_t* context);
/* Not collective. Ends its channels, batches and windows; waits up to a second for streams that are still inside waits of
 * closed channels. */
int peerlane_stream_close(peerlane_stream_t context);

/* Both -1 if the context is not open. */
int peerlane_stream_rank(peerlane_stream_t context);
int peerlane_stream_size(peerlane_stream_t context);

struct peerlane_stream_capabilities {
  size_t struct_bytes; /* by the caller: sizeof(struct peerlane_stream_capabilities); later fields are not written */
  int32_t device;
  uint32_t has_cpu_mapping; /* 1: the CPU reads and writes GPU words; 0: arrived and host_wait return ENOTSUP */
  uint64_t kernel_limit;    /* puts up to here go by one kernel together with their signal; larger ones by the copy engine */
};
int peerlane_stream_query(peerlane_stream_t context, struct peerlane_stream_capabilities* capabilities);
int peerlane_stream_set_mode(peerlane_stream_t context, uint32_t mode);
/* Collective, for setting up (keys of windows): `bytes` of every rank, in rank order, into `all` (size * bytes, at most
 * 16 MiB). From one thread. With 0 bytes it is a barrier. */
int peerlane_stream_all_gather(peerlane_stream_t context, const void* mine, size_t bytes, void* all);
/* Queued operations, what a stuck stream waits for, and the state of the proxy thread, as text for people. Writes at most
 * capacity - 1 characters; *needed (may be NULL) becomes the full length. */
int peerlane_stream_diag(peerlane_stream_t context, char* text, size_t capacity, size_t* needed);

/* ---- Windows --------------------------------------------------------------------------------------------------------- */

/* Plain bytes without meaning to the caller: send it to the peers by any means (peerlane_stream_all_gather, a message). */
struct peerlane_stream_key {
  unsigned char bytes[256];
};

/* Exposes memory of this GPU, so that peers may put into it. Peers that have imported it keep its allocation open until
 * their contexts close: free it after that, not before. EINVAL: not device memory, or not all of it is one allocation's. */
int peerlane_stream_expose(peerlane_stream_t context, uint64_t device_ptr, size_t bytes, peerlane_exposed_t* window,
                           struct peerlane_stream_key* key);
int peerlane_stream_withdraw(peerlane_stream_t context, peerlane_exposed_t window);
/* A peer's window. EINVAL: no key. EPROTO: of another version of Peerlane. */
int peerlane_stream_import(peerlane_stream_t context, const struct peerlane_stream_key* key, peerlane_remote_t* remote);
/* Ends the number; queued puts are not affected. */
int peerlane_stream_drop(peerlane_stream_t context, peerlane_remote_t remote);

/* ---- Channels --------------------------------------------------------------------------------------------------------
 * A channel has an end in each of two processes. Each end numbers its puts and signals from 1, and its waits from 1: wait n
 * of one end completes once put or signal n of the other has completed. */

enum peerlane_executor {
  PEERLANE_EXECUTOR_AUTOMATIC = 0,
  PEERLANE_EXECUTOR_PEER = 1, /* from GPU to GPU; no CPU takes part. ENOTSUP at ready if the GPUs cannot reach each other */
  PEERLANE_EXECUTOR_PROXY = 2 /* streams ring doorbells, the proxy threads transfer the bytes */
};
enum peerlane_wait_way {
  PEERLANE_WAIT_FRONT_END = 0, /* a stream memory operation */
  PEERLANE_WAIT_KERNEL = 1     /* a polling kernel: sees the signal sooner, costs one more launch, needs a GPU of its own */
};

/* Zero means the default everywhere. */
struct peerlane_channel_options {
  size_t struct_bytes;     /* sizeof(struct peerlane_channel_options) */
  uint32_t executor;       /* enum peerlane_executor; both ends must agree or leave it automatic */
  uint32_t wait_way;       /* enum peerlane_wait_way */
  uint32_t depth;          /* put n waits on its stream until the peer has released n - depth; 0: no such wait */
  uint32_t most_queued;    /* limit of waits, and of puts, that no stream has passed; beyond it EAGAIN. 256; at most 1000 */
  int64_t wait_timeout_ms; /* 0: the context's; negative: never */
};

/* Creates this process's end of channel `id` to `peer`, which connects with the same id. NULL options: all defaults. Returns
 * at once. EINVAL: not another rank, or invalid options. ENOSPC: as many channels as the context's options allow. An id
 * may be used again once both have closed it. */
int peerlane_channel_connect(peerlane_stream_t context, int peer, uint32_t id,
                             const struct peerlane_channel_options* options, peerlane_channel_t* channel);
/* Waits until the peer has created its end (negative: without limit). Optional: the first other call does it. */
int peerlane_channel_ready(peerlane_stream_t context, peerlane_channel_t channel, int64_t timeout_ms);
/* Releases streams that wait for operations that will not come: ECANCELED here, EPIPE at the peer. Synchronise first. The
 * peer's waits for earlier puts still succeed. */
int peerlane_channel_close(peerlane_stream_t context, peerlane_channel_t channel);

/* On a stream. ENOTSUP: the stream is being captured, or this GPU cannot reach the window.
 *
 * `bytes` at `source` (this GPU's memory, unchanged until the stream has passed the put) are written to `offset` of the
 * window, then the peer's signal word becomes *sequence (may be NULL). ERANGE: outside the window. EINVAL: another rank's.
 */
int peerlane_channel_put_signal(peerlane_stream_t context, peerlane_channel_t channel, void* stream,
                                peerlane_remote_t window, uint64_t offset, uint64_t source, size_t bytes,
                                uint64_t* sequence);
/* Counts like a put, without bytes. */
int peerlane_channel_signal(peerlane_stream_t context, peerlane_channel_t channel, void* stream, uint64_t* sequence);
/* The stream continues once put or signal `sequence` of the peer has completed. 0: the next one, which is number n for the
 * n-th call with 0; *waited (may be NULL) becomes its number. A call with another number does not change which is next. */
int peerlane_channel_wait_signal(peerlane_stream_t context, peerlane_channel_t channel, void* stream, uint64_t sequence,
                                 uint64_t* waited);
/* Once the stream gets here, the peer may overwrite the bytes of its puts up to `sequence`. */
int peerlane_channel_release(peerlane_stream_t context, peerlane_channel_t channel, void* stream, uint64_t sequence);

/* On the CPU. *has_arrived becomes 1 if the peer's put or signal is complete, else 0; about 1 us, a read of GPU memory. */
int peerlane_channel_arrived(peerlane_stream_t context, peerlane_channel_t channel, uint64_t sequence, int* has_arrived);
/* ETIMEDOUT: not within the limit (negative: none), or the channel's error; get_state shows which. */
int peerlane_channel_host_wait(peerlane_stream_t context, peerlane_channel_t channel, uint64_t sequence, int64_t timeout_ms);
/* Releases every stream that waits on this channel, here and at the peer, for good. `code`: the errno value that this end's
 * calls return afterwards; 0: ECANCELED. */
int peerlane_channel_cancel(peerlane_stream_t context, peerlane_channel_t channel, int code);

struct peerlane_channel_state {
  size_t struct_bytes; /* by the caller: sizeof(struct peerlane_channel_state); later fields are not written */
  uint32_t executor;   /* enum peerlane_executor; AUTOMATIC: not ready yet */
  int32_t error;       /* 0, or the channel's permanent error */
  uint64_t puts;       /* queued, signals included */
  uint64_t sent;       /* left this GPU */
  uint64_t waits;      /* queued */
  uint64_t reached;    /* reached by a stream */
  uint64_t passed;     /* passed by a stream; 0 where the CPU cannot read GPU memory */
};
int peerlane_channel_get_state(peerlane_stream_t context, peerlane_channel_t channel, struct peerlane_channel_state* state);
/* As peerlane_stream_diag, of one channel; says why a channel is in error. */
int peerlane_channel_diag(peerlane_stream_t context, peerlane_channel_t channel, char* text, size_t capacity,
                          size_t* needed);

/* ---- Words on a stream -----------------------------------------------------------------------------------------------
 * Stream memory operations on words of the caller's own, passed to the driver in as few lists as possible. They run in
 * order; a write follows all earlier work of the stream. Only the word ends such a wait: channels have time-outs, these
 * waits have none. */

enum peerlane_op_kind {
  PEERLANE_OP_WRITE64 = 0,
  PEERLANE_OP_WAIT64 = 1,
  PEERLANE_OP_WRITE32 = 2,
  PEERLANE_OP_WAIT32 = 3,
  PEERLANE_OP_FLUSH = 4 /* remote writes that arrived before are visible to what follows; address and value are not read */
};
enum peerlane_condition {
  PEERLANE_AT_LEAST = 0, /* cyclic: (signed)(word - value) >= 0 */
  PEERLANE_EQUAL = 1,
  PEERLANE_ANY_BIT = 2, /* (word & value) != 0 */
  PEERLANE_NOR = 3      /* ~(word | value) != 0 */
};
struct peerlane_op {
  uint32_t kind;
  uint32_t condition; /* of waits; 0 else */
  uint64_t address;   /* device address of a naturally aligned word; of pinned host memory: its device address */
  uint64_t value;     /* the upper half of a 32-bit operation's is 0 */
};

int peerlane_batch_begin(peerlane_stream_t context, void* stream, peerlane_batch_t* batch);
/* EINVAL: an invalid operation or an unaligned address; none of them was added. Every 255 operations are passed to the
 * driver while they are added. */
int peerlane_batch_add(peerlane_stream_t context, peerlane_batch_t batch, const struct peerlane_op* operations,
                       size_t count);
/* Queues the rest; the batch ends, whatever the result. The driver's reason if it refused a list; those
 * before it are queued. */
int peerlane_batch_submit(peerlane_stream_t context, peerlane_batch_t batch);
/* Ends a batch; operations that were not passed to the driver are discarded. */
int peerlane_batch_drop(peerlane_stream_t context, peerlane_batch_t batch);

#ifdef __cplusplus
}
#endif
#endif
