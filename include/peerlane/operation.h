/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Operations: the handle of everything asynchronous. Copies (<peerlane/copy.h>), messages, puts and gets
 * (<peerlane/communicator.h>) and requests to the store (<peerlane/store.h>) begin with a call that writes a peerlane_op_t.
 * The calls of this header test, wait for, cancel and release it. C++: <peerlane/operation.hpp>.
 *
 * @code
 * peerlane_op_t ops[2] = {PEERLANE_OP_INIT, PEERLANE_OP_INIT};
 * peerlane_comm_irecv(comm, peer, peerlane_device_buffer(device_ptr, size_bytes), tag, PEERLANE_WHOLE_TAG, &ops[0]);
 * peerlane_copy_begin(copier, &transfer, 1, PEERLANE_BEGIN_DEFAULT, NULL, &ops[1]);
 * if (peerlane_wait_all(ops, 2, 10000, NULL) != 0) puts(peerlane_op_last_error(&ops[0]));
 * @endcode
 *
 * Lifetime. A peerlane_op_t is a 24-byte value that needs no allocation. It is *empty* while its number is 0, as after
 * PEERLANE_OP_INIT. The call that begins an operation fills it. The call that reports its end (test, wait, release) empties
 * it. An empty operation counts as one that ended successfully. End each operation with one of these calls. Copying the
 * value does not copy the operation: the first call that ends it through any copy wins, and the other copies get EINVAL. Do
 * not write the fields yourself: the library trusts `calls`.
 *
 * Memory. The buffers of an operation belong to it until it has ended.
 *
 * Errors. The calls return the result of the operation: 0 or a positive errno value. peerlane_op_last_error() explains it. A
 * receive whose message is longer than the buffer ends with EMSGSIZE; info->size_bytes is then the full length.
 *
 * Threads. Only one thread at a time may use an operation. Different threads may use different operations at the same time.
 * fork: an operation belongs to the process that began it; in a child process every call returns EACCES.
 *
 * Memory order. After the call that reports the end, CPU loads of that thread and GPU work that it launches see the bytes
 * that the operation wrote (docs/ordering-copies.md).
 *
 * The functions are inline and go through `calls`, a constant table of the library that began the operation. One wait can
 * therefore take operations of libpeerlane and libpeerlane_store, and neither library needs the other. Bindings for other
 * languages call the table's entries directly, but never for an empty operation.
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

/** A timeout without a limit. Every timeout is an int64_t in milliseconds; negative means no limit, 0 tests once. */
#define PEERLANE_NO_LIMIT ((int64_t)-1)

struct peerlane_op_calls;

/** An operation; see the top of this header. */
typedef struct peerlane_op {
  const struct peerlane_op_calls* calls; /**< Functions of the library that began it; kept when the operation has ended. */
  void* owner;                           /**< The copier, communicator or store. */
  uint64_t number;                       /**< Number of the operation at its owner; 0: empty. */
} peerlane_op_t;

/** Initialises an empty operation; memset to 0 does, too. */
#define PEERLANE_OP_INIT \
  { 0, 0, 0 }

/** Result of an operation. Fields that do not apply are 0, `source` is -1. */
struct peerlane_op_info {
  int32_t error;        /**< 0, or the errno value of the failure. */
  int32_t source;       /**< Receive: the sender's rank. */
  uint64_t tag;         /**< Receive: the message's tag. */
  uint64_t size_bytes;  /**< Length of the whole message (even if it was truncated), of the copy, or of the stored value. */
  uint64_t moved_bytes; /**< Number of bytes transferred. */
  uint64_t version;     /**< Store: version of the value. */
  uint64_t server_ns;   /**< Store: time in the server, in nanoseconds. */
  uint32_t path;        /**< Store: enum peerlane_store_path that the bytes took. */
  uint32_t durability;  /**< Store: enum peerlane_store_durability that was reached. */
  uint32_t crc32c;      /**< Store: CRC-32C of the whole value. */
  uint32_t user_flags;  /**< Store: the flags that were put with the value. */
  uint32_t repeated;    /**< Store: 1 if the request was repeated after a lost reply and had already been applied. */
  uint32_t reserved;
};

/** Callback of peerlane_op_then(). `info` is valid only during the call. */
typedef void (*peerlane_op_function_t)(void* context, const struct peerlane_op_info* info);

/** Functions of a library for its operations. Later releases add entries at the end. */
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

/** @brief Returns 1 if the operation is empty (it has ended, or was never begun), else 0. */
static inline int peerlane_op_is_empty(const peerlane_op_t* op) { return op == NULL || op->number == 0; }

/** @brief Writes the result of an empty operation. `info` may be NULL. */
static inline void peerlane_op_info_clear(struct peerlane_op_info* info) {
  if (info == NULL) return;
  memset(info, 0, sizeof *info);
  info->source = -1;
}

