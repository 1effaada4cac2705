// SPDX-License-Identifier: Apache-2.0
#include "store/server/server_config.hpp"

#include <algorithm>
#include <asio/ip/address.hpp>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <variant>

#include "base/cpu_share.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "base/whole_file.hpp"
#include "store/client/slot_map.hpp"
#include "store/client/ucx_value_stream.hpp"
#include "store/protocol/endpoint_text.hpp"
#include "store/server/access.hpp"
#include "store/server/quotas.hpp"

namespace pl::store_server {
namespace {

using json = nlohmann::json;
using store_cluster::etcd_tls;
constexpr std::uint64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMaxArena = store::kMaxValueBytes * 64;  // the engine's limit

struct number {
  std::uint64_t server_config::*member;
  std::uint64_t lowest, highest;
  enum class shape { any, blocks, power_of_two } must_be = shape::any;

  bool fits(std::uint64_t given) const {
    return must_be == shape::any ||
           (must_be == shape::blocks ? given % store::kBlockBytes == 0 : std::has_single_bit(given));
  }
};
using target = std::variant<std::string server_config::*, std::string tls_files::*, std::string etcd_tls::*,
                            std::vector<std::string> server_config::*, bool server_config::*, number>;

struct field {
  const char* name;
  target destination;
  const char* meaning;
};

const field kFields[] = {
    {"data", &server_config::data, "directory that contains all data of the store"},
    {"socket", &server_config::socket,
     "path of the unix socket; none: no socket; default: store.sock in the data directory"},
    {"socket_group", &server_config::socket_group,
     "group of the unix socket, by name or number; default: the server's group"},
    {"socket_mode", &server_config::socket_mode, "mode of the unix socket: who may connect; default: 0660"},
    {"listen", &server_config::listen, "HOST:PORT to listen on for TCP; default: none (no TCP)"},
    {"metrics", &server_config::metrics, "HOST:PORT of the Prometheus endpoint; default: none (no endpoint)"},
    {"insecure", &server_config::insecure, "allow listeners without TLS beyond the loopback interface"},
    {"tls_certificate", &tls_files::certificate, "file of the server's certificate chain, PEM"},
    {"tls_key", &tls_files::key, "file of the server's private key, PEM"},
    {"tls_client_authority", &tls_files::client_authority, "file of the CA that signs the clients' certificates, PEM"},
    {"admins", &server_config::admins,
     "principals that may create pools and do everything with every pool; default: the server's user and root; plain TCP "
     "is an admin only if the list contains tcp"},
    {"mappers", &server_config::mappers, "principals that may map the memory tier (path shm-direct)"},
    {"map_readers", &server_config::map_readers,
     "principals that may map the memory tier read-only: only their gets use shm-direct"},
    {"quotas", &server_config::quotas,
     "what principals may store, over all pools except caches: \"PRINCIPAL bytes=SIZE keys=COUNT\"; * applies to each "
     "principal without its own entry; SIGHUP reads the quotas again"},
    {"cluster", &server_config::cluster,
     "addresses of etcd, http(s)://HOST:PORT: the server joins the cluster that they keep; default: no cluster"},
    {"cluster_tls_authority", &etcd_tls::authority, "for https: file of the CA that signed etcd's certificate, PEM"},
    {"cluster_tls_certificate", &etcd_tls::certificate,
     "for https: file of this server's certificate, PEM, if etcd requires client certificates"},
    {"cluster_tls_key", &etcd_tls::key, "for https: file of the private key of cluster_tls_certificate, PEM"},
    {"cluster_name", &server_config::cluster_name, "name of the cluster: several clusters can share one etcd"},
    {"name", &server_config::name, "name of this server in its cluster"},
    {"advertise", &server_config::advertise,
     "HOST:PORT at which clients and other servers reach this server; default: listen"},
    {"lease_s", number{&server_config::lease_s, 2, 60},
     "seconds without contact to etcd after which the server stops serving"},
    {"repair_s", number{&server_config::repair_s, 0, 86400},
     "seconds after which other servers replace the copies of a dead server"},
    {"ucx", &server_config::ucx,
     "use UCX for large values; off: never; auto: if RDMA connects server and client; on: over any transport of UCX"},
    {"ucx_beside_tls", &server_config::ucx_beside_tls, "use UCX for TLS connections too: UCX does not encrypt their values"},
    {"gpu_direct", &server_config::gpu_direct,
     "the server copies the GPU memory of clients on its unix socket itself, if it can open the GPU's device files"},
    {"log", &server_config::log, "log file; default: standard error"},
    {"log_level", &server_config::log_level, "lowest level that is logged: debug, info, warn or error"},
    {"threads", number{&server_config::threads, 0, 64},
     "threads that serve connections; 0: one for every 16 CPUs, at least one and at most 4"},
    {"spin_us", number{&server_config::spin_us, 0, 1000},
     "microseconds for which a thread polls for more work before it sleeps; default: 50 on hosts with more than 4 CPUs, "
     "otherwise 0; 0 disables the rings in shared memory and gpu_direct"},
    {"checksum_threads", number{&server_config::checksum_threads, 0, 64},
     "threads that compute checksums and do the work of batches of GPU memory; 0: half of the CPUs, at most 16"},
    {"max_connections", number{&server_config::max_connections, 1, 65536}, "maximum of open connections"},
    {"max_requests", number{&server_config::max_requests, 1, 65536}, "maximum of requests in progress on one connection"},
    {"max_request_bytes", number{&server_config::max_request_bytes, 1u << 20, kMaxInteger},
     "maximum of bytes that one connection is granted or is sending"},
    {"max_principal_connections", number{&server_config::max_principal_connections, 1, 65536},
     "maximum of open connections of one principal"},
    {"max_principal_buffer_bytes", number{&server_config::max_principal_buffer_bytes, 1u << 20, kMaxInteger},
     "maximum of buffered bytes of one principal: incomplete requests, and replies that it has not accepted"},
    {"max_principal_memory_percent", number{&server_config::max_principal_memory_percent, 1, 100},
     "maximum share of the memory tier that the grants, the puts in progress and the pins of one principal use"},
    {"max_principal_device_bytes", number{&server_config::max_principal_device_bytes, 0, kMaxInteger},
     "maximum of GPU memory that one principal shares with the server"},
    {"max_principal_device_memories", number{&server_config::max_principal_device_memories, 0, 65536},
     "maximum of allocations of GPU memory that one principal shares with the server"},
    {"max_principal_watches", number{&server_config::max_principal_watches, 0, 65536},
     "maximum of watches of one principal"},
    {"max_principal_watch_bytes", number{&server_config::max_principal_watch_bytes, 4096, kMaxInteger},
     "maximum of changes, in bytes, that wait for the watches of one principal; changes beyond it are lost, and the watcher "
     "is told"},
    {"stall_timeout_s", number{&server_config::stall_timeout_s, 1, 3600},
     "seconds after which a client is disconnected that accepts nothing, or does not finish what it began to send"},
    {"idle_timeout_s", number{&server_config::idle_timeout_s, 0, 604800},
     "seconds after which a connection is closed that requests nothing and holds nothing; 0: never"},
    {"hello_timeout_s", number{&server_config::hello_timeout_s, 1, 600},
     "seconds that a client has for the TLS handshake and its first request"},
    {"drain_timeout_s", number{&server_config::drain_timeout_s, 0, 3600},
     "seconds that requests in progress have to complete after SIGTERM"},
    {"arena_bytes", number{&server_config::arena_bytes, 4u << 20, kMaxArena}, "size of the memory tier"},
    {"chunk_bytes", number{&server_config::chunk_bytes, 4u << 20, kMaxArena, number::shape::power_of_two},
     "size of the pieces in which clients map and register the memory tier: a power of two"},
    {"huge_pages", &server_config::huge_pages, "use huge pages for the memory tier"},
    {"key_memory_bytes", number{&server_config::key_memory_bytes, 0, kMaxInteger},
     "maximum of memory for keys, in addition to the memory tier; beyond it, puts of volatile values under new keys are "
     "refused; 0: a quarter of the machine's memory"},
    {"extent_file_bytes", number{&server_config::extent_file_bytes, 0, kMaxInteger, number::shape::blocks},
     "size of a file for large values: a multiple of 4096, at least 4 MiB; applies to a new store; 0: 1 GiB, or a sixteenth "
     "of a disk under 16 GiB"},
    {"disk_reserve_bytes", number{&server_config::disk_reserve_bytes, 0, kMaxInteger},
     "disk space that stays free: puts beyond it are refused; 0: 256 MiB, or a twentieth of a disk under 5 GiB"},
    {"disk_limit_bytes", number{&server_config::disk_limit_bytes, 0, kMaxInteger},
     "maximum size of all files for large values; 0: the disk's size"},
    {"read_only", &server_config::read_only,
     "serve the existing values and refuse puts; the server writes nothing to the disk"},
    {"small_value_bytes", number{&server_config::small_value_bytes, 0, 1u << 20},
     "values up to this size are kept in the index, larger ones in files for large values"},
};

failure wrong(const char* name, const std::string& reason) {
  return {EINVAL, format("config field \"%s\": ", name) + reason};
}

struct assign {
  const field& spec;
  const json& value;
  server_config& parsed;

