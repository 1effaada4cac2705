/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Communicators: tagged send and receive, put, get and atomics between host and GPU memory of the processes of a job. They
 * need no MPI, no CUDA-aware transport and no kernel module. Link -lpeerlane. C++: <peerlane/communicator.hpp>; guide:
 * docs/messaging.md.
 *
 * @code
 * peerlane_comm_t comm;
 * peerlane_op_t received = PEERLANE_OP_INIT;
 * struct peerlane_op_info info;
 * peerlane_comm_open(NULL, &comm);                       // as mpirun, srun or PEERLANE_LINK_* variables say
 * peerlane_comm_irecv(comm, PEERLANE_ANY_SOURCE, peerlane_device_buffer(device_ptr, size_bytes), 7, PEERLANE_WHOLE_TAG,
 *                     &received);
 * peerlane_comm_send(comm, 1, peerlane_host_buffer(values, sizeof values), 7, PEERLANE_NO_LIMIT);
 * peerlane_op_wait(&received, PEERLANE_NO_LIMIT, &info); // info.source, info.tag, info.size_bytes
 * peerlane_comm_close(comm);
 * @endcode
 *
 * Conventions. A call returns 0 or a positive errno value. It writes its outputs only on success, unless it says otherwise.
 * peerlane_last_error() explains the last failure. Memory is passed as a struct peerlane_buffer. Timeouts are in
 * milliseconds; negative means no limit, but the death of a peer still ends the wait. An asynchronous call writes a
 * peerlane_op_t on success; end it with the calls of <peerlane/operation.h>. The buffers belong to the operation until then.
 *
 * Threads. Any thread may make any call, but only one thread at a time may use an operation. The calls of a communicator
 * exclude each other. Opening is collective. Do not close a communicator while another thread is in a call on it. fork: a
 * communicator belongs to its process; in a child process every call returns EACCES.
 *
 * Progress happens inside calls on the communicator or its operations, or in a progress thread (options.progress_thread). A
 * process that does neither cannot complete larger messages, or puts and gets that need it (see below). Callbacks of
 * peerlane_op_then() run only inside calls.
 *
 * Memory order. After the call that reports the end of a receive, get or put, CPU loads of that thread and GPU work that it
 * launches see the bytes. The source of a send or put is read at an unspecified time between the call and the end of the
 * operation: complete the GPU work that writes it before the call (synchronise its stream). For kernels that are already
 * running, see docs/ordering-copies.md.
 */
#ifndef PEERLANE_COMMUNICATOR_H
#define PEERLANE_COMMUNICATOR_H

#include <peerlane/buffer.h>
#include <peerlane/copy.h>
#include <peerlane/operation.h>
#include <peerlane/peerlane.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_comm* peerlane_comm_t; /**< peerlane_comm_open .. peerlane_comm_close */

/* Numbers of objects of one communicator; 0 means none. Calls with a number that is not live return EINVAL. */
typedef uint64_t peerlane_message_t;    /**< A matched message: mprobe .. irecv_matched or release_message. */
typedef uint64_t peerlane_window_t;     /**< expose or allocate .. release_window */
typedef uint64_t peerlane_registered_t; /**< register .. release_registered */

#define PEERLANE_ANY_SOURCE (-1)
#define PEERLANE_WHOLE_TAG UINT64_MAX /**< Mask: every bit of the tag must match. */

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

/**
 * Functions of the caller that let the processes find each other (over MPI, a launcher or a socket). Each returns 0 or an
 * errno value. Only peerlane_comm_open() and peerlane_comm_all_gather() call them. They must stay callable until the
 * communicator is closed.
 */
struct peerlane_bootstrap {
  void* context; /**< Passed to both functions. */
  int32_t rank;  /**< Of this process. */
  int32_t size;  /**< Number of ranks. */
  /** As MPI_Allgather: gathers `size_bytes` from every rank, in rank order, into `all` (size * size_bytes bytes). */
  int (*all_gather)(void* context, const void* mine, size_t size_bytes, void* all);
  /** May be NULL: then an all_gather of one byte is used. */
  int (*barrier)(void* context);
};

