// SPDX-License-Identifier: Apache-2.0
// The store's vocabulary: codes, ids, options and limits. Plain values that the engine, the protocol, the server and the
// clients share; nothing here opens, allocates or locks anything.
//
// Errors inside the store are result<T> with an errno, as everywhere; `status_code` is what a wire or a C interface carries.
// The two tell apart the same cases, so code_of() loses nothing (table in types.cpp).
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

// Result codes of replies. Values below zero are errors; those that MCAS had keep MCAS's number. Never renumbered.
enum class status_code : std::int32_t {
  ok = 0,
  more = 2,                // find: this is one page, there are others behind it
  failed = -1,             // anything that no other code names
  invalid = -2,            // EINVAL: an argument that no state of the store would accept
  busy = -9,               // EBUSY: a pool with open grants cannot be deleted
  no_memory = -14,         // ENOMEM
  not_supported = -15,     // ENOTSUP
  full = -23,              // ENOSPC: arena, disk or reserve; the same put may work later
  pool_exists = -28,       // EEXIST from create_pool (a pool); see key_exists
  timed_out = -30,         // ETIMEDOUT: a deadline passed; what was asked has not happened and will not
  key_exists = -51,        // EEXIST from a put with condition::if_absent
  key_not_found = -52,     // ENOENT
  pool_not_found = -53,    // ENXIO
  too_large = -55,         // EFBIG: longer than the limit that the message names
  quota = -60,             // EDQUOT: the pool's bytes or keys
  read_only = -61,         // EROFS: an earlier I/O error; reads go on, writes need a restart
  checksum = -62,          // EBADMSG: the message names pool, key and place
  version_mismatch = -63,  // ESTALE from condition::if_version
  io_error = -64,          // EIO: this very operation met it
  damaged = -65,           // EUCLEAN: the store's own structures contradict each other
  bad_handle = -66,        // EBADF: a session, grant or pin that is not (or no longer) open
  protocol = -67,          // EPROTO
  denied = -68,            // EACCES
  closed = -69,            // ESHUTDOWN: the engine is going down
  moved = -70,             // EREMOTE: another server owns the key's slot
};

// The code for a failure of the store. `about_pool` settles EEXIST, the one errno that has two meanings.
status_code code_of(const failure& reason, bool about_pool = false) noexcept;
// The errno that code_of() turns into `code`; 0 for codes that are no errors.
int errno_of(status_code code) noexcept;
// "key_not_found"; "unknown" for numbers that are none.
const char* name_of(status_code code) noexcept;

// 0 is never given out by any of these.
using pool_id = std::uint32_t;     // not reused while the data directory lives
using version_t = std::uint64_t;   // engine-wide counter: a later put of a key has a greater one, across restarts too
using session_id = std::uint64_t;  // owner of grants and pins, this run of the engine only
using grant_id = std::uint64_t;    // an uncommitted value, this run only
using pin_id = std::uint64_t;      // a value that must stay where it is, this run only
using owner_id = std::uint32_t;    // who wrote a value (engine::need_owner), as long as the data directory lives; 0: nobody

constexpr std::size_t kMaxPoolNameBytes = 255;
constexpr std::size_t kMaxKeyBytes = 4096;                         // keys are byte strings, 1..this
constexpr std::uint64_t kMaxValueBytes = std::uint64_t{64} << 30;  // and never more than the arena
constexpr std::size_t kMaxPools = 4096;
constexpr std::size_t kMaxSegments = 128;  // pieces that a value lies in, in memory or on disk
constexpr std::size_t kMaxBatchOperations = 4096;
constexpr std::size_t kMaxFindKeys = 1000;     // keys in one page
constexpr std::size_t kMaxFindVisits = 10000;  // keys compared for one page
constexpr std::size_t kDedupeWindow = 1024;    // a client's last so many requests are remembered
constexpr std::uint64_t kMaxTtlMs = std::uint64_t{10} * 365 * 24 * 3600 * 1000;
constexpr std::size_t kBlockBytes = 4096;  // of O_DIRECT: segments start and end on it

// When a put or erase happens. A failed condition is ESTALE, EEXIST or ENOENT and changes nothing.
enum class condition : std::uint8_t {
  none = 0,
  if_absent = 1,   // else EEXIST
  if_present = 2,  // else ENOENT
  if_version = 3,  // expected_version is the current one, else ESTALE (ENOENT if the key is absent)
};

// Where bytes were when they were asked for.
enum class tier : std::uint8_t { memory = 1, disk = 2 };

// Names a request so that its repetition is answered, not applied: the client draws `client` at random once and counts
// `sequence` up from 1. {0, 0}: not remembered. Remembered as durably as the request's own effect; forgotten after the
// client's next kDedupeWindow requests, or when 4096 other clients came after it.
struct request_key {
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  std::uint16_t group = 0;  // which of them engine::forget_requests() can forget together; no part of the name
  bool empty() const noexcept { return client == 0; }
};

