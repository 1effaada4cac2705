// SPDX-License-Identifier: Apache-2.0
// UCX opens its descriptors without close-on-exec. A program started by this process would keep the connections open
// after the process has died, and its peers would not notice. So this code finds the descriptors and marks them.
//
// Owns the list of ports whose connections are marked. Thread-safe. No errors: what cannot be marked is inherited.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace pl {

// TCP ports on which a process listens for its peers; unused entries are 0.
using port_list = std::array<std::uint16_t, 8>;

// Descriptors of this process, ascending.
std::vector<int> open_descriptors();
// For descriptors of libraries that cannot be told to mark them, such as Asio's sockets. The child of a fork() between
// the two calls inherits it.
void set_close_on_exec(int fd) noexcept;
// Marks what is open now and was not in `before`, and returns the ports on which it listens. A descriptor that another
// thread opened meanwhile is marked too.
port_list close_on_exec_since(const std::vector<int>& before);
// Marks the TCP connections that were accepted on one of the ports `own`, or made to one of `theirs`.
void close_on_exec_connections(const port_list& own, const port_list& theirs);

// While an object of this type exists, a program executed by a forked child does not inherit descriptors that UCX opens
// later either: each child of fork() marks them first. A child of vfork() or posix_spawn() runs no such code, and
// inherits connections that UCX's thread has accepted since they were last marked. Thread-safe.
class exec_guard {
 public:
  exec_guard();
  ~exec_guard();
  exec_guard(const exec_guard&) = delete;
  exec_guard& operator=(const exec_guard&) = delete;
  void add_own(const port_list& ports) { add(own_, ports); }
  void add_peer(const port_list& ports) { add(theirs_, ports); }

 private:
  using sorted_ports = std::vector<std::uint16_t>;
  static void add(sorted_ports& list, const port_list& ports);
  static void before_fork();
  static void in_parent();
  static void in_child();
  static void mark(int fd);
  sorted_ports own_, theirs_;
  exec_guard* next_ = nullptr;
};

}  // namespace pl