/**
 * @brief Tests without blocking whether the operation has ended. Also makes progress on its owner.
 *
 * While another thread executes the callback of peerlane_op_then(), the operation has not ended yet.
 *
 * @param op    emptied if the operation has ended.
 * @param done  set to 1 if the operation has ended, successfully or not, else to 0. Not written if it is not live.
 * @param info  may be NULL; written if the operation has ended.
 * @return the result of the operation, or 0 if it has not ended; EINVAL: not live, or a null pointer.
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
 * @param op          emptied when the operation has ended. If the call times out, op->number is not 0.
 * @param timeout_ms  in milliseconds; negative: no limit. The death of a peer ends the wait in any case.
 * @param info        may be NULL; written if the operation has ended.
 * @return the result of the operation; ETIMEDOUT with op->number left: it has not ended, and continues; EINVAL: not live.
 */
static inline int peerlane_op_wait(peerlane_op_t* op, int64_t timeout_ms, struct peerlane_op_info* info) {
  if (op == NULL) return EINVAL;
  if (op->number != 0) return op->calls != NULL ? op->calls->wait(op, timeout_ms, info) : EINVAL;
  peerlane_op_info_clear(info);
  return 0;
}

/**
 * @brief Cancels an operation that has not transferred anything yet. It ends with ECANCELED; wait for it or test it then.
 *
 * @return 0: it is cancelled, or had already ended; EBUSY: too late, it continues (copies and store requests always do). Its
 *         memory stays in use until it ends, or until peerlane_op_release() takes it back; EINVAL: not live.
 */
static inline int peerlane_op_cancel(const peerlane_op_t* op) {
  if (op == NULL) return EINVAL;
  if (op->number == 0) return 0;
  return op->calls != NULL ? op->calls->cancel(op) : EINVAL;
}

/**
 * @brief Sets a callback that is called once, when the operation has ended.
 *
 * The first thread that notices the end calls it: a thread in a call on the operation or its owner, or a thread of the
 * library (for copies and the store; messages make progress only inside calls). A test, wait or release that reports the end
 * returns after the callback has returned. You still have to end the operation with one of these calls. The callback must
 * not block, must not use this operation and cannot close its owner. It may begin others.
 *
 * @param function  called with `context` and the result (ECANCELED if the operation is released before its end). If the
 *                  operation has already ended, it is called at once, inside this call.
 * @param context   passed to the callback; must stay valid until then.
 * @return 0; EEXIST: the operation already has a callback; EINVAL: not live, or `function` is null; EAGAIN: no thread can
 *         be started that would call it.
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
 * @brief Ends the operation in any state and discards its result. You own its memory again on return.
 *
 * A message that has not begun is cancelled. The memory of a message in progress is taken back; at the peer the message ends
 * with ECANCELED. This takes some 0.2 s if the peer does not answer, and 1.2 s over a network whose peer accepts nothing
 * (the connection to it is then closed). For copies and store requests the call waits until they have ended.
 *
 * @param op  emptied.
 * @return 0; EINVAL: not live; EACCES: the operation belongs to the parent process.
 */
static inline int peerlane_op_release(peerlane_op_t* op) {
  if (op == NULL) return EINVAL;
  if (op->number == 0) return 0;
  return op->calls != NULL ? op->calls->release(op) : EINVAL;
}

/**
 * @brief Returns the error message of the last call that failed in this thread, in the library that began `op`.
 * @return never NULL. The library owns the text; it is valid until the next failing call of this thread.
 */
static inline const char* peerlane_op_last_error(const peerlane_op_t* op) {
  if (op == NULL || op->calls == NULL) return "the operation was never begun: give what a call wrote";
  return op->calls->last_error();
}

/**
 * @brief Waits until all operations have ended. They may be of different kinds and owners.
 *
 * @param ops         each operation is emptied when it has ended. Empty operations count as ended successfully.
 * @param count       number of operations.
 * @param timeout_ms  limit of the whole call in milliseconds; negative: no limit.
 * @param infos       NULL, or an array of `count` results; written for the operations that have ended.
 * @return when all have ended: 0, or the first error; ETIMEDOUT: the operations that are not empty continue. For the
 * message, pass the first operation that is not PEERLANE_OP_INIT to peerlane_op_last_error().
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
 * @brief Waits until one operation has ended. They may be of different kinds and owners.
 *
 * @param ops         the operation that has ended is emptied.
 * @param count       number of operations.
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @param index       set to the index of that operation, or to `count` if all were empty.
 * @param info        may be NULL; the result of that operation.
 * @return the result of that operation; ETIMEDOUT: none has ended, and `index` is not written.
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