enum peerlane_choice {
  PEERLANE_AS_SET = 0, /**< The environment variable if it is set, else the default. */
  PEERLANE_NO = 1,
  PEERLANE_YES = 2
};

/** In every field, zero means the default. An option takes precedence over the PEERLANE_LINK_* variable of the same name. */
struct peerlane_comm_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_comm_options). Fields beyond this size are not read. */

  /* Which processes take part: */
  const struct peerlane_bootstrap* bootstrap; /**< NULL: the ranks meet at `rendezvous`. */
  const char* rendezvous;  /**< "host:port" of rank 0 ("*:port" at rank 0 itself), or "file:FOLDER" on a common file system.
                                Ranks of several machines or users need the secret of PEERLANE_LINK_SECRET_FILE. NULL:
                                PEERLANE_LINK_RENDEZVOUS, else as the launcher arranges it (docs/messaging-start.md). */
  int32_t rank;            /**< Of this process; used if size is not 0. */
  int32_t size;            /**< Number of ranks. 0: both from PEERLANE_LINK_RANK and _SIZE, else from the launcher. */
  int64_t open_timeout_ms; /**< 0: 60 s; negative: one day. */

  uint32_t host_only;       /**< 1: do not use CUDA; device memory is refused. */
  peerlane_copier_t copier; /**< Shares its mappings and costs; must be closed after the communicator. NULL: a new one. */
  const char* cpus;         /**< Binds the calling thread: "none", "near" (the GPU's CPUs), "bunch", "scatter", "0-3,8", or
                                 "0-3:8-11" with one item for each rank of the node. NULL: PEERLANE_LINK_CPU, else none. */

  /* Transports; docs/messaging-transports.md describes each setting: */
  const char* ucx_library; /**< Path of libucp.so.0. */
  const char* rails;       /**< UCX's net devices, "mlx5_0:1,mlx5_1:1". */
  uint32_t network_only;   /**< enum peerlane_choice. YES: treat every peer as if it were on another host. */
  uint32_t use_ipc;        /**< enum peerlane_choice. NO: no CUDA IPC. */
  uint32_t use_gpu_lanes;  /**< enum peerlane_choice. NO: never pass GPU pointers to UCX. */
  uint32_t fixed_rail;     /**< enum peerlane_choice. YES: each process uses one rail, by its rank on the node. */
  uint32_t calibrate;      /**< enum peerlane_choice. YES: measure the cost of a packet and a handshake (less than 0.1 s; the
                                results are kept for later opens). */
  uint32_t progress_thread;   /**< enum peerlane_choice. YES: a thread makes progress, and calls that wait sleep. */
  int64_t peer_timeout_ms;    /**< UCX's keep-alive interval: a host that is silent for longer counts as dead. */
  uint64_t eager_limit;       /**< Largest eager message, in bytes, at most 32 KiB. */
  uint64_t gdr_send_limit;    /**< Largest eager message from GPU memory, in bytes. */
  uint64_t gdr_receive_limit; /**< Largest eager message that the CPU stores to GPU memory, in bytes. */
  uint64_t ipc_threshold;     /**< Smallest message by CUDA IPC, in bytes. */
  uint64_t chunk_bytes;       /**< Chunk size of the shm rings. */
  uint64_t unexpected_bytes;  /**< What one peer may send without a posted receive, in bytes. */
  uint64_t stripe_threshold;  /**< Smallest part of a message for a second rail, in bytes. */
  /** enum peerlane_choice, the same at all ranks. YES: ranks may leave and come back as new processes
   * (peerlane_comm_await_return()). The ranks must meet at host:port of rank 0, or on one host through the launcher. */
  uint32_t elastic;
};

