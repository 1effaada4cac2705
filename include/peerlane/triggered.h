/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Stream-triggered communication: puts, signals and waits that CUDA streams execute, between the GPUs of one job. No CPU
 * takes part between a kernel and the peer's next kernel. Link -lpeerlane. C++: <peerlane/triggered.hpp>; guide:
 * docs/async-api.md.
 *
 * @code
 * peerlane_triggered_open(NULL, &context);                                             // collective
 * peerlane_triggered_expose(context, peerlane_device_buffer(device_ptr, size_bytes), &window, &key);
 * peerlane_triggered_all_gather(context, &key, sizeof key, keys);
 * peerlane_triggered_import(context, &keys[peer], &remote);
 * peerlane_channel_connect(context, peer, 1, NULL, &channel);
 * peerlane_channel_put_signal(context, channel, stream, remote, 0, peerlane_device_buffer(source, size_bytes), NULL);
 * peerlane_channel_wait_signal(context, channel, stream, 0, NULL);                     // the next kernel sees the peer's
 * put
 * @endcode
 *
 * Conventions. As in <peerlane/peerlane.h>. A `stream` is a CUstream or cudaStream_t, NULL the default stream; memory is a
 * struct peerlane_buffer of device memory. The CUDA context of the stream must be current on the calling thread.
 *
 * EAGAIN (put_signal, signal, wait_signal). The channel has as many queued operations as its options allow. Nothing was
 * queued and the channel stays usable: do other work or synchronise a stream, then try again.
 *
 * A channel's error is permanent. ETIMEDOUT: a stream stayed in one wait for too long; ECONNRESET: the peer is gone;
 * ECANCELED; EPIPE: the peer's end failed, or it was closed while a stream waited for an operation that will not come; EIO.
 * Waiting streams have then been released and continue with whatever data has arrived; every later call on the channel
 * returns the error. Check the state after synchronising, before using data. A closed peer is not an error by itself: waits
 * for its earlier puts succeed; waits for more, and new puts, return EPIPE.
 *
 * Threads. Any thread may call a context. One thread at a time may use one channel, or one batch; cancel, get_state,
 * arrived, host_wait and diag may run on other threads at the same time. Opening is collective; no other call may use an
 * object while it is being closed or released. Calls with a stream return once queued and do not wait, except the first call
 * on a channel, which waits for the peer unless peerlane_channel_ready() did. fork: a context belongs to its process; in a
 * child every call answers EACCES.
 *
 * Memory order. A stream's work before its put or signal n is visible to the peer stream's work after wait n, and to the CPU
 * once host_wait(n) or arrived(n) has reported it (bytes in GPU memory: to a copy that starts afterwards). Puts and signals
 * of one end must come from one stream, or from streams that events order. A put into bytes that the peer still reads is a
 * race: release the bytes and set `depth`, or answer with a signal.
 */
#ifndef PEERLANE_TRIGGERED_H
#define PEERLANE_TRIGGERED_H

#include <peerlane/buffer.h>
#include <peerlane/communicator.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_triggered* peerlane_triggered_t; /**< A context: peerlane_triggered_open .. close. */

/* Numbers of objects of one context; 0 is none. A number that is not live is answered with EINVAL. */
typedef uint64_t peerlane_exposed_t; /**< Own memory that peers may put into: expose .. release_window. */
typedef uint64_t peerlane_remote_t;  /**< A peer's: import .. release_remote. */
typedef uint64_t peerlane_channel_t; /**< connect .. close */
typedef uint64_t peerlane_batch_t;   /**< begin .. submit or release */

/* ---- Contexts -------------------------------------------------------------------------------------------------------- */

enum peerlane_triggered_mode {
  PEERLANE_TRIGGERED_PERFORMANCE = 0, /**< The proxy thread polls while there is work for it: least latency, one core. */
  PEERLANE_TRIGGERED_ECONOMY = 1      /**< It sleeps when idle. */
};

