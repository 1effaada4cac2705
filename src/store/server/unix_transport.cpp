// SPDX-License-Identifier: Apache-2.0
// A unix socket, and the shared memory rings that may replace it.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <asio/post.hpp>
#include <asio/write.hpp>
#include <optional>
#include <span>

#include "base/text.hpp"
#include "os/descriptor_message.hpp"
#include "store/protocol/byte_ring.hpp"
#include "store/server/ring_poller.hpp"
#include "store/server/transport.hpp"

namespace pl::store_server {
namespace {

using local_socket = asio::local::stream_protocol::socket;

constexpr int kSocketBytes = 4 << 20;

// The rings of a connection and its socket, which then carries wakeup bytes. Shared with the socket's handlers, which
// may run after the connection is gone.
class ringing final : public ring_poller::member, public std::enable_shared_from_this<ringing> {
 public:
  ringing(local_socket& socket, ring_poller& poller, std::unique_ptr<store_protocol::byte_rings> rings)
      : socket_(&socket), poller_(poller), rings_(std::move(rings)) {}
  int fd() const noexcept { return rings_->fd(); }

  void start() {
    poller_.add(this);
    await_wakeup();
  }
  void read_some(asio::mutable_buffer destination, transport::done callback) {
    destination_ = destination;
    read_ = std::move(callback);
  }
  // The next poll calls `callback`, not this function.
  void write(std::vector<asio::const_buffer> buffers, transport::done callback) {
    unsent_.clear();
    for (const auto& each : buffers) unsent_.push_back({const_cast<void*>(each.data()), each.size()});
    written_ = 0;
    write_ = std::move(callback);
    push();
  }
  std::size_t write_now(std::string_view bytes) {
    const iovec all{const_cast<char*>(bytes.data()), bytes.size()};
    const auto taken = rings_->write({&all, 1});
    if (!taken) broken_ = true;
    send_wakeup();
    return taken ? *taken : 0;
  }
  // The event loop calls the waiting handlers, because they may own the caller.
  void close() {
    if (socket_ == nullptr) return;
    poller_.remove(this);
    for (auto* const each : {&read_, &write_})
      if (*each)
        asio::post(socket_->get_executor(),
                   [callback = std::exchange(*each, nullptr)] { callback(asio::error::operation_aborted, 0); });
    socket_ = nullptr;
  }

  std::size_t poll() override {
    // The usual answer, for which the reference count would cost more than the rest.
    if (!write_ && !over_ && !broken_ && !rings_->has_incoming()) return 0;
    const auto keep = shared_from_this();
    std::size_t did = 0;
    if (write_) {
      push();
      if (unsent_.empty() || over_ || broken_)
        did += finish(write_, unsent_.empty() ? std::error_code() : reason(), written_);
    }
    if (read_ && socket_ != nullptr) {
      const auto got = rings_->read(destination_.data(), destination_.size());
      if (!got) broken_ = true;
      if (got && *got > 0) did += finish(read_, {}, *got);
      else if (over_ || broken_) did += finish(read_, reason(), 0);  // bytes before the end come first
    }
    if (socket_ != nullptr) send_wakeup();
    return did;
  }
  bool arm() override {
    if ((write_ && unsent_.empty()) || over_ || broken_) return !read_ && !write_;
    return rings_->arm(static_cast<bool>(read_), static_cast<bool>(write_));
  }
  void disarm() override { (void)rings_->disarm(); }

 private:
  static std::size_t finish(transport::done& one, std::error_code error, std::size_t bytes) {
    std::exchange(one, nullptr)(error, bytes);
    return 1;
  }
  std::error_code reason() const { return over_ ? *over_ : std::make_error_code(std::errc::protocol_error); }

