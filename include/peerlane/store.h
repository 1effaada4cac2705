/* SPDX-License-Identifier: Apache-2.0
 *
 * libpeerlane_store: a client of `peerlane store serve`. Values go between the store and host or GPU memory; on the store's
 * own host by one copy between the GPU and the value. Link -lpeerlane_store. C++: <peerlane/store.hpp>; guide:
 * docs/store.md. A server of a cluster (docs/store-cluster.md) leads to all of them: operations go to whoever has the key,
 * by shared memory where that is this host, and are tried again while servers come and go, until their timeout.
 *
 * Conventions: 0 or a positive errno value; outputs are written on success only (a reply always);
 * peerlane_store_last_error() is the sentence behind the calling thread's last failure, with the next step. Sizes are bytes.
 * Addresses of host and device memory alike are void pointers; which it is, the driver tells. Times are milliseconds;
 * negative: the store's timeout_ms.
 *
 * What the store answers: ENOENT no such key, ENXIO no such pool, EEXIST there already, ESTALE another version, EACCES not
 * allowed, ENOSPC full until the deadline, EDQUOT the pool's quota, EFBIG too large, EROFS the store met an I/O error and
 * takes no more, EBADMSG the bytes are not those that were put, ETIMEDOUT, ECONNRESET not known whether it was done, ENOTSUP
 * another path than the required one, ESHUTDOWN the store is going down. In a cluster also EAGAIN: nobody who may serve the
 * key was there until the timeout; the sentence says what it waits for.
 *
 * Threads: every call from any thread; one operation by one thread at a time. Memory order: when a get has ended for its
 * waiter, later CPU loads and GPU work launched later see the bytes. What is put is read at an unspecified time between the
 * call and the operation's end. Fork: a store belongs to its process.
 */
#ifndef PEERLANE_STORE_H
#define PEERLANE_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct peerlane_store* peerlane_store_t;                 /* open .. close */
typedef struct peerlane_store_op* peerlane_store_op_t;           /* begin_* .. free */
typedef struct peerlane_direct_memory* peerlane_direct_memory_t; /* register .. unregister */
typedef uint32_t peerlane_pool_t; /* of a store; stays valid when the connection is made again */

enum peerlane_store_path {
  PEERLANE_PATH_ANY = 0,
  PEERLANE_PATH_SHM_DIRECT = 1, /* one copy between the caller's memory and the store's */
  PEERLANE_PATH_UNIX = 3,
  PEERLANE_PATH_TCP = 4,
  PEERLANE_PATH_TLS = 5,
  PEERLANE_PATH_UCX = 6 /* the bytes by UCX, beside the connection (docs/store.md) */
};

enum peerlane_store_durability {
  PEERLANE_POOL_DEFAULT = 0,
  PEERLANE_VOLATILE = 1, /* gone with the server's process */
  PEERLANE_LOGGED = 2,   /* survives the server's process */
  PEERLANE_DURABLE = 3   /* survives loss of power: acknowledged after fdatasync */
};

enum peerlane_store_condition {
  PEERLANE_ALWAYS = 0,
  PEERLANE_IF_ABSENT = 1,  /* else EEXIST */
  PEERLANE_IF_PRESENT = 2, /* else ENOENT */
  PEERLANE_IF_VERSION = 3  /* else ESTALE */
};

#define PEERLANE_STORE_NO_SHM 1u       /* do not map the store's memory */
#define PEERLANE_STORE_NO_GPU 2u       /* do not touch CUDA; device memory is then refused or unknown */
#define PEERLANE_STORE_NO_RECONNECT 4u /* a broken connection ends operations with ECONNRESET; not in a cluster */
#define PEERLANE_STORE_ONE_SERVER 8u   /* of a cluster: speak to this server alone; others' keys are EREMOTE */