/**
 * @brief Joins this process to a job. Collective.
 *
 * Initialises CUDA (cuInit) unless host_only is set. The calling thread's current context determines the process's GPU, so
 * select the device first. Without a driver, only host memory can be sent.
 *
 * @param options  may be NULL: all defaults. Not kept after the call, except `bootstrap` and `copier`.
 * @param comm     the new communicator, owned by the caller; end it with peerlane_comm_close().
 * @return 0; ENODATA: neither options, environment nor launcher say who takes part; ENOSYS: UCX is missing, or the library
 *         was built without its headers (only jobs on several hosts need it), or the ranks have no way to meet; ETIMEDOUT,
 *         ECONNRESET: a rank did not come; ECONNREFUSED: rank 0 refuses this rank, or gives up because another one did not
 *         come, and peerlane_last_error() has its reason; EINVAL, EADDRINUSE, EEXIST, EPROTO: the ranks do not fit together;
 *         ENFILE: 64 communicators are already open.
 */
int peerlane_comm_open(const struct peerlane_comm_options* options, peerlane_comm_t* comm);

/**
 * @brief Closes the communicator. Not collective.
 *
 * Operations that other ranks have in progress with this process end with ECONNRESET there; call peerlane_comm_barrier()
 * first to let them finish. Operations of this process are cancelled, or their memory is taken back as by
 * peerlane_op_release(). Windows and registrations end. A peer that does not answer delays the call by at most some seconds,
 * however many operations are in progress with it.
 *
 * @return 0; EDEADLK: a callback of peerlane_op_then() of the communicator's operations calls it; EINVAL: the
 *         communicator is not open.
 */
int peerlane_comm_close(peerlane_comm_t comm);

/** @brief Returns the rank of this process; -1: the communicator is not open. */
int peerlane_comm_rank(peerlane_comm_t comm);
/** @brief Returns the number of ranks; -1: the communicator is not open. */
int peerlane_comm_size(peerlane_comm_t comm);

/**
 * @brief Tells whether a rank is alive.
 * @return 0: alive; ECONNRESET: its process has died or closed its communicator, and peerlane_last_error() says how that was
 *         detected; EINVAL: no such rank.
 */
int peerlane_comm_peer_state(peerlane_comm_t comm, int peer);

/** Why a process has gone: peerlane_op_info::tag of peerlane_comm_await_failure(). */
enum peerlane_failure {
  PEERLANE_FAILURE_LOST = 0,   /**< The process has ended, or no longer answers. */
  PEERLANE_FAILURE_CLOSED = 1, /**< It closed its communicator. */
};

/**
 * @brief Starts an operation that ends when a process of the job has gone.
 *
 * The operation ends with 0, even for a process that had gone before the call. Its info has the rank in `source` and an enum
 * peerlane_failure in `tag`. Each loss is reported once, to the operation that was begun first; begin another one for the
 * next loss. A callback of peerlane_op_then() is called inside calls on the communicator, as for every operation. You may
 * cancel or release the operation at any time.
 *
 * The death of a process on this node is detected within some milliseconds of calls on the communicator (the event
 * descriptor and the progress thread wake for it). On another host it is detected when the connection breaks, or after
 * options.peer_timeout_ms of silence. A stopped process has not failed.
 *
 * @param op  written on success.
 * @return 0; EINVAL: op is NULL; EAGAIN: 4 million operations have not ended yet.
 */
