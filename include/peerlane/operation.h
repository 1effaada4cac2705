/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Operations: the one handle of everything that goes on after its call has returned. Copies (<peerlane/copy.h>), messages,
 * puts and gets (<peerlane/communicator.h>) and the store's requests (<peerlane/store.h>) all begin with a call that writes
 * a peerlane_op_t, and end with the calls of this header. C++: <peerlane/operation.hpp>.
 *
 * @code
 * peerlane_op_t ops[2] = {PEERLANE_OP_INIT, PEERLANE_OP_INIT};
 * peerlane_comm_irecv(comm, peer, peerlane_device_buffer(device_ptr, size_bytes), tag, PEERLANE_WHOLE_TAG, &ops[0]);
 * peerlane_copy_begin(copier, &transfer, 1, PEERLANE_BEGIN_DEFAULT, NULL, &ops[1]);
 * if (peerlane_wait_all(ops, 2, 10000, NULL) != 0) puts(peerlane_op_last_error(&ops[0]));
 * @endcode
 *
 * Life. A peerlane_op_t is a value of 24 bytes; nothing is allocated for it. It is *empty* while its number is 0, as after
 * PEERLANE_OP_INIT. The call that begins an operation fills it, and the call that reports the end (test, wait, release)
 * empties it. An empty one has ended well. Each operation must be ended by one of these calls. Copying the value does not
 * copy the operation: of several copies one ends it, and the others are answered with EINVAL, never with a crash. Only
 * `calls` is trusted: never write the fields yourself.
 *
 * Memory. The buffers of an operation belong to it until it has ended.
 *
 * Errors. The calls return what the operation ended with: 0, or a positive errno value. peerlane_op_last_error() has the
 * sentence. A message that is longer than its buffer ends with EMSGSIZE, and info->size_bytes is its true length.
 *
 * Threads. One operation is used by one thread at a time; different ones by any threads at once. fork: an operation belongs
 * to the process that began it, and in a child every call answers EACCES.
 *
 * Memory order. When an operation has ended for its waiter, later CPU loads see the bytes that it wrote, and so does GPU
 * work that is launched afterwards (docs/ordering.md).
 *
 * The functions are inline: they go through `calls`, a constant table of the library that began the operation. So one wait
 * takes operations of libpeerlane and of libpeerlane_store, and neither library needs the other. Bindings of other languages
 * call the table's entries directly; an entry is never called for an empty operation.
 */
#ifndef PEERLANE_OPERATION_H
#define PEERLANE_OPERATION_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Every time-out is an int64_t in milliseconds. A negative one is no limit; 0 looks once. */
#define PEERLANE_NO_LIMIT ((int64_t)-1)

struct peerlane_op_calls;

/** An operation; see the top of this header. */
typedef struct peerlane_op {
  const struct peerlane_op_calls* calls; /**< Of the library that began it; stays when the operation has ended. */
  void* owner;                           /**< The copier, communicator or store. */
  uint64_t number;                       /**< Among the owner's; 0: empty. */
} peerlane_op_t;

/** Initialises an empty operation; memset to 0 does, too. */
#define PEERLANE_OP_INIT \
  { 0, 0, 0 }

/** What became of an operation. Fields that do not concern it are 0, `source` -1. */
struct peerlane_op_info {
  int32_t error;        /**< 0, or the errno value that it ended with. */
  int32_t source;       /**< Receive: the sender's rank. */
  uint64_t tag;         /**< Receive: the message's tag. */
  uint64_t size_bytes;  /**< Length of the whole message (also if it was truncated), copy, or stored value. */
  uint64_t moved_bytes; /**< How much of it was moved. */
  uint64_t version;     /**< Store: the value's version. */
  uint64_t server_ns;   /**< Store: time that the server took, in nanoseconds. */
  uint32_t path;        /**< Store: enum peerlane_store_path, which the bytes took. */
  uint32_t durability;  /**< Store: enum peerlane_store_durability, which was reached. */
  uint32_t crc32c;      /**< Store: of the whole value. */
  uint32_t user_flags;  /**< Store: as they were put. */
  uint32_t repeated;    /**< Store: 1: asked again after a lost answer, and had been applied. */
  uint32_t reserved;
};