  status operator()(std::string server_config::*member) const { return text(parsed.*member); }
  status operator()(std::string tls_files::*member) const { return text(parsed.tls.*member); }
  status operator()(std::string etcd_tls::*member) const { return text(parsed.cluster_tls.*member); }
  status operator()(bool server_config::*member) const {
    if (!value.is_boolean()) return wrong(spec.name, "true or false is expected");
    parsed.*member = value.get<bool>();
    return {};
  }
  status operator()(std::vector<std::string> server_config::*member) const {
    std::vector<std::string> list;
    if (!value.is_array()) return wrong(spec.name, "a list of texts is expected");
    for (const auto& one : value) {
      if (!one.is_string()) return wrong(spec.name, "a list of texts is expected");
      if (auto done = text(one, list.emplace_back()); !done) return done;
    }
    parsed.*member = std::move(list);
    return {};
  }
  status operator()(const number& number_field) const {
    if (!value.is_number_integer()) return wrong(spec.name, "a whole number is expected");
    const bool negative = value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
    const std::uint64_t given = negative ? 0 : value.get<std::uint64_t>();
    if (negative || given < number_field.lowest || given > number_field.highest)
      return wrong(spec.name, format("from %llu to %llu", static_cast<unsigned long long>(number_field.lowest),
                                     static_cast<unsigned long long>(number_field.highest)));
    if (!number_field.fits(given))
      return wrong(spec.name, number_field.must_be == number::shape::blocks ? "a multiple of 4096" : "a power of two");
    parsed.*number_field.member = given;
    return {};
  }