int peerlane_comm_await_failure(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Starts an operation that ends when a rank has come back. Only in an elastic job (options.elastic).
 *
 * A rank that has left or died comes back as a new process that opens a communicator with the same rendezvous, rank, size
 * and secret. Every other rank must have such an operation, as a listening socket needs accept(): the peerlane_comm_open()
 * of the new process returns when all ranks have accepted it. peerlane_comm_restore_collectives() also accepts lost ranks.
 *
 * The operation ends with 0; its info has the rank in `source` and the number of the new process in `tag`
 * (peerlane_comm_incarnation()). Until then nothing of the new process reaches this one. Afterwards messages work, and
 * windows with new keys. Barriers and collectives work after peerlane_comm_restore_collectives() at all ranks. Messages of
 * the old process that nobody received are dropped, and its window keys are refused with EINVAL.
 *
 * Rank 0 holds the rendezvous: while it is gone, no other rank can come back. This operation also accepts rank 0. You may
 * cancel or release it at any time.
 *
 * @param op  written on success.
 * @return 0; ENOTSUP: the job is not elastic; EINVAL: op is NULL; EAGAIN: 4 million operations have not ended yet.
 */
int peerlane_comm_await_return(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Tells which process of a rank this process knows.
 *
 * @param peer         a rank, or this process's own rank: above 1 this process has come back itself.
 * @param incarnation  set to 1 for the first process of the rank, 2 for the next one, and so on; 0: the rank was gone when
 *                     this process came back.
 * @return 0; EINVAL: no such rank, or incarnation is NULL.
 */
int peerlane_comm_incarnation(peerlane_comm_t comm, int peer, uint32_t* incarnation);

/**
 * @brief Tells whether a rank runs on the same node as this process.
 * @param same  set to 1 if it does, else to 0.
 * @return 0; EINVAL: no such rank.
 */
int peerlane_comm_is_same_node(peerlane_comm_t comm, int peer, int* same);

/* ---- Messages --------------------------------------------------------------------------------------------------------
 * A message matches a receive if its source fits and ((tag ^ sent) & mask) == 0. A receive takes the matching message that
 * was sent first. A message goes to the matching receive that was posted first. */

/**
 * @brief Starts a send. When the operation has ended, you may reuse the buffer.
 *
 * @param peer    a rank, or this process's own rank.
 * @param source  the message; its size may be 0. Must not change until the operation has ended.
 * @param tag     any 64-bit number.
 * @param op      written on success.
 * @return 0; EINVAL: no such rank, or invalid memory; EAGAIN: 4 million operations have not ended yet.
 */
int peerlane_comm_isend(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag, peerlane_op_t* op);

/**
 * @brief Starts a receive.
 *
 * The info of the operation has the source, the tag and the length of the message. If the message is longer than the buffer,
 * the operation ends with EMSGSIZE, and the buffer holds the first bytes.
 *
 * @param source       a rank or PEERLANE_ANY_SOURCE.
 * @param destination  may be written until the operation has ended.
 * @param mask         the bits of the tag that must match; PEERLANE_WHOLE_TAG: all.
 * @param op           written on success.
 * @return as peerlane_comm_isend().
 */
int peerlane_comm_irecv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag, uint64_t mask,
                        peerlane_op_t* op);

/**
 * @brief Sends a message and returns when the buffer may be reused.
 *
 * After a timeout the call takes the buffer back, which takes at most some 0.2 s more even if the peer does not answer; its
 * receive then ends with ECANCELED. Over a network whose peer accepts nothing, it takes 1.2 s and closes the connection.
 *
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ETIMEDOUT: not sent in time, and the buffer may be reused; ECONNRESET: the peer has gone; otherwise as
 *         peerlane_comm_isend().
 */
int peerlane_comm_send(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag, int64_t timeout_ms);

/**
 * @brief Receives a message and returns when it has arrived.
 *
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @param info        may be NULL; written on success and for EMSGSIZE.
 * @return 0; EMSGSIZE: the message was truncated; ETIMEDOUT: no message in time, and the buffer may be reused; ECONNRESET:
 *         the peer has gone; otherwise as peerlane_comm_irecv().
 */
int peerlane_comm_recv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag, uint64_t mask,
                       int64_t timeout_ms, struct peerlane_op_info* info);

/**
 * @brief Tests for a message that a receive with these arguments would get, as MPI_Iprobe. Also makes progress once.
 *
 * @param found  set to 1 if there is such a message, else to 0.
 * @param info   may be NULL; if there is a message, its source, tag and length.
 */
int peerlane_comm_probe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask, int* found,
                        struct peerlane_op_info* info);

/**
 * @brief As peerlane_comm_probe(), and removes the message from matching, as MPI_Improbe: no other receive gets it.
 * @param message  0 if there is none. Otherwise pass it to peerlane_comm_irecv_matched() or peerlane_comm_release_message().
 * @param info     may be NULL; if there is a message, its source, tag and length.
 */
int peerlane_comm_mprobe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask, peerlane_message_t* message,
                         struct peerlane_op_info* info);

/**
 * @brief Starts the receive of a matched message.
 * @param message      set to 0.
 * @param destination  may be written until the operation has ended.
 * @param op           written on success.
 * @return 0; EINVAL: the message is not live.
 */