/** See peerlane_op_then(). */
typedef void (*peerlane_op_function_t)(void* context, const struct peerlane_op_info* info);

/** How a library serves its operations. Later releases add entries at the end. */
struct peerlane_op_calls {
  size_t struct_bytes;
  int (*test)(peerlane_op_t* op, int* done, struct peerlane_op_info* info);
  int (*wait)(peerlane_op_t* op, int64_t timeout_ms, struct peerlane_op_info* info);
  int (*cancel)(const peerlane_op_t* op);
  int (*then)(const peerlane_op_t* op, peerlane_op_function_t function, void* context);
  int (*release)(peerlane_op_t* op);
  int (*wait_all)(peerlane_op_t* ops, size_t count, int64_t timeout_ms, struct peerlane_op_info* infos);
  int (*wait_any)(peerlane_op_t* ops, size_t count, int64_t timeout_ms, size_t* index, struct peerlane_op_info* info);
  const char* (*last_error)(void);
};

/** @brief 1 if the operation is empty: it has ended, or was never begun. */
static inline int peerlane_op_is_empty(const peerlane_op_t* op) { return op == NULL || op->number == 0; }

/** @brief Writes the info of an operation that has ended well and concerns nothing. `info` may be NULL. */
static inline void peerlane_op_info_clear(struct peerlane_op_info* info) {
  if (info == NULL) return;
  memset(info, 0, sizeof *info);
  info->source = -1;
}

/**
 * @brief Says whether the operation has ended, without blocking, and makes progress on its owner. While another thread is in
 * the function of peerlane_op_then() it goes on.
 *
 * @param op    emptied if it has ended.
 * @param done  becomes 1 if it has ended, whatever its outcome, else 0. Not written for an operation that is not live.
 * @param info  may be NULL; written if it has ended.
 * @return what it ended with, 0 while it goes on; EINVAL: not live, or a null pointer.
 */
static inline int peerlane_op_test(peerlane_op_t* op, int* done, struct peerlane_op_info* info) {
  if (op == NULL || done == NULL) return EINVAL;
  if (op->number != 0) return op->calls != NULL ? op->calls->test(op, done, info) : EINVAL;
  peerlane_op_info_clear(info);
  *done = 1;
  return 0;
}

/**
 * @brief Waits until the operation has ended.
 *
 * @param op          emptied unless the answer is ETIMEDOUT with op->number left.
 * @param timeout_ms  limit in milliseconds; negative: none. The death of a peer ends the wait in any case.
 * @param info        may be NULL; written if it has ended.
 * @return what it ended with; ETIMEDOUT: not by then, and it goes on; EINVAL: not live.
 */
static inline int peerlane_op_wait(peerlane_op_t* op, int64_t timeout_ms, struct peerlane_op_info* info) {
  if (op == NULL) return EINVAL;
  if (op->number != 0) return op->calls != NULL ? op->calls->wait(op, timeout_ms, info) : EINVAL;
  peerlane_op_info_clear(info);
  return 0;
}

/**
 * @brief Ends an operation that has not moved anything yet, with ECANCELED; wait for it afterwards.
 *
 * @return 0: it has ended, or had ended already; EBUSY: too late, it goes on (copies and store requests always). The memory
 *         is in use until it ends: peerlane_op_release() takes it back.
 */
static inline int peerlane_op_cancel(const peerlane_op_t* op) {
  if (op == NULL) return EINVAL;
  if (op->number == 0) return 0;
  return op->calls != NULL ? op->calls->cancel(op) : EINVAL;
}

