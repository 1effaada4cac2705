// SPDX-License-Identifier: Apache-2.0
#include "tools/store/reach.hpp"

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::store_tools {

using tools::tool_failure;

void add(tools::command_parser& parser, reach_options& options) {
  parser.text("--socket", "SOCKET", options.socket, "The store's unix socket [PEERLANE_STORE]");
  parser.text("--connect", "HOST:PORT", options.connect, "The store's address, HOST:PORT [PEERLANE_STORE]");
  parser.text("--data", "DIR", options.data, "The store's data directory, which contains its socket");
  parser.text("--tls-cert", "FILE", options.tls_certificate, "TLS: file of this client's certificate, PEM");
  parser.text("--tls-key", "FILE", options.tls_key, "TLS: file of its private key, PEM");
  parser.text("--tls-ca", "FILE", options.tls_authority, "TLS: file of the CA that signed the store's certificate, PEM");
  parser.text("--require-path", "shm-direct|gpu-direct|unix|tcp|tls|ucx", options.require,
              "Fail if another path would be used");
  parser.flag("--no-shm", options.no_shm, "Do not map the store's memory");
  parser.integer("--timeout-ms", "MILLISECONDS", options.timeout_ms, 1, 3'600'000, "Timeout of one operation");
}

store_client::address address_of(const reach_options& options) {
  store_client::address out;
  out.socket = options.socket;
  out.endpoint = options.connect;
  if (out.socket.empty() && !options.data.empty()) out.socket = options.data + "/store.sock";
  if (out.socket.empty() && out.endpoint.empty()) {
    const std::string given = env_read("PEERLANE_STORE").text;
    (given.find('/') != std::string::npos ? out.socket : out.endpoint) = given;
  }
  if (out.socket.empty() && out.endpoint.empty())
    throw tool_failure("no store given: use --socket PATH, --connect HOST:PORT or --data DIR, or set PEERLANE_STORE");
  const int files = !options.tls_certificate.empty() + !options.tls_key.empty() + !options.tls_authority.empty();
  if (files != 0 && files != 3) throw tool_failure("TLS needs --tls-cert, --tls-key and --tls-ca, all three");
  out.tls_certificate = options.tls_certificate;
  out.tls_key = options.tls_key;
  out.tls_authority = options.tls_authority;
  return out;
}

namespace {

store_protocol::path required(const reach_options& options) {
  if (options.require.empty()) return store_protocol::path::none;
  const auto way = store_protocol::path_of(options.require);
  if (!way) throw tool_failure(format("--require-path %s: no such path", options.require.c_str()));
  return *way;
}

}  // namespace

std::unique_ptr<store_client::client> reach(const reach_options& options, copy::planner* copies,
                                            const cu::driver_table* cuda) {
  store_client::client_options settings;
  settings.server = address_of(options);
  settings.timeout_ms = static_cast<unsigned>(options.timeout_ms);
  settings.copies = copies;
  settings.cuda = cuda;
  settings.use_shm = !options.no_shm;
  settings.require = required(options);
  return tools::must(store_client::client::open(settings));
}

std::unique_ptr<store_client::router> cluster_of(const reach_options& options, store_client::client& store) {
  const auto got = store.run(store.make_plain(store_protocol::opcode::cluster_map, 0, {}));
  if (got.status != 0) return nullptr;
  store_client::router_options settings;
  settings.security = address_of(options);
  settings.use_shm = !options.no_shm;
  settings.require = required(options);
  settings.timeout_ms = static_cast<unsigned>(options.timeout_ms);
  if (!settings.security.endpoint.empty()) settings.servers.push_back(settings.security.endpoint);
  for (const auto& [name, one] : tools::must(store_client::read_cluster_map(got.body)).servers)
    settings.servers.push_back(one.endpoint);
  return tools::must(store_client::router::open(settings));
}

namespace {

template <class Store>
std::uint32_t open_or_make(Store& store, const std::string& name, bool make) {
  auto found = store.open_pool(name);
  if (!found && found.code() == ENXIO && make) {
    found = store.create_pool(name, {});
    if (!found && found.code() == EEXIST) found = store.open_pool(name);  // somebody else was quicker
  }
  return tools::must(std::move(found));
}

}  // namespace

std::uint32_t pool_of(store_client::client& store, const std::string& name, bool make) {
  return open_or_make(store, name, make);
}
std::uint32_t pool_of(store_client::router& cluster, const std::string& name, bool make) {
  return open_or_make(cluster, name, make);
}

store_client::reply must(store_client::reply got) {
  if (got.status != 0) throw tool_failure(got.text);
  return got;
}

std::optional<store_protocol::durability> durability_option(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto level = store::durability_named(name);
  if (!level || !store::check_given(*level))
    throw tool_failure(format("durability %s: volatile, logged or durable", name.c_str()));
  return level;
}

std::string describe_reply(const store_client::reply& got) {
  const std::string copies = got.result.copies > 1 ? format(", %u copies", got.result.copies) : std::string();
  const auto& transports = got.fields->ucx_transports;
  const std::string transport_names =
      got.result.way == store_protocol::path::ucx && transports ? ": " + *transports : std::string();
  return format("path %s%s, %s%s, version %llu", store_protocol::name_of(got.result.way), transport_names.c_str(),
                store_protocol::name_of(got.result.reached), copies.c_str(),
                static_cast<unsigned long long>(got.result.version));
}

}  // namespace pl::store_tools