int peerlane_comm_irecv_matched(peerlane_comm_t comm, peerlane_message_t* message, struct peerlane_buffer destination,
                                peerlane_op_t* op);

/** @brief Discards a matched message. @param message  set to 0. */
int peerlane_comm_release_message(peerlane_comm_t comm, peerlane_message_t* message);

/* ---- Put, get, atomics -----------------------------------------------------------------------------------------------
 * An operation that has ended is also complete at the target. Which process carries it out:
 *
 *   window                              put, get                    atomics
 *   peerlane_comm_allocate, same node   the origin alone            the origin alone
 *   other host memory, same node        the origin alone (*)        the target, inside its calls
 *   GPU memory, same node               the origin alone (*) (+)    the target, inside its calls
 *   another node                        the target, inside its calls
 *
 * Alone: the target may sleep, compute or be stopped, and the operation has ended when its call returns. (*) If the kernel
 * lets the origin access the target's memory; otherwise as in the last row. (+) By DMA channels of the origin, which need no
 * CUDA, between the window and host memory or memory of a GPU that can reach it, if the driver offers channels; otherwise as
 * in the last row. peerlane_comm_plan() tells the reason. See docs/messaging-windows.md. */

/** Identifies a window. Plain bytes: send it to the other ranks (in a message, by peerlane_comm_all_gather). */
struct peerlane_window_key {
  int32_t rank;        /**< Of the process that owns the window. */
  uint32_t id;         /**< Of the window in that process. */
  uint64_t size_bytes; /**< Size of the window. */
};

/**
 * @brief Makes a window of existing memory: other processes may put to it and get from it.
 *
 * @param buffer  host or device memory; must stay allocated until the window is released.
 * @param window  end it with peerlane_comm_release_window().
 * @param key     for the other ranks; valid until the window is released.
 * @return 0; EINVAL: invalid memory.
 */
int peerlane_comm_expose(peerlane_comm_t comm, struct peerlane_buffer buffer, peerlane_window_t* window,
                         struct peerlane_window_key* key);

/**
 * @brief Allocates zeroed host memory and makes a window of it. Processes on the same node map it.
 *
 * This process may use the memory like any other until the window is released. Peers on the node access it without this
 * process. Their atomics are CPU atomics, so they are also atomic with respect to those of this process's threads.
 *
 * @param size_bytes  more than 0.
 * @param window      end it with peerlane_comm_release_window(), which also frees the memory.
 * @param memory      the memory, page-aligned.
 * @param key         for the other ranks; valid until the window is released.
 * @return 0; EINVAL: the size is 0; ENOMEM.
 */
int peerlane_comm_allocate(peerlane_comm_t comm, size_t size_bytes, peerlane_window_t* window, void** memory,
                           struct peerlane_window_key* key);

/**
 * @brief Ends a window. On return nothing accesses the memory any more.
 *
 * Later operations fail with EINVAL at their origin. Operations in progress end there with ECANCELED; some bytes of a put
 * may have arrived.
 *
 * @return 0; ETIMEDOUT, after 2 s: the window accepts nothing new, but a peer that does not answer may still access the
 *         memory; peerlane_last_error() names it. The window stays live: call again before you reuse the memory.
 */
int peerlane_comm_release_window(peerlane_comm_t comm, peerlane_window_t window);

/**
 * @brief Starts a put: writes `source` to a window.
 *
 * @param key           of the window; not kept after the call.
 * @param offset_bytes  from the begin of the window.
 * @param source        must not change until the operation has ended.
 * @param op            written on success. It ends with EINVAL if the window has been released.
 * @return as peerlane_comm_isend(); EINVAL: the bytes leave the window.
 */
int peerlane_comm_put(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                      struct peerlane_buffer source, peerlane_op_t* op);

/** @brief Starts a get: reads from a window into `destination`; otherwise as peerlane_comm_put(). */
int peerlane_comm_get(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                      struct peerlane_buffer destination, peerlane_op_t* op);