/** Zero means the default everywhere. */
struct peerlane_triggered_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_triggered_options): fields beyond it are not read. */
  /** The members of the job and the message transports, as for peerlane_comm_open(); host_only, copier and cpus are not
   * read. NULL: all defaults, so PEERLANE_LINK_* variables or the launcher. A communicator and a context of one job meet one
   * after the other, in the same order everywhere. */
  const struct peerlane_comm_options* comm;
  uint32_t mode;       /**< enum peerlane_triggered_mode. */
  uint32_t has_device; /**< 1: `device` is the GPU; 0: the device of the current CUDA context. */
  int32_t device;
  uint32_t has_service_cpu; /**< 1: the proxy thread runs on `service_cpu`; 0: near the GPU. */
  int32_t service_cpu;
  uint32_t channels;          /**< Most at a time; 64. */
  int64_t wait_timeout_ms;    /**< Of channels that name none; 0: 30 s, negative: no limit. */
  int64_t connect_timeout_ms; /**< Of the first call on a channel; 0: 30 s, negative: no limit. */
};

/**
 * @brief Opens one process's part, for one GPU. Collective.
 *
 * @param options  NULL: all defaults.
 * @param context  written on success.
 * @return 0; ENOSYS: built without UCX's headers; ENOTSUP: the driver has no 64-bit stream memory operations (11.7 and newer
 *         have); ENODEV: no driver, or no such device; EINVAL: no context is current and no device named; ENFILE: 64
 * contexts are open; else as peerlane_comm_open().
 */
int peerlane_triggered_open(const struct peerlane_triggered_options* options, peerlane_triggered_t* context);

/**
 * @brief Ends the context with its channels, batches and windows. Not collective.
 *
 * Waits up to a second for streams that are still inside waits of closed channels.
 */
int peerlane_triggered_close(peerlane_triggered_t context);

/** @brief This process's rank, and how many there are; -1: not open. */
int peerlane_triggered_rank(peerlane_triggered_t context);
int peerlane_triggered_size(peerlane_triggered_t context);

struct peerlane_triggered_capabilities {
  size_t struct_bytes; /**< By the caller: sizeof(struct peerlane_triggered_capabilities); later fields are not written. */
  int32_t device;
  uint32_t has_cpu_mapping; /**< 1: the CPU reads and writes GPU words; 0: arrived and host_wait return ENOTSUP. */
  uint64_t kernel_limit;    /**< Bytes: puts up to here go by one kernel together with their signal; larger ones by the copy
                                 engine. */
};
int peerlane_triggered_query(peerlane_triggered_t context, struct peerlane_triggered_capabilities* capabilities);

/** @param mode  enum peerlane_triggered_mode. */
int peerlane_triggered_set_mode(peerlane_triggered_t context, uint32_t mode);

/**
 * @brief Gives every rank what each of them gave; for setting up (keys of windows). Collective. From one thread.
 * @param size_bytes  the same at every rank; 16 MiB at most. 0: a barrier.
 * @param all         size * size_bytes, in rank order.
 */
int peerlane_triggered_all_gather(peerlane_triggered_t context, const void* mine, size_t size_bytes, void* all);

/**
 * @brief Says, for people, which operations are queued, what a stuck stream waits for, and what the proxy thread does.
 * @param text    gets at most capacity - 1 characters and an end.
 * @param needed  may be NULL; becomes the full length.
 */
int peerlane_triggered_diag(peerlane_triggered_t context, char* text, size_t capacity, size_t* needed);

/* ---- Windows --------------------------------------------------------------------------------------------------------- */

/** Plain bytes without meaning to the caller: send it to the peers by any means (all_gather, a message). */
struct peerlane_triggered_key {
  unsigned char bytes[256];
};

/**
 * @brief Exposes memory of this GPU, so that peers may put into it.
 *
 * Peers that have imported it keep its allocation open until their contexts close: free it after that, not before.
 *
 * @param window  written on success; ended by peerlane_triggered_release_window().
 * @param key     written on success; for the peers.
 * @return 0; EINVAL: not device memory, or not all of it is one allocation's.
 */
int peerlane_triggered_expose(peerlane_triggered_t context, struct peerlane_buffer buffer, peerlane_exposed_t* window,
                              struct peerlane_triggered_key* key);
int peerlane_triggered_release_window(peerlane_triggered_t context, peerlane_exposed_t window);

/**
 * @brief Imports a peer's window.
 * @param remote  written on success. Releasing it ends the number; queued puts are not affected.
 * @return 0; EINVAL: not a key; EPROTO: of another version of Peerlane.
 */