  // Writes as much as fits.
  void push() {
    while (!unsent_.empty() && !broken_) {
      const auto taken = rings_->write(unsent_);
      if (!taken) broken_ = true;
      if (!taken || *taken == 0) break;
      written_ += *taken;
      std::size_t rest = *taken;
      std::size_t gone = 0;
      for (; gone < unsent_.size() && unsent_[gone].iov_len <= rest; ++gone) rest -= unsent_[gone].iov_len;
      unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(gone));
      if (!unsent_.empty() && rest > 0)
        unsent_[0] = {static_cast<std::byte*>(unsent_[0].iov_base) + rest, unsent_[0].iov_len - rest};
    }
    send_wakeup();
  }
  // A full socket already holds wakeup bytes.
  void send_wakeup() {
    const char wakeup = 1;
    if (rings_->take_wakeup_request())
      (void)send(socket_->native_handle(), &wakeup, sizeof wakeup, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void await_wakeup() {
    socket_->async_read_some(asio::buffer(wakeups_), [me = shared_from_this()](std::error_code error, std::size_t) {
      if (me->socket_ == nullptr) return;
      if (error) me->over_ = error;
      else me->await_wakeup();
    });
  }

  local_socket* socket_;  // null: closed
  ring_poller& poller_;
  const std::unique_ptr<store_protocol::byte_rings> rings_;
  std::array<char, 64> wakeups_{};
  asio::mutable_buffer destination_;
  std::vector<iovec> unsent_;  // the rest of the current write
  std::size_t written_ = 0;
  transport::done read_, write_;
  std::optional<std::error_code> over_;  // error of the socket
  bool broken_ = false;                  // the client reports impossible positions
};

class unix_transport final : public transport {
 public:
  unix_transport(local_socket socket, ring_poller* poller) : socket_(std::move(socket)), poller_(poller) {}
  ~unix_transport() override { close(); }
  void start(std::function<void(std::error_code)> ready) override {
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
      return ready(std::error_code(errno, std::generic_category()));
    std::error_code ignored;
    socket_.set_option(asio::socket_base::send_buffer_size(kSocketBytes), ignored);
    peer_ = {store_protocol::path::unix_socket,
             format("uid:%u", credentials.uid),
             format("pid %d", credentials.pid),
             credentials.pid,
             credentials.uid,
             true};
    ready({});
  }
  void read_some(asio::mutable_buffer destination, done callback) override {
    if (rings_ != nullptr) return rings_->read_some(destination, std::move(callback));
    socket_.async_read_some(destination, std::move(callback));
  }
  void write(std::vector<asio::const_buffer> buffers, done callback) override {
    if (rings_ != nullptr) return rings_->write(std::move(buffers), std::move(callback));
    asio::async_write(socket_, buffers, kAllAtOnce, std::move(callback));
  }
  std::size_t write_now(std::string_view bytes) override { return rings_ != nullptr ? rings_->write_now(bytes) : 0; }
  void close() override {
    if (rings_ != nullptr) rings_->close();
    std::error_code ignored;
    socket_.close(ignored);
  }
  bool has_left() override { return store_server::has_left(socket_.native_handle()); }
  status send_descriptor(std::string_view bytes, int fd) override;
  bool may_ring() const noexcept override { return poller_ != nullptr; }
  result<int> open_rings() override {
    if (poller_ == nullptr) return failure{ENOTSUP, "the store's threads do not look for work (\"spin_us\": 0)"};
    if (rings_ != nullptr) return failure{EEXIST, "the connection has rings already"};
    if (poller_->is_full()) return failure{ENOSPC, "too many connections have rings: this one keeps its socket"};
    auto made = store_protocol::byte_rings::make();
    if (!made) return made.error();
    rings_ = std::make_shared<ringing>(socket_, *poller_, *std::move(made));
    rings_->start();
    return rings_->fd();
  }

 private:
  local_socket socket_;
  ring_poller* const poller_;
  std::shared_ptr<ringing> rings_;  // null: the bytes go through the socket
};

status unix_transport::send_descriptor(std::string_view bytes, int fd) {
  // An empty socket buffer has room for a few hundred bytes, so they are sent whole in practice; this is checked.
  const auto sent = send_with_descriptor(socket_.native_handle(), std::as_bytes(std::span(bytes)), fd);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return failure{sent < 0 ? errno : EAGAIN, "a descriptor could not be sent"};
}

}  // namespace

std::unique_ptr<transport> make_transport(local_socket socket, ring_poller* poller) {
  return std::make_unique<unix_transport>(std::move(socket), poller);
}

}  // namespace pl::store_server