enum peerlane_signal_kind {
  PEERLANE_SIGNAL_SET = 0, /**< Sets the word to the value. Not atomic with respect to other changes of the word. */
  PEERLANE_SIGNAL_ADD = 1  /**< Adds the value to the word, as PEERLANE_ATOMIC_ADD. */
};

/** A change of an aligned 64-bit word in a window of the target. */
struct peerlane_signal {
  struct peerlane_window_key key; /**< The window of the put, or another one of the same process. */
  uint64_t offset_bytes;          /**< Of the word in that window; a multiple of 8. */
  uint64_t value;
  uint32_t kind;     /**< enum peerlane_signal_kind */
  uint32_t reserved; /**< Must be 0. */
};

/**
 * @brief Starts a put that changes a word when its bytes have arrived: whoever sees the new value also sees the bytes.
 *
 * The origin changes the word alone if it makes the put alone and the word lies in a window of peerlane_comm_allocate() or,
 * for PEERLANE_SIGNAL_SET, in GPU memory of the node. Otherwise the target changes the word, inside its calls.
 *
 * @param signal  not kept after the call.
 * @param op      written on success; ends when the bytes have arrived and the word has changed.
 * @return as peerlane_comm_put().
 */
int peerlane_comm_put_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                             struct peerlane_buffer source, const struct peerlane_signal* signal, peerlane_op_t* op);

/**
 * @brief Waits until a word in a window of this process is at least `least`. Makes progress meanwhile.
 *
 * You can also read the word yourself (in host memory by an atomic load with acquire order).
 *
 * @param key           of a window of this process.
 * @param offset_bytes  of the word in the window; a multiple of 8.
 * @param timeout_ms    in milliseconds; negative: no limit.
 * @param value         may be NULL; receives the value of the word.
 * @return 0; ETIMEDOUT; EINVAL: the window belongs to another process or has been released, or the offset is not that of an
 *         aligned word in it.
 */
int peerlane_comm_wait_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                              uint64_t least, int64_t timeout_ms, uint64_t* value);

/**
 * @brief Waits until all puts to `peer` that are in progress have arrived there.
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ETIMEDOUT; ECONNRESET: the peer has gone.
 */
int peerlane_comm_flush(peerlane_comm_t comm, int peer, int64_t timeout_ms);

enum peerlane_atomic {
  PEERLANE_ATOMIC_ADD = 0,
  PEERLANE_ATOMIC_AND = 1,
  PEERLANE_ATOMIC_OR = 2,
  PEERLANE_ATOMIC_XOR = 3,
  PEERLANE_ATOMIC_SWAP = 4,
  PEERLANE_ATOMIC_COMPARE_SWAP = 5 /**< Writes `operand` if the word equals `compare`. */
};

/**
 * @brief Starts an atomic operation on an aligned 64-bit word in a window.
 *
 * It is atomic with respect to every other peerlane_comm_atomic() on the word and, in host memory, to atomics of CPU
 * threads. It is not atomic with respect to kernels.
 *
 * @param offset_bytes  of the word in the window; a multiple of 8.
 * @param atomic        enum peerlane_atomic.
 * @param compare       used only by PEERLANE_ATOMIC_COMPARE_SWAP.
 * @param before        may be NULL; receives the old value of the word. Must stay valid until the operation has ended.
 * @param op            written on success.
 * @return as peerlane_comm_put().
 */
int peerlane_comm_atomic(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes, uint32_t atomic,
                         uint64_t operand, uint64_t compare, uint64_t* before, peerlane_op_t* op);

/* ---- Control --------------------------------------------------------------------------------------------------------- */

/**
 * @brief Registers device memory: it stays mapped, and messages from and to it do not have to ask the driver.
 *
 * Release the registration before you free the memory. For host memory the call succeeds and does nothing.
 *
 * @param registered  end it with peerlane_comm_release_registered().
 * @return 0; EINVAL: invalid memory.
 */
int peerlane_comm_register(peerlane_comm_t comm, struct peerlane_buffer buffer, peerlane_registered_t* registered);

/** @brief Ends a registration. @return 0; EINVAL: not live. */
int peerlane_comm_release_registered(peerlane_comm_t comm, peerlane_registered_t registered);