/**
 * @brief Has a function called once, when the operation has ended.
 *
 * It is called by the first thread that sees the end: one in a call on the operation or its owner, or a thread of the
 * library (copies and the store; messages make progress only inside calls). A test, wait or release that reports the end
 * returns after the function has returned. The operation is still to be ended by one of these. The function must not block,
 * and must not use this operation; it may begin others.
 *
 * @param function  called with `context` and what became of the operation (ECANCELED if it is released before it has ended).
 *                  For an operation that has ended it is called at once, within this call.
 * @return 0; EEXIST: the operation has a function already; EINVAL: not live, or `function` is null; EAGAIN: no thread can be
 *         started that would call it.
 */
static inline int peerlane_op_then(const peerlane_op_t* op, peerlane_op_function_t function, void* context) {
  struct peerlane_op_info info;
  if (op == NULL || function == NULL) return EINVAL;
  if (op->number != 0) return op->calls != NULL ? op->calls->then(op, function, context) : EINVAL;
  peerlane_op_info_clear(&info);
  function(context, &info);
  return 0;
}

/**
 * @brief Ends the operation, whatever its state, and forgets its outcome. Its memory is free on return.
 *
 * A message that has not begun is cancelled. Of one under way the memory is taken back: some 0.2 s where the peer does not
 * answer, 1.2 s over a network whose peer takes nothing (the connection with it is then closed); at the peer it ends with
 * ECANCELED. Copies and store requests are waited for.
 *
 * @param op  emptied.
 * @return 0; EINVAL: not live; EACCES: the parent process's.
 */
static inline int peerlane_op_release(peerlane_op_t* op) {
  if (op == NULL) return EINVAL;
  if (op->number == 0) return 0;
  return op->calls != NULL ? op->calls->release(op) : EINVAL;
}

/** @brief The sentence behind this thread's last failure in the library that began `op`, with the next step. Never NULL. */
static inline const char* peerlane_op_last_error(const peerlane_op_t* op) {
  if (op == NULL || op->calls == NULL) return "the operation was never begun: give what a call wrote";
  return op->calls->last_error();
}

/**
 * @brief Waits until all have ended; they may be of any kinds and owners.
 *
 * @param ops         each is emptied once it has ended; empty ones count as ended well.
 * @param count       how many.
 * @param timeout_ms  limit of the whole call in milliseconds; negative: none.
 * @param infos       NULL, or `count` of them; written for those that have ended.
 * @return 0, or the first error that one ended with, once all have ended; ETIMEDOUT: the ones left not empty go on. The
 *         sentence is peerlane_op_last_error() of the first that was begun.
 */
static inline int peerlane_wait_all(peerlane_op_t* ops, size_t count, int64_t timeout_ms, struct peerlane_op_info* infos) {
  size_t i;
  if (ops == NULL && count != 0) return EINVAL;
  for (i = 0; i < count; ++i)
    if (ops[i].calls != NULL) return ops[i].calls->wait_all(ops, count, timeout_ms, infos);
  for (i = 0; i < count && infos != NULL; ++i) peerlane_op_info_clear(infos + i);
  return 0;
}

/**
 * @brief Waits until one has ended; they may be of any kinds and owners.
 *
 * @param ops    the one that has ended is emptied.
 * @param index  becomes its index, or `count` if all are empty already.
 * @param info   may be NULL; its info.
 * @return what it ended with; ETIMEDOUT: none has ended, and *index is not written.
 */
static inline int peerlane_wait_any(peerlane_op_t* ops, size_t count, int64_t timeout_ms, size_t* index,
                                    struct peerlane_op_info* info) {
  size_t i;
  if ((ops == NULL && count != 0) || index == NULL) return EINVAL;
  for (i = 0; i < count; ++i)
    if (ops[i].calls != NULL) return ops[i].calls->wait_any(ops, count, timeout_ms, index, info);
  peerlane_op_info_clear(info);
  *index = count;
  return 0;
}

#ifdef __cplusplus
}
#endif
#endif
