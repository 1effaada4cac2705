// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/etcd.hpp"

#include <openssl/ssl.h>

#include <asio/ssl.hpp>
#include <nlohmann/json.hpp>

#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "store/cluster/etcd_answer.hpp"
#include "store/cluster/http_client.hpp"

namespace pl::store_cluster {
namespace {

using json = nlohmann::json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

using tls_context = std::shared_ptr<asio::ssl::context>;

result<tls_context> read_files(const etcd_tls& tls) {
  if (tls.authority.empty())
    return failure{EINVAL, "etcd over https: give the authority that signed its certificate (--cluster-tls-ca)"};
  if (tls.certificate.empty() != tls.key.empty())
    return failure{EINVAL,
                   "etcd by https: a certificate and its key belong together (--cluster-tls-cert, --cluster-tls-key)"};
  auto out = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(out->native_handle(), TLS1_2_VERSION);
  std::error_code error;
  for (const std::string* const file : {&tls.authority, &tls.certificate, &tls.key})
    if (status good = need_no_named_pipe(*file); !good)
      return failure{good.code(), "etcd's TLS file " + *file + ": " + good.error().message};
  const auto step = [&](const char* label, const std::string& file) -> status {
    if (!error) return {};
    return failure{EINVAL, format("etcd's TLS %s %s: %s", label, file.c_str(), error.message().c_str())};
  };
  out->load_verify_file(tls.authority, error);
  if (auto done = step("authority", tls.authority); !done) return done.error();
  if (tls.certificate.empty()) return out;
  out->use_certificate_chain_file(tls.certificate, error);
  if (auto done = step("certificate", tls.certificate); !done) return done.error();
  out->use_private_key_file(tls.key, asio::ssl::context::pem, error);
  if (auto done = step("key", tls.key); !done) return done.error();
  return out;
}

result<http_address> address_in(const std::string& url) {
  const auto none = [&] {
    return failure{EINVAL, format("etcd address \"%s\": http(s)://HOST:PORT is expected", url.c_str())};
  };
  std::string_view rest = url;
  http_address out;
  out.is_secure = rest.starts_with("https://");
  if (!out.is_secure && !rest.starts_with("http://")) return none();
  rest.remove_prefix(out.is_secure ? 8 : 7);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == rest.size()) return none();
  out.host = rest.substr(0, colon);
  out.port = rest.substr(colon + 1);
  if (out.host.starts_with('[') && out.host.ends_with(']')) out.host = out.host.substr(1, out.host.size() - 2);
  return out;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    unsigned word = 0;
    for (std::size_t k = 0; k < 3; ++k) word = word << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= count ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

result<std::string> from_base64(std::string_view text) {
  std::string out;
  unsigned word = 0, bits = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char one : text) {
    const auto digit = kDigits.find(one);
    if (digit == std::string_view::npos) return failure{EPROTO, "this is not base64"};
    word = word << 6 | static_cast<unsigned>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out += static_cast<char>(word >> bits & 255);
  }
  return out;
}

std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 255) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

result<etcd> etcd::connect(const std::vector<std::string>& urls, std::chrono::milliseconds timeout, const etcd_tls& tls) {
  if (urls.empty()) return failure{EINVAL, "expected at least one address of etcd, got none"};
  std::vector<std::shared_ptr<http_client>> servers;
  tls_context files;
  for (const std::string& url : urls) {
    auto address = address_in(url);
    if (!address) return address.error();
    if (address->is_secure && !files) {
      auto read = read_files(tls);
      if (!read) return read.error();
      files = *std::move(read);
    }
    servers.push_back(std::make_shared<http_client>(*std::move(address), files));
  }
  return etcd(std::move(servers), timeout);
}

result<std::string> etcd::post(const std::string& path, const std::string& body) const {
  failure last{EINVAL, "no address"};
  for (const auto& server : servers_) {
    auto answer = server->post(path, body, timeout_);
    if (answer) return answer;
    // etcd refused, and so would its other members.
    if (answer.code() == EIO) return failure{EIO, "etcd at " + answer.error().message};
    last = {answer.code(), "etcd at " + answer.error().message};
  }
  return last;
}

result<etcd::snapshot> etcd::list(const std::string& prefix, bool without_values) const {
  json ask = {{"key", to_base64(prefix)}, {"range_end", to_base64(end_of_prefix(prefix))}};
  if (without_values) ask["keys_only"] = true;
  return etcd_answer::listed(post("/v3/kv/range", ask.dump()));
}

result<bool> etcd::transact(const std::vector<compare>& conditions, const std::vector<change>& writes) const {
  json compares = json::array(), changes = json::array();
  for (const auto& one : conditions)
    compares.push_back({{"key", to_base64(one.key)},
                        {"target", "MOD"},
                        {"result", "EQUAL"},
                        {"mod_revision", std::to_string(one.revision)}});
  for (const auto& one : writes) {
    const json key = to_base64(one.key);
    if (one.erase) changes.push_back({{"request_delete_range", {{"key", key}}}});
    else
      changes.push_back(
          {{"request_put", {{"key", key}, {"value", to_base64(one.value)}, {"lease", std::to_string(one.lease)}}}});
  }
  return etcd_answer::succeeded(post("/v3/kv/txn", json{{"compare", compares}, {"success", changes}}.dump()));
}

result<std::int64_t> etcd::grant(unsigned seconds) const {
  return etcd_answer::lease_given(post("/v3/lease/grant", json{{"TTL", std::to_string(seconds)}}.dump()));
}

result<std::int64_t> etcd::keep_alive(std::int64_t lease) const {
  return etcd_answer::seconds_left(post("/v3/lease/keepalive", json{{"ID", std::to_string(lease)}}.dump()));
}

status etcd::revoke(std::int64_t lease) const {
  return etcd_answer::done(post("/v3/lease/revoke", json{{"ID", std::to_string(lease)}}.dump()));
}

}  // namespace pl::store_cluster
