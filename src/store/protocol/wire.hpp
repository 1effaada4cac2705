// SPDX-License-Identifier: Apache-2.0
// The protocol between a store and its clients: frames of a fixed head, a key, a tail of typed fields, and a body.
//
//   head (64 bytes, little-endian) | key | tail: {u16 type, u16 length, bytes}... | body (bytes of a value, or a list)
//
// The head's checksum covers head, key and tail. The body has its own, so that it can be read straight to its
// destination. If the receiver does not know a field, a type with kMandatory set makes the request fail with EPROTO;
// other unknown fields are skipped. This is how the protocol grows. A status is a positive errno value as numbered by
// Linux; 0 is success. Pure functions; nothing here reads a socket. Format and flows for other implementations:
// docs/store-transports.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/heap_optional.hpp"
#include "base/status.hpp"
#include "store/protocol/durability.hpp"

namespace pl::store_protocol {

inline constexpr std::uint32_t kMagic = 0x54534c50;  // "PLST"
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kHeadBytes = 64;
inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxTailBytes = 16384;
inline constexpr std::size_t kMaxBodyBytes = 4u << 20;  // a larger value travels in several data frames
// The amount that both ends send at a time: it is still in the core's cache when the kernel copies what was just
// summed.
inline constexpr std::size_t kDataBodyBytes = 512u << 10;
inline constexpr std::uint64_t kMaxValueBytes = 64ull << 30;
inline constexpr std::uint32_t kNoDeadline = 0xffffffff;  // deadline_us: no deadline

enum class opcode : std::uint8_t {
  hello = 1,    // first on a connection: versions and identities
  ping,         // no operation; the answer shows that the other end is alive
  pool_create,  // key: name; tail: pool settings
  pool_open,    // key: name; the answer's pool_id names it on this connection
  pool_delete,  // key: name
  pool_list,    // the answer's body: pool_entry list by name; tail: `after`, as in find; value_bytes: its maximum size
  put,          // a value, whole in the body or in data frames that follow
  data,         // a piece of the value of request_id, in either direction
  get,          // [offset, offset + value_bytes) of a value; answered with a body or with data frames
  alloc,        // shm-direct: requests room for value_bytes; the answer grants extents of the arena
  commit,       // makes the content of the granted extents the value of key
  abort,        // gives a grant back
  lookup,       // shm-direct: pins a value and returns its extents
  unpin,        // releases pins (tail: tokens)
  erase,
  stat,         // what is known of a value, without its bytes
  find,         // keys by prefix or regular expression, in order, after a key
  sync,         // makes everything of the pool durable that was acknowledged before
  attach,       // unix socket only: the answer carries the arena's descriptor (SCM_RIGHTS)
  stats,        // the answer's body: metrics in Prometheus' text format
  pool_set,     // changes settings of a pool
  cluster_map,  // the answer's body: which server has which slots (slot_map.hpp), as this server knows it
  sync_keys,    // between servers: a page of the keys that a copy should have; the answer's body names the differences
  // Between servers: outcomes of requests, for a copy that is being filled; the body is the engine's. Without a body, a
  // catch-up begins: forget the known outcomes.
  sync_requests,
  rings,    // unix socket only: the answer carries the descriptor of rings (byte_ring.hpp), through which both ends send
            // from then on; the client sends nothing between the request and the answer
  arrived,  // shm-direct: the first value_bytes of the grant are there and will not change (tail: token, level); the answer
            // is empty
  // Lists of requests in the body (batch.hpp), each with its own outcome in the answer's body.
  batch_get,     // value_bytes: maximum size of all values in the answer
  batch_put,     // flag::atomic: all or nothing
  batch_exists,  // what is known of each value, without its bytes
  batch_erase,
  // Key: a prefix. The answer's outcome::value_bytes is the number of erased keys, and `after` how far it came.
  erase_prefix,
  device_link,  // unix socket only: the answer carries the descriptor of a socket by which device memory is handed over
                // (device_link.hpp)
  // Changes of keys (watch.hpp).
  watch,  // key: a prefix (flag::exact: the key); the answer's token names the watch
  // Tail: token; waits up to `offset` milliseconds for changes, of which the answer has at most value_bytes.
  watch_next,
  watch_end,  // tail: token; a request that waits for its changes ends with ECANCELED
  last = watch_end,
};
const char* name_of(opcode op) noexcept;

namespace flag {
inline constexpr std::uint16_t reply = 1;     // from the server
inline constexpr std::uint16_t streamed = 2;  // put, or the answer to get: the value follows in data frames
inline constexpr std::uint16_t more = 4;      // data: more of this request follow; find: there are more keys
inline constexpr std::uint16_t warm = 8;      // get: loads the value into memory without sending it
inline constexpr std::uint16_t patch = 16;    // put, alloc: changes only [offset, offset + value_bytes) of the value
inline constexpr std::uint16_t verify = 32;   // get, lookup: verifies the value's checksum first
inline constexpr std::uint16_t ucx = 64;      // get, alloc and the answers: the bytes go by UCX (ucx_value_stream.hpp)
// Sync_keys: the outcomes of requests were sent before (sync_requests)
inline constexpr std::uint16_t knows_requests = 128;
inline constexpr std::uint16_t atomic = 256;  // batch_put, batch_erase: all or nothing
// Put, get: the server moves the bytes between its memory and `device_part`
inline constexpr std::uint16_t device = 512;
inline constexpr std::uint16_t exact = 1024;  // watch: of one key
inline constexpr std::uint16_t known =
    reply | streamed | more | warm | patch | verify | ucx | knows_requests | atomic | device | exact;
}  // namespace flag

struct head {
  opcode op = opcode::ping;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;  // chosen by the client; the answer repeats it
  std::uint32_t pool_id = 0;
  std::uint16_t key_bytes = 0;
  std::uint16_t tail_bytes = 0;
  std::uint64_t value_bytes = 0;  // of the whole value; get: the maximum
  std::uint64_t offset = 0;       // where the body lies in its value; get: start of the range
  std::uint32_t body_bytes = 0;
  std::uint32_t body_crc = 0;
  std::uint32_t deadline_us = kNoDeadline;  // request: time left when it was sent
  std::int32_t status = 0;                  // answer: errno value
  std::uint32_t trace_id = 0;               // chosen by the client; appears in the server's log
  bool operator==(const head&) const = default;
};

// ---- Fields of the tail ------------------------------------------------------------------------------------------------

inline constexpr std::uint16_t kMandatory = 0x8000;

enum class condition : std::uint8_t { none, if_absent, if_present, if_version };
using store::durability;  // pool_default in a request: as the pool says
enum class path : std::uint8_t { none, shm_direct, shm_staged, unix_socket, tcp, tls, ucx, gpu_direct, last = gpu_direct };
const char* name_of(path transport) noexcept;
using store::name_of;
std::optional<path> path_of(std::string_view name) noexcept;  // "shm-direct", "tcp", ...

// A range of bytes in the arena; it lies within one chunk.
struct extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const extent&) const = default;
};

