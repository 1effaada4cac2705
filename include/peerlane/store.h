/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The store's client: values between a `peerlane store serve` and host or GPU memory; on the store's own host by one copy
 * between the GPU and the value. Link -lpeerlane_store. C++: <peerlane/store.hpp>; guide: docs/store.md.
 *
 * @code
 * peerlane_store_t store;
 * peerlane_pool_t pool;
 * peerlane_store_open(NULL, &store);                            // the variable PEERLANE_STORE says where
 * peerlane_store_open_pool(store, "checkpoints", &pool);
 * peerlane_store_put(store, pool, "layer0", 6, peerlane_device_buffer(device_ptr, size_bytes), NULL, NULL);
 * peerlane_store_close(store);
 * @endcode
 *
 * A server of a cluster (docs/store-cluster.md) leads to all of them: operations go to whoever has the key, by shared memory
 * where that is this host, and are tried again while servers come and go, until their timeout.
 *
 * Conventions. A call returns 0 or a positive errno value; outputs are written on success only (a struct peerlane_op_info
 * always); peerlane_store_last_error() is the sentence behind the calling thread's last failure, with the next step. Memory
 * is a struct peerlane_buffer. Keys are byte strings of 1 to 4096 bytes. What goes on after its call is a peerlane_op_t,
 * ended by the calls of <peerlane/operation.h>.
 *
 * What the store answers. ENOENT: no such key; ENXIO: no such pool; EEXIST: there already; ESTALE: another version; EACCES:
 * not allowed; ENOSPC: full until the deadline; EDQUOT: the pool's quota, or yours; EFBIG: too large; EROFS: the store met
 * an I/O error and takes no more; EBADMSG: the bytes are not those that were put; ETIMEDOUT, ECONNRESET: not known whether
 * it was done; ENOTSUP: another path than the required one; ESHUTDOWN: the store is going down. In a cluster also EAGAIN:
 * nobody who may serve the key was there until the timeout; the sentence says what it waits for.
 *
 * Threads. Every call from any thread; one operation by one thread at a time. fork: a store belongs to its process.
 *
 * Memory order. When a get has ended for its waiter, later CPU loads and GPU work launched later see the bytes. What is put
 * is read at an unspecified time between the call and the operation's end.
 */
#ifndef PEERLANE_STORE_H
#define PEERLANE_STORE_H

#include <peerlane/buffer.h>
#include <peerlane/operation.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_store* peerlane_store_t;               /**< open .. close */
typedef struct peerlane_store_memory* peerlane_store_memory_t; /**< register .. release_memory */
typedef uint32_t peerlane_pool_t; /**< Of a store; stays valid when the connection is made again. */

enum peerlane_store_path {
  PEERLANE_PATH_ANY = 0,
  PEERLANE_PATH_SHM_DIRECT = 1, /**< One copy between the caller's memory and the store's. */
  PEERLANE_PATH_UNIX = 3,
  PEERLANE_PATH_TCP = 4,
  PEERLANE_PATH_TLS = 5,
  PEERLANE_PATH_UCX = 6,       /**< The bytes by UCX, beside the connection (docs/store-transports.md). */
  PEERLANE_PATH_GPU_DIRECT = 7 /**< The store's own DMA channel moves them, between its memory and the GPU's. */
};

enum peerlane_store_durability {
  PEERLANE_POOL_DEFAULT = 0,
  PEERLANE_VOLATILE = 1, /**< Gone with the server's process. */
  PEERLANE_LOGGED = 2,   /**< Survives the server's process. */
  PEERLANE_DURABLE = 3   /**< Survives loss of power: acknowledged after fdatasync. */
};

enum peerlane_store_condition {
  PEERLANE_ALWAYS = 0,
  PEERLANE_IF_ABSENT = 1,  /**< Else EEXIST. */
  PEERLANE_IF_PRESENT = 2, /**< Else ENOENT. */
  PEERLANE_IF_VERSION = 3  /**< Else ESTALE. */
};

