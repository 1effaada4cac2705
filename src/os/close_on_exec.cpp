// SPDX-License-Identifier: Apache-2.0
#include "os/close_on_exec.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>

namespace pl {
namespace {

bool is_marked(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  return flags < 0 || (flags & FD_CLOEXEC) != 0;
}

// The port of one end of a TCP socket; 0 for anything else.
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
  // The folder's own descriptor is closed by now: the next file that is opened gets its number.
  std::erase_if(found, [](int fd) { return fcntl(fd, F_GETFD) < 0; });
  std::sort(found.begin(), found.end());
  return found;
}

void set_close_on_exec(int fd) noexcept { fcntl(fd, F_SETFD, FD_CLOEXEC); }

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

// ---- In a forked child
// Only the child sees its descriptors as they are: a check before the fork would miss what UCX's thread accepts
// meanwhile.

namespace {

// Held while the list changes and across a fork, so that the child finds a consistent list.
std::mutex g_list_mutex;
exec_guard* g_list = nullptr;
// The forking thread, which keeps its id in the child; 0 if there is none. Not thread-local, because static TLS is
// scarce.
std::atomic<pthread_t> g_forking{0};

// Does not use the heap, because its locks may be held in the child of a multi-threaded process.
template <class Body>
void for_each_descriptor(Body body) {
  struct entry {  // the kernel's linux_dirent64
    std::uint64_t inode;
    std::int64_t offset;
    std::uint16_t bytes;
    std::uint8_t type;
    char name[1];
  };
  const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(entry) char buffer[4096];
  for (long filled; (filled = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;)
    for (long cursor = 0; cursor < filled;) {
      const auto& one = *reinterpret_cast<const entry*>(buffer + cursor);
      const char* const name = buffer + cursor + offsetof(entry, name);
      if (int fd = -1; std::from_chars(name, name + strlen(name), fd).ec == std::errc() && fd != folder) body(fd);
      cursor += one.bytes;
    }
  close(folder);
}

}  // namespace

exec_guard::exec_guard() {
  static std::once_flag once;
  // The C library removes the handlers when this library is unloaded.
  std::call_once(once, [] { pthread_atfork(before_fork, in_parent, in_child); });
  const std::lock_guard lock(g_list_mutex);
  next_ = g_list;
  g_list = this;
}

exec_guard::~exec_guard() {
  const std::lock_guard lock(g_list_mutex);
  exec_guard** position = &g_list;
  while (*position != this) position = &(*position)->next_;
  *position = next_;
}

void exec_guard::add(sorted_ports& list, const port_list& ports) {
  const std::lock_guard lock(g_list_mutex);
  for (const auto port : ports)
    if (const auto position = std::lower_bound(list.begin(), list.end(), port);
        port != 0 && (position == list.end() || *position != port))
      list.insert(position, port);
}

// Other threads hold the lock only briefly. A fork in a signal handler may have interrupted a thread that holds it:
// then the child marks nothing.
void exec_guard::before_fork() {
  constexpr int kTries = 10000;
  for (int i = 0; i < kTries; ++i) {
    if (g_list_mutex.try_lock()) {
      g_forking = pthread_self();
      return;
    }
    sched_yield();
  }
}

void exec_guard::in_parent() {
  if (g_forking != pthread_self()) return;
  g_forking = 0;
  g_list_mutex.unlock();
}

void exec_guard::in_child() {
  if (g_forking != pthread_self()) return;
  const int before = errno;
  if (g_list != nullptr) for_each_descriptor(mark);
  errno = before;
  in_parent();
}

void exec_guard::mark(int fd) {
  if (is_marked(fd)) return;
  const auto own = port_of(fd, &getsockname), theirs = port_of(fd, &getpeername);
  for (const exec_guard* each = g_list; each != nullptr; each = each->next_) {
    const bool is_ours = (own != 0 && std::binary_search(each->own_.begin(), each->own_.end(), own)) ||
                         (theirs != 0 && std::binary_search(each->theirs_.begin(), each->theirs_.end(), theirs));
    if (is_ours) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace pl