// No waiting by default: a call that finds no room answers ENOSPC at once.
using deadline_t = std::chrono::steady_clock::time_point;
constexpr deadline_t kNoWait = deadline_t::min();

// A value that another store has: it keeps the version that it has there. Nothing is changed, which is no error, if the key
// has a later version here, unless that is `replaces`. An erase names the version that was erased.
struct copy_of {
  version_t version = 0;  // 0: this is no copy
  version_t replaces = 0;
};

struct put_options {
  durability level = durability::pool_default;
  condition precondition = condition::none;
  version_t expected_version = 0;  // for if_version
  std::uint32_t user_flags = 0;    // stored with the value, meaning nothing to the store
  request_key request{};
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena
  copy_of copy{};                 // not with a condition
  std::uint64_t ttl_ms = 0;       // in a pool that is a cache: the value is gone after so long; 0: as the pool says
  owner_id owner = 0;             // whose quota the value counts for, but in a cache
  // put() and put_async(): the value's CRC-32C, by somebody who has just computed it over these very bytes. Believed.
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
  bool repeated = false;                          // this request had been applied before; nothing was done now
  unsigned copies = 1;                            // servers that have it
};

struct erase_result {
  version_t version = 0;  // what was erased
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
  std::int64_t written_unix_ns = 0;  // of the put; for people, nothing is decided by it
  durability level = durability::pool_default;
  tier location = tier::disk;
  owner_id owner = 0;
};

struct get_options {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = ~std::uint64_t{0};  // open_reader: at most so many
  bool or_reader = false;         // lookup: a value that memory does not hold is answered with a reader of that range
  bool verify = false;            // checksum of a value that lies in memory; what comes from disk is always verified
  bool past_memory = false;       // with or_reader: a reader although memory could hold the value, if it lies in extents
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena (lookup of a value on disk)
};

struct get_result {
  value_info info;                 // length_bytes is the whole value's
  std::uint64_t copied_bytes = 0;  // less than asked where the value ends before
};

// A piece of the arena: bytes [offset_bytes, offset_bytes + size_bytes) of its memfd, or, from arena_info::size_bytes on, of
// memory that only the engine has. Starts on kBlockBytes (a value of up
// to 2 KiB on 64 bytes: it shares its block with others) and lies within one chunk of arena_info::chunk_bytes.
struct segment {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;  // of value; a value of 0 bytes has no segments
};

// Memory that a value is to be written into.
struct grant {
  grant_id id = 0;
  std::vector<segment> segments;  // in the value's order
  std::uint64_t length_bytes = 0;
  version_t base_version = 0;  // from_current: what the memory was filled with, 0 if the key was absent
};

struct begin_options {
  bool from_current = false;      // fill the memory with the current value (as far as it goes; zeros behind it)
  deadline_t deadline = kNoWait;  // how long to wait for room in the arena
  // Who will commit: a value that does not fit its quota now is refused before its bytes come. Not the value's owner yet.
  owner_id owner = 0;
  // With which it will probably be committed: where the value lies follows from it. Another one costs a little more then.
  durability level = durability::pool_default;
  // The one that will be committed, if it has a number: what it did already is the commit's answer, and no refusal.
  request_key request{};
  // Of begin_run(). False: the bytes are here already, so nothing is spared by a refusal before the commit, which alone
  // knows what the values before it have changed.
  bool checks_quotas = true;
  // With which it will be committed. Where it is not met now, and a quota does not hold either, the refusal is the
  // condition's, as the commit's would be.
  condition precondition = condition::none;
  version_t expected_version = 0;
};

struct commit_options {
  put_options put{};       // put.deadline is ignored
  bool check_crc = false;  // the writer's own checksum: a difference is EBADMSG and aborts
  bool take_crc = false;   // the writer's own checksum becomes the value's unchecked: a wrong one is the first
                           // verified read's EBADMSG. For writers that have computed it while the bytes arrived.
  std::uint32_t crc32c = 0;
};

class value_reader;  // value_stream.hpp

// A value that stays readable, in this place and version, until unpin().
struct pinned_value {
  pin_id pin = 0;
  value_info info;
  std::vector<segment> segments;         // in the value's order
  std::shared_ptr<value_reader> reader;  // get_options::or_reader: instead of pin and segments
};

struct find_options {
  std::string prefix;                       // empty: every key
  std::string regex;                        // pattern.hpp, matched anywhere in the key; empty: every key
  std::string after;                        // keys greater than this (the last page's `last`); empty: from the start
  std::size_t limit = kMaxFindKeys;         // at most kMaxFindKeys
  deadline_t deadline = deadline_t::max();  // the page ends there, with `more`
};