// A request's identity (client, number). A server remembers the last answers of a client, so a request that is repeated
// because its answer was lost is applied once.
struct sequence {
  std::uint64_t client = 0;  // random, one per client
  std::uint64_t number = 0;
  bool operator==(const sequence&) const = default;
};

struct precondition {
  condition kind = condition::none;
  std::uint64_t version = 0;
  bool operator==(const precondition&) const = default;
};

// The result that every answer to an operation on a value carries.
struct outcome {
  std::uint64_t version = 0;
  std::uint32_t crc = 0;  // of the whole value, CRC-32C
  bool has_crc = false;   // false: not known yet (a volatile value that nobody has read back)
  path way = path::none;
  durability reached = durability::pool_default;
  std::uint64_t server_ns = 0;  // from the last byte of the request to the answer
  std::uint32_t user_flags = 0;
  std::uint64_t value_bytes = 0;     // of the whole value
  std::int64_t written_unix_ns = 0;  // stat: time of the put, for people
  bool repeated = false;             // this request had been applied before; its first answer was lost
  std::uint8_t copies = 1;           // puts and erases: number of servers that have it
  bool operator==(const outcome&) const = default;
};

struct pool_settings {
  std::uint64_t size_bytes = 0;  // limit; 0: what the server has
  std::uint64_t max_keys = 0;    // 0: no limit
  durability level = durability::pool_default;
  bool is_cache = false;    // values may be evicted
  bool allow_shm = true;    // false: clients never map the arena for this pool
  std::string access;       // "principal=rwa,..." (docs/store-operate.md); empty: only its creator
  std::uint8_t copies = 1;  // number of a cluster's servers that have each value
  bool operator==(const pool_settings&) const = default;
};

