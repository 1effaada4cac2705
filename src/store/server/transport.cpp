// SPDX-License-Identifier: Apache-2.0
#include "store/server/transport.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <asio/ssl/stream.hpp>
#include <asio/write.hpp>

#include "base/regular_file.hpp"
#include "base/text.hpp"

namespace pl::store_server {
namespace {

void set_up(asio::ip::tcp::socket& socket, peer& other) {
  std::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Detects a vanished host within two minutes.
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int idle_s = 60, between_s = 15, probes = 4;
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  const auto remote = socket.remote_endpoint(ignored);
  other.origin = format("%s:%u", remote.address().to_string().c_str(), remote.port());
  other.is_local =
      remote.address().is_loopback() || (remote.address().is_v6() && remote.address().to_v6().is_v4_mapped() &&
                                         make_address_v4(asio::ip::v4_mapped, remote.address().to_v6()).is_loopback());
}

// Limits how long the kernel keeps unsent bytes after the close: up to 4 MiB, for minutes, if the client is gone or
// stopped. A live client takes its last answer within this time.
void end(asio::ip::tcp::socket& socket) {
  constexpr int kLastAnswerMs = 10'000;
  std::error_code ignored;
  if (socket.is_open())
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kLastAnswerMs, sizeof kLastAnswerMs);
  socket.close(ignored);
}

class tcp_transport final : public transport {
 public:
  explicit tcp_transport(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}
  void start(std::function<void(std::error_code)> ready) override {
    peer_.way = store_protocol::path::tcp;
    peer_.principal = "tcp";
    set_up(socket_, peer_);
    ready({});
  }
  void read_some(asio::mutable_buffer destination, done callback) override {
    socket_.async_read_some(destination, std::move(callback));
  }
  void write(std::vector<asio::const_buffer> buffers, done callback) override {
    asio::async_write(socket_, buffers, kAllAtOnce, std::move(callback));
  }
  void close() override { end(socket_); }
  bool has_left() override { return store_server::has_left(socket_.native_handle()); }

 private:
  asio::ip::tcp::socket socket_;
};

std::string text_of(const ASN1_STRING* name) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
                     static_cast<std::size_t>(ASN1_STRING_length(name)));
}

// The first URI among the certificate's alternative names, or else its common name. Their prefixes differ, so a common
// name cannot imitate a URI. Empty if it has neither, or one with a zero byte.
std::string principal_of(SSL* tls) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(tls), X509_free);
  if (!certificate) return {};
  const auto named = [](const char* kind, const std::string& name) {
    return name.empty() || name.find('\0') != std::string::npos ? std::string() : kind + name;
  };
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    return named("cert:", text_of(name->d.uniformResourceIdentifier));
  }
  const X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (index < 0) return {};
  unsigned char* utf8 = nullptr;
  const int bytes = ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
  const std::string name =
      bytes > 0 ? std::string(reinterpret_cast<const char*>(utf8), static_cast<std::size_t>(bytes)) : "";
  OPENSSL_free(utf8);
  return named("cn:", name);
}

class tls_transport final : public transport {
 public:
  tls_transport(asio::ip::tcp::socket socket, tls_context tls) : tls_(std::move(tls)), stream_(std::move(socket), *tls_) {}
  void start(std::function<void(std::error_code)> ready) override {
    peer_.way = store_protocol::path::tls;
    set_up(stream_.next_layer(), peer_);
    stream_.async_handshake(asio::ssl::stream_base::server, [this, ready = std::move(ready)](std::error_code error) {
      if (!error) peer_.principal = principal_of(stream_.native_handle());
      // There is no name to check
      if (!error && peer_.principal.empty()) error = std::make_error_code(std::errc::permission_denied);
      ready(error);
    });
  }
  void read_some(asio::mutable_buffer destination, done callback) override {
    stream_.async_read_some(destination, std::move(callback));
  }
  void write(std::vector<asio::const_buffer> buffers, done callback) override {
    asio::async_write(stream_, buffers, std::move(callback));
  }
  void close() override { end(stream_.next_layer()); }
  bool has_left() override { return store_server::has_left(stream_.next_layer().native_handle()); }

 private:
  const tls_context tls_;  // a reload may have replaced the server's
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
};

}  // namespace

status transport::send_descriptor(std::string_view, int) {
  return failure{ENOTSUP, "descriptors travel over unix sockets only: connect to the store's socket for shm-direct"};
}

result<int> transport::open_rings() { return failure{ENOTSUP, "rings work over the store's unix socket only"}; }

std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket) {
  return std::make_unique<tcp_transport>(std::move(socket));
}
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket, tls_context tls) {
  return std::make_unique<tls_transport>(std::move(socket), std::move(tls));
}

bool has_left(int socket) noexcept {
  pollfd one{socket, POLLRDHUP, 0};
  return poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

result<tls_context> make_tls_context(const tls_files& files, bool is_serving) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* raw = context->native_handle();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(raw, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  // Without tickets, each connection verifies a certificate against the authority in force at that time.
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  std::error_code error;
  for (const std::string* const file : {&files.certificate, &files.key, &files.client_authority})
    if (status good = is_serving ? need_regular_file(*file) : need_no_named_pipe(*file); !good)
      return failure{good.code(), "TLS file " + *file + ": " + good.error().message};
  const auto step = [&](const char* label, const std::string& file) -> status {
    if (!error) return {};
    return failure{EINVAL, format("TLS %s %s: %s", label, file.c_str(), error.message().c_str())};
  };
  context->use_certificate_chain_file(files.certificate, error);
  if (auto done = step("certificate", files.certificate); !done) return done.error();
  context->use_private_key_file(files.key, asio::ssl::context::pem, error);
  if (auto done = step("key", files.key); !done) return done.error();
  context->load_verify_file(files.client_authority, error);
  if (auto done = step("client authority", files.client_authority); !done) return done.error();
  context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, error);
  return context;
}

}  // namespace pl::store_server