 private:
  status text(std::string& destination) const {
    if (!value.is_string()) return wrong(spec.name, "a text is expected");
    return text(value, destination);
  }
  // The system would take what precedes a zero byte for the whole path.
  status text(const json& given, std::string& destination) const {
    destination = given.get<std::string>();
    return destination.find('\0') == std::string::npos ? status{} : status{wrong(spec.name, "it contains a zero byte")};
  }
};

struct differ {
  const server_config &before, &now;

  bool operator()(const number& field) const { return before.*field.member != now.*field.member; }
  bool operator()(std::string tls_files::*member) const { return before.tls.*member != now.tls.*member; }
  bool operator()(std::string etcd_tls::*member) const { return before.cluster_tls.*member != now.cluster_tls.*member; }
  template <class T>
  bool operator()(T server_config::*member) const {
    return before.*member != now.*member;
  }
};

// Keeps the fields in their order, so that the schema reads like the table above.
using schema = nlohmann::ordered_json;

struct describe {
  const server_config defaults{};

  schema operator()(const number& number_field) const {
    schema out{{"type", "integer"},
               {"minimum", number_field.lowest},
               {"maximum", number_field.highest},
               {"default", defaults.*number_field.member}};
    if (number_field.must_be == number::shape::blocks) out["multipleOf"] = store::kBlockBytes;
    if (number_field.must_be == number::shape::power_of_two)  // a schema can only list powers of two one by one
      for (std::uint64_t one = std::bit_ceil(number_field.lowest); one <= number_field.highest; one *= 2)
        out["enum"].push_back(one);
    return out;
  }
  schema operator()(bool server_config::*member) const { return {{"type", "boolean"}, {"default", defaults.*member}}; }
  schema operator()(std::vector<std::string> server_config::*) const {
    return {{"type", "array"}, {"items", {{"type", "string"}}}};
  }
  schema operator()(std::string server_config::*member) const {
    schema out{{"type", "string"}};
    if (!(defaults.*member).empty()) out["default"] = defaults.*member;
    return out;
  }
  schema operator()(std::string tls_files::*) const { return {{"type", "string"}}; }
  schema operator()(std::string etcd_tls::*) const { return {{"type", "string"}}; }
};

constexpr const char* kLogLevels[] = {"debug", "info", "warn", "error"};
constexpr const char* kUcxModes[] = {"auto", "off", "on"};
constexpr const char* kSocketModes[] = {"0600", "0660", "0666"};

// Parses JSON; the failure names the position.
result<json> parse_json(const std::string& text) {
  try {
    // The parser keeps the last of two fields with the same name, while somebody who reads the file may see the first.
    std::set<std::string> seen;
    std::string repeated;
    auto whole = json::parse(text, [&](int depth, json::parse_event_t event, const json& value) {
      const bool is_field = depth == 1 && event == json::parse_event_t::key;
      if (is_field && !seen.insert(value.get<std::string>()).second) repeated = value.get<std::string>();
      return true;
    });
    if (!repeated.empty()) return wrong(repeated.c_str(), "the field occurs twice");
    return whole;
  } catch (const json::exception& cause) {  // "[json.exception.parse_error.101] parse error at line 3, column 7: ..."
    const std::string said = cause.what();
    const auto position = said.find("at line"), name_end = said.find("] ");
    return failure{EINVAL,
                   "config: this is not a JSON object: " + (position != std::string::npos   ? said.substr(position)
                                                            : name_end != std::string::npos ? said.substr(name_end + 2)
                                                                                            : said)};
  }
}

}  // namespace

bool is_loopback(const std::string& endpoint) {
  const auto parts = split_endpoint(endpoint);
  if (!parts) return false;
  if (parts->first == "localhost") return true;  // the address is checked again before it is bound
  std::error_code no_number;
  const auto address = asio::ip::make_address(parts->first, no_number);
  return !no_number && address.is_loopback();
}

status read_config(const std::string& text, server_config& parsed) {
  const auto whole = parse_json(text);
  if (!whole) return whole.error();
  if (!whole->is_object()) return failure{EINVAL, "config: this is not a JSON object"};
  for (const auto& [name, value] : whole->items()) {
    const field* found = nullptr;
    for (const auto& one : kFields)
      if (name == one.name) found = &one;
    if (found == nullptr) return wrong(name.c_str(), "no such field; --print-schema lists them");
    if (auto done = std::visit(assign{*found, value, parsed}, found->destination); !done) return done;
  }
  return {};
}

status read_config_file(const std::string& path, server_config& parsed) {
  constexpr std::size_t kMaxBytes = 1u << 20;
  const auto text = read_whole_file(path, kMaxBytes);
  if (!text && text.code() == EFBIG) return failure{EFBIG, "config file " + path + " is longer than 1 MiB"};
  if (!text)
    return failure{text.code(), "config file " + path + " cannot be read: " + text.error().message + "; correct --config"};
  if (text->empty())
    return failure{EINVAL, "config file " + path + " is empty: write a JSON object, whose fields --print-schema lists"};
  if (auto done = read_config(*text, parsed); !done) return failure{done.code(), path + ": " + done.error().message};
  parsed.config_text = *text;
  return {};
}

// The server goes on serving meanwhile, and reading a pipe would wait for whoever writes it.
result<server_config> read_config_again(const std::string& path) {
  server_config next;
  if (status regular = need_regular_file(path); !regular)
    return failure{regular.code(), "config file " + path + ": " + regular.error().message};
  if (auto done = read_config_file(path, next); !done) return done.error();
  return next;
}

std::string changed_fields(const server_config& before, const server_config& now) {
  std::string out;
  for (const auto& one : kFields)
    if (std::visit(differ{before, now}, one.destination)) out += (out.empty() ? "" : ", ") + std::string(one.name);
  return out;
}

result<unsigned> parse_socket_mode(const std::string& text) {
  for (const char* known : kSocketModes)
    if (text == known) return static_cast<unsigned>(std::strtoul(known, nullptr, 8));
  return wrong("socket_mode", "0600, 0660 or 0666: who may connect");
}

status check(const server_config& config) {
  if (auto mode = parse_socket_mode(config.socket_mode); !mode) return mode.error();
  if (config.data.empty()) return failure{EINVAL, "no data directory: give --data DIR"};
  if (config.extent_file_bytes != 0 && config.extent_file_bytes < 4u << 20)
    return wrong("extent_file_bytes", "0, or 4194304 and more");
  if (config.read_only && !config.cluster.empty())
    return failure{EINVAL, "a server of a cluster takes puts: leave read_only out"};
  for (const auto& [field, list] : {std::pair("admins", &config.admins), std::pair("mappers", &config.mappers),
                                    std::pair("map_readers", &config.map_readers)})
    for (const std::string& one : *list)
      if (!is_principal(one))
        return wrong(field, "\"" + one + "\" is no principal: uid:N with a number, cert:URI, cn:NAME, tcp or *");
  if (auto quotas = parse_quotas(config.quotas); !quotas) return wrong("quotas", quotas.error().message);
  const auto& tls = config.tls;
  const int given = !tls.certificate.empty() + !tls.key.empty() + !tls.client_authority.empty();
  if (given != 0 && given != 3)
    return failure{EINVAL, "TLS needs tls_certificate, tls_key and tls_client_authority, all three"};
  if (!config.cluster.empty() && config.name.empty())
    return failure{EINVAL, "a server of a cluster needs a name: give each server its own (--name NAME)"};
  // These texts appear in the cluster's map, which is JSON, and in messages.
  for (const auto& [field, text] : {std::pair("name", &config.name), std::pair("cluster_name", &config.cluster_name),
                                    std::pair("advertise", &config.advertise)})
    if (!is_printable_utf8(*text)) return wrong(field, "it has control characters, or bytes that are not UTF-8");
  if (config.cluster_tls.certificate.empty() != config.cluster_tls.key.empty())
    return failure{EINVAL, "cluster_tls_certificate and cluster_tls_key belong together"};
  if (config.name.find(store_client::kFolderMark) != std::string::npos)
    return failure{EINVAL, "name: '#' cannot be part of a server's name"};
  if (!config.cluster.empty() && config.listen == "none")
    return failure{EINVAL, "a server of a cluster is reached by TCP: give --listen HOST:PORT"};
  for (const std::string* const endpoint : {&config.listen, &config.metrics})
    if (const auto parts = split_endpoint(*endpoint); *endpoint != "none" && !parts) return parts.error();
  if (config.listen != "none" && given == 0 && !is_loopback(config.listen) && !config.insecure)
    return failure{
        EACCES,
        format("%s is reachable from other machines and has no TLS: give certificates (docs/store-operate.md#security), "
               "or --insecure on a network where everybody may read and write everything",
               config.listen.c_str())};
  const bool names_tcp = std::find(config.admins.begin(), config.admins.end(), "tcp") != config.admins.end();
  if (!config.cluster.empty() && given == 0 && !names_tcp)
    return failure{
        EACCES,
        "servers of a cluster write each other's copies as admins: give certificates (docs/store-operate.md#security); if "
        "everybody who can reach the port may do everything, add tcp to the admins (--admins uid:N,tcp)"};
  if (config.metrics != "none" && !is_loopback(config.metrics) && !config.insecure)
    return failure{EACCES, format("metrics at %s are reachable from other machines: listen on 127.0.0.1, or give --insecure",
                                  config.metrics.c_str())};
  if (!store_client::ucx_mode_of(config.ucx))
    return failure{EINVAL, format("ucx \"%s\": auto, off or on", config.ucx.c_str())};
  for (const char* known : kLogLevels)
    if (config.log_level == known) return {};
  return failure{EINVAL, format("log level \"%s\": debug, info, warn or error", config.log_level.c_str())};
}

unsigned summing_threads(const server_config& config) noexcept {
  constexpr unsigned kMaxThreads = 16;  // enough for two GPUs at a time
  if (config.checksum_threads != 0) return static_cast<unsigned>(config.checksum_threads);
  return half_of_cpus(1, kMaxThreads);
}

std::uint64_t serving_threads(const server_config& config) noexcept {
  constexpr unsigned kCpusPerThread = 16;
  if (config.threads != 0) return config.threads;
  return std::clamp(std::thread::hardware_concurrency() / kCpusPerThread, 1u, 4u);
}

std::uint64_t default_spin_us(unsigned cpus) noexcept {
  // A polling thread takes a CPU that another thread could use, so with few CPUs threads sleep at once.
  return cpus > 4 ? 50 : 0;
}

std::string config_schema() {
  schema properties = schema::object();
  for (const auto& one : kFields) {
    properties[one.name] = std::visit(describe{}, one.destination);
    properties[one.name]["description"] = one.meaning;
  }
  properties["spin_us"].erase("default");  // depends on the number of CPUs (default_spin_us)
  const std::string principal = "(\\*|tcp|uid:(0|[1-9][0-9]*)|(cert|cn):.+)";
  for (const char* const list : {"admins", "mappers", "map_readers"})
    properties[list]["items"]["pattern"] = "^" + principal + "$";
  properties["quotas"]["items"]["pattern"] = "^" + principal + "( +(cluster-)?(bytes|keys)=[1-9][0-9]*[A-Za-z]*)*$";
  properties["log_level"]["enum"] = kLogLevels;
  properties["ucx"]["enum"] = kUcxModes;
  properties["socket_mode"]["enum"] = kSocketModes;
  const char* const tls[] = {"tls_certificate", "tls_key", "tls_client_authority"};
  schema together = schema::object();
  for (const char* one : tls)
    for (const char* other : tls)
      if (one != other) together[one].push_back(other);
  together["cluster_tls_certificate"].push_back("cluster_tls_key");
  together["cluster_tls_key"].push_back("cluster_tls_certificate");
  return schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                {"title", "Settings of `peerlane store serve --config` (docs/store-operate.md#settings)"},
                {"type", "object"},
                {"additionalProperties", false},
                {"properties", properties},
                {"dependentRequired", together}}
             .dump(2) +
         "\n";
}

store::engine_options engine_options_of(const server_config& config) {
  store::engine_options out;
  out.directory = config.data;
  out.arena_bytes = config.arena_bytes;
  out.chunk_bytes = config.chunk_bytes;
  out.huge_pages = config.huge_pages;
  out.key_memory_bytes = config.key_memory_bytes;
  if (config.extent_file_bytes != 0) out.extent_file_bytes = config.extent_file_bytes;
  if (config.disk_reserve_bytes != 0) out.disk_reserve_bytes = config.disk_reserve_bytes;
  out.read_only = config.read_only;
  out.disk_limit_bytes = config.disk_limit_bytes;
  out.small_value_bytes = static_cast<std::uint32_t>(config.small_value_bytes);
  return out;
}

}  // namespace pl::store_server
