// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <asio/ssl/stream.hpp>
#include <asio/write.hpp>

#include "text.hpp"

namespace pl::store_server {
namespace {

void set_up(asio::ip::tcp::socket& socket, peer& who) {
  std::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto from = socket.remote_endpoint(ignored);
  who.where = format("%s:%u", from.address().to_string().c_str(), from.port());
}

class tcp_transport final : public transport {
 public:
  explicit tcp_transport(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}
  void start(std::function<void(std::error_code)> ready) override {
    peer_.way = store_wire::path::tcp;
    peer_.principal = "tcp";
    set_up(socket_, peer_);
    ready({});
  }
  void read_some(asio::mutable_buffer into, done then) override { socket_.async_read_some(into, std::move(then)); }
  void write(std::vector<asio::const_buffer> from, done then) override {
    asio::async_write(socket_, from, kAllAtOnce, std::move(then));
  }
  void close() override {
    std::error_code ignored;
    socket_.close(ignored);
  }

 private:
  asio::ip::tcp::socket socket_;
};

// The first URI among the certificate's alternative names, else its common name.
std::string principal_of(SSL* tls) {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(tls), X509_free);
  if (!certificate) return "cert:";
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const auto* text = name->d.uniformResourceIdentifier;
    return "cert:" + std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                 static_cast<std::size_t>(ASN1_STRING_length(text)));
  }
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
  return std::string("cert:") + name;
}

class tls_transport final : public transport {
 public:
  tls_transport(asio::ip::tcp::socket socket, asio::ssl::context& tls) : stream_(std::move(socket), tls) {}
  void start(std::function<void(std::error_code)> ready) override {
    peer_.way = store_wire::path::tls;
    set_up(stream_.next_layer(), peer_);
    stream_.async_handshake(asio::ssl::stream_base::server, [this, ready = std::move(ready)](std::error_code error) {
      if (!error) peer_.principal = principal_of(stream_.native_handle());
      ready(error);
    });
  }
  void read_some(asio::mutable_buffer into, done then) override { stream_.async_read_some(into, std::move(then)); }
  void write(std::vector<asio::const_buffer> from, done then) override { asio::async_write(stream_, from, std::move(then)); }
  void close() override {
    std::error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
};

}  // namespace

status transport::send_descriptor(std::string_view, int) {
  return failure{ENOTSUP, "descriptors travel over unix sockets only: connect to the store's socket for shm-direct"};
}

result<int> transport::open_rings() { return failure{ENOTSUP, "rings of bytes are for the store's socket only"}; }

std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket) {
  return std::make_unique<tcp_transport>(std::move(socket));
}
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket, asio::ssl::context& tls) {
  return std::make_unique<tls_transport>(std::move(socket), tls);
}

result<std::unique_ptr<asio::ssl::context>> make_tls_context(const tls_files& files) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* raw = context->native_handle();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(raw, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION);
  std::error_code error;
  const auto step = [&](const char* what, const std::string& file) -> status {
    if (!error) return {};
    return failure{EINVAL, format("TLS %s %s: %s", what, file.c_str(), error.message().c_str())};
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