// Settings of a pool that is a cache. A server without capability::cache accepts none.
struct cache_settings {
  std::uint64_t memory_bytes = 0;  // its share of the memory tier; 0: three quarters
  std::uint64_t disk_bytes = 0;    // its share of the disk; 0: what leaves memory is lost
  std::uint64_t ttl_ms = 0;        // lifetime of values that are put without one; 0: for ever
  std::uint8_t policy = 0;         // store::eviction
  bool operator==(const cache_settings&) const = default;
};

// What a pool holds, and its counters since its server started; part of the answer to pool_open.
struct pool_statistics {
  std::uint64_t keys = 0, bytes = 0, hits = 0, misses = 0;
  std::uint64_t evicted = 0, evicted_bytes = 0, expired = 0, spilled = 0;
  std::uint64_t memory_bytes = 0, disk_bytes = 0;
  bool operator==(const pool_statistics&) const = default;
};

struct hello {
  std::uint16_t lowest_version = kVersion, highest_version = kVersion;
  std::uint64_t capabilities = 0;  // capability bits
  std::uint64_t instance = 0;      // server: random, changes with a restart
  std::uint64_t session = 0;       // server: of this connection; client: that of its last connection, which has no copy
                                   // in progress any more, 0 if there was none
  std::string agent;               // for the log: "peerlane 0.2.0"
  bool operator==(const hello&) const = default;
};
namespace capability {
inline constexpr std::uint64_t shm = 1;               // can attach the arena
inline constexpr std::uint64_t sync_requests = 2;     // knows the operation
inline constexpr std::uint64_t rings = 4;             // knows the operation
inline constexpr std::uint64_t arrived = 8;           // knows the operation
inline constexpr std::uint64_t batches = 32;          // knows batch_get to erase_prefix
inline constexpr std::uint64_t cache = 16;            // has pools that are caches, and values with a time to live
inline constexpr std::uint64_t device = 64;           // knows device_link
inline constexpr std::uint64_t watch = 128;           // knows watch to watch_end
inline constexpr std::uint64_t device_batches = 256;  // batch_get and batch_put know flag::device
}  // namespace capability

// One end of a UCX transport, in both greetings. The server sends one only if there is to be a UCX transport.
struct ucx_offer {
  std::uint16_t major = 0, minor = 0;  // UCX's version: only equal versions are known to interoperate
  std::uint64_t secret[2] = {0, 0};    // server: sent with every message of this session
  bool any_transport = false;          // forced: also without RDMA
  std::string address;                 // of the UCX worker
  std::string transports;              // "rc_verbs/mlx5_0:1,tcp/eth0"
  bool operator==(const ucx_offer&) const = default;
};

// The terms on which one server of a cluster sends a copy of a value to another.
struct copy_terms {
  std::uint64_t epoch = 0;   // epoch of the slot map that the sender acts by
  std::uint64_t sender = 0;  // the sender's run (cluster_server::run)
  // Put: the value's version; erase: the erased one. The copy takes it unless it has a later one ...
  std::uint64_t version = 0;
  std::uint64_t replaces = 0;  // ... or has exactly this one
  bool operator==(const copy_terms&) const = default;
};

// Where a value lies in device memory that this connection has handed over (device_link.hpp).
struct device_part {
  std::uint32_t memory = 0;  // the number that the server gave it
  std::uint32_t slot = 0;    // device_slots: tells whether the server may still touch it
  std::uint64_t ticket = 0;  // of this use of the slot
  std::uint64_t offset = 0;
  bool operator==(const device_part&) const = default;
};

