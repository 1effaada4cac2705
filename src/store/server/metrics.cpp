// SPDX-License-Identifier: Apache-2.0
#include "store/server/metrics.hpp"

#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "base/utf8.hpp"

namespace pl::store_server {
namespace {

void family(std::string& out, const char* name, const char* type, const char* help) {
  out += format("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void single(std::string& out, const char* name, const char* type, const char* help, double value) {
  family(out, name, type, help);
  out += format("%s %.17g\n", name, value);
}

template <class T>
void counter(std::string& out, const char* name, const char* help, const T& value) {
  single(out, name, "counter", help, static_cast<double>(value));
}
template <class T>
void gauge(std::string& out, const char* name, const char* help, const T& value) {
  single(out, name, "gauge", help, static_cast<double>(value));
}

void engine_text(std::string& out, const store::engine_stats& engine) {
  counter(out, "peerlane_store_engine_hits_total", "Reads of values that were in memory.", engine.hits);
  counter(out, "peerlane_store_engine_misses_total", "Reads of values that had to come from disk.", engine.misses);
  counter(out, "peerlane_store_engine_evictions_total", "Values that left memory for others.", engine.evictions);
  counter(out, "peerlane_store_engine_commit_groups_total", "Groups of commits, one sync each.", engine.commits);
  counter(out, "peerlane_store_engine_committed_total", "Commits in those groups.", engine.committed);
  counter(out, "peerlane_store_engine_syncs_total", "fdatasync calls.", engine.syncs);
  counter(out, "peerlane_store_engine_early_writes_total", "Values that went to disk while they came into memory.",
          engine.early_writes);
  counter(out, "peerlane_store_engine_checksum_errors_total", "Values whose bytes were not those put.",
          engine.checksum_errors);
  counter(out, "peerlane_store_engine_repeated_total", "Requests that came again and were not applied again.",
          engine.repeated_requests);
  gauge(out, "peerlane_store_arena_bytes", "Size of the memory tier.", engine.arena_bytes);
  gauge(out, "peerlane_store_arena_used_bytes", "Memory tier in use.", engine.arena_used_bytes);
  gauge(out, "peerlane_store_key_bytes", "Memory of keys beside the memory tier.", engine.key_bytes);
  gauge(out, "peerlane_store_remembered_items", "Outcomes kept for requests that may come again.", engine.remembered_items);
  gauge(out, "peerlane_store_disk_bytes", "Size of extent files.", engine.disk_bytes);
  gauge(out, "peerlane_store_disk_used_bytes", "Values in extent files.", engine.disk_used_bytes);
  gauge(out, "peerlane_store_pins", "Values that clients hold.", engine.pins);
  gauge(out, "peerlane_store_grants", "Values that clients are writing.", engine.grants);
  gauge(out, "peerlane_store_read_only", "1 after an I/O error: restart the server.", engine.read_only);
  gauge(out, "peerlane_store_full", "1 while puts find no room.", engine.full);
}

template <class Subject>
struct labelled_family {
  const char* name;
  const char* type;
  const char* help;
  std::uint64_t (*number)(const Subject& subject);
};

constexpr labelled_family<store::pool_info> kPoolFamilies[] = {
    {"keys", "gauge", "Keys of the pool.", [](const store::pool_info& pool) { return pool.keys; }},
    {"bytes", "gauge", "Bytes of the pool's values.", [](const store::pool_info& pool) { return pool.bytes; }},
    {"hits_total", "counter", "Gets whose key was there.", [](const store::pool_info& pool) { return pool.counts.hits; }},
    {"misses_total", "counter", "Gets whose key was not there.",
     [](const store::pool_info& pool) { return pool.counts.misses; }},
    {"evicted_total", "counter", "Values of a cache that left for others.",
     [](const store::pool_info& pool) { return pool.counts.evicted; }},
    {"evicted_bytes_total", "counter", "Their bytes.",
     [](const store::pool_info& pool) { return pool.counts.evicted_bytes; }},
    {"expired_total", "counter", "Values of a cache whose time had passed.",
     [](const store::pool_info& pool) { return pool.counts.expired; }},
    {"spilled_total", "counter", "Values of a cache that left memory for the disk.",
     [](const store::pool_info& pool) { return pool.counts.spilled; }},
    {"memory_bytes", "gauge", "Memory that a cache takes.",
     [](const store::pool_info& pool) { return pool.counts.memory_bytes; }},
    {"disk_bytes", "gauge", "Disk that a cache takes.", [](const store::pool_info& pool) { return pool.counts.disk_bytes; }},
};

constexpr labelled_family<store::owner_info> kPrincipalFamilies[] = {
    {"keys", "gauge", "Keys whose values the principal has put.", [](const store::owner_info& one) { return one.keys; }},
    {"bytes", "gauge", "Bytes of these values.", [](const store::owner_info& one) { return one.bytes; }},
    {"quota_keys", "gauge", "Keys that it may hold.", [](const store::owner_info& one) { return one.quota.keys; }},
    {"quota_bytes", "gauge", "Bytes that it may hold.", [](const store::owner_info& one) { return one.quota.bytes; }},
    {"elsewhere_keys", "gauge", "Keys that it holds on other servers of the cluster, as they said last.",
     [](const store::owner_info& one) { return one.elsewhere_keys; }},
    {"elsewhere_bytes", "gauge", "Bytes of these values.", [](const store::owner_info& one) { return one.elsewhere_bytes; }},
    {"cluster_quota_keys", "gauge", "Keys that it may hold on all servers together.",
     [](const store::owner_info& one) { return one.quota.cluster_keys; }},
    {"cluster_quota_bytes", "gauge", "Bytes that it may hold on all servers together.",
     [](const store::owner_info& one) { return one.quota.cluster_bytes; }},
    {"refused_total", "counter", "Puts beyond its quota.", [](const store::owner_info& one) { return one.refused; }},
};

// Metric families of the pools or principals that have values. Thousands of them do not fit into a frame, so the list
// may end early.
template <class Subject, std::size_t kCount>
void labelled_text(std::string& out, const labelled_family<Subject> (&families)[kCount], const char* label,
                   const std::vector<Subject>& subjects) {
  constexpr std::size_t kMaxBytes = std::size_t{2} << 20;
  for (const auto& one : families) {
    const std::string name = format("peerlane_store_%s_%s", label, one.name);
    bool begun = false;
    for (const Subject& subject : subjects) {
      const std::uint64_t now = one.number(subject);
      if (now == 0 || out.size() > kMaxBytes) continue;
      if (!std::exchange(begun, true)) family(out, name.c_str(), one.type, one.help);
      out += format("%s{%s=\"%s\"} %llu\n", name.c_str(), label, metric_label(subject.name).c_str(),
                    static_cast<unsigned long long>(now));
    }
  }
}

}  // namespace

std::string metric_label(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = utf8_printable_bytes(text);
    if (bytes == 0) out += format("\\\\x%02x", static_cast<unsigned char>(text.front()));
    if (text.front() == '"' || text.front() == '\\') out += '\\';
    out += text.substr(0, bytes);
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

void metrics::operation(store_protocol::opcode op, int status, std::uint64_t ns) noexcept {
  auto& one = operations_[static_cast<std::size_t>(op)];
  const auto bucket = std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(ns / 1000)), kBuckets - 1);
  one.buckets[bucket].fetch_add(1, std::memory_order_relaxed);
  one.count.fetch_add(1, std::memory_order_relaxed);
  one.total_ns.fetch_add(ns, std::memory_order_relaxed);
  if (status != 0) one.failed.fetch_add(1, std::memory_order_relaxed);
}

void metrics::bytes(store_protocol::path way, bool into_store, std::uint64_t count) noexcept {
  bytes_[static_cast<std::size_t>(way)][into_store].fetch_add(count, std::memory_order_relaxed);
}

std::string metrics::text(const store::engine_stats& engine, const std::vector<store::pool_info>& pools,
                          const std::vector<store::owner_info>& principals) const {
  std::string out;
  family(out, "peerlane_store_operation_seconds", "histogram", "Time from a request's last byte to its answer.");
  for (std::size_t op = 1; op < kOps; ++op) {
    const auto& one = operations_[op];
    const char* name = store_protocol::name_of(static_cast<store_protocol::opcode>(op));
    if (one.count.load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i + 1 < kBuckets; ++i) {
      sum += one.buckets[i].load(std::memory_order_relaxed);
      out += format("peerlane_store_operation_seconds_bucket{op=\"%s\",le=\"%g\"} %llu\n", name,
                    1e-6 * static_cast<double>(1ull << i), static_cast<unsigned long long>(sum));
    }
    sum += one.buckets[kBuckets - 1].load(std::memory_order_relaxed);
    out += format("peerlane_store_operation_seconds_bucket{op=\"%s\",le=\"+Inf\"} %llu\n", name,
                  static_cast<unsigned long long>(sum));
    out += format("peerlane_store_operation_seconds_sum{op=\"%s\"} %.9f\n", name,
                  1e-9 * static_cast<double>(one.total_ns.load(std::memory_order_relaxed)));
    out += format("peerlane_store_operation_seconds_count{op=\"%s\"} %llu\n", name, static_cast<unsigned long long>(sum));
  }
  family(out, "peerlane_store_failed_total", "counter", "Operations that answered with an error.");
  for (std::size_t op = 1; op < kOps; ++op)
    if (const auto failed = operations_[op].failed.load(std::memory_order_relaxed))
      out +=
          format("peerlane_store_failed_total{op=\"%s\"} %llu\n",
                 store_protocol::name_of(static_cast<store_protocol::opcode>(op)), static_cast<unsigned long long>(failed));
  family(out, "peerlane_store_value_bytes_total", "counter", "Bytes of values by the path that they took.");
  for (std::size_t way = 1; way < kPaths; ++way)
    for (const bool inbound : {false, true})
      out += format("peerlane_store_value_bytes_total{path=\"%s\",direction=\"%s\"} %llu\n",
                    store_protocol::name_of(static_cast<store_protocol::path>(way)), inbound ? "in" : "out",
                    static_cast<unsigned long long>(bytes_[way][inbound].load(std::memory_order_relaxed)));
  gauge(out, "peerlane_store_connections", "Open connections.", connections.load());
  counter(out, "peerlane_store_accepted_total", "Connections accepted.", accepted.load());
  counter(out, "peerlane_store_refused_total", "Connections refused: limits, TLS, version.", refused.load());
  counter(out, "peerlane_store_protocol_errors_total", "Connections ended because of what they sent.",
          protocol_errors.load());
  counter(out, "peerlane_store_stalled_total",
          "Connections ended because they took nothing, or sent nothing of what they had begun.", stalled.load());
  counter(out, "peerlane_store_idle_total", "Connections ended because nothing was asked for long.", idle.load());
  gauge(out, "peerlane_store_ungreeted", "Open connections that have not greeted.", in_handshake.load());
  counter(out, "peerlane_store_rings_total", "Connections whose bytes went through shared memory.", rings.load());
  counter(out, "peerlane_store_waits_for_room_total", "Puts that waited for memory.", waits_for_room.load());
  counter(out, "peerlane_store_ucx_refused_total", "UCX messages that named no transfer of a session, or broke its rules.",
          ucx_refused.load());
  family(out, "peerlane_store_gpu_direct", "gauge", "1: the server moves device memory of its clients itself.");
  out +=
      format("peerlane_store_gpu_direct{why_not=\"%s\"} %d\n", metric_label(device_refusal).c_str(), device_refusal.empty());
  counter(out, "peerlane_store_gpu_direct_failed_total", "Transfers by the server's DMA channels that failed.",
          device_failures.load());
  gauge(out, "peerlane_store_watches", "Watches of keys.", watches.load());
  counter(out, "peerlane_store_watch_events_total", "Changes that watchers were told.", watch_events.load());
  counter(out, "peerlane_store_watch_lost_total", "Changes that found no room in a watcher's queue, who was told so.",
          watch_lost.load());
  gauge(out, "peerlane_store_orphans", "Sessions without connection whose process lives.", orphans.load());
  engine_text(out, engine);
  labelled_text(out, kPoolFamilies, "pool", pools);
  labelled_text(out, kPrincipalFamilies, "principal", principals);
  return out;
}

}  // namespace pl::store_server
