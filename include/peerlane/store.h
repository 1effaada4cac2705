/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Client of the store: puts values from host or GPU memory into a `peerlane store serve`, and gets them back. On the store's
 * own host this takes one copy. Link -lpeerlane_store. C++: <peerlane/store.hpp>; guide: docs/store.md.
 *
 * @code
 * peerlane_store_t store;
 * peerlane_pool_t pool;
 * peerlane_store_open(NULL, &store);                            // at the address in PEERLANE_STORE
 * peerlane_store_open_pool(store, "checkpoints", &pool);
 * peerlane_store_put(store, pool, "layer0", 6, peerlane_device_buffer(device_ptr, size_bytes), NULL, NULL);
 * peerlane_store_close(store);
 * @endcode
 *
 * If the server belongs to a cluster (docs/store-cluster.md), the client uses all servers of it. Each operation goes to the
 * server that has the key, through shared memory if it runs on this host. It is repeated while servers come and go, until
 * its timeout.
 *
 * Conventions. A call returns 0 or a positive errno value. It writes its outputs only on success, except a struct
 * peerlane_op_info, which it always writes. peerlane_store_last_error() explains the last failure of the calling thread.
 * Memory is passed as a struct peerlane_buffer. Keys are byte strings of 1 to 4096 bytes. Asynchronous calls write a
 * peerlane_op_t; end it with the calls of <peerlane/operation.h>.
 *
 * Errors of requests. ENOENT: no such key; ENXIO: no such pool; EEXIST: the key exists; ESTALE: another version; EACCES: not
 * permitted; ENOSPC: no space until the deadline; EDQUOT: the quota of the pool or the principal is reached; EFBIG: too
 * large; EROFS: the store is read-only, or met an I/O error; EBADMSG: the bytes are not those that were put; ETIMEDOUT,
 * ECONNRESET: it is unknown whether the request was applied; ENOTSUP: the required path is not available; ESHUTDOWN: the
 * server is shutting down. In a cluster also EAGAIN: no server that may serve the key was available until the timeout; the
 * message says what is missing.
 *
 * Threads. Any thread may make any call, but only one thread at a time may use an operation. fork: a store belongs to its
 * process.
 *
 * Memory order. After the call that reports the end of a get, CPU loads of that thread and GPU work that it launches see the
 * bytes. The source of a put is read at an unspecified time between the call and the end of the operation.
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
typedef uint32_t peerlane_pool_t;                              /**< A pool of one store; stays valid after a reconnection. */

enum peerlane_store_path {
  PEERLANE_PATH_ANY = 0,
  PEERLANE_PATH_SHM_DIRECT = 1, /**< The client copies once between its memory and the store's. */
  PEERLANE_PATH_UNIX = 3,       /**< Through the unix socket, or rings that replace it. */
  PEERLANE_PATH_TCP = 4,        /**< Through TCP. */
  PEERLANE_PATH_TLS = 5,        /**< Through TLS. */
  PEERLANE_PATH_UCX = 6,        /**< UCX moves the bytes (docs/store-transports.md). */
  PEERLANE_PATH_GPU_DIRECT = 7  /**< The server's DMA channel copies between its memory and the GPU's. */
};

enum peerlane_store_durability {
  PEERLANE_POOL_DEFAULT = 0,
  PEERLANE_VOLATILE = 1, /**< Lost when the server's process ends. */
  PEERLANE_LOGGED = 2,   /**< Survives the death of the server's process. */
  PEERLANE_DURABLE = 3   /**< Survives loss of power: acknowledged after fdatasync. */
};

enum peerlane_store_condition {
  PEERLANE_ALWAYS = 0,
  PEERLANE_IF_ABSENT = 1,  /**< Only if the key does not exist; otherwise EEXIST. */
  PEERLANE_IF_PRESENT = 2, /**< Only if the key exists; otherwise ENOENT. */
  PEERLANE_IF_VERSION = 3  /**< Only if the value has expected_version; otherwise ESTALE. */
};

