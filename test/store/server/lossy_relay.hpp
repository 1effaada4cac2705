// SPDX-License-Identifier: Apache-2.0
// A TCP relay between clients and a server, which loses an answer: the server has done the request, and the connection
// breaks before its client is told.
#pragma once

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "test/store/server/loopback_listener.hpp"

namespace pl::store_test {

class lossy_relay {
 public:
  lossy_relay() : acceptor_([this] { accept_all(); }) {}
  ~lossy_relay() {
    stopping_ = true;
    shutdown(listener_.fd(), SHUT_RDWR);
    acceptor_.join();
    for (auto& one : relays_) one.join();
  }
  lossy_relay(const lossy_relay&) = delete;
  lossy_relay& operator=(const lossy_relay&) = delete;

  std::string endpoint() const { return listener_.endpoint(); }
  // HOST:PORT of the server. Connections before this call are closed at once.
  void lead_to(const std::string& server) {
    target_ = static_cast<std::uint16_t>(std::stoul(server.substr(server.rfind(':') + 1)));
  }
  // Loses what the server sends next, and its connection.
  void lose_next_answer() { wants_to_lose_ = true; }
  unsigned lost() const { return lost_; }

 private:
  void accept_all() {
    while (!stopping_) {
      const int client = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in address = loopback(target_);
      if (target_ == 0 || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        close(server), close(client);
        continue;
      }
      const int on = 1;
      for (const int fd : {client, server}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      relays_.emplace_back([this, client, server] {
        relay(client, server);
        close(client), close(server);
      });
    }
  }
  void relay(int client, int server) {
    std::array<char, 65536> bytes;
    while (!stopping_) {
      pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(ends, 2, 20) <= 0) continue;
      for (const bool is_answer : {false, true}) {
        if (ends[is_answer].revents == 0) continue;
        const ssize_t count = read(is_answer ? server : client, bytes.data(), bytes.size());
        if (count <= 0) return;
        if (is_answer && wants_to_lose_.exchange(false)) {
          ++lost_;
          return;
        }
        for (ssize_t sent = 0; sent < count;) {
          const auto left = static_cast<std::size_t>(count - sent);
          const ssize_t more = send(is_answer ? client : server, bytes.data() + sent, left, MSG_NOSIGNAL);
          if (more <= 0) return;
          sent += more;
        }
      }
    }
  }

  const loopback_listener listener_{64};
  std::atomic<std::uint16_t> target_{0};
  std::atomic<bool> stopping_{false}, wants_to_lose_{false};
  std::atomic<unsigned> lost_{0};
  std::vector<std::thread> relays_;  // of the acceptor, until it has ended
  std::thread acceptor_;
};

}  // namespace pl::store_test
