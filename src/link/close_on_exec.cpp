// SPDX-License-Identifier: Apache-2.0
#include "close_on_exec.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string>

namespace pl::link {
namespace {

bool is_marked(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  return flags < 0 || (flags & FD_CLOEXEC) != 0;
}

// Of one end of a TCP socket; 0 for anything else.
std::uint16_t port_of(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  int type = 0;
  socklen_t type_bytes = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0 || type != SOCK_STREAM) return 0;
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

bool has_port(const port_list& among, std::uint16_t port) {
  return port != 0 && std::find(among.begin(), among.end(), port) != among.end();
}

}  // namespace

std::vector<int> open_descriptors() {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = each.path().filename();
    if (int fd = -1; std::from_chars(name.data(), name.data() + name.size(), fd).ec == std::errc()) found.push_back(fd);
  }
  std::sort(found.begin(), found.end());
  return found;
}

port_list close_on_exec_since(const std::vector<int>& before) {
  port_list ports{};
  std::size_t known = 0;
  for (const int fd : open_descriptors()) {
    if (std::binary_search(before.begin(), before.end(), fd) || is_marked(fd)) continue;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    if (const auto port = port_of(fd, &getsockname); port != 0 && known < ports.size()) ports[known++] = port;
  }
  return ports;
}

void close_on_exec_connections(const port_list& own, const port_list& theirs) {
  for (const int fd : open_descriptors())
    if (!is_marked(fd) && (has_port(own, port_of(fd, &getsockname)) || has_port(theirs, port_of(fd, &getpeername))))
      fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace pl::link