enum peerlane_store_eviction {
  PEERLANE_EVICT_S3_FIFO = 0, /**< Values that are used once do not displace values that are used repeatedly. */
  PEERLANE_EVICT_LRU = 1      /**< The least recently used value is evicted first. */
};

/* ---- Opening --------------------------------------------------------------------------------------------------------- */

#define PEERLANE_STORE_NO_SHM 1u       /**< Do not map the store's memory. */
#define PEERLANE_STORE_NO_GPU 2u       /**< Do not use CUDA; device memory is then refused or not recognised. */
#define PEERLANE_STORE_NO_RECONNECT 4u /**< A broken connection ends operations with ECONNRESET. Not for clusters. */
#define PEERLANE_STORE_ONE_SERVER 8u   /**< In a cluster, use only this server; keys of other servers get EREMOTE. */

/** In every field but struct_bytes, zero means the default. */
struct peerlane_store_options {
  size_t struct_bytes;         /**< sizeof(struct peerlane_store_options). Fields beyond this size are not read. */
  const char* socket;          /**< Path of the store's unix socket. Set this or `endpoint`. */
  const char* endpoint;        /**< "host:port". If both are NULL: the address in PEERLANE_STORE. */
  const char* tls_certificate; /**< Path of the client's certificate, PEM. Set all three TLS paths or none. */
  const char* tls_key;         /**< Path of its private key, PEM. */
  const char* tls_authority;   /**< Path of the authority that signed the server's certificate, PEM. */
  int64_t timeout_ms;          /**< Of operations and of connecting, in ms; 0: 30 s; negative: no limit. */
  uint32_t require_path;       /**< enum peerlane_store_path: a value that would take another path fails with ENOTSUP. */
  uint32_t flags;              /**< PEERLANE_STORE_*. */
};

/**
 * @brief Connects to a store.
 *
 * @param options  may be NULL: all defaults. Not kept after the call.
 * @param store    owned by the caller; end it with peerlane_store_close().
 * @return 0; ENOENT, ECONNREFUSED: no server at this address; EPROTO: not a store, or an incompatible version; EINVAL:
 *         contradictory options.
 */
int peerlane_store_open(const struct peerlane_store_options* options, peerlane_store_t* store);

/**
 * @brief Closes the connection.
 *
 * Operations in progress end with ECANCELED and are no longer live, and so do calls of other threads. The call waits for
 * copies in progress; afterwards the store does not use the memory of any operation.
 *
 * @return 0; EBUSY: memory is still registered, or a watch is open; EINVAL: the store is not open; EDEADLK: called by the
 *         callback (peerlane_op_then()) of one of its operations.
 */
int peerlane_store_close(peerlane_store_t store);

/**
 * @brief Returns the error message of the last call of this library that failed in this thread.
 * @return never NULL. The library owns the text; it is valid until the next failing call of this thread.
 */
const char* peerlane_store_last_error(void);

/**
 * @brief Lets the calling thread end its own waiting calls early, as a language's binding does for Ctrl-C.
 *
 * From then on, every call of this header that waits for a server in this thread calls `asks` about every 50 ms. When it
 * returns another value than 0, the call ends with EINTR, and so do later ones until this function is called again: whether
 * the request was applied is then unknown, as for ETIMEDOUT, and the caller's memory is no longer used. A call that connects
 * to a server that does not answer first gives it up, for which it may take 4 s. peerlane_op_wait() and
 * peerlane_store_watch_next() are not interrupted: they have timeouts of their own.
 *
 * @param asks     called without locks; must not call this library. NULL: nothing is interrupted.
 * @param context  passed to `asks`.
 */
void peerlane_store_interrupt_by(int (*asks)(void* context), void* context);

/* ---- Pools ----------------------------------------------------------------------------------------------------------- */

