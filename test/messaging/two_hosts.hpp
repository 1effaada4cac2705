// SPDX-License-Identifier: Apache-2.0
// Two hosts on one machine: network namespaces of their own, joined by a wire in user space that delays and loses packets
// from a seed. It needs root and /dev/net/tun, and no traffic shaping in the kernel.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
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
  // Two wires of the kernel instead (veth, shaped by tbf): rail0 and rail1 on both hosts, 10.77.I.1 and 10.77.I.2 of /24. It
  // needs the programs ip and tc.
  std::string make_rails(unsigned mbit_per_s);
  // Switches this host's end of a rail off: the other end loses its link too. A process that has entered.
  static bool cut_rail(int rail);
  // The same without a word: what this host sends by it is dropped, and its link stays up.
  static bool silence_rail(int rail);
  // What this host has sent by it since it was made, in bytes.
  static std::uint64_t bytes_sent_by(int rail);
  // For a child before it opens anything: it is on host `rank` from here on, for UCX and for messages. False: it is not.
  bool enter(int rank) const;
  // The wire leads nowhere from here on, and says so to nobody. Any process of the two hosts.
  void cut() const;
  // The loopback device of the host that the process has entered, which leads to no other host.
  static bool switch_on_loopback();

 private:
  // The result of `make_one(rank)` in a network namespace of its own, for both.
  std::string make_hosts(const std::function<std::string(std::size_t rank)>& make_one);
  std::string make_rail(int rail, std::size_t rank, unsigned mbit_per_s) const;
  [[noreturn]] void relay(const wire& between) const;

  std::array<unique_fd, 2> network_, cable_;
  pid_t relay_ = -1;
};

}  // namespace pl::messaging
