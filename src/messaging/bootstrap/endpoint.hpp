// SPDX-License-Identifier: Apache-2.0
// The address where ranks connect to rank 0: a TCP port of its host, or a local socket name that is valid on one host.
//
// Threads: any. Errors: as stated at each call.
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
  std::vector<address> addresses;    // in the order in which to try them
  std::string text;                  // as the user wrote it
  bool is_literal_loopback = false;  // 127.x.y.z, ::1 or localhost
};

// Parses "node7:5000", "10.0.0.1:5000", "[fe80::1]:5000" or, for rank 0, "*:5000" (all addresses of its machine), and
// resolves host names. EINVAL: no port, port 0, or a host name that does not resolve; the message says which.
result<endpoint> parse_endpoint(const std::string& text);
// The endpoint for processes of one user on one host that share `key`. It is an abstract socket name, so no file is left
// behind.
endpoint local_endpoint(const std::string& key);

// Rank 0: opens a listening socket. EADDRINUSE, EADDRNOTAVAIL: the message explains the error in terms of ranks.
result<unique_fd> listen_at(const endpoint& rendezvous, int backlog);
// Other ranks: connects, and prepares the connection for frames. ECONNREFUSED and other errors of connect(2): nobody
// listens yet, so try again.
result<unique_fd> connect_to(const endpoint& rendezvous, unsigned timeout_ms);
// Prepares an accepted socket: no Nagle delay, keep-alive, non-blocking. The death of the peer's host is detected within
// `timeout_s` seconds.
void prepare_connection(int socket, unsigned timeout_s);
// Whether the peer is a process of this user on this machine. Local sockets are checked by their credentials, loopback
// connections by the kernel's connection table (/proc/net/tcp). Also false if the kernel does not tell. (peer_identity.cpp)
bool is_same_user(int socket);

}  // namespace pl::messaging