int peerlane_triggered_import(peerlane_triggered_t context, const struct peerlane_triggered_key* key,
                              peerlane_remote_t* remote);
int peerlane_triggered_release_remote(peerlane_triggered_t context, peerlane_remote_t remote);

/* ---- Channels --------------------------------------------------------------------------------------------------------
 * A channel has an end in each of two processes. Each end numbers its puts and signals from 1, and its waits from 1: wait n
 * of one end completes once put or signal n of the other has completed. */

enum peerlane_executor {
  PEERLANE_EXECUTOR_AUTOMATIC = 0,
  PEERLANE_EXECUTOR_PEER =
      1, /**< From GPU to GPU; no CPU takes part. ENOTSUP at ready if the GPUs cannot reach each other. */
  PEERLANE_EXECUTOR_PROXY = 2, /**< Streams ring doorbells, the proxy threads transfer the bytes. */
  /** A copy engine moves what streams post; no CPU takes part, and CUDA need not reach the peer's memory. For
   * processes of one host, on one GPU or on GPUs whose memory DMA channels reach. ENOTSUP at ready where these cannot be had
   * (docs/dma.md#limits). */
  PEERLANE_EXECUTOR_DMA = 3
};
enum peerlane_wait_method {
  PEERLANE_WAIT_FRONT_END = 0, /**< A stream memory operation. */
  PEERLANE_WAIT_KERNEL = 1 /**< A polling kernel: sees the signal sooner, costs one more launch, needs a GPU of its own. */
};

/** Zero means the default everywhere. */
struct peerlane_channel_options {
  size_t struct_bytes;     /**< sizeof(struct peerlane_channel_options). */
  uint32_t executor;       /**< enum peerlane_executor; both ends must agree or leave it automatic. */
  uint32_t wait_method;    /**< enum peerlane_wait_method. */
  uint32_t depth;          /**< Put n waits on its stream until the peer has released n - depth; 0: no such wait. */
  uint32_t max_queued;     /**< Waits, and puts, that no stream has passed; beyond it EAGAIN. 256; at most 1000. */
  int64_t wait_timeout_ms; /**< 0: the context's; negative: no limit. */
};

/**
 * @brief Creates this process's end of channel `id` to `peer`, which connects with the same id. Returns at once.
 *
 * @param id       may be used again once both ends have closed it.
 * @param options  NULL: all defaults.
 * @param channel  written on success; ended by peerlane_channel_close().
 * @return 0; EINVAL: not another rank, or invalid options; ENOSPC: as many channels as the context's options allow.
 */
int peerlane_channel_connect(peerlane_triggered_t context, int peer, uint32_t id,
                             const struct peerlane_channel_options* options, peerlane_channel_t* channel);

/** @brief Waits until the peer has created its end. Optional: the first other call does it. */
int peerlane_channel_ready(peerlane_triggered_t context, peerlane_channel_t channel, int64_t timeout_ms);

/**
 * @brief Ends this end. Synchronise first.
 *
 * Releases streams that wait for operations that will not come: ECANCELED here, EPIPE at the peer. The peer's waits for
 * earlier puts still succeed.
 */
int peerlane_channel_close(peerlane_triggered_t context, peerlane_channel_t channel);

/**
 * @brief Queues on a stream: writes bytes to a window, then the peer's signal word becomes *sequence.
 *
 * @param window        of peerlane_triggered_import().
 * @param offset_bytes  from the window's begin.
 * @param source        this GPU's memory, unchanged until the stream has passed the put.
 * @param sequence      may be NULL; becomes the put's number.
 * @return 0; ERANGE: outside of the window; EINVAL: another rank's window; ENOTSUP: the stream is being captured, or this
 * GPU cannot reach the window; EAGAIN, or the channel's error: see the top.
 */
int peerlane_channel_put_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                peerlane_remote_t window, uint64_t offset_bytes, struct peerlane_buffer source,
                                uint64_t* sequence);

/** @brief Counts like a put, without bytes. */
int peerlane_channel_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t* sequence);

/**
 * @brief Queues on a stream: it continues once put or signal `sequence` of the peer has completed.
 *
 * @param sequence  0: the next one, which is number n for the n-th call with 0. A call with another number does not change
 *                  which is next.
 * @param waited    may be NULL; becomes its number.
 */