enum peerlane_store_eviction {
  PEERLANE_EVICT_S3_FIFO = 0, /**< What was used twice stays, whatever passes once. */
  PEERLANE_EVICT_LRU = 1      /**< What was not used for the longest time leaves. */
};

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

#define PEERLANE_STORE_NO_SHM 1u       /**< Do not map the store's memory. */
#define PEERLANE_STORE_NO_GPU 2u       /**< Do not touch CUDA; device memory is then refused or unknown. */
#define PEERLANE_STORE_NO_RECONNECT 4u /**< A broken connection ends operations with ECONNRESET; not in a cluster. */
#define PEERLANE_STORE_ONE_SERVER 8u   /**< Of a cluster: speak to this server alone; others' keys are EREMOTE. */

/** Zero means the default everywhere. */
struct peerlane_store_options {
  size_t struct_bytes;         /**< sizeof(struct peerlane_store_options): fields that come later are not read. */
  const char* socket;          /**< Path of the store's unix socket, or */
  const char* endpoint;        /**< "host:port"; both NULL: the variable PEERLANE_STORE. */
  const char* tls_certificate; /**< PEM files, all three or none. */
  const char* tls_key;
  const char* tls_authority;
  int64_t timeout_ms;    /**< Of operations and of connecting; 0: 30 s; negative: no limit. */
  uint32_t require_path; /**< enum peerlane_store_path: what would go another way fails with ENOTSUP. */
  uint32_t flags;        /**< PEERLANE_STORE_*. */
};

/**
 * @brief Connects to a store.
 *
 * @param options  NULL: all defaults.
 * @param store    written on success.
 * @return 0; ENOENT, ECONNREFUSED: nobody serves there; EPROTO: no store, or another version; EINVAL: contradictory options.
 */
int peerlane_store_open(const struct peerlane_store_options* options, peerlane_store_t* store);

/**
 * @brief Ends the connection. Operations under way end with ECANCELED, and are not live afterwards; copies under way are
 *        waited for.
 * @return 0; EBUSY: memory is still registered, or a watch open; EINVAL: not open.
 */
int peerlane_store_close(peerlane_store_t store);

/** @brief The sentence behind this thread's last failure in this library. Never NULL. */
const char* peerlane_store_last_error(void);

/* ---- Pools ----------------------------------------------------------------------------------------------------------- */

/** Zero means the default everywhere. */
struct peerlane_pool_options {
  size_t struct_bytes;  /**< sizeof(struct peerlane_pool_options). */
  uint64_t quota_bytes; /**< 0: none. */
  uint64_t quota_keys;  /**< 0: none. */
  uint32_t durability;  /**< Of puts that ask for nothing; default durable. */
  uint32_t no_shm;      /**< 1: never through shared memory. */
  const char* access;   /**< "uid:1000=rw,cert:NAME=r"; NULL: everybody who can connect reads and writes. */
  uint32_t copies;      /**< Of a cluster: servers that have each value, 1 (also 0) to 3. */
  uint32_t reserved;
  uint64_t cache_memory_bytes; /**< Of a cache: its share of the store's memory; 0: three quarters. */
  uint64_t cache_disk_bytes;   /**< Of a cache: what leaves memory goes to disk, up to so much; 0: it is gone. */
  uint64_t cache_ttl_ms;       /**< Of a cache: values put without a time to live are gone after so long; 0: never. */
  uint32_t is_cache;       /**< 1: values are volatile, and leave when the pool's share is full or others need the room. */
  uint32_t cache_eviction; /**< enum peerlane_store_eviction. */
};

/** @param pool  written on success. @return 0; EEXIST: there already. */
int peerlane_store_create_pool(peerlane_store_t store, const char* name, const struct peerlane_pool_options* options,
                               peerlane_pool_t* pool);
/** @param pool  written on success. @return 0; ENXIO: no such pool. */
int peerlane_store_open_pool(peerlane_store_t store, const char* name, peerlane_pool_t* pool);
int peerlane_store_delete_pool(peerlane_store_t store, const char* name);

/** @brief Returns when everything that was acknowledged for the pool is durable. */
int peerlane_store_sync(peerlane_store_t store, peerlane_pool_t pool);

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

