/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Stream-triggered communication: puts, signals and waits that CUDA streams execute, between the GPUs of one job. Data goes
 * from a kernel to the peer's next kernel without the CPU. Link -lpeerlane. C++: <peerlane/triggered.hpp>; guide:
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
 * arrived, host_wait and diag may run on other threads at the same time. Opening is collective; no other call may use
 * an object while it is being closed or released, except peerlane_channel_host_wait() its channel. Calls with a stream
 * return once queued and do not wait, except the first call on a channel, which waits for the peer unless
 * peerlane_channel_ready() did. fork: a context belongs to its process; in a child every call answers EACCES.
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

/* Numbers of objects of one context; 0 means none. Calls with a number that is not live return EINVAL. */
typedef uint64_t peerlane_exposed_t; /**< A window of this process, into which peers may put: expose .. release_window. */
typedef uint64_t peerlane_remote_t;  /**< A window of a peer: import .. release_remote. */
typedef uint64_t peerlane_channel_t; /**< connect .. close */
typedef uint64_t peerlane_batch_t;   /**< begin .. submit or release */

/* ---- Contexts -------------------------------------------------------------------------------------------------------- */

enum peerlane_triggered_mode {
  PEERLANE_TRIGGERED_PERFORMANCE = 0, /**< The proxy thread polls while it has work: lowest latency, one CPU core. */
  PEERLANE_TRIGGERED_ECONOMY = 1      /**< The proxy thread sleeps when idle. */
};

/** In every field, zero means the default. */
struct peerlane_triggered_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_triggered_options). Fields beyond it are not read. */
  /** Ranks of the job and transports, as for peerlane_comm_open(); host_only, copier and cpus are not used. NULL: all
   * defaults, from PEERLANE_LINK_* variables or the launcher. If a job opens both a communicator and a context, every rank
   * must open them in the same order. */
  const struct peerlane_comm_options* comm;
  uint32_t mode;              /**< enum peerlane_triggered_mode. */
  uint32_t has_device;        /**< 1: use `device`; 0: use the device of the current CUDA context. */
  int32_t device;             /**< CUDA ordinal. */
  uint32_t has_service_cpu;   /**< 1: the proxy thread runs on `service_cpu`; 0: on a CPU near the GPU. */
  int32_t service_cpu;        /**< Number of the CPU. */
  uint32_t channels;          /**< Most channels at a time; default 64. */
  int64_t wait_timeout_ms;    /**< Default of channels, in ms; 0: 30 s; negative: no limit. */
  int64_t connect_timeout_ms; /**< Of the first call on a channel, in ms; 0: 30 s; negative: no limit. */
};

/**
 * @brief Joins this process, with one GPU, to a job. Collective.
 *
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param context  owned by the caller; end it with peerlane_triggered_close().
 * @return 0; ENOSYS: the library was built without UCX's headers; ENOTSUP: the driver has no 64-bit stream memory operations
 *         (CUDA 11.7 and newer have them); ENODEV: no driver, or no such device; EINVAL: no context is current and no device
 *         is named; ENFILE: 64 contexts are already open; otherwise as peerlane_comm_open().
 */
int peerlane_triggered_open(const struct peerlane_triggered_options* options, peerlane_triggered_t* context);

/**
 * @brief Closes the context with its channels, collectives, batches and windows. Not collective.
 *
 * Releases streams that wait on a channel or in a collective, and waits up to a second for those of channels.
 *
 * @return 0; EINVAL: the context is not open.
 */
int peerlane_triggered_close(peerlane_triggered_t context);

/** @brief Returns the rank of this process; -1: the context is not open. */
int peerlane_triggered_rank(peerlane_triggered_t context);
/** @brief Returns the number of ranks; -1: the context is not open. */
int peerlane_triggered_size(peerlane_triggered_t context);

/** What a context can do on this machine. */
struct peerlane_triggered_capabilities {
  size_t
      struct_bytes; /**< Set by the caller: sizeof(struct peerlane_triggered_capabilities). Later fields are not written. */
  int32_t device;   /**< CUDA ordinal of the context's GPU. */
  uint32_t has_cpu_mapping; /**< 1: the CPU can read and write GPU words; 0: arrived and host_wait return ENOTSUP. */
  uint64_t kernel_limit;    /**< Largest put, in bytes, that one kernel makes together with its signal. The copy engine makes
                                 larger ones. */
};
/** @brief Reads the capabilities of a context. @return 0; EINVAL: the context is not open. */
int peerlane_triggered_query(peerlane_triggered_t context, struct peerlane_triggered_capabilities* capabilities);

