// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/etcd.hpp"

#include <openssl/ssl.h>

#include <array>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/ssl.hpp>
#include <asio/write.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.hpp"
#include "store/cluster/etcd_answer.hpp"

namespace pl::store_cluster {
namespace {

using asio::ip::tcp;
using json = nlohmann::json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t kMaxResponseBytes = 64u << 20;

// One request over its own connection: HTTP/1.0, so that the answer ends with the connection.
class exchange {
 public:
  // `tls`: null for none.
  exchange(std::string request, asio::ssl::context* tls) : request_(std::move(request)) {
    if (tls != nullptr) secure_.emplace(socket_, *tls);
  }

  result<std::string> run(const std::string& host, const std::string& port, std::chrono::milliseconds timeout) {
    std::error_code error;
    const auto found = resolver_.resolve(host, port, error);
    if (error) return failed(error, host, port);
    if (secure_) expect(host);
    asio::async_connect(socket_, found, [this](std::error_code reason, const tcp::endpoint&) {
      if (reason) return end(reason);
      if (!secure_) return talk(socket_);
      secure_->async_handshake(asio::ssl::stream_base::client, [this](std::error_code bad) {
        if (bad) return end(bad);
        talk(*secure_);
      });
    });
    home_.run_for(timeout);
    if (!done_) return failure{ETIMEDOUT, format("etcd at %s:%s did not answer in time", host.c_str(), port.c_str())};
    if (error_ && error_ != asio::error::eof) return failed(error_, host, port);
    return std::move(answer_);
  }

 private:
  // The certificate must name the host.
  void expect(const std::string& host) {
    secure_->set_verify_mode(asio::ssl::verify_peer);
    secure_->set_verify_callback(asio::ssl::host_name_verification(host));
    std::error_code no_number;
    asio::ip::make_address(host, no_number);
    if (no_number) SSL_set_tlsext_host_name(secure_->native_handle(), host.c_str());
  }
  // The answer ends with the connection; under TLS with its close message, so that no third party can truncate it.
  template <class Stream>
  void talk(Stream& stream) {
    asio::async_write(stream, asio::buffer(request_), [this, &stream](std::error_code bad, std::size_t) {
      if (bad) return end(bad);
      asio::async_read(stream, asio::dynamic_buffer(answer_, kMaxResponseBytes),
                       [this](std::error_code last, std::size_t) { end(last); });
    });
  }
  static failure failed(std::error_code reason, const std::string& host, const std::string& port) {
    int code = reason.category() == asio::error::get_system_category() ? reason.value() : EHOSTUNREACH;
    if (reason.category() == asio::error::get_ssl_category() || reason.category() == asio::ssl::error::get_stream_category())
      code = EPROTO;
    return {code, format("etcd at %s:%s: %s", host.c_str(), port.c_str(), reason.message().c_str())};
  }
  void end(std::error_code reason) {
    done_ = true;
    error_ = reason;
  }
  asio::io_context home_{1};
  tcp::resolver resolver_{home_};
  tcp::socket socket_{home_};
  std::optional<asio::ssl::stream<tcp::socket&>> secure_;
  std::string request_, answer_;
  std::error_code error_;
  bool done_ = false;
};

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

struct etcd::secrets {
  asio::ssl::context context{asio::ssl::context::tls_client};
};

result<std::shared_ptr<etcd::secrets>> etcd::read_files(const etcd_tls& tls) {
  if (tls.authority.empty())
    return failure{EINVAL, "etcd by https: give the authority that signed its certificate (--cluster-tls-ca)"};
  if (tls.certificate.empty() != tls.key.empty())
    return failure{EINVAL,
                   "etcd by https: a certificate and its key belong together (--cluster-tls-cert, --cluster-tls-key)"};
  auto out = std::make_shared<secrets>();
  SSL_CTX_set_min_proto_version(out->context.native_handle(), TLS1_2_VERSION);
  std::error_code error;
  const auto step = [&](const char* label, const std::string& file) -> status {
    if (!error) return {};
    return failure{EINVAL, format("etcd's TLS %s %s: %s", label, file.c_str(), error.message().c_str())};
  };
  out->context.load_verify_file(tls.authority, error);
  if (auto done = step("authority", tls.authority); !done) return done.error();
  if (tls.certificate.empty()) return out;
  out->context.use_certificate_chain_file(tls.certificate, error);
  if (auto done = step("certificate", tls.certificate); !done) return done.error();
  out->context.use_private_key_file(tls.key, asio::ssl::context::pem, error);
  if (auto done = step("key", tls.key); !done) return done.error();
  return out;
}

result<etcd> etcd::connect(const std::vector<std::string>& urls, std::chrono::milliseconds timeout, const etcd_tls& tls) {
  std::vector<address> out;
  bool any_secure = false;
  for (std::string_view one : urls) {
    const std::string whole(one);
    const bool secure = one.starts_with("https://");
    if (!secure && !one.starts_with("http://"))
      return failure{EINVAL, format("etcd address \"%s\": http(s)://HOST:PORT is expected", whole.c_str())};
    one.remove_prefix(secure ? 8 : 7);
    while (one.ends_with('/')) one.remove_suffix(1);
    const auto colon = one.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == one.size())
      return failure{EINVAL, format("etcd address \"%s\": http(s)://HOST:PORT is expected", whole.c_str())};
    std::string host(one.substr(0, colon));
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    out.push_back({std::move(host), std::string(one.substr(colon + 1)), secure});
    any_secure = any_secure || secure;
  }
  if (out.empty()) return failure{EINVAL, "no address of etcd is given"};
  if (!any_secure) return etcd(std::move(out), timeout, nullptr);
  auto files = read_files(tls);
  if (!files) return files.error();
  return etcd(std::move(out), timeout, *std::move(files));
}

result<std::string> etcd::post(const std::string& path, const std::string& body) const {
  failure last{EINVAL, "no address"};
  for (const auto& one : addresses_) {
    exchange talk(format("POST %s HTTP/1.0\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                         path.c_str(), one.host.c_str(), one.port.c_str(), body.size()) +
                      body,
                  one.secure ? &tls_->context : nullptr);
    auto answer = talk.run(one.host, one.port, timeout_);
    if (answer) return etcd_answer::body_of(*std::move(answer));
    last = answer.error();
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
