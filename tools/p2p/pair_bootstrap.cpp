// SPDX-License-Identifier: Apache-2.0
#include "pair_bootstrap.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "clock.hpp"
#include "local_bootstrap.hpp"
#include "text.hpp"
#include "unique_handle.hpp"

namespace pl::p2p {
namespace {

constexpr int kPatienceMs = 120'000;
constexpr std::uint64_t kMaxContribution = std::uint64_t{64} << 20;
constexpr std::uint64_t kHello = 0x706c2d7032702d31;  // "pl-p2p-1": a stranger on the port is found out

struct socket_traits {
  using type = int;
  static constexpr int empty() { return -1; }
  static void destroy(int fd) noexcept { close(fd); }
};
using socket_handle = unique_handle<socket_traits>;

// The connection to the other side.
class pair_exchange {
 public:
  pair_exchange(socket_handle peer, int rank) : peer_(std::move(peer)), rank_(rank) {}

  result<std::vector<link::byte_string>> all_gather(std::span<const std::byte> mine) {
    const std::uint64_t length = mine.size();
    std::uint64_t theirs = 0;
    if (auto done = put(&length, sizeof length); !done) return done.error();
    if (auto done = get(&theirs, sizeof theirs); !done) return done.error();
    if (theirs > kMaxContribution) return failure{EPROTO, "the other side does not speak this program's protocol"};
    // One after the other: both writing more than the sockets hold would wait for each other.
    link::byte_string other(theirs);
    for (int turn = 0; turn < 2; ++turn) {
      auto done = turn == rank_ ? put(mine.data(), mine.size()) : get(other.data(), other.size());
      if (!done) return done.error();
    }
    std::vector<link::byte_string> out(2);
    out[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    out[static_cast<std::size_t>(1 - rank_)] = std::move(other);
    return out;
  }
  status greet() {
    std::uint64_t theirs = 0;
    if (auto done = put(&kHello, sizeof kHello); !done) return done;
    if (auto done = get(&theirs, sizeof theirs); !done) return done;
    if (theirs != kHello) return failure{EPROTO, "the other side is not a peerlane p2p of this version"};
    return {};
  }

 private:
  status wait_for(short what) {
    pollfd one{peer_.get(), what, 0};
    const int ready = poll(&one, 1, kPatienceMs);
    if (ready == 0) return failure{ETIMEDOUT, "the other side was silent for 120 s"};
    if (ready < 0 && errno != EINTR) return failure{errno, "poll failed: " + errno_text(errno)};
    return {};
  }
  status put(const void* data, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      if (auto ready = wait_for(POLLOUT); !ready) return ready;
      const ssize_t sent = ::send(peer_.get(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
      if (sent < 0 && errno != EINTR && errno != EAGAIN) return gone();
      if (sent > 0) done += static_cast<std::size_t>(sent);
    }
    return {};
  }
  status get(void* data, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      if (auto ready = wait_for(POLLIN); !ready) return ready;
      const ssize_t got = ::recv(peer_.get(), static_cast<char*>(data) + done, bytes - done, 0);
      if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return gone();
      if (got > 0) done += static_cast<std::size_t>(got);
    }
    return {};
  }
  static status gone() { return failure{ECONNRESET, "the other side has ended"}; }

  socket_handle peer_;
  int rank_;
};

struct addrinfo_deleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using address_list = std::unique_ptr<addrinfo, addrinfo_deleter>;

result<address_list> look_up(const std::string& where, bool to_listen) {
  const auto colon = where.rfind(':');
  std::string host = colon == std::string::npos ? "" : where.substr(0, colon);
  const std::string port = colon == std::string::npos ? where : where.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (!to_listen && host.empty()) return failure{EINVAL, format("--peer %s: write host:port", where.c_str())};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) return failure{EINVAL, format("\"%s\" is no address: %s", where.c_str(), gai_strerror(code))};
  return address_list(found);
}

result<std::unique_ptr<link::bootstrap>> finish(socket_handle socket, int rank) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto made = std::make_shared<pair_exchange>(std::move(socket), rank);
  if (auto met = made->greet(); !met) return met.error();
  return link::callback_bootstrap(rank, 2, [made](std::span<const std::byte> mine) { return made->all_gather(mine); });
}

}  // namespace

result<std::unique_ptr<link::bootstrap>> listen_for_peer(const std::string& where) {
  auto addresses = look_up(where, true);
  if (!addresses) return addresses.error();
  int code = 0;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    socket_handle socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    const int on = 1;
    if (socket) setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!socket || bind(socket.get(), one->ai_addr, one->ai_addrlen) != 0 || listen(socket.get(), 1) != 0) {
      code = errno;
      continue;
    }
    socket_handle peer(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer) return failure{errno, "accept failed: " + errno_text(errno)};
    return finish(std::move(peer), 0);
  }
  return failure{code, format("--listen %s: %s", where.c_str(), errno_text(code).c_str())};
}

result<std::unique_ptr<link::bootstrap>> connect_to_peer(const std::string& where) {
  auto addresses = look_up(where, false);
  if (!addresses) return addresses.error();
  const std::uint64_t begin_ns = monotonic_ns();
  int code = 0;
  do {
    for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
      socket_handle socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
      if (socket && connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return finish(std::move(socket), 1);
      code = errno;
    }
    usleep(100'000);
  } while (monotonic_ns() - begin_ns < std::uint64_t{kPatienceMs} * 1'000'000);
  return failure{code, format("--peer %s does not answer: %s", where.c_str(), errno_text(code).c_str())};
}

}  // namespace pl::p2p
