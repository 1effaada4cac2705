/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Communicators: tagged sends and receives, put, get and atomics between any mix of host and GPU memory of the processes of
 * one job. No MPI, no CUDA-aware transport, no kernel module. Link -lpeerlane. C++: <peerlane/communicator.hpp>; guide:
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
 * Conventions. A call returns 0 or a positive errno value; outputs are written on success only (and where a call says so);
 * peerlane_last_error() is the sentence behind a failure, with the next step. Memory is a struct peerlane_buffer. A time-out
 * is in milliseconds; a negative one is no limit, and the death of a peer still ends the wait. What goes on after its call
 * is a peerlane_op_t, ended by the calls of <peerlane/operation.h>; "begins" below means that it is written on success.
 *
 * Threads. Every call from any thread, but one operation by one thread at a time. One call of a communicator works at a
 * time. Opening is collective; closing must not run beside other calls. fork: a communicator belongs to its process; in a
 * child every call answers EACCES.
 *
 * Progress. Only inside calls on the communicator or its operations, or by a thread (options.progress_thread). A process
 * that makes none takes no part in larger messages and answers no put or get that needs it (below). Functions of
 * peerlane_op_then() are called inside calls only.
 *
 * Memory order. When a receive, get or put has ended for its waiter, later CPU loads see the bytes, and so does GPU work
 * that is launched afterwards. What is sent or put is read at an unspecified time between the call and the end of the
 * operation: order GPU work that makes it before the call (synchronise its stream). Kernels that run meanwhile:
 * docs/ordering.md.
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

/* Numbers of objects of one communicator; 0 is none. A number that is not live is answered with EINVAL. */
typedef uint64_t peerlane_message_t;    /**< A matched message: mprobe .. irecv_matched or release_message. */
typedef uint64_t peerlane_window_t;     /**< expose .. release_window */
typedef uint64_t peerlane_registered_t; /**< register .. release_registered */

#define PEERLANE_ANY_SOURCE (-1)
#define PEERLANE_WHOLE_TAG UINT64_MAX /**< Mask: every bit of the tag counts. */

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

/**
 * The caller's own way between the processes (MPI, a launcher, a socket of his). Each call returns 0 or an errno value. They
 * are called from within peerlane_comm_open and peerlane_comm_all_gather only, and must stay callable until the communicator
 * is closed.
 */
struct peerlane_bootstrap {
  void* context;
  int32_t rank;
  int32_t size;
  /** Like MPI_Allgather: `size_bytes` of every rank, in rank order, into `all` (size * size_bytes). */
  int (*all_gather)(void* context, const void* mine, size_t size_bytes, void* all);
  /** NULL: an all_gather of one byte. */
  int (*barrier)(void* context);
};

enum peerlane_choice {
  PEERLANE_AS_SET = 0, /**< As the environment says, or the default. */
  PEERLANE_NO = 1,
  PEERLANE_YES = 2
};

/** Zero means the default everywhere; what is given wins over PEERLANE_LINK_* variables. */
struct peerlane_comm_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_comm_options): fields that come later are not read. */

  /* Who takes part: */
  const struct peerlane_bootstrap* bootstrap; /**< Or, if NULL: */
  const char* rendezvous;  /**< "host:port" of rank 0 ("*:port" for rank 0 itself), "file:FOLDER" of a common file system;
                              ranks  of several machines or users: PEERLANE_LINK_SECRET_FILE names their secret. NULL:
                                PEERLANE_LINK_RENDEZVOUS, else as mpirun, mpiexec or srun says. */
  int32_t rank;            /**< Read if size is not 0. */
  int32_t size;            /**< 0: rank and size from PEERLANE_LINK_RANK, _SIZE, else the launcher's. */
  int64_t open_timeout_ms; /**< 0: 60 s; negative: a day. */

  uint32_t host_only;       /**< 1: CUDA is not touched; device memory is refused. */
  peerlane_copier_t copier; /**< Its mappings and costs are shared; must stay open longer. NULL: one of its own. */
  const char* cpus;         /**< Where the calling thread is put: "none", "near" (the GPU's CPUs), "bunch", "scatter",
                                 "0-3,8", or "0-3:8-11", an item for each rank of the node. NULL: PEERLANE_LINK_CPU, else none. */

  /* Transports (docs/messaging.md, Tunables): */
  const char* ucx_library; /**< Path of libucp.so.0. */
  const char* rails;       /**< UCX's net devices, "mlx5_0:1,mlx5_1:1". */
  uint32_t network_only;   /**< enum peerlane_choice, also below. YES: as if every peer were on another host. */
  uint32_t use_ipc;
  uint32_t use_gpu_lanes;
  uint32_t fixed_rail;
  uint32_t calibrate;       /**< YES: measure what a packet and a handshake cost here (below 0.1 s, kept for later opens). */
  uint32_t progress_thread; /**< YES: a thread makes progress, and calls that wait sleep. */
  int64_t peer_timeout_ms;  /**< Silence of a host after which it counts as dead. */
  uint64_t eager_limit;
  uint64_t gdr_send_limit;
  uint64_t gdr_receive_limit;
  uint64_t ipc_threshold;
  uint64_t chunk_bytes;
  uint64_t unexpected_bytes;
  uint64_t stripe_threshold;
  /** enum peerlane_choice, the same at all ranks. YES: ranks may leave and come back as new processes
   * (peerlane_comm_await_return()). The ranks meet at host:port of rank 0, or on one host by its launcher. */
  uint32_t elastic;
};

