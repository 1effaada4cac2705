// SPDX-License-Identifier: Apache-2.0
// peerlane store serve.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>
#include <thread>

#include "base/text.hpp"
#include "store/server/host_limits.hpp"
#include "store/server/server.hpp"
#include "tools/common/options.hpp"
#include "tools/common/word_list.hpp"
#include "tools/store/service_manager.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using store_server::server_config;

// Reads the file first, because options override it, whatever the order on the command line.
std::string config_path_in(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--config" && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].starts_with("--config=")) return arguments[i].substr(9);
  }
  return {};
}

}  // namespace

namespace {

volatile std::sig_atomic_t reload_wanted = 0;

int serve(const tools::invocation& call) {
  server_config config;
  config.spin_us = store_server::default_spin_us(std::thread::hardware_concurrency());
  std::string config_path = config_path_in(call.arguments);
  if (!config_path.empty()) tools::must(store_server::read_config_file(config_path, config));
  bool print_schema = false, check_only = false;
  std::string etcd, admins, quotas;
  config.config_file = config_path;
  auto lease = static_cast<std::int64_t>(config.lease_s), repair = static_cast<std::int64_t>(config.repair_s);
  auto threads = static_cast<std::int64_t>(config.threads), spin = static_cast<std::int64_t>(config.spin_us);
  tools::command_parser parser(call, "Runs a store server on a directory until SIGTERM; requests in progress are completed");
  parser.text("--data", "DIR", config.data, "Directory for all data of the store; created if it does not exist");
  parser.text("--socket", "SOCKET|none", config.socket, "Path of the unix socket; none: no socket [DIR/store.sock]");
  parser.text("--listen", "HOST:PORT|none", config.listen,
              "Address to listen on for TCP; none: no TCP [" + config.listen + "]");
  parser.text("--admins", "LIST", admins,
              "Principals that may do everything: uid:N, cert:URI, cn:NAME, tcp, ... [the server's user and root]");
  parser.text("--quotas", "LIST", quotas,
              "What principals may store: 'uid:1000 bytes=10G keys=1M,* bytes=1G'; * applies to each principal without its "
              "own entry [no limits]");
  parser.text("--metrics", "HOST:PORT", config.metrics, "Address of the Prometheus endpoint [none]");
  parser.text("--config", "FILE", config_path, "JSON file with these settings and more (--print-schema lists them)");
  parser.text("--tls-cert", "FILE", config.tls.certificate, "TLS: file of the server's certificate, PEM");
  parser.text("--tls-key", "FILE", config.tls.key, "TLS: file of its private key, PEM");
  parser.text("--tls-client-ca", "FILE", config.tls.client_authority,
              "TLS: file of the CA that signs the clients' certificates, PEM");
  parser.flag("--insecure", config.insecure, "Allow listeners without TLS beyond the loopback interface");
  parser.text(
      "--ucx", "auto|off|on", config.ucx,
      "Use UCX for large values: auto (if RDMA connects server and client), off, or on (any transport of UCX) [auto]");
  parser.flag("--ucx-beside-tls", config.ucx_beside_tls,
              "Use UCX for TLS connections too: UCX does not encrypt their values");
  parser.size("--arena", config.arena_bytes, "Size of the memory tier");
  parser.size("--chunk", config.chunk_bytes,
              "Size of the pieces in which clients map and register the memory tier: a power of two");
  parser.flag("--read-only", config.read_only, "Serve the existing values and refuse puts; write nothing to the directory");
  parser.size("--extent-file", config.extent_file_bytes,
              "New stores: size of a file for large values [depends on the disk's size]");
  parser.size("--disk-reserve", config.disk_reserve_bytes,
              "Disk space that stays free: puts beyond it are refused [depends on the disk's size]");
  parser.flag("--huge-pages", config.huge_pages, "Use huge pages for the memory tier");
  parser.text("--cluster", "URL,...", etcd, "Join the cluster that this etcd keeps: its addresses, http(s)://HOST:PORT,...");
  parser.text("--cluster-tls-ca", "FILE", config.cluster_tls.authority,
              "For https: file of the CA that signed etcd's certificate, PEM");
  parser.text("--cluster-tls-cert", "FILE", config.cluster_tls.certificate,
              "For https: file of this server's certificate, PEM, if etcd requires client certificates");
  parser.text("--cluster-tls-key", "FILE", config.cluster_tls.key, "For https: file of its private key, PEM");
  parser.text("--cluster-name", "NAME", config.cluster_name,
              "Name of the cluster: several clusters can share one etcd [default]");
  parser.text("--name", "NAME", config.name, "Name of this server in its cluster");
  parser.text("--advertise", "HOST:PORT", config.advertise,
              "Address at which clients and other servers reach this server [--listen]");
  parser.integer("--lease-s", "SECONDS", lease, 2, 60,
                 "Time without contact to etcd after which the server stops serving [5]");
  parser.integer("--repair-s", "SECONDS", repair, 0, 86400,
                 "Time after which other servers replace the copies of a dead server [60]");
  parser.integer("--threads", threads, 0, 64, "Threads that serve connections; 0: one for every 16 CPUs, at most 4");
  parser.integer(
      "--spin-us", "MICROSECONDS", spin, 0, 1000,
      "How long a thread polls for more work before it sleeps; 0 disables the rings in shared memory and gpu-direct");
  parser.text("--log", "FILE", config.log, "Log file [standard error]");
  parser.text("--log-level", "debug|info|warn|error", config.log_level,
              "Lowest level that is logged: debug, info, warn or error [info]");
  parser.flag("--check", check_only, "Check the settings, the data directory and the TLS files, and exit");
  parser.flag("--print-schema", print_schema, "Print the JSON schema of the config file and exit");
  if (const auto code = parser.parse()) return *code;
  if (print_schema) {
    std::fputs(store_server::config_schema().c_str(), stdout);
    return tools::kExitOk;
  }
  config.threads = static_cast<std::uint64_t>(threads);
  config.lease_s = static_cast<std::uint64_t>(lease);
  config.repair_s = static_cast<std::uint64_t>(repair);
  if (!admins.empty()) config.admins = tools::split_list(admins);
  if (!quotas.empty()) {
    config.quotas = tools::split_list(quotas);
    config.quotas_from_file = false;
  }
  if (!etcd.empty()) config.cluster = tools::split_list(etcd);
  config.spin_us = static_cast<std::uint64_t>(spin);
  if (check_only) {
    tools::must(store_server::check(config));
    tools::must(store_server::check_files(config));
    return tools::kExitOk;
  }
  // The reader of standard error may end before the store does (`serve 2>&1 | head`): a line is lost then, not the store.
  std::signal(SIGPIPE, SIG_IGN);
  // What the store makes it must be able to open, whatever it grants to others.
  constexpr mode_t kOwners = 0700;
  umask(umask(0) & ~kOwners);
  // A manager of logs may tell every store to reopen its log, also one that still recovers: the signal would end it.
  std::signal(SIGHUP, [](int) { reload_wanted = 1; });
  const auto server = tools::must(store_server::server::open(config));
  server->stop_on_signals();
  if (reload_wanted != 0) server->reload();
  std::string addresses = format("store %s: socket %s, TCP %s\n", config.data.c_str(),
                                 server->socket_path().empty() ? "none" : server->socket_path().c_str(),
                                 server->tcp_endpoint().empty() ? "none" : server->tcp_endpoint().c_str());
  if (!server->metrics_endpoint().empty())
    addresses += format("metrics http://%s/metrics\n", server->metrics_endpoint().c_str());
  // Its own write: whoever closed standard output does not read the addresses, which is no failure of the store at its end.
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, addresses.data(), addresses.size());
  // A manager that does not listen gets no word, and the store serves anyway.
  if (const status notified = notify_service_manager("READY=1\nSTATUS=Serving " + config.data); !notified)
    std::fprintf(stderr, "%s\n", notified.error().message.c_str());
  tools::must(server->run());
  return tools::kExitOk;
}

}  // namespace

int run_serve(const tools::invocation& call) {
  try {
    return serve(call);
  } catch (const std::bad_alloc&) {
    throw tools::tool_failure("out of memory: raise the limit (ulimit -v, or the container's), or give a smaller --arena");
  } catch (const std::system_error& reason) {  // a thread that could not be made
    const int code = reason.code().value();
    const bool is_files = code == EMFILE || code == ENFILE;
    throw tools::tool_failure(
        format("%s: raise the %s", reason.what(),
               is_files ? "limit of open files (ulimit -n)" : "limits of memory and threads (ulimit -v, ulimit -u)"));
  }
}

}  // namespace pl::store_tools
