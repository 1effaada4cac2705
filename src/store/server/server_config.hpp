// SPDX-License-Identifier: Apache-2.0
// A server's settings: from a JSON file, then from the command line. Every field has a range; unknown fields are
// refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "store/cluster/etcd.hpp"
#include "store/engine/engine.hpp"
#include "store/server/transport.hpp"

namespace pl::store_server {

struct server_config {
  std::string data;                          // directory that contains all data
  std::string socket;                        // unix socket; empty: DATA/store.sock; "none": no unix socket
  std::string socket_group;                  // of the unix socket: name or number of a group; empty: the server's group
  std::string socket_mode = "0660";          // of the unix socket: who may connect
  std::string listen = "none";               // HOST:PORT for TCP; "none": no TCP; port 0: any free port
  std::string metrics = "none";              // HOST:PORT of the Prometheus endpoint
  bool insecure = false;                     // allows a listener without TLS beyond the loopback interface
  tls_files tls;                             // all three or none
  std::vector<std::string> admins, mappers;  // principals (access.hpp); empty: the defaults
  std::vector<std::string> map_readers;
  std::vector<std::string> quotas;  // of principals (quotas.hpp); empty: no quotas
  // Not fields of the file: where reload() reads it again (empty: there is none), what read_config_file() has read, and
  // whether the quotas come from there.
  std::string config_file, config_text;
  bool quotas_from_file = true;
  std::string ucx = "auto";     // large values by UCX: off; auto: if RDMA connects server and client; on: any transport
  bool gpu_direct = true;       // the server moves device memory of local clients with its own DMA channels
  bool ucx_beside_tls = false;  // also for TLS connections, although UCX does not encrypt
  std::string log;              // path; empty: standard error
  std::string log_level = "info";

  // For a server of a cluster (docs/store-cluster.md); empty: a single server.
  std::vector<std::string> cluster;     // etcd's addresses, http(s)://HOST:PORT
  store_cluster::etcd_tls cluster_tls;  // for https
  std::string cluster_name = "default";
  std::string name;             // this server's name in the cluster
  std::string advertise;        // HOST:PORT where others reach it; empty: the address it listens on
  std::uint64_t lease_s = 5;    // a server that has not reached etcd for this long stops serving
  std::uint64_t repair_s = 60;  // a dead server's copies are re-created elsewhere after this time

  std::uint64_t threads = 0;           // 0: one for every 16 CPUs, at most 4
  std::uint64_t spin_us = 0;           // how long a thread polls for work before it sleeps; `serve` uses default_spin_us()
  std::uint64_t checksum_threads = 0;  // 0: half of the CPUs, at most 16
  std::uint64_t max_connections = 4096;
  std::uint64_t max_requests = 1024;           // in progress on one connection
  std::uint64_t max_request_bytes = 1u << 30;  // granted or being received on one connection
  // Limits of one principal, over all of its connections.
  std::uint64_t max_principal_connections = 1024;
  std::uint64_t max_principal_buffer_bytes = 256u << 20;  // frames begun and answers not taken yet
  std::uint64_t max_principal_memory_percent = 75;        // of the memory tier, for grants, puts in progress and pins
  std::uint64_t max_principal_device_bytes = std::uint64_t{1} << 40;  // device memory that it has handed over
  std::uint64_t max_principal_device_memories = 1024;
  std::uint64_t max_principal_watches = 256;
  std::uint64_t max_principal_watch_bytes = 16u << 20;  // changes that it has not taken yet
  // A client that reads nothing, or sends nothing of what it has begun, is disconnected
  std::uint64_t stall_timeout_s = 30;
  std::uint64_t idle_timeout_s = 3600;  // of a connection that requests nothing and holds nothing; 0: never
  std::uint64_t hello_timeout_s = 10;
  std::uint64_t drain_timeout_s = 10;

  std::uint64_t arena_bytes = 1u << 30;
  std::uint64_t chunk_bytes = 1u << 30;
  bool huge_pages = false;
  std::uint64_t key_memory_bytes = 0;    // of keys, beside the arena; 0: depends on the machine's memory (engine.hpp)
  std::uint64_t extent_file_bytes = 0;   // 0: depends on the disk's size (engine.hpp)
  std::uint64_t disk_reserve_bytes = 0;  // 0: depends on the disk's size (engine.hpp)
  std::uint64_t disk_limit_bytes = 0;
  bool read_only = false;  // serves existing values and takes no writes, for disks that are full or not writable
  std::uint64_t small_value_bytes = 32u << 10;
};

// Replaces fields of `parsed` by those of `text` (a JSON object). EINVAL names the field and its valid values.
status read_config(const std::string& text, server_config& parsed);
// The same of a file, which the failure names as well. Keeps its text in config_text.
status read_config_file(const std::string& path, server_config& parsed);
// What a server that is serving reads at a reload: defaults, and the fields of the file, which must be a regular one.
result<server_config> read_config_again(const std::string& path);
// The names of the fields in which the two differ, as "data, threads"; empty if there are none.
std::string changed_fields(const server_config& before, const server_config& now);
// Checks what concerns several fields: TLS files that belong together, listeners that need them.
status check(const server_config& config);
// Whether "HOST:PORT" is on the loopback interface: one of its addresses, or localhost.
bool is_loopback(const std::string& endpoint);
// Default of spin_us on a machine with this many CPUs.
std::uint64_t default_spin_us(unsigned cpus) noexcept;
// `threads`, or its default for this machine's CPUs.
std::uint64_t serving_threads(const server_config& config) noexcept;
unsigned summing_threads(const server_config& config) noexcept;  // the same for `checksum_threads`
// The JSON schema of the file; docs/schema/store-config.json has the same text.
std::string config_schema();

// socket_mode as a number. EINVAL unless it is 0600, 0660 or 0666.
result<unsigned> parse_socket_mode(const std::string& text);

store::engine_options engine_options_of(const server_config& config);

}  // namespace pl::store_server