/**
 * @brief Opens a process's place in a job. Collective.
 *
 * CUDA is initialised (cuInit) unless host_only. The calling thread's current context tells the process's GPU, so set the
 * device first. Where no driver answers, messages are of host memory only.
 *
 * @param options  NULL: all defaults.
 * @param comm     written on success.
 * @return 0; ENODATA: nothing says who takes part; ENOSYS: built without UCX's headers, UCX is missing (only jobs of several
 *         hosts need it), or no way to meet; ETIMEDOUT, ECONNRESET: a rank did not come; EINVAL, EADDRINUSE, EEXIST, EPROTO:
 *         ranks that do not fit together; ENFILE: 64 communicators are open.
 */
int peerlane_comm_open(const struct peerlane_comm_options* options, peerlane_comm_t* comm);

/**
 * @brief Ends the communicator. Not collective.
 *
 * What others have under way with this process ends with ECONNRESET there; a barrier before it lets all finish. What this
 * process has under way is cancelled, or its memory is taken back as by peerlane_op_release(); windows and registrations
 * end. A process that does not answer delays that by some seconds at most, however much is under way with it.
 */
int peerlane_comm_close(peerlane_comm_t comm);

/** @brief This process's rank, and how many there are; -1: not open. */
int peerlane_comm_rank(peerlane_comm_t comm);
int peerlane_comm_size(peerlane_comm_t comm);

/** @return 0: alive; ECONNRESET: that process is dead or has closed (the sentence says how that was noticed); EINVAL: no
 * such rank. */
int peerlane_comm_peer_state(peerlane_comm_t comm, int peer);

/** How a process was noticed to be gone: peerlane_op_info::tag of peerlane_comm_await_failure(). */
enum peerlane_failure {
  PEERLANE_FAILURE_LOST = 0,   /**< Its process has ended, or it answers nothing any more. */
  PEERLANE_FAILURE_CLOSED = 1, /**< It closed its communicator. */
};

/**
 * @brief Begins to wait for the failure of a process of the job.
 *
 * The operation ends with 0 when a process is gone, also one that was before this call. Its info has that process's rank in
 * `source` and enum peerlane_failure in `tag`. Each process is told once, to the operation that was begun first; begin
 * another one for the next. With peerlane_op_then() a function is called, within calls on the communicator as for every
 * operation. It can be cancelled or released at any time.
 *
 * A process of this node that ends is noticed within some milliseconds of calls on the communicator (its descriptor, or a
 * progress thread, wakes who sleeps); one of another host when its connection breaks, or after options.peer_timeout_ms of
 * silence. A process that is stopped has not failed.
 *
 * @param op  begins.
 * @return 0; EINVAL: op is NULL; EAGAIN: 4 million operations are not ended.
 */
