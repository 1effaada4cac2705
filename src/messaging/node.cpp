// SPDX-License-Identifier: Apache-2.0
#include "messaging/node.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

namespace pl::messaging {

node_identity node_identity::current() {
  node_identity out;
  auto& io = real_device_io();
  if (const auto boot = io.read_text("/proc/sys/kernel/random/boot_id")) out.boot = std::hash<std::string>{}(*boot);
  struct stat info {};
  if (stat("/proc/self/ns/pid", &info) == 0) out.pid_namespace = info.st_ino;
  out.pid = getpid();
  return out;
}

int death_watch::add(int rank, pid_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // Before Linux 5.3 there are no pidfds, only UCX's error callback.
  if (fd >= 0) watched_.push_back({rank, unique_fd(real_device_io(), fd)});
  return fd;
}

void death_watch::remove(int rank) {
  std::erase_if(watched_, [&](const entry& each) { return each.rank == rank; });
}

std::vector<int> death_watch::collect() {
  std::vector<int> ended;
  if (watched_.empty()) return ended;
  std::vector<pollfd> asked;
  for (const auto& each : watched_) asked.push_back({each.fd.get(), POLLIN, 0});
  if (poll(asked.data(), asked.size(), 0) <= 0) return ended;
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (asked[i].revents != 0) ended.push_back(watched_[i].rank);
  for (const int rank : ended) remove(rank);
  return ended;
}

}  // namespace pl::messaging
