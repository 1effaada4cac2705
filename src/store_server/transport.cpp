// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <asio/ssl/stream.hpp>
#include <asio/write.hpp>
#include <cstring>

#include "text.hpp"

namespace pl::store_server {
namespace {

constexpr int kSocketBytes = 4 << 20;

// A call takes what the socket has room for; Asio's own rule is 64 KiB a call, each with a turn of the event loop.
constexpr auto kAllAtOnce = [](std::error_code error, std::size_t) -> std::size_t { return error ? 0 : 4 << 20; };

class unix_transport final : public transport {
 public:
  explicit unix_transport(asio::local::stream_protocol::socket socket) : socket_(std::move(socket)) {}
  void start(std::function<void(std::error_code)> ready) override {
    ucred who{};
    socklen_t length = sizeof who;
    if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0)
      return ready(std::error_code(errno, std::generic_category()));
    std::error_code ignored;
    socket_.set_option(asio::socket_base::send_buffer_size(kSocketBytes), ignored);
    peer_ = {store_wire::path::unix_socket, format("uid:%u", who.uid), format("pid %d", who.pid), who.pid, who.uid};
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
  status send_descriptor(std::string_view bytes, int fd) override {
    iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
    // Some hundred bytes into an empty socket buffer: all or nothing in practice, and checked.
    const auto sent = sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(bytes.size())) return {};
    return failure{sent < 0 ? errno : EAGAIN, "the arena's descriptor could not be sent"};
  }

 private:
  asio::local::stream_protocol::socket socket_;
};

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

std::unique_ptr<transport> make_transport(asio::local::stream_protocol::socket socket) {
  return std::make_unique<unix_transport>(std::move(socket));
}
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