int peerlane_comm_await_failure(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Begins to wait for a rank to come back. Of an elastic job (options.elastic).
 *
 * A rank that has left, or died, comes back as a new process that opens a communicator with the same rendezvous, rank, size
 * and secret. It needs one such operation at every other rank, as a socket needs accept(): its peerlane_comm_open() returns
 * when all have taken it back. peerlane_comm_restore_collectives() takes back who is gone, too.
 *
 * The operation ends with 0 when a rank is back, with the rank in `source`, and the number of its process in `tag`
 * (peerlane_comm_incarnation()). Until then nothing of the new process reaches this one. From then on messages, and windows
 * by new keys, work with it; barriers and collectives after peerlane_comm_restore_collectives() at all ranks. Nothing of the
 * former process is left: what it had sent and nobody has received is dropped, its keys are refused with EINVAL.
 *
 * While rank 0 is gone, which holds the meeting, nobody else comes back; this operation also takes back rank 0. It can be
 * cancelled or released at any time.
 *
 * @param op  begins.
 * @return 0; ENOTSUP: the job is not elastic; EINVAL: op is NULL; EAGAIN: 4 million operations are not ended.
 */
int peerlane_comm_await_return(peerlane_comm_t comm, peerlane_op_t* op);

/**
 * @brief Says which process of its rank a rank is, as far as this one knows.
 *
 * @param peer         a rank, also this process's own: above 1 it has come back itself.
 * @param incarnation  becomes 1 for the first process of the rank, 2 for the one that came back first; 0: the rank was gone
 *                     when this process came back.
 * @return 0; EINVAL: no such rank, or incarnation is NULL.
 */
int peerlane_comm_incarnation(peerlane_comm_t comm, int peer, uint32_t* incarnation);

/** @param same  becomes 1 if the peer is on this process's node, else 0. */
int peerlane_comm_is_same_node(peerlane_comm_t comm, int peer, int* same);

/* ---- Messages --------------------------------------------------------------------------------------------------------
 * A receive takes the message that was sent first of those that fit its source, tag and mask ((tag ^ sent) & mask == 0). A
 * message goes to the receive that was posted first. */

/**
 * @brief Begins to send. The end of the operation says that the buffer may be used again.
 *
 * @param peer    a rank, also this process's own.
 * @param source  the message; its size may be 0.
 * @param tag     any number.
 * @param op      begins.
 * @return 0; EINVAL: no such rank, or no such memory; EAGAIN: 4 million operations are not ended.
 */
int peerlane_comm_isend(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag, peerlane_op_t* op);

/**
 * @brief Begins to receive.
 *
 * The operation ends with EMSGSIZE if the message is longer than the buffer: the first bytes are there, and info->size_bytes
 * is the message's length. Its info has the source and the tag.
 *
 * @param source       a rank or PEERLANE_ANY_SOURCE.
 * @param destination  written until the operation ends.
 * @param mask         bits of the tag that count; PEERLANE_WHOLE_TAG: all.
 * @param op           begins.
 */
int peerlane_comm_irecv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag, uint64_t mask,
                        peerlane_op_t* op);

/**
 * @brief Sends, and returns when the buffer may be used again.
 *
 * @return 0; ETIMEDOUT: given up. The buffer is free again some 0.2 s after the limit at the latest, also where the peer
 *         answers nothing; its receive then ends with ECANCELED. Over a network, where the peer takes nothing of what UCX
 * has begun to move, it is after 1.2 s, and the connection with the peer is closed. ECONNRESET: the peer is gone.
 */
int peerlane_comm_send(peerlane_comm_t comm, int peer, struct peerlane_buffer source, uint64_t tag, int64_t timeout_ms);

/**
 * @brief Receives, and returns when the message is there.
 *
 * @param info  may be NULL; written on success and for EMSGSIZE.
 * @return 0; EMSGSIZE: truncated; ETIMEDOUT: given up, the buffer is free; ECONNRESET: the peer is gone.
 */
int peerlane_comm_recv(peerlane_comm_t comm, int source, struct peerlane_buffer destination, uint64_t tag, uint64_t mask,
                       int64_t timeout_ms, struct peerlane_op_info* info);

/**
 * @brief Looks for the first message that such a receive would get, and makes progress once.
 *
 * @param found  becomes 1 if one is here, and `info` (may be NULL) then says what it is, else 0.
 */
int peerlane_comm_probe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask, int* found,
                        struct peerlane_op_info* info);

/**
 * @brief The same, and takes the message out of the matching: no other receive gets it.
 * @param message  becomes 0 if none is here. To be received, or released, which discards the message.
 */
int peerlane_comm_mprobe(peerlane_comm_t comm, int source, uint64_t tag, uint64_t mask, peerlane_message_t* message,
                         struct peerlane_op_info* info);

/**
 * @brief Begins to receive a matched message.
 * @param message  becomes 0.
 * @return 0; EINVAL: not live.
 */
int peerlane_comm_irecv_matched(peerlane_comm_t comm, peerlane_message_t* message, struct peerlane_buffer destination,
                                peerlane_op_t* op);
int peerlane_comm_release_message(peerlane_comm_t comm, peerlane_message_t* message);