/** Zero means the default everywhere. */
struct peerlane_put_options {
  size_t struct_bytes;       /**< sizeof(struct peerlane_put_options). */
  uint32_t durability;       /**< enum peerlane_store_durability. */
  uint32_t condition;        /**< enum peerlane_store_condition. */
  uint64_t expected_version; /**< Of PEERLANE_IF_VERSION. */
  uint32_t user_flags;
  uint32_t is_part;      /**< 1: the bytes replace those from offset_bytes on; the value grows if need be. */
  uint64_t offset_bytes; /**< Of a part. */
  int64_t timeout_ms;    /**< 0: the store's; negative: no limit. */
  uint32_t on_stream;    /**< 1: device memory is read after what `stream` has queued so far. */
  uint32_t reserved;
  void* stream;    /**< CUstream, cudaStream_t. */
  uint64_t ttl_ms; /**< Into a cache: the value is gone after so long; 0: as the pool says. Else EINVAL. */
};

/** Zero means the default everywhere. */
struct peerlane_get_options {
  size_t struct_bytes;   /**< sizeof(struct peerlane_get_options). */
  uint64_t offset_bytes; /**< Where to begin in the value. */
  int64_t timeout_ms;    /**< 0: the store's; negative: no limit. */
  uint32_t verify;       /**< 1: the server holds the value against its checksum first. */
  uint32_t on_stream;    /**< 1: device memory is written in stream order: after what `stream` has queued, before what comes
                              later; the operation ends when the copy is queued. Through shared memory only (ENOTSUP). */
  void* stream;          /**< CUstream, cudaStream_t. */
};

/**
 * @brief Writes a value, or a part of one.
 *
 * @param key             key_size_bytes bytes.
 * @param value           host or device memory, read until the call returns.
 * @param options         may be NULL.
 * @param info            may be NULL; what became of it: version, path, durability, checksum.
 * @return 0, or what the store answers (see the top).
 */
int peerlane_store_put(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                       struct peerlane_buffer value, const struct peerlane_put_options* options,
                       struct peerlane_op_info* info);

/**
 * @brief Reads a value, or the part of it that fits.
 *
 * @param value  host or device memory. info->moved_bytes says how much of it was written, info->size_bytes how long the
 *               stored value is.
 */
int peerlane_store_get(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                       struct peerlane_buffer value, const struct peerlane_get_options* options,
                       struct peerlane_op_info* info);

/** @param options  may be NULL: condition, version and timeout are read. */
int peerlane_store_erase(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                         const struct peerlane_put_options* options, struct peerlane_op_info* info);

/** @brief Says what is stored: info->size_bytes, version, crc32c, user_flags. */
int peerlane_store_stat(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                        struct peerlane_op_info* info);

/**
 * @brief Calls a function for each key, in order.
 *
 * Keys that were there all the time come exactly once, however others change.
 *
 * @param prefix   may be NULL.
 * @param regex    POSIX extended; may be NULL.
 * @param each     returns 0 to go on; another value ends the search and is returned.
 * @param context  passed to `each`.
 * @return 0; EINVAL: the regex has a back-reference, repeats what can be empty, or is longer than 1024 bytes or, with its
 *         repetitions written out, than 1000 characters.
 */
int peerlane_store_find(peerlane_store_t store, peerlane_pool_t pool, const char* prefix, const char* regex,
                        int (*each)(void* context, const void* key, size_t key_size_bytes, uint64_t value_size_bytes),
                        void* context);

/* ---- Registered memory ----------------------------------------------------------------------------------------------- */

/**
 * @brief Looks at memory once, so that operations within it need not. Registering is never needed; twice is fine.
 *
 * The memory must stay until it is released.
 *
 * @param memory  written on success; ended by peerlane_store_release_memory().
 * @return 0; EINVAL: empty, or it leaves its allocation.
 */
int peerlane_store_register(peerlane_store_t store, struct peerlane_buffer buffer, peerlane_store_memory_t* memory);

/** @return 0; EBUSY: operations within it are under way. */
int peerlane_store_release_memory(peerlane_store_memory_t memory);

