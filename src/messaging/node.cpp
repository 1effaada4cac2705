// SPDX-License-Identifier: Apache-2.0
#include "messaging/node.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

#include "os/device_io.hpp"

namespace pl::messaging {
namespace {

constexpr long kProcessPollNs = 50'000'000;  // interval at which sleeping threads check processes without a pidfd

}  // namespace

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
  const auto& added = watched_.emplace_back(entry{rank, process_end(pid)});
  return added.end.descriptor() >= 0 ? added.end.descriptor() : clock();
}

// If a container forbids pidfds, no descriptor becomes readable at the end of a process, so waiters must check periodically.
int death_watch::clock() {
  if (clock_) return clock_.get();
  clock_ = unique_fd(real_device_io(), timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const itimerspec often{{0, kProcessPollNs}, {0, kProcessPollNs}};
  if (clock_) timerfd_settime(clock_.get(), 0, &often, nullptr);
  return clock_.get();
}

void death_watch::remove(int rank) {
  std::erase_if(watched_, [&](const entry& each) { return each.rank == rank; });
  const auto needs_clock = [](const entry& each) { return each.end.descriptor() < 0; };
  if (std::none_of(watched_.begin(), watched_.end(), needs_clock)) clock_.reset();
}

void death_watch::add_descriptors(std::vector<int>& out) const {
  for (const auto& each : watched_)
    if (each.end.descriptor() >= 0) out.push_back(each.end.descriptor());
  if (clock_) out.push_back(clock_.get());
}

std::vector<int> death_watch::collect() {
  std::vector<int> ended;
  if (watched_.empty()) return ended;
  std::uint64_t ticks = 0;
  if (clock_) [[maybe_unused]]
    const auto got = read(clock_.get(), &ticks, sizeof ticks);
  std::vector<pollfd> asked;
  for (const auto& each : watched_) {
    asked.push_back({each.end.descriptor(), POLLIN, 0});  // poll() passes over -1
    if (each.end.descriptor() < 0 && each.end.has_ended()) ended.push_back(each.rank);
  }
  if (poll(asked.data(), asked.size(), 0) > 0)
    for (std::size_t i = 0; i < asked.size(); ++i)
      if (asked[i].revents != 0) ended.push_back(watched_[i].rank);
  for (const int rank : ended) remove(rank);
  return ended;
}

}  // namespace pl::messaging