struct find_page {
  std::vector<std::string> keys;  // ascending as bytes
  struct found_value {
    std::uint64_t length_bytes = 0;
    version_t version = 0;
  };
  std::vector<found_value> values;  // of the keys, as it was when they were found
  std::string last;                 // where the next page starts (find_options::after); may be a key that did not match
  bool more = false;
};

struct pool_options {
  durability level = durability::durable;
  std::uint64_t quota_bytes = 0;  // of values, keys not counted; 0: none
  std::uint64_t quota_keys = 0;   // 0: none
  bool verify_reads = false;      // as get_options::verify, for every read
  std::string tags;               // <= 64 KiB that the server keeps with the pool (ACL, shm policy, replication)
};

// A pool whose values may be evicted: volatile ones, which are gone when others need the room.
struct cache_terms {
  eviction policy = eviction::s3_fifo;  // for ever; chosen by docs/results/store/eviction_2cpu.json
  std::uint64_t memory_bytes = 0;       // at most so much of the memory tier; 0: three quarters of it
  std::uint64_t disk_bytes = 0;         // what leaves memory goes to disk, at most so much; 0: it is gone
  std::uint64_t ttl_ms = 0;             // of values put without one; 0: for ever
  bool operator==(const cache_terms&) const = default;
};

// Of a pool, since the engine opened.
struct pool_counts_now {
  std::uint64_t hits = 0, misses = 0;  // of gets: the key was there, or not
  // Of a cache: values that left for others, and that left because their time had passed.
  std::uint64_t evicted = 0, evicted_bytes = 0, expired = 0, spilled = 0;
  std::uint64_t memory_bytes = 0, disk_bytes = 0;  // of a cache: that its values take now
};

struct pool_info {
  pool_id id = 0;
  std::string name;
  pool_options options;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of current values
  std::int64_t created_unix_ns = 0;
  std::optional<cache_terms> cache{};  // it is one
  pool_counts_now counts{};
};

// What an owner of values may hold, over all pools that are no caches.
struct owner_quota {
  std::string name;         // "*": every owner without one of its own
  std::uint64_t bytes = 0;  // of values, keys not counted; 0: as many as there is room for
  std::uint64_t keys = 0;   // likewise
  // Of what it holds here and elsewhere (engine::set_held_elsewhere). 0: no limit.
  std::uint64_t cluster_bytes = 0, cluster_keys = 0;
};
// What an owner holds in other stores, as far as they have said.
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
  std::uint64_t refused = 0;  // puts, since the engine opened
  owner_quota quota;
};

// One operation of a batch.
struct batch_operation {
  enum class kind : std::uint8_t { put, erase } action = kind::put;
  std::string_view key;
  std::span<const std::byte> value;          // put: copied before the call returns
  condition precondition = condition::none;  // (an erase of an absent key under `none` succeeds)
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
  int error = 0;  // errno, 0 when done; ECANCELED: not tried, another one of an atomic batch failed
  std::string message;
  version_t version = 0;
};

// What readers see of a key has changed.
enum class change : std::uint8_t { put = 1, erased, evicted, expired, pool_deleted, last = pool_deleted };
struct key_change {
  pool_id pool = 0;
  change kind = change::put;
  std::string_view key;            // empty: of a pool that was deleted
  version_t version = 0;           // put: the new one; else the one that went
  std::uint64_t length_bytes = 0;  // put
};

struct batch_result {
  std::vector<batch_item> items;  // as many as operations, in their order
  durability reached = durability::pool_default;
  bool repeated = false;
};

// Counters since the engine opened; they only grow. Gauges are marked.
struct engine_stats {
  std::uint64_t puts = 0, gets = 0, erases = 0, failed = 0;
  std::uint64_t put_bytes = 0, get_bytes = 0;
  std::uint64_t hits = 0, misses = 0;  // of reads: value in memory, value on disk
  std::uint64_t evictions = 0, evicted_bytes = 0, spilled_bytes = 0;
  std::uint64_t commits = 0, committed = 0;  // groups written, operations in them
  std::uint64_t syncs = 0;                   // fdatasync of the log and of extent files
  std::uint64_t early_writes = 0;            // grants that went to disk while their bytes came (engine::arrived)
  std::uint64_t checksum_errors = 0, repeated_requests = 0;
  std::uint64_t arena_bytes = 0, arena_used_bytes = 0;  // gauges
  std::uint64_t disk_bytes = 0, disk_used_bytes = 0;    // gauges: extent files, values in them
  std::uint64_t pins = 0, grants = 0, sessions = 0;     // gauges
  std::uint64_t key_bytes = 0;                          // gauge: of engine_options::key_memory_bytes
  std::uint64_t remembered_items = 0;                   // gauge: of requests that may come again (requests.hpp)
  bool read_only = false, full = false;                 // gauges
};

}  // namespace pl::store