/* Zero means the default everywhere. */
struct peerlane_store_options {
  size_t struct_bytes;         /* sizeof(struct peerlane_store_options): fields that come later are not read */
  const char* socket;          /* path of the store's unix socket, or */
  const char* endpoint;        /* "host:port"; both NULL: the variable PEERLANE_STORE */
  const char* tls_certificate; /* PEM files, all three or none */
  const char* tls_key;
  const char* tls_authority;
  uint32_t timeout_ms;   /* of operations and of connecting; default 30000 */
  uint32_t require_path; /* enum peerlane_store_path: what would go another way fails with ENOTSUP */
  uint32_t flags;        /* PEERLANE_STORE_* */
};

/* What became of an operation. */
struct peerlane_store_reply {
  int32_t status;      /* errno value */
  uint32_t path;       /* that the bytes took */
  uint32_t durability; /* that was reached */
  uint32_t crc32c;     /* of the whole value */
  uint32_t user_flags;
  uint32_t repeated; /* 1: asked again after a lost answer, and had been applied */
  uint64_t version;
  uint64_t value_bytes; /* of the whole value */
  uint64_t moved_bytes; /* between the store and the caller */
  uint64_t server_ns;   /* time that the server took */
};

/* Connects. ENOENT, ECONNREFUSED: nobody serves there; EPROTO: no store, or another version; EINVAL: contradictory options.
 */
int peerlane_store_open(const struct peerlane_store_options* options, peerlane_store_t* store);
/* Operations under way end with ECANCELED; copies under way are waited for. EBUSY: direct memory is still registered. */
int peerlane_store_close(peerlane_store_t store);
/* Of the calling thread; never NULL. */
const char* peerlane_store_last_error(void);

/* ---- Pools ----------------------------------------------------------------------------------------------------------- */

struct peerlane_pool_options {
  size_t struct_bytes;
  uint64_t quota_bytes; /* 0: none */
  uint64_t quota_keys;  /* 0: none */
  uint32_t durability;  /* of puts that ask for nothing; default durable */
  uint32_t no_shm;      /* 1: never through shared memory */
  const char* access;   /* "uid:1000=rw,cert:NAME=r"; NULL: everybody who can connect reads and writes */
  uint32_t copies;      /* of a cluster: servers that have each value, 1 (also 0) to 3 */
};
int peerlane_store_create_pool(peerlane_store_t store, const char* name, const struct peerlane_pool_options* options,
                               peerlane_pool_t* pool);
int peerlane_store_open_pool(peerlane_store_t store, const char* name, peerlane_pool_t* pool);
int peerlane_store_delete_pool(peerlane_store_t store, const char* name);
/* Returns when everything that was acknowledged for the pool is durable. */
int peerlane_store_sync(peerlane_store_t store, peerlane_pool_t pool);

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

struct peerlane_put_options {
  size_t struct_bytes;
  uint32_t durability;
  uint32_t condition;        /* enum peerlane_store_condition */
  uint64_t expected_version; /* PEERLANE_IF_VERSION */
  uint32_t user_flags;
  uint32_t is_part; /* 1: the bytes replace [offset, offset + bytes) of the value, which grows if need be */
  uint64_t offset;
  uint32_t on_stream; /* 1: device memory is read after what `stream` has queued so far */
  int32_t timeout_ms; /* 0 and less: the store's */
  void* stream;       /* CUstream, cudaStream_t */
};

struct peerlane_get_options {
  size_t struct_bytes;
  uint64_t offset;
  uint32_t verify;    /* 1: the server holds the value against its checksum first */
  uint32_t on_stream; /* 1: device memory is written in stream order: after what `stream` has queued, before what comes
                         later; the operation ends when the copy is queued. Through shared memory only (ENOTSUP). */
  int32_t timeout_ms;
  void* stream;
};

/* Options and replies may be NULL. Keys are byte strings of 1 to 4096 bytes. */
int peerlane_store_put(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes, const void* value,
                       size_t bytes, const struct peerlane_put_options* options, struct peerlane_store_reply* reply);