int peerlane_channel_wait_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t sequence,
                                 uint64_t* waited);

/** @brief Queues on a stream: the peer may overwrite the bytes of its puts up to `sequence`. */
int peerlane_channel_release(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t sequence);

/**
 * @brief On the CPU: says whether the peer's put or signal is complete. about 1.0 us, a read of GPU memory.
 * @param has_arrived  becomes 1 or 0.
 */
int peerlane_channel_arrived(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence, int* has_arrived);

/** @return 0; ETIMEDOUT: not within the limit, or the channel's error; get_state shows which. */
int peerlane_channel_host_wait(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence,
                               int64_t timeout_ms);

/**
 * @brief Releases every stream that waits on this channel, here and at the peer, for good.
 * @param code  the errno value that this end's calls return afterwards; 0: ECANCELED.
 */
int peerlane_channel_cancel(peerlane_triggered_t context, peerlane_channel_t channel, int code);

struct peerlane_channel_state {
  size_t struct_bytes; /**< By the caller: sizeof(struct peerlane_channel_state); later fields are not written. */
  uint32_t executor;   /**< enum peerlane_executor; AUTOMATIC: not ready yet. */
  int32_t error;       /**< 0, or the channel's permanent error. */
  uint64_t puts;       /**< Queued, signals included. */
  uint64_t sent;       /**< Left this GPU. */
  uint64_t waits;      /**< Queued. */
  uint64_t reached;    /**< Reached by a stream. */
  uint64_t passed;     /**< Passed by a stream; 0 where the CPU cannot read GPU memory. */
};
int peerlane_channel_get_state(peerlane_triggered_t context, peerlane_channel_t channel,
                               struct peerlane_channel_state* state);

/** @brief As peerlane_triggered_diag, of one channel; says why a channel is in error. */
int peerlane_channel_diag(peerlane_triggered_t context, peerlane_channel_t channel, char* text, size_t capacity,
                          size_t* needed);

/* ---- Words on a stream -----------------------------------------------------------------------------------------------
 * Stream memory operations on words of the caller's own, passed to the driver in as few lists as possible. They run in
 * order; a write follows all earlier work of the stream. Only the word ends such a wait: channels have time-outs, these
 * waits have none. */

enum peerlane_word_kind {
  PEERLANE_WORD_WRITE64 = 0,
  PEERLANE_WORD_WAIT64 = 1,
  PEERLANE_WORD_WRITE32 = 2,
  PEERLANE_WORD_WAIT32 = 3,
  PEERLANE_WORD_FLUSH = 4 /**< Remote writes that arrived before are visible to what follows; address and value are not
                               read. */
};
enum peerlane_condition {
  PEERLANE_AT_LEAST = 0, /**< Cyclic: (signed)(word - value) >= 0. */
  PEERLANE_EQUAL = 1,
  PEERLANE_ANY_BIT = 2, /**< (word & value) != 0 */
  PEERLANE_NOR = 3      /**< ~(word | value) != 0 */
};
struct peerlane_word_op {
  uint32_t kind;                 /**< enum peerlane_word_kind. */
  uint32_t condition;            /**< Of waits: enum peerlane_condition; 0 else. */
  peerlane_device_ptr_t address; /**< Of a naturally aligned word; of pinned host memory: its device address. */
  uint64_t value;                /**< The upper half of a 32-bit operation's is 0. */
};

/** @brief Begins a batch for a stream; it ends by submit or release. */
int peerlane_batch_begin(peerlane_triggered_t context, void* stream, peerlane_batch_t* batch);

/**
 * @brief Adds operations. Every 255 are passed to the driver while they are added.
 * @return 0; EINVAL: an invalid operation or an unaligned address, and none of them was added.
 */
int peerlane_batch_add(peerlane_triggered_t context, peerlane_batch_t batch, const struct peerlane_word_op* operations,
                       size_t count);

/** @brief Queues the rest. The batch ends, whatever the result.
 *  @return 0; the driver's reason if it refused a list: those before it are queued. */
int peerlane_batch_submit(peerlane_triggered_t context, peerlane_batch_t batch);

/** @brief Ends a batch; operations that were not passed to the driver are discarded. */
int peerlane_batch_release(peerlane_triggered_t context, peerlane_batch_t batch);

#ifdef __cplusplus
}
#endif
#endif
