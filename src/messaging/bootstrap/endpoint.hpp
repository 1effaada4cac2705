// SPDX-License-Identifier: Apache-2.0
// The address at which ranks connect to rank 0: a TCP port of its host, or a name that is valid on one host.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "os/unique_fd.hpp"

namespace pl::messaging {

struct endpoint {
  struct address {
    sockaddr_storage storage{};
    socklen_t length = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    int family() const { return storage.ss_family; }
  };
  std::vector<address> addresses;    // in the order to be tried
  std::string text;                  // as the user wrote it
  bool is_literal_loopback = false;  // 127.x.y.z, ::1 or localhost
};

// "node7:5000", "10.0.0.1:5000", "[fe80::1]:5000", or for rank 0 "*:5000", all addresses of its machine. EINVAL with what is
// wrong: no port, port 0, a name that no address has.
result<endpoint> parse_endpoint(const std::string& text);
// For processes of one user on one host that know the same key. An abstract socket name, so nothing needs cleaning up.
endpoint local_endpoint(const std::string& key);

// Rank 0's side. EADDRINUSE, EADDRNOTAVAIL: the message explains them in terms of ranks.
result<unique_fd> listen_at(const endpoint& rendezvous, int backlog);
// A new connection, ready for frames; ECONNREFUSED etc.: try again.
result<unique_fd> connect_to(const endpoint& rendezvous, unsigned timeout_ms);
// Of accept(): no delay, keep-alive, not blocking. A dead host is noticed within `timeout_s`.
void prepare_connection(int socket, unsigned timeout_s);
// Whether the other end is a process of this user on this machine: of a local socket by its credentials, over loopback by
// the kernel's table of connections (/proc/net/tcp). False too where the kernel does not tell. (peer_identity.cpp)
bool is_same_user(int socket);

}  // namespace pl::messaging