/** @brief Changes the mode of the proxy thread. @param mode  enum peerlane_triggered_mode. */
int peerlane_triggered_set_mode(peerlane_triggered_t context, uint32_t mode);

/**
 * @brief Gathers bytes from every rank at every rank, to exchange window keys at startup. Collective. Only one thread at a
 *        time may call it.
 * @param mine        size_bytes bytes of this rank.
 * @param size_bytes  the same at every rank, at most 16 MiB. 0: the call is a barrier.
 * @param all         receives size * size_bytes bytes, in rank order.
 */
int peerlane_triggered_all_gather(peerlane_triggered_t context, const void* mine, size_t size_bytes, void* all);

/**
 * @brief Describes in text which operations are queued, what a stuck stream waits for, and what the proxy thread does.
 * @param text      receives at most capacity - 1 characters and a terminating null.
 * @param capacity  of text, in bytes.
 * @param needed    may be NULL; receives the full length without the terminating null.
 */
int peerlane_triggered_diag(peerlane_triggered_t context, char* text, size_t capacity, size_t* needed);

/* ---- Windows --------------------------------------------------------------------------------------------------------- */

/** Identifies a window. Opaque bytes: send them to the peers in any way (all_gather, a message). */
struct peerlane_triggered_key {
  unsigned char bytes[256];
};

/**
 * @brief Makes a window of this GPU's memory, into which peers may put.
 *
 * Peers that have imported it keep the allocation open until their contexts close. Do not free it before that.
 *
 * @param window  end it with peerlane_triggered_release_window().
 * @param key     for the peers.
 * @return 0; EINVAL: not device memory, or not within one allocation.
 */
int peerlane_triggered_expose(peerlane_triggered_t context, struct peerlane_buffer buffer, peerlane_exposed_t* window,
                              struct peerlane_triggered_key* key);

/** @brief Ends a window of this process. */
int peerlane_triggered_release_window(peerlane_triggered_t context, peerlane_exposed_t window);

/**
 * @brief Imports a window of a peer.
 * @param key     not kept after the call.
 * @param remote  end it with peerlane_triggered_release_remote().
 * @return 0; EINVAL: not a key; EPROTO: a key of another version of Peerlane.
 */
int peerlane_triggered_import(peerlane_triggered_t context, const struct peerlane_triggered_key* key,
                              peerlane_remote_t* remote);

/** @brief Ends an imported window. Puts that are already queued are not affected. */
int peerlane_triggered_release_remote(peerlane_triggered_t context, peerlane_remote_t remote);

/* ---- Channels --------------------------------------------------------------------------------------------------------
 * A channel has an end in each of two processes. Each end numbers its puts and signals from 1, and its waits from 1: wait n
 * of one end completes once put or signal n of the other has completed. */

enum peerlane_executor {
  PEERLANE_EXECUTOR_AUTOMATIC = 0,
  /** From GPU to GPU, without the CPU. ENOTSUP at ready if the GPUs cannot access each other's memory. */
  PEERLANE_EXECUTOR_PEER = 1,
  PEERLANE_EXECUTOR_PROXY = 2, /**< Streams ring doorbells, and the proxy threads transfer the bytes. */
  /** A copy engine carries out what streams post, without the CPU and without CUDA access to the peer's memory. For
   * processes on one host, on one GPU or on GPUs whose memory DMA channels reach. ENOTSUP at ready if there are no DMA
   * channels (docs/dma.md#limits). */
  PEERLANE_EXECUTOR_DMA = 3
};
enum peerlane_wait_method {
  PEERLANE_WAIT_FRONT_END = 0, /**< A stream memory operation. */
  PEERLANE_WAIT_KERNEL = 1 /**< A polling kernel: sees the signal sooner, costs one more launch, needs a GPU of its own. */
};