/** In every field but struct_bytes, zero means the default. */
struct peerlane_pool_options {
  size_t struct_bytes;         /**< sizeof(struct peerlane_pool_options). */
  uint64_t quota_bytes;        /**< Most bytes in the pool; 0: no quota. */
  uint64_t quota_keys;         /**< Most keys in the pool; 0: no quota. */
  uint32_t durability;         /**< enum peerlane_store_durability of puts that do not choose one; default: durable. */
  uint32_t no_shm;             /**< 1: never use shared memory. */
  const char* access;          /**< "uid:1000=rw,cert:NAME=r"; NULL: everybody who can connect may read and write. */
  uint32_t copies;             /**< In a cluster: servers that store each value, 1 (the default) to 3. */
  uint32_t reserved;           /**< Must be 0. */
  uint64_t cache_memory_bytes; /**< Cache: its share of the store's memory; 0: three quarters. */
  uint64_t cache_disk_bytes;   /**< Cache: evicted values move to disk, up to this size; 0: they are lost. */
  uint64_t cache_ttl_ms;       /**< Cache: time to live, in ms, of values put without one; 0: unlimited. */
  uint32_t is_cache; /**< 1: values are volatile, and are evicted when the pool's share is full or others need space. */
  uint32_t cache_eviction; /**< enum peerlane_store_eviction. */
};

/**
 * @brief Creates a pool and opens it.
 * @param name     null-terminated; not kept after the call.
 * @param options  may be NULL: all defaults.
 * @param pool     written on success.
 * @return 0; EEXIST: there is a pool of this name; EACCES: not an administrator.
 */
int peerlane_store_create_pool(peerlane_store_t store, const char* name, const struct peerlane_pool_options* options,
                               peerlane_pool_t* pool);

/** @brief Opens a pool. @param pool  written on success. @return 0; ENXIO: no such pool. */
int peerlane_store_open_pool(peerlane_store_t store, const char* name, peerlane_pool_t* pool);

/** @brief Deletes a pool with its values. @return 0; ENXIO: no such pool; EACCES. */
int peerlane_store_delete_pool(peerlane_store_t store, const char* name);

/** @brief Waits until every acknowledged change of the pool is durable. */
int peerlane_store_sync(peerlane_store_t store, peerlane_pool_t pool);

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

/** In every field but struct_bytes, zero means the default. */
struct peerlane_put_options {
  size_t struct_bytes;       /**< sizeof(struct peerlane_put_options). */
  uint32_t durability;       /**< enum peerlane_store_durability. */
  uint32_t condition;        /**< enum peerlane_store_condition. */
  uint64_t expected_version; /**< For PEERLANE_IF_VERSION. */
  uint32_t user_flags;       /**< Stored with the value, for the caller's own use. */
  uint32_t is_part;          /**< 1: replace the bytes of the value from offset_bytes on; the value grows if necessary. */
  uint64_t offset_bytes;     /**< Used if is_part is 1. */
  int64_t timeout_ms;        /**< In ms; 0: the timeout of the store; negative: no limit. */
  uint32_t on_stream;        /**< 1: read device memory after the work that `stream` holds at the call. */
  uint32_t reserved;         /**< Must be 0. */
  void* stream;              /**< CUstream or cudaStream_t. */
  uint64_t ttl_ms; /**< Time to live in a cache, in ms; 0: that of the pool. EINVAL in a pool that is not a cache. */
};

/** In every field but struct_bytes, zero means the default. */
struct peerlane_get_options {
  size_t struct_bytes;   /**< sizeof(struct peerlane_get_options). */
  uint64_t offset_bytes; /**< First byte of the value to read. */
  int64_t timeout_ms;    /**< In ms; 0: the timeout of the store; negative: no limit. */
  uint32_t verify;       /**< 1: the server first compares the value with its checksum. */
  uint32_t on_stream;    /**< 1: write device memory in the order of `stream`, after the work that it holds and before later
                              work. The operation ends when the copy is queued. Needs shared memory (else ENOTSUP). */
  void* stream;          /**< CUstream or cudaStream_t. */
};