// The memory tier as a client maps it: whole chunks, each registered with CUDA once.
struct arena {
  std::uint64_t size_bytes = 0, chunk_bytes = 0;
  bool read_only = false;  // the descriptor refuses writable mappings
  bool operator==(const arena&) const = default;
};

// The tail of a frame. Fields that are not set are not sent. Every request makes and moves several tails, so the fields
// that few requests have lie on the heap (with all in place a tail took a kilobyte).
struct tail {
  std::optional<sequence> request_number;
  std::optional<precondition> only;
  std::optional<durability> level;
  std::optional<outcome> result;
  heap_optional<std::string> text;     // why an operation failed: one sentence, with the next step
  std::optional<std::uint64_t> token;  // of a grant or a pin
  std::vector<extent> extents;
  std::vector<std::uint64_t> unpin;  // tokens that the client no longer needs
  std::optional<std::uint32_t> crc;  // of the value, computed by the client
  std::optional<std::uint32_t> user_flags;
  heap_optional<pool_settings> settings;
  heap_optional<store_protocol::hello> handshake;
  heap_optional<std::string> prefix, regex, after;  // find
  heap_optional<arena> memory;                      // attach
  std::optional<std::uint64_t> epoch;  // with EREMOTE: epoch of the slot map by which another server has the key
  heap_optional<copy_terms> copy;
  heap_optional<ucx_offer> ucx;
  heap_optional<cache_settings> cache;        // pool_create, pool_set: for a pool that is a cache
  heap_optional<cache_settings> cache_is;     // in answers: the pool is a cache
  heap_optional<pool_statistics> statistics;  // in the answer to pool_open
  std::optional<std::uint64_t> ttl_ms;        // put, commit: for a cache
  heap_optional<std::string> ucx_transports;  // path::ucx: the transports that carried the value
  std::optional<device_part> device;          // flag::device
  heap_optional<std::string> owner;           // with copy: the principal that put the value
  // In a cluster's answers to find, erase_prefix and sync: the units about which the answer is (store_client::unit_list).
  heap_optional<std::string> listed;
  bool operator==(const tail&) const = default;
};

// ---- Coding ------------------------------------------------------------------------------------------------------------

// Appends everything of the frame except the body; fills key_bytes and tail_bytes. EMSGSIZE: key or tail exceed the
// limits.
status encode(head header, std::string_view key, const tail& fields, std::string& out);
// For tests, and for writers that already have the tail's bytes.
status encode_raw(head header, std::string_view key, std::string_view tail_bytes, std::string& out);

// Parses the fields and checks what can be checked without key and tail: magic, version, known opcode and flags,
// limits. EPROTO with the reason.
result<head> decode_head(std::span<const std::byte, kHeadBytes> bytes);
// Precondition: `whole` is head, key and tail as received. EPROTO: damaged, or an unknown mandatory field.
struct parts {
  std::string_view key;
  tail fields;
};
result<parts> decode_rest(const head& header, std::span<const std::byte> whole);
result<tail> decode_tail(std::string_view bytes);
// Sets the fields that `bytes` has.
status read_tail(std::string_view bytes, tail& out);
std::string encode_tail(const tail& fields);
void append_tail(const tail& fields, std::string& out);

// ---- Lists in bodies ---------------------------------------------------------------------------------------------------

struct key_entry {
  std::string key;
  std::uint64_t value_bytes = 0, version = 0;
  bool operator==(const key_entry&) const = default;
};
struct pool_entry {
  std::string name;
  std::uint64_t keys = 0, bytes = 0;
  pool_settings settings;
  bool operator==(const pool_entry&) const = default;
};
void append(std::string& body, const key_entry& one);
void append(std::string& body, const pool_entry& one);
result<std::vector<key_entry>> decode_keys(std::string_view body);
result<std::vector<pool_entry>> decode_pools(std::string_view body);

}  // namespace pl::store_protocol