/**
 * @brief Makes progress once on all operations, without blocking.
 * @param moved  may be NULL; set to 1 if any operation advanced, else to 0.
 */
int peerlane_comm_progress(peerlane_comm_t comm, int* moved);

/**
 * @brief Returns a file descriptor for poll, epoll or an event loop. After peerlane_comm_arm() has returned 0, it becomes
 *        readable at the next event.
 *
 * One loop may sleep on it; other threads may make any call meanwhile. The communicator owns it: do not read or close it.
 *
 * @code
 * int done = 0;
 * while ((code = peerlane_op_test(&op, &done, &info)) == 0 && !done) { // makes progress once
 *   const int armed = peerlane_comm_arm(comm);
 *   if (armed == EBUSY) continue;                                      // something has happened: test again
 *   if (armed != 0) return armed;
 *   struct pollfd waited = {descriptor, POLLIN, 0};
 *   poll(&waited, 1, -1);
 * }
 * @endcode
 */
int peerlane_comm_event_descriptor(peerlane_comm_t comm, int* descriptor);

/**
 * @brief Prepares a sleep on the event descriptor. Call it before each sleep.
 * @return 0: you may sleep. EBUSY: there was an event since the last call, or an operation needs polling (a copy by the
 *         GPU): test your operations and call again. ENOSYS: the process cannot be woken, because a system call is blocked.
 */
int peerlane_comm_arm(peerlane_comm_t comm);

/**
 * @brief Waits until every rank has called it. Collective; uses messages.
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @return 0; ECONNRESET: a process has gone; ETIMEDOUT: not every rank has called, and the next call continues the same
 *         barrier.
 */
int peerlane_comm_barrier(peerlane_comm_t comm, int64_t timeout_ms);

/**
 * @brief Gathers bytes from every rank at every rank, to exchange window keys at startup. Collective; uses the bootstrap.
 *
 * Takes some 0.1 ms. Only one thread at a time may call it.
 *
 * @param mine        size_bytes bytes of this rank.
 * @param size_bytes  the same at every rank, at most 16 MiB.
 * @param all         receives size * size_bytes bytes, in rank order.
 */
int peerlane_comm_all_gather(peerlane_comm_t comm, const void* mine, size_t size_bytes, void* all);

/** Counts since the communicator was opened, unless a field says otherwise. */
struct peerlane_comm_statistics {
  size_t struct_bytes;    /**< Set by the caller: sizeof(struct peerlane_comm_statistics). Later fields are not written. */
  uint64_t eager;         /**< Messages sent eagerly. */
  uint64_t self;          /**< Messages sent to this process itself. */
  uint64_t shared_ring;   /**< Messages sent through shm rings. */
  uint64_t network_ring;  /**< Messages sent to other hosts in parts. */
  uint64_t ipc;           /**< Messages sent by CUDA IPC. */
  uint64_t ucx_direct;    /**< Messages that UCX moved between the buffers itself. */
  uint64_t unexpected;    /**< Messages that arrived before their receive. */
  uint64_t waiting_sends; /**< Sends that had to wait for flow control. */
  uint64_t unexpected_bytes; /**< Bytes of unexpected messages held now. */
  uint64_t operations;       /**< Operations in progress now. */
  uint64_t one_sided;        /**< Puts, gets and atomics that this process made without the target. */
  uint64_t dma;              /**< Messages received by DMA channels. */
};

/** @brief Reads the counters. @param statistics  its struct_bytes is set by the caller. @return 0; EINVAL. */
int peerlane_comm_get_statistics(peerlane_comm_t comm, struct peerlane_comm_statistics* statistics);

/**
 * @brief Describes in text which transport each message size to a peer takes, where these numbers come from, and the CPUs of
 *        the thread that opened the communicator.
 *
 * @param text      receives at most capacity - 1 characters and a terminating null.
 * @param capacity  of text, in bytes.
 * @param needed    may be NULL; receives the full length without the terminating null.
 */
int peerlane_comm_plan(peerlane_comm_t comm, int peer, char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
