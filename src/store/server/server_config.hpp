// SPDX-License-Identifier: Apache-2.0
// A server's settings: from a JSON file, then the command line. Every field has a range; unknown fields are refused.
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
  std::string socket_group;                  // of the unix socket: a group's name or number; empty: the server's
  std::string socket_mode = "0660";          // of the unix socket: who may connect
  std::string listen = "none";               // HOST:PORT for TCP; "none": none; port 0: any
  std::string metrics = "none";              // HOST:PORT of the Prometheus endpoint
  bool insecure = false;                     // lets a listener without TLS leave the loopback interface
  tls_files tls;                             // all three or none
  std::vector<std::string> admins, mappers;  // principals (access.hpp); empty: the defaults
  std::vector<std::string> map_readers;
  std::vector<std::string> quotas;  // of principals (quotas.hpp); empty: none
  std::string quotas_file;          // the file that reload() reads them from again; empty: they stay (no field of the file)
  std::string ucx = "auto";         // large values by UCX: off; auto: where RDMA joins server and client; on: any transport
  bool gpu_direct = true;           // the server moves device memory of local clients by DMA channels of its own
  bool ucx_beside_tls = false;      // also for TLS connections, although UCX does not encrypt
  std::string log;                  // file; empty: standard error
  std::string log_level = "info";

  // A server of a cluster (docs/store-cluster.md); empty: of itself alone.
  std::vector<std::string> cluster;     // etcd's addresses, http(s)://HOST:PORT
  store_cluster::etcd_tls cluster_tls;  // for https
  std::string cluster_name = "default";
  std::string name;             // of this server in its cluster
  std::string advertise;        // HOST:PORT where others reach it; empty: where it listens
  std::uint64_t lease_s = 5;    // without etcd for so long it stops serving
  std::uint64_t repair_s = 60;  // after which a dead server's copies are made anew elsewhere

  std::uint64_t threads = 0;           // 0: one for every 16 CPUs, at most 4
  std::uint64_t spin_us = 0;           // how long a thread polls for more work before it sleeps; serve: default_spin_us()
  std::uint64_t checksum_threads = 0;  // 0: half of the CPUs, at most 16
  std::uint64_t max_connections = 4096;
  std::uint64_t max_requests = 1024;           // under way on one connection
  std::uint64_t max_request_bytes = 1u << 30;  // granted or being received on one connection
  // Of one principal, over all of its connections.
  std::uint64_t max_principal_connections = 1024;
  std::uint64_t max_principal_buffer_bytes = 256u << 20;  // frames that are begun, answers that are not taken
  std::uint64_t max_principal_memory_percent = 75;        // of the memory tier, by grants, puts under way and pins
  std::uint64_t max_principal_device_bytes = std::uint64_t{1} << 40;  // of device memory that it has handed over
  std::uint64_t max_principal_device_memories = 1024;
  std::uint64_t max_principal_watches = 256;
  std::uint64_t max_principal_watch_bytes = 16u << 20;  // changes that it has not taken yet
  std::uint64_t stall_timeout_s = 30;   // a client that takes nothing, or sends nothing of what it began, is cut off
  std::uint64_t idle_timeout_s = 3600;  // a connection that asks for nothing and holds nothing; 0: never
  std::uint64_t hello_timeout_s = 10;
  std::uint64_t drain_timeout_s = 10;

  std::uint64_t arena_bytes = 1u << 30;
  std::uint64_t chunk_bytes = 1u << 30;
  bool huge_pages = false;
  std::uint64_t key_memory_bytes = 0;    // of the keys beside it; 0: by the machine's memory (engine.hpp)
  std::uint64_t extent_file_bytes = 0;   // 0: by the disk's size (engine.hpp)
  std::uint64_t disk_reserve_bytes = 0;  // likewise
  std::uint64_t disk_limit_bytes = 0;
  bool read_only = false;  // serves what is there and takes nothing, for disks that are full or not writable
  std::uint64_t small_value_bytes = 32u << 10;
};

// Fields of `text` (a JSON object) replace those of `parsed`. EINVAL names the field and what it may be.
status read_config(const std::string& text, server_config& parsed);
// What no single field shows: TLS files that belong together, listeners that need them.
status check(const server_config& config);
// Whether "HOST:PORT" is of the loopback interface: an address of it, or localhost.
bool is_loopback(const std::string& endpoint);
// spin_us of a server on a machine of so many CPUs, if neither the file nor the command line gives it.
std::uint64_t default_spin_us(unsigned cpus) noexcept;
// `threads`, or what that is by the machine's CPUs.
std::uint64_t serving_threads(const server_config& config) noexcept;
unsigned summing_threads(const server_config& config) noexcept;  // the same of `checksum_threads`
// The JSON schema of the file. docs/schema/store-config.json is this text.
std::string config_schema();

// socket_mode as a number. EINVAL: another than 0600, 0660 and 0666.
result<unsigned> parse_socket_mode(const std::string& text);

store::engine_options engine_options_of(const server_config& config);

}  // namespace pl::store_server
