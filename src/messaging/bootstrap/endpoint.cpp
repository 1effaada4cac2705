// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/endpoint.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.hpp"
#include "os/abstract_address.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kForm = "; give rank 0's host and a free port of it, as in node7:5000 or [fe80::1]:5000";

unique_fd own(int fd) { return {real_device_io(), fd}; }

bool is_loopback(const endpoint::address& address) {
  if (address.family() == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24) == 127;
  if (address.family() == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr) != 0;
  return false;
}

// All addresses of this machine, with the same port and family.
endpoint::address wildcard_of(const endpoint::address& address) {
  endpoint::address any = address;
  if (address.family() == AF_INET) reinterpret_cast<sockaddr_in*>(&any.storage)->sin_addr.s_addr = htonl(INADDR_ANY);
  else reinterpret_cast<sockaddr_in6*>(&any.storage)->sin6_addr = in6addr_any;
  return any;
}

int new_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

result<unique_fd> try_listen(const endpoint::address& address, int backlog) {
  auto made = own(new_socket(address.family()));
  if (!made) return failure{errno, errno_text(errno)};
  const int yes = 1;
  if (address.family() != AF_UNIX) setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(made.get(), address.get(), address.length) != 0 || listen(made.get(), backlog) != 0)
    return failure{errno, errno_text(errno)};
  return made;
}

// A TCP socket that connects to a free ephemeral port of its own host can be assigned the same port, and is then connected
// to itself.
bool is_connected_to_itself(int socket) {
  endpoint::address mine, other;
  mine.length = other.length = sizeof mine.storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&mine.storage), &mine.length) != 0) return false;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&other.storage), &other.length) != 0) return false;
  return mine.family() != AF_UNIX && mine.length == other.length &&
         std::memcmp(&mine.storage, &other.storage, mine.length) == 0;
}

result<unique_fd> try_connect(const endpoint::address& address, unsigned timeout_ms) {
  auto made = own(new_socket(address.family()));
  if (!made) return failure{errno, errno_text(errno)};
  if (connect(made.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return failure{errno, errno_text(errno)};
    pollfd ready{made.get(), POLLOUT, 0};
    if (poll(&ready, 1, static_cast<int>(timeout_ms)) <= 0) return failure{ETIMEDOUT, "no answer"};
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return failure{error, errno_text(error)};
  }
  if (is_connected_to_itself(made.get())) return failure{ECONNREFUSED, "no process listens"};
  return made;
}

}  // namespace

result<endpoint> parse_endpoint(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return failure{EINVAL, "rendezvous " + text + " names no port" + kForm};
  std::string host = text.substr(0, colon);
  const auto port = parse_integer(text.substr(colon + 1));
  if (!port || *port < 1 || *port > 65535)
    return failure{EINVAL, "rendezvous " + text + ": the port is a number from 1 to 65535" + kForm};
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos)
    return failure{EINVAL, "rendezvous " + text + ": put an IPv6 address in brackets" + kForm};
  const bool is_any = host == "*";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = is_any ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  if (const int rc = getaddrinfo(is_any ? nullptr : host.c_str(), std::to_string(*port).c_str(), &hints, &found); rc != 0)
    return failure{EINVAL, "rendezvous " + text + ": " + gai_strerror(rc) + kForm};
  endpoint out;
  out.text = text;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    endpoint::address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    out.addresses.push_back(address);
  }
  freeaddrinfo(found);
  // The IPv6 wildcard socket also accepts IPv4 connections.
  if (is_any)
    std::stable_partition(out.addresses.begin(), out.addresses.end(),
                          [](const auto& address) { return address.family() == AF_INET6; });
  out.is_literal_loopback = host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
  return out;
}

endpoint local_endpoint(const std::string& key) {
  // Abstract name: starts with a zero byte, has no file, and disappears with the last descriptor.
  const std::string name = format("peerlane-%u-", static_cast<unsigned>(getuid())) + key;
  endpoint out;
  out.text = "this host's meeting point " + name;
  out.is_literal_loopback = true;
  endpoint::address address;
  const abstract_address local(name);
  std::memcpy(&address.storage, &local.place, sizeof local.place);
  address.length = local.size;
  out.addresses.push_back(address);
  return out;
}

result<unique_fd> listen_at(const endpoint& rendezvous, int backlog) {
  failure last{EINVAL, "no address"};
  for (const auto& address : rendezvous.addresses) {
    auto made = try_listen(address, backlog);
    // Debian's /etc/hosts maps a machine's own name to a loopback address, which other machines cannot reach.
    if (made && is_loopback(address) && !rendezvous.is_literal_loopback) {
      made->reset();
      made = try_listen(wildcard_of(address), backlog);
    }
    if (made) return made;
    if (last.code != EADDRINUSE) last = made.error();
  }
  if (last.code == EADDRINUSE)
    return failure{EADDRINUSE,
                   "rank 0 cannot listen at " + rendezvous.text +
                       ": the address is in use by another rank 0 or another program. Stop it, or use another port"};
  if (last.code == EADDRNOTAVAIL)
    return failure{EADDRNOTAVAIL, "rank 0 cannot listen at " + rendezvous.text +
                                      ": this is not an address of this machine; rank 0 must run on the rendezvous host"};
  return failure{last.code, "rank 0 cannot listen at " + rendezvous.text + ": " + last.message};
}

result<unique_fd> connect_to(const endpoint& rendezvous, unsigned timeout_ms) {
  failure last{EINVAL, "no address"};
  for (const auto& address : rendezvous.addresses) {
    auto made = try_connect(address, timeout_ms);
    if (made) return made;
    last = made.error();
  }
  return last;
}

void prepare_connection(int socket, unsigned timeout_s) {
  const int yes = 1, probes = 3;
  const int interval = std::max(1, static_cast<int>(timeout_s) / (probes + 1));
  const unsigned unacknowledged_ms = timeout_s * 1000;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

}  // namespace pl::messaging
