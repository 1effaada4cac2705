// SPDX-License-Identifier: Apache-2.0
// The store's vocabulary: codes, ids, options and limits. Plain values that the engine, the protocol, the server and
// the clients share; nothing here opens, allocates or locks anything.
//
// Errors inside the store are result<T> with an errno, as everywhere; `status_code` is what a wire or a C interface
// carries. Both distinguish the same cases, so code_of() loses nothing (table in types.cpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "store/engine/eviction.hpp"
#include "store/protocol/durability.hpp"

namespace pl::store {

// Result codes of replies. Values below zero are errors; those that MCAS defined keep MCAS's number. Codes are never
// renumbered.
enum class status_code : std::int32_t {
  ok = 0,
  more = 2,                // find: this is one page, and more keys follow
  failed = -1,             // anything that no other code names
  invalid = -2,            // EINVAL: an argument that is invalid in any state of the store
  busy = -9,               // EBUSY: a pool with open grants cannot be deleted
  no_memory = -14,         // ENOMEM
  not_supported = -15,     // ENOTSUP
  full = -23,              // ENOSPC: arena, disk or reserve; the same put may work later
  pool_exists = -28,       // EEXIST from create_pool (a pool); see key_exists
  timed_out = -30,         // ETIMEDOUT: a deadline passed; the operation has not happened and will not
  key_exists = -51,        // EEXIST from a put with condition::if_absent
  key_not_found = -52,     // ENOENT
  pool_not_found = -53,    // ENXIO
  too_large = -55,         // EFBIG: longer than the limit that the message names
  quota = -60,             // EDQUOT: the pool's bytes or keys
  read_only = -61,         // EROFS: after an earlier I/O error; reads continue, writes need a restart
  checksum = -62,          // EBADMSG: the message names pool, key and place
  version_mismatch = -63,  // ESTALE from condition::if_version
  io_error = -64,          // EIO: this operation met it
  damaged = -65,           // EUCLEAN: the store's own structures contradict each other
  bad_handle = -66,        // EBADF: a session, grant or pin that is not open
  protocol = -67,          // EPROTO
  denied = -68,            // EACCES
  closed = -69,            // ESHUTDOWN: the engine is closing
  moved = -70,             // EREMOTE: another server owns the key's slot
};

// The code for a failure of the store. `about_pool` decides what EEXIST means, the one errno with two meanings.
status_code code_of(const failure& reason, bool about_pool = false) noexcept;
// The errno that code_of() turns into `code`; 0 for codes that are not errors.
int errno_of(status_code code) noexcept;
// "key_not_found"; "unknown" for an undefined number.
const char* name_of(status_code code) noexcept;

// None of these is ever 0.
using pool_id = std::uint32_t;  // not reused while the data directory lives
// an engine-wide counter: a later put of a key has a greater one, also after a restart
using version_t = std::uint64_t;
using session_id = std::uint64_t;  // owner of grants and pins; valid until the engine closes
using grant_id = std::uint64_t;    // an uncommitted value; valid until the engine closes
using pin_id = std::uint64_t;      // a value that must not move; valid until the engine closes
// who wrote a value (engine::need_owner); valid while the data directory lives; 0: nobody
using owner_id = std::uint32_t;

constexpr std::size_t kMaxPoolNameBytes = 255;
constexpr std::size_t kMaxKeyBytes = 4096;                         // keys are byte strings of 1 to this many bytes
constexpr std::uint64_t kMaxValueBytes = std::uint64_t{64} << 30;  // and never more than the arena
constexpr std::size_t kMaxPools = 4096;
constexpr std::size_t kMaxSegments = 128;  // pieces of a value, in memory or on disk
constexpr std::size_t kMaxBatchOperations = 4096;
constexpr std::size_t kMaxFindKeys = 1000;     // keys in one page
constexpr std::size_t kMaxFindVisits = 10000;  // keys compared for one page
constexpr std::size_t kDedupeWindow = 1024;    // this many of a client's last requests are remembered
constexpr std::uint64_t kMaxTtlMs = std::uint64_t{10} * 365 * 24 * 3600 * 1000;
constexpr std::size_t kBlockBytes = 4096;  // alignment of O_DIRECT: segments start and end on it

// When a put or erase takes effect. A failed condition is ESTALE, EEXIST or ENOENT and changes nothing.
enum class condition : std::uint8_t {
  none = 0,
  if_absent = 1,   // otherwise EEXIST
  if_present = 2,  // otherwise ENOENT
  if_version = 3,  // if expected_version is the current one; otherwise ESTALE (ENOENT if the key is absent)
};

// Where a value's bytes were when it was requested.
enum class tier : std::uint8_t { memory = 1, disk = 2 };

// Names a request so that a repetition is answered, not applied. The client draws `client` at random once and counts
// `sequence` up from 1. {0, 0}: not remembered. A request is remembered as durably as its own effect, and forgotten
// after the client's next kDedupeWindow requests or after 4096 other clients.
struct request_key {
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::uint16_t group = 0;  // requests that engine::forget_requests() forgets together; not part of the name
  bool empty() const noexcept { return client == 0; }
};

// By default nothing waits: a call that finds no room answers ENOSPC at once.
using deadline_t = std::chrono::steady_clock::time_point;
constexpr deadline_t kNoWait = deadline_t::min();

// A copy of another store's value, which keeps its version from there. If the key has a later version here, nothing
// changes, which is no error, unless that version is `replaces`. An erase names the version that was erased.
struct copy_of {
  version_t version = 0;  // 0: not a copy
  version_t replaces = 0;
};

struct put_options {
  durability level = durability::pool_default;
  condition precondition = condition::none;
  version_t expected_version = 0;  // for if_version
  std::uint32_t user_flags = 0;    // stored with the value; has no meaning for the store
  request_key request{};
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena
  copy_of copy{};                 // not together with a condition
  std::uint64_t ttl_ms = 0;       // in a cache: lifetime of the value; 0: as the pool says
  owner_id owner = 0;             // whose quota the value counts against, except in a cache
  // For put() and put_async(): the value's CRC-32C, from a caller that has just computed it over these bytes. It is not
  // verified.
  std::optional<std::uint32_t> known_crc{};
};

struct erase_options {
  durability level = durability::pool_default;
  condition precondition = condition::if_present;
  version_t expected_version = 0;
  request_key request{};
  copy_of copy{};
};

struct put_result {
  version_t version = 0;
  std::uint32_t crc32c = 0;                       // of the value's bytes
  durability reached = durability::pool_default;  // at least what was asked
  bool repeated = false;                          // the request had been applied before; nothing was done now
  unsigned copies = 1;                            // number of servers that have it
};

struct erase_result {
  version_t version = 0;  // version of the erased value
  durability reached = durability::pool_default;
  bool repeated = false;
  unsigned copies = 1;
};

// What is known of a value without its bytes.
struct value_info {
  version_t version = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t crc32c = 0;
  std::uint32_t user_flags = 0;
  std::int64_t written_unix_ns = 0;  // time of the put, for people; nothing depends on it
  durability level = durability::pool_default;
  tier location = tier::disk;
  owner_id owner = 0;
};

struct get_options {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = ~std::uint64_t{0};  // open_reader: the maximum
  bool or_reader = false;  // lookup: answers with a reader of that range if memory does not hold the value
  bool verify = false;     // checks the checksum of a value that lies in memory; values from disk are always verified
  // with or_reader: a reader even if memory could hold the value, provided that it lies in extents
  bool bypass_memory = false;
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena (lookup of a value on disk)
};

struct get_result {
  value_info info;                 // length_bytes is that of the whole value
  std::uint64_t copied_bytes = 0;  // less than requested if the value ends earlier
};

// A piece of the arena: bytes [offset_bytes, offset_bytes + size_bytes) of its memfd or, from arena_info::size_bytes
// on, of memory that only the engine has. Starts on kBlockBytes (on 64 bytes if the value has up to 2 KiB and shares
// its block with others) and lies within one chunk of arena_info::chunk_bytes.
struct segment {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;  // size of this part of the value; a value of 0 bytes has no segments
};

// Memory that a value will be written into.
struct grant {
  grant_id id = 0;
  std::vector<segment> segments;  // in the value's order
  std::uint64_t length_bytes = 0;
  version_t base_version = 0;  // from_current: the version that the memory was filled with; 0 if the key was absent
};

struct begin_options {
  bool from_current = false;      // fill the memory with the current value, and zeros after it
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena
  // Who will commit. A value that exceeds its quota now is refused before its bytes are sent. This does not make it the
  // value's owner yet.
  owner_id owner = 0;
  // The probable durability of the commit, which decides where the value is placed. Committing with another one costs a
  // little more.
  durability level = durability::pool_default;
  // The request that will be committed, if it has a number: if it was done already, the grant is not refused, and the
  // commit answers with its outcome.
  request_key request{};
  // For begin_run(). False if the bytes are here already: refusing early saves nothing then, and only the commit knows
  // what the values before it have changed.
  bool checks_quotas = true;
  // The condition of the commit. If it is not met now and a quota is exceeded too, the refusal reports the condition,
  // as the commit would.
  condition precondition = condition::none;
  version_t expected_version = 0;
};

struct commit_options {
  put_options put{};       // put.deadline is ignored
  bool check_crc = false;  // compare with the writer's own checksum: a difference is EBADMSG and aborts
  bool take_crc = false;   // adopt the writer's own checksum unchecked, for writers that computed it while the bytes
                           // arrived. If it is wrong, the first verified read answers EBADMSG.
  std::uint32_t crc32c = 0;
};

class value_reader;  // value_stream.hpp

// A value that stays readable, in this place and version, until unpin().
struct pinned_value {
  pin_id pin = 0;
  value_info info;
  std::vector<segment> segments;         // in the value's order
  std::shared_ptr<value_reader> reader;  // with get_options::or_reader: replaces pin and segments
};

struct find_options {
  std::string prefix;                       // empty: every key
  std::string regex;                        // key_pattern.hpp, matched anywhere in the key; empty: every key
  std::string after;                        // keys greater than this (the last page's `last`); empty: from the start
  std::size_t limit = kMaxFindKeys;         // at most kMaxFindKeys
  deadline_t deadline = deadline_t::max();  // the page ends then, with `more`
};

struct find_page {
  std::vector<std::string> keys;  // ascending as bytes
  struct found_value {
    std::uint64_t length_bytes = 0;
    version_t version = 0;
  };
  std::vector<found_value> values;  // of the keys, at the time they were found
  std::string last;                 // where the next page starts (find_options::after); may be a key that did not match
  bool more = false;
};

struct pool_options {
  durability level = durability::durable;
  std::uint64_t quota_bytes = 0;  // of values, without keys; 0: no quota
  std::uint64_t quota_keys = 0;   // 0: no quota
  bool verify_reads = false;      // as get_options::verify, for every read
  std::string tags;               // <= 64 KiB that the server stores with the pool (ACL, shm policy, replication)
};

// A pool whose values may be evicted: they are volatile, and disappear when others need the room.
struct cache_terms {
  eviction policy = eviction::s3_fifo;  // never changes; chosen by docs/results/store/eviction_2cpu.json
  std::uint64_t memory_bytes = 0;       // limit of its part of the memory tier; 0: three quarters of the tier
  std::uint64_t disk_bytes = 0;         // what leaves memory goes to disk, up to this much; 0: it is dropped
  std::uint64_t ttl_ms = 0;             // lifetime of values that are put without one; 0: for ever
  bool operator==(const cache_terms&) const = default;
};

// Counters of a pool since the engine was opened.
struct pool_counts_now {
  std::uint64_t hits = 0, misses = 0;  // gets that found the key, and that did not
  // For a cache: values evicted for others, expired, and moved to disk.
  std::uint64_t evicted = 0, evicted_bytes = 0, expired = 0, spilled = 0;
  std::uint64_t memory_bytes = 0, disk_bytes = 0;  // for a cache: what its values take now
};

struct pool_info {
  pool_id id = 0;
  std::string name;
  pool_options options;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of current values
  std::int64_t created_unix_ns = 0;
  std::optional<cache_terms> cache{};  // set if the pool is one
  pool_counts_now counts{};
};

// How much an owner of values may hold, over all pools that are not caches.
struct owner_quota {
  std::string name;         // "*": every owner without a quota of its own
  std::uint64_t bytes = 0;  // of values, without keys; 0: no limit
  std::uint64_t keys = 0;   // 0: no limit
  // Limits of what it holds here and elsewhere (engine::set_held_elsewhere). 0: no limit.
  std::uint64_t cluster_bytes = 0, cluster_keys = 0;
};
// What an owner holds in other stores, as far as they have reported it.
struct owner_held {
  std::string name;
  std::uint64_t keys = 0, bytes = 0;
  bool operator==(const owner_held&) const = default;
};
struct owner_info {
  owner_id id = 0;
  std::string name;
  std::uint64_t keys = 0, bytes = 0;  // of current values
  std::uint64_t elsewhere_keys = 0, elsewhere_bytes = 0;
  std::uint64_t refused = 0;  // puts refused since the engine was opened
  owner_quota quota;
};

// One operation of a batch.
struct batch_operation {
  enum class kind : std::uint8_t { put, erase } action = kind::put;
  std::string_view key;
  std::span<const std::byte> value;          // put: copied before the call returns
  condition precondition = condition::none;  // erasing an absent key without a condition succeeds
  version_t expected_version = 0;
  std::uint32_t user_flags = 0;
  std::uint64_t ttl_ms = 0;  // as in put_options
};

struct batch_options {
  durability level = durability::pool_default;
  bool atomic = false;  // all or nothing, also across a crash; at most 64 MiB of values, not for volatile ones (ENOTSUP)
  request_key request{};
  owner_id owner = 0;  // as in put_options
};

struct batch_item {
  int error = 0;  // errno, 0 when done; ECANCELED: not tried, because another operation of an atomic batch failed
  std::string message;
  version_t version = 0;
};

// How the visible state of a key has changed.
enum class change : std::uint8_t { put = 1, erased, evicted, expired, pool_deleted, last = pool_deleted };
struct key_change {
  pool_id pool = 0;
  change kind = change::put;
  std::string_view key;            // empty if a pool was deleted
  version_t version = 0;           // put: the new version; otherwise the one that is gone
  std::uint64_t length_bytes = 0;  // for a put
};

struct batch_result {
  std::vector<batch_item> items;  // one for each operation, in their order
  durability reached = durability::pool_default;
  bool repeated = false;
};

// Counters since the engine opened; they only grow. Gauges are marked.
struct engine_stats {
  std::uint64_t puts = 0, gets = 0, erases = 0, failed = 0;
  std::uint64_t put_bytes = 0, get_bytes = 0;
  std::uint64_t hits = 0, misses = 0;  // reads that found the value in memory, and on disk
  std::uint64_t evictions = 0, evicted_bytes = 0, spilled_bytes = 0;
  std::uint64_t commits = 0, committed = 0;  // groups written, and operations in them
  std::uint64_t syncs = 0;                   // fdatasync of the log and of extent files
  std::uint64_t early_writes = 0;            // grants that went to disk while their bytes came (engine::arrived)
  std::uint64_t checksum_errors = 0, repeated_requests = 0;
  std::uint64_t arena_bytes = 0, arena_used_bytes = 0;  // gauges
  std::uint64_t disk_bytes = 0, disk_used_bytes = 0;    // gauges: size of extent files, bytes of values in them
  std::uint64_t pins = 0, grants = 0, sessions = 0;     // gauges
  std::uint64_t key_bytes = 0;                          // gauge, limited by engine_options::key_memory_bytes
  std::uint64_t remembered_items = 0;                   // gauge: items of requests that may be repeated (requests.hpp)
  bool read_only = false, full = false;                 // gauges
};

}  // namespace pl::store