/* At most `bytes` bytes; reply->moved_bytes says how many, reply->value_bytes how long the value is. */
int peerlane_store_get(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes, void* value,
                       size_t bytes, const struct peerlane_get_options* options, struct peerlane_store_reply* reply);
int peerlane_store_erase(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes,
                         const struct peerlane_put_options* options, struct peerlane_store_reply* reply);
int peerlane_store_stat(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes,
                        struct peerlane_store_reply* reply);

/* Keys in order. `each` returns 0 to go on; another value ends the search and is returned. Keys that were there all the time
 * come exactly once, however others change. prefix and regex (POSIX extended) may be NULL. EINVAL: the regex has a
 * back-reference, repeats what can be empty, or is longer than 1024 bytes or, with its repetitions written out, than 1000
 * characters. */
int peerlane_store_find(peerlane_store_t store, peerlane_pool_t pool, const char* prefix, const char* regex,
                        int (*each)(void* context, const void* key, size_t key_bytes, uint64_t value_bytes), void* context);

/* ---- Direct memory --------------------------------------------------------------------------------------------------- */

/* Looks at the memory once, so that operations within it need not: registering is never needed. Registering twice is fine.
 * The memory must stay until it is unregistered. EINVAL: empty, or it leaves its allocation. */
int peerlane_store_register_direct_memory(peerlane_store_t store, void* address, size_t bytes,
                                          peerlane_direct_memory_t* memory);
/* EBUSY: operations within it are under way. */
int peerlane_store_unregister_direct_memory(peerlane_direct_memory_t memory);
/* put and get within registered memory: [offset, offset + bytes) of it. EINVAL: outside. */
int peerlane_store_put_direct(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes,
                              peerlane_direct_memory_t memory, size_t offset, size_t bytes,
                              const struct peerlane_put_options* options, struct peerlane_store_reply* reply);
int peerlane_store_get_direct(peerlane_store_t store, peerlane_pool_t pool, const void* key, size_t key_bytes,
                              peerlane_direct_memory_t memory, size_t offset, size_t bytes,
                              const struct peerlane_get_options* options, struct peerlane_store_reply* reply);

/* ---- Asynchronous ---------------------------------------------------------------------------------------------------- */

enum peerlane_store_operation {
  PEERLANE_STORE_PUT = 1,
  PEERLANE_STORE_GET = 2,
  PEERLANE_STORE_ERASE = 3,
};

/* One operation of a list. */
struct peerlane_store_item {
  uint32_t operation; /* enum peerlane_store_operation */
  peerlane_pool_t pool;
  const void* key;
  size_t key_bytes;
  void* value; /* put: read; get: written; must stay until the operation has ended */
  size_t bytes;
  const struct peerlane_put_options* put_options; /* put, erase */
  const struct peerlane_get_options* get_options; /* get */
  /* Called once when it has ended, from a thread of the library or from within another call on the store; must not block.
   * May be NULL. */
  void (*done)(void* context, const struct peerlane_store_reply* reply);
  void* context;
  int event_fd; /* an eventfd to which 1 is added at the end; 0 or less: none */
};

/* Begins `count` operations that share system calls; they are independent of each other. ops[i] is item i's handle, to be
 * freed. All begin, or none (the error says which item is not valid). */
int peerlane_store_begin(peerlane_store_t store, const struct peerlane_store_item* items, size_t count,
                         peerlane_store_op_t* ops);
/* *done becomes 1 if it has ended. Drives the connection a little. */
int peerlane_store_test(peerlane_store_op_t op, int* done);
/* The operation's own outcome. ETIMEDOUT with reply->status EINPROGRESS: it goes on. Negative timeout: as long as it takes.
 */
int peerlane_store_wait(peerlane_store_op_t op, int32_t timeout_ms, struct peerlane_store_reply* reply);
/* EBUSY: it has not ended: its memory is in use. */
int peerlane_store_free(peerlane_store_op_t op);

#ifdef __cplusplus
}
#endif
#endif