/** In every field, zero means the default. */
struct peerlane_channel_options {
  size_t struct_bytes;     /**< sizeof(struct peerlane_channel_options). */
  uint32_t executor;       /**< enum peerlane_executor; both ends must choose the same or leave it automatic. */
  uint32_t wait_method;    /**< enum peerlane_wait_method. */
  uint32_t depth;          /**< Put n waits on its stream until the peer has released put n - depth; 0: no such wait. */
  uint32_t max_queued;     /**< Most waits, and most puts, that no stream has passed; beyond it EAGAIN. Default 256; at most
                                1000. */
  int64_t wait_timeout_ms; /**< In ms; 0: that of the context; negative: no limit. */
};

/**
 * @brief Creates this process's end of channel `id` to `peer`, which connects with the same id. Returns at once.
 *
 * @param peer     another rank.
 * @param id       may be reused when both ends have closed the channel.
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param channel  end it with peerlane_channel_close().
 * @return 0; EINVAL: not another rank, or invalid options; ENOSPC: the context's limit of channels is reached.
 */
int peerlane_channel_connect(peerlane_triggered_t context, int peer, uint32_t id,
                             const struct peerlane_channel_options* options, peerlane_channel_t* channel);

/**
 * @brief Waits until both ends exist and agree on the executor. Optional: otherwise the first call on the channel waits.
 *
 * The peer takes part by the same call, or by its first call on the channel.
 *
 * @param timeout_ms  in milliseconds; 0: looks once; negative: no limit.
 * @return 0; ETIMEDOUT: the peer has not done its part yet, call again; ENOTSUP: the executor is not available; ECONNRESET:
 *         the peer has died.
 */
int peerlane_channel_ready(peerlane_triggered_t context, peerlane_channel_t channel, int64_t timeout_ms);

/**
 * @brief Closes this end. Synchronise the streams first.
 *
 * Streams that wait for operations that will not come are released: ECANCELED here, EPIPE at the peer. The peer's waits for
 * earlier puts still succeed. Other threads' peerlane_channel_host_wait() ends with ECANCELED.
 */
int peerlane_channel_close(peerlane_triggered_t context, peerlane_channel_t channel);

/**
 * @brief Queues a put on a stream: writes bytes to a window, then sets the peer's signal word to *sequence.
 *
 * @param window        an imported window of the channel's peer.
 * @param offset_bytes  from the begin of the window.
 * @param source        this GPU's memory; must not change until the stream has passed the put. The driver is asked about
 *                      memory of unknown kind only.
 * @param sequence      may be NULL; receives the number of the put.
 * @return 0; ERANGE: the bytes leave the window; EINVAL: the window of another rank; ENOTSUP: the stream is being captured
 *         and the executor cannot be captured, or this GPU cannot access the window; EAGAIN, or the channel's error: see the
 *         top.
 */
int peerlane_channel_put_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                peerlane_remote_t window, uint64_t offset_bytes, struct peerlane_buffer source,
                                uint64_t* sequence);

/**
 * @brief Queues a signal on a stream: a put without bytes, with a number of its own.
 * @param sequence  may be NULL; receives the number.
 * @return as peerlane_channel_put_signal().
 */
int peerlane_channel_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t* sequence);

/**
 * @brief Queues a wait on a stream: the stream continues when put or signal `sequence` of the peer is complete.
 *
 * @param sequence  0: the next one, which is number n for the n-th call with 0. Calls with another number do not change
 * which is next.
 * @param waited    may be NULL; receives the number that the stream waits for.
 * @return as peerlane_channel_put_signal().
 */
int peerlane_channel_wait_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t sequence,
                                 uint64_t* waited);

/**
 * @brief Queues a release on a stream: the peer may then overwrite the bytes of its puts up to `sequence`.
 * @return as peerlane_channel_put_signal(); 0 without an effect if as much was released before. As in the other calls with a
 *         number, EINVAL: it is 2^62 or more.
 */
int peerlane_channel_release(peerlane_triggered_t context, peerlane_channel_t channel, void* stream, uint64_t sequence);

/**
 * @brief Tests on the CPU whether put or signal `sequence` of the peer is complete. Takes about 1.0 us, a read of GPU
 * memory.
 * @param has_arrived  set to 1 if it is complete, else to 0.
 * @return 0; ENOTSUP: the CPU cannot read this GPU's memory; or the channel's error.
 */
int peerlane_channel_arrived(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence, int* has_arrived);

