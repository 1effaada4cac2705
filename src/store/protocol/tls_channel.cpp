// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 at the client's end. The server's certificate must be signed by the given authority and name the host.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "store/protocol/byte_channel.hpp"
#include "store/protocol/endpoint_text.hpp"

namespace pl::store_client {
namespace {

std::string openssl_reason() {
  char text[256] = "no reason given";
  if (const auto code = ERR_get_error()) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return text;
}

// Avoids SIGPIPE: OpenSSL calls write(), which raises it on a connection that the store has closed, and that would end
// the caller's program.
int write_without_signal(BIO* bio, const char* data, int bytes) {
  const auto sent = send(static_cast<int>(BIO_get_fd(bio, nullptr)), data, static_cast<std::size_t>(bytes), MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

BIO* make_socket_bio(int socket) {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* const usual = BIO_s_socket();
    BIO_METHOD* const made = BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE");
    BIO_meth_set_write(made, write_without_signal);
    BIO_meth_set_read(made, BIO_meth_get_read(usual));
    BIO_meth_set_puts(made, BIO_meth_get_puts(usual));
    BIO_meth_set_ctrl(made, BIO_meth_get_ctrl(usual));
    BIO_meth_set_create(made, BIO_meth_get_create(usual));
    BIO_meth_set_destroy(made, BIO_meth_get_destroy(usual));
    return made;
  }();
  BIO* const out = BIO_new(method);
  if (out != nullptr) BIO_set_fd(out, socket, BIO_NOCLOSE);
  return out;
}

class tls_channel final : public byte_channel {
 public:
  tls_channel(int fd, SSL_CTX* context, SSL* tls) : fd_(fd), context_(context, SSL_CTX_free), tls_(tls, SSL_free) {}
  ~tls_channel() override { ::close(fd_); }
  int fd() const noexcept override { return fd_; }
  store_protocol::path way() const noexcept override { return store_protocol::path::tls; }

  result<std::size_t> write(std::span<const iovec> buffers) override {
    // One record at a time. Bytes that OpenSSL refused must be offered again unchanged, so only whole pieces are
    // gathered.
    std::size_t all = 0;
    for (const auto& piece : buffers) {
      std::size_t sent = 0;
      while (sent < piece.iov_len) {
        std::size_t took = 0;
        const int done =
            SSL_write_ex(tls_.get(), static_cast<const char*>(piece.iov_base) + sent, piece.iov_len - sent, &took);
        if (done != 1) {
          const auto ended = after(done);
          if (!ended) return ended.error();
          return all + sent;
        }
        sent += took;
      }
      all += sent;
    }
    return all;
  }

  result<std::size_t> read(void* destination, std::size_t bytes) override {
    std::size_t got = 0;
    const int done = SSL_read_ex(tls_.get(), destination, bytes, &got);
    if (done == 1) return got;
    const auto ended = after(done);
    if (!ended) return ended.error();
    return std::size_t{0};
  }

  status handshake(const std::string& host, unsigned timeout_ms) {
    const std::uint64_t end = monotonic_ns() + std::uint64_t{timeout_ms} * 1'000'000;
    for (;;) {
      const int done = SSL_connect(tls_.get());
      if (done == 1) return {};
      const int reason = SSL_get_error(tls_.get(), done);
      if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE)
        return failure{EPROTO, format("TLS with the store at %s: %s", host.c_str(), refusal().c_str())};
      const std::uint64_t now = monotonic_ns();
      if (now >= end) return failure{ETIMEDOUT, format("TLS with the store at %s: no answer", host.c_str())};
      wait_for(fd_, reason == SSL_ERROR_WANT_WRITE, static_cast<unsigned>((end - now) / 1'000'000 + 1));
    }
  }

 private:
  // OpenSSL's error says only that the certificate was refused.
  std::string refusal() {
    const long code = SSL_get_verify_result(tls_.get());
    if (code == X509_V_OK) return openssl_reason();
    ERR_clear_error();
    return format("the store's certificate is refused: %s", X509_verify_cert_error_string(code));
  }
  // Success means "not now".
  status after(int done) {
    const int reason = SSL_get_error(tls_.get(), done);
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) return {};
    if (reason == SSL_ERROR_ZERO_RETURN || (reason == SSL_ERROR_SYSCALL && ERR_peek_error() == 0))
      return failure{ECONNRESET, "the store closed the connection"};
    return failure{ECONNRESET, "the TLS connection to the store broke: " + openssl_reason()};
  }
  int fd_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
};

}  // namespace

result<std::unique_ptr<byte_channel>> start_tls(int socket, const address& target, unsigned timeout_ms) {
  const auto host = split_endpoint(target.endpoint);
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL* tls = context != nullptr ? SSL_new(context) : nullptr;
  auto out = std::make_unique<tls_channel>(socket, context, tls);
  if (tls == nullptr) return failure{ENOMEM, "TLS: " + openssl_reason()};
  SSL_set_min_proto_version(tls, TLS1_3_VERSION);
  SSL_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_set_verify(tls, SSL_VERIFY_PEER, nullptr);
  // A numeric host must be among the certificate's addresses, a name among its names.
  auto* rules = SSL_get0_param(tls);
  if (X509_VERIFY_PARAM_set1_ip_asc(rules, host->first.c_str()) != 1) {
    ERR_clear_error();
    SSL_set1_host(tls, host->first.c_str());
    SSL_set_tlsext_host_name(tls, host->first.c_str());
  }
  for (const std::string* const file : {&target.tls_certificate, &target.tls_key, &target.tls_authority})
    if (status good = need_no_named_pipe(*file); !good)
      return failure{good.code(), "TLS file " + *file + ": " + good.error().message};
  const bool loaded = SSL_use_certificate_chain_file(tls, target.tls_certificate.c_str()) == 1 &&
                      SSL_use_PrivateKey_file(tls, target.tls_key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                      SSL_CTX_load_verify_locations(context, target.tls_authority.c_str(), nullptr) == 1;
  if (!loaded)
    return failure{EINVAL, format("TLS files %s, %s, %s: %s", target.tls_certificate.c_str(), target.tls_key.c_str(),
                                  target.tls_authority.c_str(), openssl_reason().c_str())};
  BIO* const bio = make_socket_bio(socket);
  if (bio == nullptr) return failure{ENOMEM, "TLS: " + openssl_reason()};
  SSL_set_bio(tls, bio, bio);
  if (auto done = out->handshake(target.endpoint, timeout_ms); !done) return done.error();
  return std::unique_ptr<byte_channel>(std::move(out));
}

}  // namespace pl::store_client