/** @brief Put and get within registered memory: `size_bytes` of it from `offset_bytes` on. EINVAL: outside. */
int peerlane_store_put_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                  peerlane_store_memory_t memory, size_t offset_bytes, size_t size_bytes,
                                  const struct peerlane_put_options* options, struct peerlane_op_info* info);
int peerlane_store_get_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                  peerlane_store_memory_t memory, size_t offset_bytes, size_t size_bytes,
                                  const struct peerlane_get_options* options, struct peerlane_op_info* info);

/* ---- Asynchronous ---------------------------------------------------------------------------------------------------- */

enum peerlane_store_request {
  PEERLANE_STORE_PUT = 1,
  PEERLANE_STORE_GET = 2,
  PEERLANE_STORE_ERASE = 3,
  PEERLANE_STORE_EXISTS = 4, /**< peerlane_store_batch() alone: version, size and checksum, no bytes. */
};

/** One request of a list. */
struct peerlane_store_item {
  uint32_t request; /**< enum peerlane_store_request. */
  peerlane_pool_t pool;
  const void* key;
  size_t key_size_bytes;
  struct peerlane_buffer value;                   /**< Put: read; get: written; stays until the operation has ended. */
  const struct peerlane_put_options* put_options; /**< Put, erase. */
  const struct peerlane_get_options* get_options; /**< Get. */
  int event_fd; /**< An eventfd to which 1 is added at the end; 0 or less: none. peerlane_op_then() calls a function. */
};

/**
 * @brief Begins requests that share system calls; they are independent of each other.
 *
 * @param ops  `count` of them, written on success: ops[i] is item i's operation. It goes on without calls; cancelling it is
 *             EBUSY, and releasing it waits for its end.
 * @return 0: all have begun; else none has, and the error says which item is not valid.
 */
int peerlane_store_begin(peerlane_store_t store, const struct peerlane_store_item* items, size_t count, peerlane_op_t* ops);

/* ---- Many keys at once ----------------------------------------------------------------------------------------------- */

/** Zero means the default everywhere. */
struct peerlane_batch_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_batch_options). */
  int64_t timeout_ms;  /**< 0: the store's; negative: no limit. */
  uint32_t is_atomic;  /**< 1: puts or erases that happen all or not at all, in one record of the log. */
  uint32_t reserved;
};

/**
 * @brief Does requests of one kind for many keys of one pool, and waits for them. Values of up to 64 KiB in host memory
 * share frames; as many are sent as are needed. Others go one by one, at the same time.
 *
 * @param items    all with the same `request` and `pool`; `event_fd` is not looked at.
 * @param options  may be NULL. Atomic: at most 4096 items and 4 MiB of keys and values, host memory, one durability, which
 *                 is not volatile; not in a cluster.
 * @param infos    `count` of them, written whenever 0 is returned: infos[i].error says what became of item i (0, or what the
 *                 store answers). Of an atomic batch that did not happen, the item that failed has its error, the others
 *                 ECANCELED.
 * @return 0, whatever became of the items; EINVAL: an item that is not valid, which the error names, and none was done;
 *         ENOTSUP: atomic, where the store cannot; EMSGSIZE: atomic, and too large.
 */
int peerlane_store_batch(peerlane_store_t store, const struct peerlane_store_item* items, size_t count,
                         const struct peerlane_batch_options* options, struct peerlane_op_info* infos);

/**
 * @brief Erases the keys that begin so. What is put meanwhile may stay.
 *
 * @param prefix  prefix_size_bytes bytes, at least one.
 * @param erased  may be NULL; how many keys there were.
 * @return 0; ENOTSUP: the server is of an earlier release.
 */
int peerlane_store_erase_prefix(peerlane_store_t store, peerlane_pool_t pool, const void* prefix, size_t prefix_size_bytes,
                                uint64_t* erased);

/** Zero means the default everywhere. */
struct peerlane_scan_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_scan_options). */
  const void* prefix;  /**< What the keys begin with. */
  size_t prefix_size_bytes;
  const char* regex; /**< As in peerlane_store_find(). */
  const void* after; /**< Keys behind this one: where an earlier scan ended. */
  size_t after_size_bytes;
  uint64_t limit; /**< At most so many keys; 0: all. */
};

