// SPDX-License-Identifier: Apache-2.0
// Two hosts on one machine: network namespaces of their own, joined by a wire in user space that delays and loses packets
// from a seed. It needs root and /dev/net/tun, and no traffic shaping in the kernel.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

#include "os/unique_fd.hpp"

namespace pl::messaging {

struct wire {
  std::uint64_t seed = 1;
  std::uint32_t least_delay_us = 0, most_delay_us = 0;
  double loss = 0;  // of all packets
};

class two_hosts {
 public:
  // Empty, or why this machine cannot have them (for a skip).
  std::string make(const wire& between);
  ~two_hosts();
  // For a child before it opens anything: it is on host `rank` from here on, for UCX and for messages. False: it is not.
  bool enter(int rank) const;
  // The wire leads nowhere from here on, and says so to nobody. Any process of the two hosts.
  void cut() const;
  // The loopback device of the host that the process has entered, which leads to no other host.
  static bool switch_on_loopback();

 private:
  std::string make_host(std::size_t rank);
  [[noreturn]] void relay(const wire& between) const;

  std::array<unique_fd, 2> network_, cable_;
  pid_t relay_ = -1;
};

}  // namespace pl::messaging
