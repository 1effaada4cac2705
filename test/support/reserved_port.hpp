// SPDX-License-Identifier: Apache-2.0
// Ports for the servers of a test, which nobody else on the machine is given meanwhile.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace pl::test {

// A free port of the loopback interface that stays reserved: the system gives it to nobody else who asks for any port,
// neither to listen nor to connect from. A program that binds it by number with SO_REUSEADDR, as servers do, gets it all
// the same, because this socket does not listen. Without this, tests that ran beside each other took the ports of servers
// that were still starting.
class reserved_port {
 public:
  explicit reserved_port(int family = AF_INET) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int enabled = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof enabled);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    auto* const address = family == AF_INET ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
    socklen_t bytes = family == AF_INET ? sizeof v4 : sizeof v6;
    if (bind(fd_, address, bytes) == 0 && getsockname(fd_, address, &bytes) == 0)
      number_ = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
  }
  ~reserved_port() { close(fd_); }
  reserved_port(const reserved_port&) = delete;
  reserved_port& operator=(const reserved_port&) = delete;
  std::uint16_t number() const { return number_; }  // 0: there is none
  std::string text() const { return std::to_string(number_); }

 private:
  const int fd_;
  std::uint16_t number_ = 0;
};

// A port that stays reserved until this process ends. 0: there is none.
inline std::uint16_t free_port(int family = AF_INET) {
  static std::mutex lock;
  static std::deque<reserved_port> all;
  const std::lock_guard hold(lock);
  return all.emplace_back(family).number();
}

}  // namespace pl::test