/**
 * @brief As peerlane_store_find(), from a key on, up to a number of keys. The last key that `each` was called with is where
 *        the next scan goes on.
 *
 * @param each  gets the key and what is known of its value: size_bytes and version.
 */
int peerlane_store_scan(peerlane_store_t store, peerlane_pool_t pool, const struct peerlane_scan_options* options,
                        int (*each)(void* context, const void* key, size_t key_size_bytes,
                                    const struct peerlane_op_info* info),
                        void* context);

/* ---- Changes --------------------------------------------------------------------------------------------------------- */

typedef struct peerlane_store_watch* peerlane_store_watch_t;

enum peerlane_store_change {
  PEERLANE_CHANGE_PUT = 1,
  PEERLANE_CHANGE_ERASED = 2,
  PEERLANE_CHANGE_EVICTED = 3, /**< Left a cache for others. */
  PEERLANE_CHANGE_EXPIRED = 4, /**< Left a cache because its time was over. */
  PEERLANE_CHANGE_LOST = 16    /**< Changes came before that are not known any more: look at the keys anew. */
};

/** One change of a key. */
struct peerlane_watch_event {
  uint32_t change; /**< enum peerlane_store_change. */
  uint32_t reserved;
  const void* key; /**< Valid until the function that gets it returns; of PEERLANE_CHANGE_LOST none. */
  size_t key_size_bytes;
  uint64_t version;    /**< Put: the new one; erased, evicted, expired: the one that went. */
  uint64_t size_bytes; /**< Put: of the value. */
  uint64_t lost;       /**< PEERLANE_CHANGE_LOST: how many; 0: not known (the connection or the server is another one). */
};

/** Zero means the default everywhere. */
struct peerlane_watch_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_watch_options). */
  const void* prefix;  /**< What the keys begin with. */
  size_t prefix_size_bytes;
  uint32_t is_key; /**< 1: `prefix` is one key, and no other one is watched. */
  uint32_t reserved;
};

/**
 * @brief Begins to follow the changes of a pool's keys: from when this returns on. Values put before are not told; scan for
 *        them afterwards, and versions say which of the two came later.
 *
 * @param options  NULL: all keys of the pool.
 * @param watch    written on success; ended by peerlane_store_watch_close().
 * @return 0; EACCES: the pool may not be read; EMFILE: as many watches as the server allows (max_principal_watches);
 *         ENOTSUP: a cluster, or a server of an earlier release.
 */
int peerlane_store_watch_open(peerlane_store_t store, peerlane_pool_t pool, const struct peerlane_watch_options* options,
                              peerlane_store_watch_t* watch);

/**
 * @brief Waits for changes, and calls a function for each: every change of a key in the order in which they happened.
 *
 * A caller that is slower than the changes meets PEERLANE_CHANGE_LOST in place of those that the server had no room for
 * (max_principal_watch_bytes), and so does one whose connection was lost or whose server was restarted.
 *
 * @param timeout_ms  limit in milliseconds; negative: none.
 * @param each        returns 0 to go on; another value is returned at once, and the changes behind it come with the next
 * call.
 * @param context     passed to `each`.
 * @return 0: at least one came; ETIMEDOUT: none until then; ENXIO: the pool was deleted; EACCES: it may not be read any
 * more; ECONNRESET: the server was not reached for the store's timeout, and a later call tries again; ECANCELED: the watch
 *         was closed; EBUSY: another thread is in here.
 */
int peerlane_store_watch_next(peerlane_store_watch_t watch, int64_t timeout_ms,
                              int (*each)(void* context, const struct peerlane_watch_event* event), void* context);

/** @brief Ends a watch; a call that waits for its changes ends with ECANCELED within 0.1 s. @return 0; EINVAL: not live. */
int peerlane_store_watch_close(peerlane_store_watch_t watch);

#ifdef __cplusplus
}
#endif
#endif
