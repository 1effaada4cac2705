// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/http_client.hpp"

#include <openssl/ssl.h>

#include <array>
#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ssl.hpp>
#include <asio/write.hpp>
#include <optional>

#include "base/text.hpp"
#include "os/close_on_exec.hpp"
#include "store/cluster/http_answer.hpp"

namespace pl::store_cluster {

using asio::ip::tcp;
using clock_type = std::chrono::steady_clock;

struct http_client::tls_session {
  explicit tls_session(SSL_SESSION* taken) : handle(taken) {}
  ~tls_session() { SSL_SESSION_free(handle); }
  tls_session(const tls_session&) = delete;
  tls_session& operator=(const tls_session&) = delete;
  SSL_SESSION* const handle;
};

class http_client::connection {
 public:
  // `tls` is null without TLS.
  connection(const http_address& address, asio::ssl::context* tls) : address_(address) {
    if (tls != nullptr) secure_.emplace(socket_, *tls);
  }

  // Ends the session properly: OpenSSL discards a session whose connection ends without a notification.
  ~connection() {
    if (secure_ && is_good_) SSL_set_shutdown(secure_->native_handle(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  status open(const tls_session* resumed, clock_type::time_point deadline) {
    std::error_code error;
    const auto found = resolver_.resolve(address_.host, address_.port, error);
    if (error) return failed(error);
    auto done = run(deadline, [&](auto end) {
      asio::async_connect(socket_, found, [end](std::error_code reason, const tcp::endpoint&) { end(reason, 0); });
    });
    if (!done) return done.error();
    set_close_on_exec(socket_.native_handle());
    socket_.set_option(tcp::no_delay(true), error);
    if (!secure_) return {};
    expect_host();
    if (resumed != nullptr) SSL_set_session(secure_->native_handle(), resumed->handle);
    done = run(deadline, [&](auto end) {
      secure_->async_handshake(asio::ssl::stream_base::client, [end](std::error_code reason) { end(reason, 0); });
    });
    return done ? status() : status(done.error());
  }

  // Fills `answer` as far as it arrived, also on failure.
  status ask(const std::string& request, http_answer& answer, clock_type::time_point deadline) {
    auto done = secure_ ? talk(*secure_, request, answer, deadline) : talk(socket_, request, answer, deadline);
    is_good_ = done.ok();
    return done;
  }

  // Nothing may arrive from a server without a request: it has closed the connection, or is about to.
  bool is_quiet() {
    std::error_code error;
    char one = 0;
    socket_.non_blocking(true, error);
    socket_.receive(asio::buffer(&one, 1), tcp::socket::message_peek, error);
    return error == asio::error::would_block;
  }

  // Returns null if the connection is not secure or cannot be resumed.
  std::unique_ptr<tls_session> session() {
    if (!secure_) return nullptr;
    auto out = std::make_unique<tls_session>(SSL_get1_session(secure_->native_handle()));
    return out->handle != nullptr && SSL_SESSION_is_resumable(out->handle) != 0 ? std::move(out) : nullptr;
  }

 private:
  // The certificate must name the host.
  void expect_host() {
    secure_->set_verify_mode(asio::ssl::verify_peer);
    secure_->set_verify_callback(asio::ssl::host_name_verification(address_.host));
    std::error_code no_number;
    asio::ip::make_address(address_.host, no_number);
    if (no_number) SSL_set_tlsext_host_name(secure_->native_handle(), address_.host.c_str());
  }

  template <class Stream>
  status talk(Stream& stream, const std::string& request, http_answer& answer, clock_type::time_point deadline) {
    auto sent = run(deadline, [&](auto end) { asio::async_write(stream, asio::buffer(request), end); });
    // A server that refuses may answer before it has read everything.
    const std::optional<failure> not_sent = sent ? std::optional<failure>() : sent.error();
    for (;;) {
      std::error_code reason;
      auto count = run(
          deadline, [&](auto end) { stream.async_read_some(asio::buffer(input_), end); }, &reason);
      if (!count && reason == asio::error::eof) return answer.end();
      if (!count) return not_sent ? *not_sent : count.error();
      auto whole = answer.take(std::string_view(input_.data(), *count));
      if (!whole) return failure{whole.error().code, label() + whole.error().message};
      if (*whole) return {};
    }
  }

  // Starts an operation with a function that receives its end, waits for it, and returns the number of bytes moved.
  // `reason` describes a failure.
  template <class Start>
  result<std::size_t> run(clock_type::time_point deadline, const Start& start, std::error_code* reason = nullptr) {
    bool has_ended = false;
    std::error_code error;
    std::size_t moved = 0;
    home_.restart();
    start([&](std::error_code given, std::size_t count) {
      has_ended = true;
      error = given;
      moved = count;
    });
    home_.run_until(deadline);
    if (!has_ended) {
      std::error_code ignored;
      socket_.close(ignored);
      home_.restart();
      home_.run();  // the operation refers to this frame
      return failure{ETIMEDOUT, label() + "did not answer in time"};
    }
    if (reason != nullptr) *reason = error;
    if (error) return failed(error);
    return moved;
  }

  std::string label() const { return address_.host + ":" + address_.port + ": "; }
  failure failed(std::error_code reason) const {
    int code = reason.category() == asio::error::get_system_category() ? reason.value() : EHOSTUNREACH;
    if (reason.category() == asio::error::get_ssl_category() || reason.category() == asio::ssl::error::get_stream_category())
      code = EPROTO;
    return {code, label() + reason.message()};
  }

  const http_address& address_;
  asio::io_context home_{1};
  tcp::resolver resolver_{home_};
  tcp::socket socket_{home_};
  std::optional<asio::ssl::stream<tcp::socket&>> secure_;
  std::array<char, 16384> input_{};
  bool is_good_ = false;  // its last answer was complete
};

http_client::http_client(http_address address, std::shared_ptr<asio::ssl::context> tls)
    : address_(std::move(address)), tls_(address_.is_secure ? std::move(tls) : nullptr) {}
http_client::~http_client() = default;

std::unique_ptr<http_client::connection> http_client::take_idle() {
  const std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    auto one = std::move(idle_.back());
    idle_.pop_back();
    if (one->is_quiet()) return one;
  }
  return nullptr;
}

void http_client::keep(std::unique_ptr<connection> one) {
  auto session = one->session();
  const std::lock_guard lock(mutex_);
  if (session) session_ = std::move(session);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(one));
}

result<std::string> http_client::post(const std::string& path, const std::string& body, std::chrono::milliseconds limit) {
  const auto deadline = clock_type::now() + limit;
  const std::string request =
      format("POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             path.c_str(), address_.host.c_str(), address_.port.c_str(), body.size()) +
      body;
  for (;;) {
    auto link = take_idle();
    const bool was_kept = link != nullptr;
    if (!was_kept) {
      link = std::make_unique<connection>(address_, tls_.get());
      std::unique_ptr<tls_session> resumed;
      {
        const std::lock_guard lock(mutex_);
        resumed = std::move(session_);  // TLS 1.3 allows one use
      }
      if (auto done = link->open(resumed.get(), deadline); !done) return done.error();
    }
    http_answer answer;
    if (auto done = link->ask(request, answer, deadline); !done) {
      if (was_kept && !answer.has_begun() && done.code() != ETIMEDOUT) continue;
      return done.error();
    }
    if (answer.keeps_open()) keep(std::move(link));
    if (answer.is_ok()) return std::move(answer.body());
    return failure{
        EIO, address_.host + ":" + address_.port + " answered " + answer.outcome() + ": " + answer.body().substr(0, 200)};
  }
}

}  // namespace pl::store_cluster
