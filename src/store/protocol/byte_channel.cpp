// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/byte_channel.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/descriptor_message.hpp"
#include "store/protocol/endpoint_text.hpp"

namespace pl::store_client {
namespace {

constexpr int kSocketBytes = 4 << 20;
constexpr std::size_t kMaxPieces = 64;

class socket_channel final : public byte_channel {
 public:
  socket_channel(int fd, store_protocol::path transport) : fd_(fd), transport_(transport) {}
  ~socket_channel() override {
    if (descriptor_ >= 0) ::close(descriptor_);
    ::close(fd_);
  }
  int fd() const noexcept override { return fd_; }
  store_protocol::path way() const noexcept override { return transport_; }

  result<std::size_t> write(std::span<const iovec> buffers) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(buffers.data());
    message.msg_iovlen = std::min(buffers.size(), kMaxPieces);
    const auto sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
    return failure{errno, format("the connection to the store broke: %s", errno_text(errno).c_str())};
  }

  result<std::size_t> read(void* destination, std::size_t bytes) override {
    return transport_ == store_protocol::path::unix_socket ? read_message(destination, bytes)
                                                           : ended(recv(fd_, destination, bytes, MSG_DONTWAIT));
  }
  int take_descriptor() noexcept override { return std::exchange(descriptor_, -1); }

 private:
  static result<std::size_t> ended(ssize_t got) {
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::size_t{0};
    const int code = got == 0 ? ECONNRESET : errno;
    return failure{code, got == 0 ? "the store closed the connection"
                                  : format("the connection to the store broke: %s", errno_text(code).c_str())};
  }
  result<std::size_t> read_message(void* destination, std::size_t bytes) {
    auto got = receive_with_descriptor(fd_, {static_cast<std::byte*>(destination), bytes}, MSG_DONTWAIT);
    if (got.descriptors > 0) {
      if (descriptor_ >= 0) ::close(descriptor_);
      descriptor_ = got.fd.release();
    }
    return ended(got.bytes);
  }
  int fd_;
  store_protocol::path transport_;
  int descriptor_ = -1;
};

// Finishes a non-blocking connect(); returns its outcome as an errno.
int finish_connect(int fd, unsigned timeout_ms) {
  pollfd one{fd, POLLOUT, 0};
  if (poll(&one, 1, static_cast<int>(timeout_ms)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.size() >= sizeof out.sun_path)
    return failure{EINVAL, format("the socket path %s is longer than 107 bytes", path.c_str())};
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

// Connects without blocking. A stopped store takes no connection from its queue, and connect() would block for ever
// once the queue is full. The kernel then answers EAGAIN and gives no notice of room, so this polls.
int connect_in_time(int fd, const sockaddr_un& target, unsigned timeout_ms) {
  constexpr unsigned kPauseMs = 5;
  const std::uint64_t deadline_ns = monotonic_ns() + std::uint64_t{timeout_ms} * 1'000'000;
  while (::connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
    if (errno != EAGAIN && errno != EINTR) return errno;
    if (monotonic_ns() >= deadline_ns) return ETIMEDOUT;
    (void)poll(nullptr, 0, kPauseMs);
  }
  return 0;
}

result<int> connect_unix(const std::string& path, unsigned timeout_ms) {
  const auto socket_address = unix_address(path);
  if (!socket_address) return socket_address.error();
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failure{errno, "socket: " + errno_text(errno)};
  if (const int code = connect_in_time(fd, *socket_address, timeout_ms); code != 0) {
    ::close(fd);
    if (code == ETIMEDOUT)
      return failure{code, format("the store's socket %s: its queue of connections is full, and none is accepted: is its "
                                  "process stopped?",
                                  path.c_str())};
    return failure{code, format("the store's socket %s: %s; is `peerlane store serve` running there?", path.c_str(),
                                errno_text(code).c_str())};
  }
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
  return fd;
}

result<int> connect_tcp(const std::string& endpoint, unsigned timeout_ms) {
  const auto parts = split_endpoint(endpoint);
  if (!parts) return parts.error();
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int code = getaddrinfo(parts->first.c_str(), parts->second.c_str(), &hints, &found))
    return failure{EINVAL, format("the store's address %s: %s", endpoint.c_str(), gai_strerror(code))};
  int last = EADDRNOTAVAIL, out = -1;
  for (const addrinfo* one = found; one != nullptr && out < 0; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    last = ::connect(fd, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (last == EINPROGRESS) last = finish_connect(fd, timeout_ms);
    if (last == 0) out = fd;
    else ::close(fd);
  }
  freeaddrinfo(found);
  if (out < 0) return failure{last, format("connecting to the store at %s: %s", endpoint.c_str(), errno_text(last).c_str())};
  const int enabled = 1;
  setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &enabled, sizeof enabled);
  setsockopt(out, SOL_SOCKET, SO_KEEPALIVE, &enabled, sizeof enabled);
  return out;
}

}  // namespace

bool is_listened_to(const std::string& path) {
  const auto socket_address = unix_address(path);
  const int fd = socket_address ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
  if (fd < 0) return false;
  const int code = connect_in_time(fd, *socket_address, 0);
  ::close(fd);
  return code == 0 || code == ETIMEDOUT;  // its queue is full
}

bool wait_for(int fd, bool to_write, unsigned timeout_ms) noexcept {
  pollfd one{fd, static_cast<short>(POLLIN | (to_write ? POLLOUT : 0)), 0};
  return poll(&one, 1, static_cast<int>(timeout_ms)) > 0;
}

result<std::unique_ptr<byte_channel>> connect(const address& target, unsigned timeout_ms) {
  if (!target.socket.empty()) {
    const auto fd = connect_unix(target.socket, timeout_ms);
    if (!fd) return fd.error();
    return std::unique_ptr<byte_channel>(new socket_channel(*fd, store_protocol::path::unix_socket));
  }
  if (target.endpoint.empty()) return failure{EINVAL, "where is the store? Give its socket or HOST:PORT"};
  const std::uint64_t began = monotonic_ns();
  const auto fd = connect_tcp(target.endpoint, timeout_ms);
  if (!fd) return fd.error();
  if (target.tls_certificate.empty())
    return std::unique_ptr<byte_channel>(new socket_channel(*fd, store_protocol::path::tcp));
  const std::uint64_t spent_ms = (monotonic_ns() - began) / 1'000'000;
  return start_tls(*fd, target, spent_ms < timeout_ms ? timeout_ms - static_cast<unsigned>(spent_ms) : 1);
}

}  // namespace pl::store_client