/**
 * @brief Puts a value, or a part of one. Waits for the reply.
 *
 * @param key      key_size_bytes bytes.
 * @param value    host or device memory; must not change during the call.
 * @param options  may be NULL: all defaults.
 * @param info     may be NULL; receives version, path, durability and checksum.
 * @return 0, or an error of requests (see the top).
 */
int peerlane_store_put(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                       struct peerlane_buffer value, const struct peerlane_put_options* options,
                       struct peerlane_op_info* info);

/**
 * @brief Gets a value, or the part of it that fits into the buffer. Waits for it.
 *
 * @param value    host or device memory to write. info->moved_bytes is the number of bytes written, info->size_bytes the
 *                 length of the stored value.
 * @param options  may be NULL: all defaults.
 * @param info     may be NULL.
 * @return as peerlane_store_put().
 */
int peerlane_store_get(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                       struct peerlane_buffer value, const struct peerlane_get_options* options,
                       struct peerlane_op_info* info);

/**
 * @brief Erases a value. Waits for the reply.
 * @param options  may be NULL; only condition, expected_version and timeout_ms are used.
 * @param info     may be NULL.
 * @return as peerlane_store_put().
 */
int peerlane_store_erase(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                         const struct peerlane_put_options* options, struct peerlane_op_info* info);

/** @brief Reads the metadata of a value: info->size_bytes, version, crc32c, user_flags. */
int peerlane_store_stat(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                        struct peerlane_op_info* info);

/**
 * @brief Calls a function for each key of a pool, in order.
 *
 * A key that exists during the whole call is visited exactly once, even while other keys change.
 *
 * @param prefix   visits only keys with this prefix; may be NULL.
 * @param regex    visits only keys that match this POSIX extended regular expression; may be NULL.
 * @param each     returns 0 to continue. Another value ends the search, and is returned.
 * @param context  passed to `each`.
 * @return 0; EINVAL: the regex has a back-reference, repeats an expression that can be empty, is longer than 1024 bytes, or
 *         is longer than 1000 characters with its repetitions expanded.
 */
int peerlane_store_find(peerlane_store_t store, peerlane_pool_t pool, const char* prefix, const char* regex,
                        int (*each)(void* context, const void* key, size_t key_size_bytes, uint64_t value_size_bytes),
                        void* context);

/* ---- Registered memory ----------------------------------------------------------------------------------------------- */

/**
 * @brief Registers memory, so that operations on it do not have to ask the driver about it. Optional.
 *
 * The memory must stay allocated until peerlane_store_release_memory(). Registering it twice is allowed.
 *
 * @param buffer  of a known kind, or PEERLANE_MEMORY_ANY.
 * @param memory  owned by the caller; end it with peerlane_store_release_memory().
 * @return 0; EINVAL: the buffer is empty or leaves its allocation.
 */
int peerlane_store_register(peerlane_store_t store, struct peerlane_buffer buffer, peerlane_store_memory_t* memory);

/** @brief Ends a registration. @return 0; EBUSY: operations on the memory are in progress. */
int peerlane_store_release_memory(peerlane_store_memory_t memory);

/**
 * @brief Puts `size_bytes` bytes of registered memory; otherwise as peerlane_store_put().
 * @param offset_bytes  from the begin of the registered memory.
 * @return as peerlane_store_put(); EINVAL: the bytes leave the registered memory.
 */
int peerlane_store_put_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                  peerlane_store_memory_t memory, size_t offset_bytes, size_t size_bytes,
                                  const struct peerlane_put_options* options, struct peerlane_op_info* info);

/** @brief Gets a value into registered memory; otherwise as peerlane_store_get(). */
int peerlane_store_get_registered(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_size_bytes,
                                  peerlane_store_memory_t memory, size_t offset_bytes, size_t size_bytes,
                                  const struct peerlane_get_options* options, struct peerlane_op_info* info);

