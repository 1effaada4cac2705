// SPDX-License-Identifier: Apache-2.0
// Connects the ranks of a job: every process tells the others its location and its addresses.
//
// In an elastic job, a rank that comes back sends its peer_info to each of the others, and they answer one by one.
//
// Owns: the peer_info of this process. Threads: the messenger's lock guards all calls, once it is open.
// Errors: EPROTO another version of the library, EPERM processes of a node that may not open each other's memory, ENOSYS a
// peer that could not open its messenger; errors of the bootstrap and of UCX.
#pragma once

#include "messaging/direct_windows.hpp"
#include "messaging/packet_channel.hpp"

namespace pl::messaging {

// Each process sends this to all others, twice: before it has opened its connections, and after. The second one is followed
// by a byte for each rank (whether it is on the same node) and by UCX's address.
struct peer_info {
  std::uint32_t protocol = kProtocol;
  std::uint32_t is_ready = 0;
  node_identity node;
  shm_queue_set::name send_queues;
  wakeup::name pipe;
  window_table::name windows;
  std::uint8_t has_light_barrier = 0;
  std::uint8_t has_gpu_lanes = 0;
  std::uint8_t wants_calibration = 0;
  std::uint8_t rails = 0;
  std::uint8_t is_elastic = 0;
  port_list ports{};                   // of UCX
  std::uint64_t unexpected_bytes = 0;  // limit of bytes from each peer without a posted receive
};

class peer_handshake {
 public:
  peer_handshake(messenger_context& context, packet_channel& channel, peer_watch& watch, direct_windows& windows)
      : context_(context), channel_(channel), watch_(watch), windows_(windows) {}

  // Collective. Returns whether every process requests a calibration. In a process that has come back, lost ranks are dead
  // from the start.
  result<bool> run(bootstrap& group);

  // ---- A rank comes back. Returns the answer of this process. The rank gets a new state, which is dead until it is back.
  result<byte_string> answer_first(peer_state& remote, std::span<const std::byte> said);
  bool is_on_node(std::span<const std::byte> first) const;
  byte_string answer_second(peer_state& remote, std::span<const std::byte> said);

 private:
  status prepare(const bootstrap& group);
  result<std::vector<peer_info>> gather(bootstrap& group);
  status open_queues(peer_state& remote, const peer_info& received);
  status open_fabric();
  byte_string second_peer_info() const;
  status accept(std::size_t rank, std::span<const std::byte> text);
  status take_incarnations(std::span<const std::byte> numbers);
  void miss(peer_state& remote) const;

  messenger_context& context_;
  packet_channel& channel_;
  peer_watch& watch_;
  direct_windows& windows_;
  peer_info mine_;
  int rank_on_node_ = 0;
};

}  // namespace pl::messaging