/**
 * @brief Waits on the CPU until put or signal `sequence` of the peer is complete.
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ENOTSUP: the CPU cannot read this GPU's memory; ETIMEDOUT: the limit was reached, or the channel failed with
 *         this error (peerlane_channel_get_state() tells which); ECANCELED: another thread closes the channel; or another
 *         error of the channel.
 */
int peerlane_channel_host_wait(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence,
                               int64_t timeout_ms);

/**
 * @brief Releases every stream that waits on this channel, here and at the peer, for good.
 * @param code  the errno value that this end's calls return afterwards; 0: ECANCELED.
 */
int peerlane_channel_cancel(peerlane_triggered_t context, peerlane_channel_t channel, int code);

/** State of a channel's end. */
struct peerlane_channel_state {
  size_t struct_bytes; /**< Set by the caller: sizeof(struct peerlane_channel_state). Later fields are not written. */
  uint32_t executor;   /**< enum peerlane_executor; AUTOMATIC: not ready yet. */
  int32_t error;       /**< 0, or the permanent error of the channel. */
  uint64_t puts;       /**< Puts and signals that were queued. */
  uint64_t sent;       /**< Puts and signals that have left this GPU. */
  uint64_t waits;      /**< Waits that were queued. */
  uint64_t reached;    /**< Waits that a stream has reached. */
  uint64_t passed;     /**< Waits that a stream has passed; 0 if the CPU cannot read GPU memory. */
};
/** @brief Reads the state of a channel. @return 0, also for a failed channel; EINVAL: the channel is not live. */
int peerlane_channel_get_state(peerlane_triggered_t context, peerlane_channel_t channel,
                               struct peerlane_channel_state* state);

/** @brief As peerlane_triggered_diag(), for one channel; also explains the error of a failed channel. */
int peerlane_channel_diag(peerlane_triggered_t context, peerlane_channel_t channel, char* text, size_t capacity,
                          size_t* needed);

/* ---- Words on a stream -----------------------------------------------------------------------------------------------
 * Stream memory operations on the caller's words, passed to the driver in as few lists as possible. They execute in order; a
 * write comes after all earlier work of the stream. Unlike those of channels, these waits have no timeout: only the word
 * ends them. */

enum peerlane_word_kind {
  PEERLANE_WORD_WRITE64 = 0,
  PEERLANE_WORD_WAIT64 = 1,
  PEERLANE_WORD_WRITE32 = 2,
  PEERLANE_WORD_WAIT32 = 3,
  PEERLANE_WORD_FLUSH = 4 /**< Makes earlier remote writes visible to later operations; address and value are not used. */
};
enum peerlane_condition {
  PEERLANE_AT_LEAST = 0, /**< Cyclic: (signed)(word - value) >= 0. */
  PEERLANE_EQUAL = 1,
  PEERLANE_ANY_BIT = 2, /**< (word & value) != 0 */
  PEERLANE_NOR = 3      /**< ~(word | value) != 0 */
};
struct peerlane_word_op {
  uint32_t kind;                 /**< enum peerlane_word_kind. */
  uint32_t condition;            /**< For waits: enum peerlane_condition; otherwise 0. */
  peerlane_device_ptr_t address; /**< Of a naturally aligned word. For pinned host memory, its device address. */
  uint64_t value;                /**< For 32-bit operations, the upper half must be 0. */
};

/** @brief Begins a batch for a stream. @param batch  end it with peerlane_batch_submit() or peerlane_batch_release(). */
int peerlane_batch_begin(peerlane_triggered_t context, void* stream, peerlane_batch_t* batch);

/**
 * @brief Adds operations to a batch. Each full list of 255 operations is passed to the driver at once.
 * @param operations  array of `count` operations; not kept after the call.
 * @return 0; EINVAL: an operation is invalid or an address is not aligned, and none of them was added.
 */
int peerlane_batch_add(peerlane_triggered_t context, peerlane_batch_t batch, const struct peerlane_word_op* operations,
                       size_t count);

/**
 * @brief Queues the remaining operations and ends the batch, even if the call fails.
 * @return 0; the driver's error if it refused a list: earlier lists are queued.
 */
int peerlane_batch_submit(peerlane_triggered_t context, peerlane_batch_t batch);

/** @brief Ends a batch; operations that were not passed to the driver are discarded. */
int peerlane_batch_release(peerlane_triggered_t context, peerlane_batch_t batch);

#ifdef __cplusplus
}
#endif
#endif