/* ---- Put, get, atomics -----------------------------------------------------------------------------------------------
 * An operation that has ended is complete at the target too. Who does it:
 *
 *   window                              put, get                    atomics
 *   peerlane_comm_allocate, same node   the caller alone            the caller alone
 *   other host memory, same node        the caller alone (*)        the target, inside its calls
 *   GPU memory, same node               the caller alone (*) (+)    the target, inside its calls
 *   another node                        the target, inside its calls
 *
 * Alone: the target may sleep, compute or be stopped, and the operation has ended when its call returns. (*) Where the
 * kernel lets the process reach the target's memory; else as in the last row. (+) By DMA channels of the caller's, which
 * needs no CUDA: from and to host memory and memory of the same GPU, where the GPU's driver has channels; else as in the
 * last row. peerlane_comm_plan() says why. */

/** Plain bytes: goes to the others by any way (a message, peerlane_comm_all_gather). Valid until the window ends. */
struct peerlane_window_key {
  int32_t rank;
  uint32_t id;
  uint64_t size_bytes; /**< Of the window. */
};

/**
 * @brief Lets the other processes put to memory and get from it.
 * @param window  written on success; ended by peerlane_comm_release_window().
 * @param key     written on success; for the others.
 */
int peerlane_comm_expose(peerlane_comm_t comm, struct peerlane_buffer buffer, peerlane_window_t* window,
                         struct peerlane_window_key* key);

/**
 * @brief Makes a window of new host memory, zeroed, which the processes of the node map.
 *
 * The memory is the process's like any other, until the window is released. Peers put, get and count there without this
 * process. Atomics are the CPU's: atomic also towards those of this process's threads.
 *
 * @param size_bytes  more than 0.
 * @param window      written on success; ended by peerlane_comm_release_window(), which also frees the memory.
 * @param memory      written on success: page-aligned.
 * @param key         written on success; for the others.
 */
int peerlane_comm_allocate(peerlane_comm_t comm, size_t size_bytes, peerlane_window_t* window, void** memory,
                           struct peerlane_window_key* key);

/**
 * @brief Ends a window. On return nothing touches the memory any more.
 *
 * What arrives later is refused with EINVAL at its origin; what is under way ends there with ECANCELED, and of a put some
 * bytes may have come.
 *
 * @return 0; ETIMEDOUT, after 2 s: the window takes nothing new, but a peer that does not answer may still read the memory;
 *         the sentence names it. The number stays: call again before the memory is used for something else.
 */
int peerlane_comm_release_window(peerlane_comm_t comm, peerlane_window_t window);

/**
 * @brief Begins to write `source` to a window, `offset_bytes` from its begin.
 * @return as peerlane_comm_isend(). EINVAL: it leaves the window. The operation ends with EINVAL if the window has
 *         ended.
 */
int peerlane_comm_put(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                      struct peerlane_buffer source, peerlane_op_t* op);

/** @brief Begins to read from a window into `destination`; else as peerlane_comm_put(). */
int peerlane_comm_get(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                      struct peerlane_buffer destination, peerlane_op_t* op);

enum peerlane_signal_kind {
  PEERLANE_SIGNAL_SET = 0, /**< The word becomes the value. Not atomic towards other changes of the word. */
  PEERLANE_SIGNAL_ADD = 1  /**< As PEERLANE_ATOMIC_ADD. */
};

/** An aligned 64-bit word of a window of the process that is put to. */
struct peerlane_signal {
  struct peerlane_window_key key; /**< The window of the put, or another one of the same process. */
  uint64_t offset_bytes;
  uint64_t value;
  uint32_t kind;     /**< enum peerlane_signal_kind */
  uint32_t reserved; /**< 0 */
};

/**
 * @brief Begins a put that changes a word when its bytes are there: who sees the word's new value sees the bytes.
 *
 * The caller alone does it where it does the put alone and the word lies in a window of peerlane_comm_allocate(), or, for
 * PEERLANE_SIGNAL_SET, in GPU memory of the node. Else the target changes the word, inside its calls.
 *
 * @param signal  copied.
 * @return as peerlane_comm_put(). The operation has ended when both are done.
 */
int peerlane_comm_put_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                             struct peerlane_buffer source, const struct peerlane_signal* signal, peerlane_op_t* op);

/**
 * @brief Waits until a word of this process's window is `least` or more, and makes progress meanwhile.
 *
 * Who does not want to wait here reads the word itself (host memory: an atomic load with acquire order).
 *
 * @param key    of a window of this process.
 * @param value  may be NULL; gets what the word was.
 * @return 0; ETIMEDOUT; EINVAL: the window is not this process's or has ended, or the offset is none of an aligned word in
 *         it.
 */
int peerlane_comm_wait_signal(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes,
                              uint64_t least, int64_t timeout_ms, uint64_t* value);