/* ---- Asynchronous ---------------------------------------------------------------------------------------------------- */

enum peerlane_store_request {
  PEERLANE_STORE_PUT = 1,
  PEERLANE_STORE_GET = 2,
  PEERLANE_STORE_ERASE = 3,
  PEERLANE_STORE_EXISTS = 4, /**< Only in peerlane_store_batch(): version, size and checksum without the bytes. */
};

/** One request of a list. */
struct peerlane_store_item {
  uint32_t request; /**< enum peerlane_store_request. */
  peerlane_pool_t pool;
  const void* key;
  size_t key_size_bytes;
  struct peerlane_buffer value; /**< Read by a put, written by a get. Must stay valid until the operation has ended. */
  const struct peerlane_put_options* put_options; /**< For puts and erases; may be NULL. */
  const struct peerlane_get_options* get_options; /**< For gets; may be NULL. */
  int event_fd; /**< An eventfd that gets 1 added at the end; 0 or less: none. For a callback use peerlane_op_then(). */
};

/**
 * @brief Starts requests that share system calls. They are independent of each other.
 *
 * The operations advance without further calls. They cannot be cancelled (EBUSY), and releasing one waits for its end.
 *
 * @param items  `count` requests; not kept after the call.
 * @param ops    array of `count` operations; ops[i] belongs to items[i].
 * @return 0: all have begun. Otherwise none has, and the error names the invalid item.
 */
int peerlane_store_begin(peerlane_store_t store, const struct peerlane_store_item* items, size_t count, peerlane_op_t* ops);

/* ---- Many keys at once ----------------------------------------------------------------------------------------------- */

/** In every field but struct_bytes, zero means the default. */
struct peerlane_batch_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_batch_options). */
  int64_t timeout_ms;  /**< In ms; 0: the timeout of the store; negative: no limit. */
  uint32_t is_atomic;  /**< 1: all puts or erases take effect or none does, in one record of the log. */
  uint32_t reserved;   /**< Must be 0. */
};

/**
 * @brief Makes requests of one kind for many keys of a pool, and waits for them.
 *
 * Values of up to 64 KiB in host memory share frames; the client sends as many as needed. Other values go one by one, at the
 * same time.
 *
 * @param items    `count` items with the same `request` and `pool`. `event_fd` is not used.
 * @param options  may be NULL: all defaults. An atomic batch has at most 4096 items and 4 MiB of keys and values, in host
 *                 memory, with one durability that is not volatile. It is not possible in a cluster.
 * @param infos    array of `count` results, written whenever the call returns 0. infos[i].error is 0 or the error of
 *                 items[i]. If an atomic batch fails, the failed item has its error and the others have ECANCELED.
 * @return 0, even if items failed; EINVAL: an item is invalid (the error names it), and nothing was done; ENOTSUP: the store
 *         cannot make atomic batches; EMSGSIZE: the atomic batch is too large.
 */
int peerlane_store_batch(peerlane_store_t store, const struct peerlane_store_item* items, size_t count,
                         const struct peerlane_batch_options* options, struct peerlane_op_info* infos);

/**
 * @brief Erases all keys with a prefix. A value that is put meanwhile may stay.
 *
 * @param prefix  prefix_size_bytes bytes, at least one.
 * @param erased  may be NULL; receives the number of erased keys. Those whose reply was lost with a connection are not
 * counted.
 * @return 0; ENOTSUP: the server has an earlier release.
 */
int peerlane_store_erase_prefix(peerlane_store_t store, peerlane_pool_t pool, const void* prefix, size_t prefix_size_bytes,
                                uint64_t* erased);