/** @brief Returns once everything that was put to `peer` by operations that are still alive is there. */
int peerlane_comm_flush(peerlane_comm_t comm, int peer, int64_t timeout_ms);

enum peerlane_atomic {
  PEERLANE_ATOMIC_ADD = 0,
  PEERLANE_ATOMIC_AND = 1,
  PEERLANE_ATOMIC_OR = 2,
  PEERLANE_ATOMIC_XOR = 3,
  PEERLANE_ATOMIC_SWAP = 4,
  PEERLANE_ATOMIC_COMPARE_SWAP = 5 /**< Writes `operand` where the word equals `compare`. */
};

/**
 * @brief Begins an atomic on an aligned 64-bit word of a window.
 *
 * Atomic towards every other peerlane_comm_atomic on the word; in host memory also towards atomics of CPU threads. Not
 * towards kernels.
 *
 * @param atomic  enum peerlane_atomic.
 * @param before  may be NULL; gets the word's old value, and must live until the operation ends.
 */
int peerlane_comm_atomic(peerlane_comm_t comm, const struct peerlane_window_key* key, uint64_t offset_bytes, uint32_t atomic,
                         uint64_t operand, uint64_t compare, uint64_t* before, peerlane_op_t* op);

/* ---- Control --------------------------------------------------------------------------------------------------------- */

/**
 * @brief Registers device memory: it stays mapped, and its messages do not ask the driver.
 *
 * Release it before the memory is freed. Host memory: nothing is to do, and it works.
 */
int peerlane_comm_register(peerlane_comm_t comm, struct peerlane_buffer buffer, peerlane_registered_t* registered);
int peerlane_comm_release_registered(peerlane_comm_t comm, peerlane_registered_t registered);

/**
 * @brief Advances everything once.
 * @param moved  may be NULL; becomes 1 if something moved, else 0.
 */
int peerlane_comm_progress(peerlane_comm_t comm, int* moved);

/**
 * @brief A descriptor for poll, epoll or an event loop: readable when something happens after peerlane_comm_arm() answered
 * 0.
 *
 * One loop sleeps on it; other threads may make any call meanwhile. It stays the communicator's: do not read or close it.
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
 * @brief Call it before each sleep on the descriptor.
 * @return 0: sleep. EBUSY: something has happened since the last call, or only polling advances what is under way (copies of
 *         a GPU): test your operations, and call it again. ENOSYS: the process cannot be woken (a filter of system calls).
 */
int peerlane_comm_arm(peerlane_comm_t comm);

/**
 * @brief Waits for every process. Collective, by messages.
 * @return 0; ECONNRESET: a process is gone; ETIMEDOUT: not every process came, and the next call goes on with the same
 *         barrier.
 */
int peerlane_comm_barrier(peerlane_comm_t comm, int64_t timeout_ms);

/**
 * @brief Gives every rank what each of them gave; for setting up (keys of windows). Collective, by the bootstrap.
 *
 * Takes some 0.1 ms. From one thread.
 *
 * @param size_bytes  the same at every rank; 16 MiB at most.
 * @param all         size * size_bytes, in rank order.
 */
int peerlane_comm_all_gather(peerlane_comm_t comm, const void* mine, size_t size_bytes, void* all);

struct peerlane_comm_statistics {
  size_t struct_bytes; /**< By the caller: sizeof(struct peerlane_comm_statistics); later fields are not written. */
  uint64_t eager;      /**< Messages sent, by transport. */
  uint64_t self;
  uint64_t shared_ring;
  uint64_t network_ring;
  uint64_t ipc;
  uint64_t ucx_direct;
  uint64_t unexpected;       /**< Arrived before their receive. */
  uint64_t waiting_sends;    /**< Sends that had to wait until the peer had taken what it was sent before. */
  uint64_t unexpected_bytes; /**< Held now. */
  uint64_t operations;       /**< Under way now. */
  uint64_t one_sided;        /**< Puts, gets and atomics that this process did without the target. */
  uint64_t dma;              /**< Messages received by DMA channels. */
};
int peerlane_comm_get_statistics(peerlane_comm_t comm, struct peerlane_comm_statistics* statistics);

/**
 * @brief Says, for people, which transport messages to this peer take, from which size, where the numbers come from, and the
 *        CPUs of the thread that opened the communicator.
 *
 * @param text    gets at most capacity - 1 characters and an end.
 * @param needed  may be NULL; becomes the full length.
 */
int peerlane_comm_plan(peerlane_comm_t comm, int peer, char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}
#endif
#endif