/** In every field but struct_bytes, zero means the default. */
struct peerlane_scan_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_scan_options). */
  const void* prefix;  /**< Visits only keys with this prefix; NULL: all keys. */
  size_t prefix_size_bytes;
  const char* regex; /**< As in peerlane_store_find(). */
  const void* after; /**< Visits only keys after this one; NULL: from the first key. */
  size_t after_size_bytes;
  uint64_t limit; /**< Most keys to visit; 0: all. */
};

/**
 * @brief As peerlane_store_find(), with a first key and a limit. To continue, pass the last visited key as `after`.
 *
 * @param each  receives the key and info->size_bytes and version of its value; returns 0 to continue.
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
  PEERLANE_CHANGE_EVICTED = 3, /**< Evicted from a cache to make space. */
  PEERLANE_CHANGE_EXPIRED = 4, /**< Its time to live in a cache has passed. */
  PEERLANE_CHANGE_LOST = 16    /**< Earlier changes were lost: scan the keys again. */
};

/** One change of a key. */
struct peerlane_watch_event {
  uint32_t change; /**< enum peerlane_store_change. */
  uint32_t reserved;
  const void* key; /**< Valid only during the call of `each`; NULL for PEERLANE_CHANGE_LOST. */
  size_t key_size_bytes;
  uint64_t version;    /**< Of a put: the new version; otherwise the version that was removed. */
  uint64_t size_bytes; /**< Of a put: the length of the value. */
  uint64_t lost; /**< PEERLANE_CHANGE_LOST: number of lost changes; 0: unknown, after a reconnection or server restart. */
};

/** In every field but struct_bytes, zero means the default. */
struct peerlane_watch_options {
  size_t struct_bytes; /**< sizeof(struct peerlane_watch_options). */
  const void* prefix;  /**< Watches only keys with this prefix; NULL: all keys. */
  size_t prefix_size_bytes;
  uint32_t is_key;   /**< 1: `prefix` is a whole key, and only that key is watched. */
  uint32_t reserved; /**< Must be 0. */
};

/**
 * @brief Starts to watch changes of a pool's keys that happen after this call returns.
 *
 * To learn of earlier values, scan the keys afterwards; a change whose version is not greater than the scanned one is old.
 *
 * @param options  may be NULL: all keys of the pool.
 * @param watch    owned by the caller; end it with peerlane_store_watch_close().
 * @return 0; EACCES: no right to read the pool; EMFILE: the server's limit of watches is reached (max_principal_watches);
 *         ENOTSUP: a cluster, or a server of an earlier release.
 */
int peerlane_store_watch_open(peerlane_store_t store, peerlane_pool_t pool, const struct peerlane_watch_options* options,
                              peerlane_store_watch_t* watch);

/**
 * @brief Waits for changes and calls a function for each. The changes of a key come in the order in which they happened.
 *
 * If the caller is too slow, the server drops changes for which it has no space (max_principal_watch_bytes), and
 * PEERLANE_CHANGE_LOST comes in their place. The same happens after a lost connection or a server restart.
 *
 * @param timeout_ms  in milliseconds; negative: no limit.
 * @param each        returns 0 to continue. Another value is returned at once; the next call delivers the later changes.
 * @param context     passed to `each`.
 * @return 0: at least one change; ETIMEDOUT: none in time; ENXIO: the pool was deleted; EACCES: the right to read it was
 *         removed; ECONNRESET: the server was unreachable for the store's timeout, and a later call tries again; ECANCELED:
 *         the watch was closed; EBUSY: another thread is in this call.
 */
int peerlane_store_watch_next(peerlane_store_watch_t watch, int64_t timeout_ms,
                              int (*each)(void* context, const struct peerlane_watch_event* event), void* context);

/**
 * @brief Ends a watch. A peerlane_store_watch_next() in another thread returns ECANCELED within 0.1 s.
 * @return 0; EINVAL: not live.
 */
int peerlane_store_watch_close(peerlane_store_watch_t watch);

#ifdef __cplusplus
}
#endif
#endif
