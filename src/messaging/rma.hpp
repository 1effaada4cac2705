// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows. The target's side runs in its progress. Data uses the same protocols and transports
// as messages, with a part of the window in place of a receive, and without matching.
//
// Owns: the windows of this process. Threads: the messenger's lock guards all calls.
// Errors: EINVAL the window has ended or the range leaves it, ECONNRESET, EIO; refused arguments become an operation that
// has failed.
#pragma once

#include <map>

#include "messaging/packet_channel.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

// Behind the frame `atomic`.
struct atomic_request {
  atomic_op op = atomic_op::add;
  std::uint64_t operand = 0, compare = 0;
};

class remote_access {
 public:
  remote_access(messenger_context& context, packet_channel& channel, rendezvous& transfers)
      : context_(context), channel_(channel), rendezvous_(transfers) {}

  result<window::key_t> expose(const buffer& data);
  // Later requests are refused. Transfers under way go on (window_revocation.hpp).
  void end_window(std::uint32_t id);
  operation& put(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& atomic(const window::key_t& key, std::uint64_t offset, const atomic_request& request, std::uint64_t* before);

  void on_put(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_get(peer_state& source, const frame& head);
  void on_reply(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_atomic(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes);
  void on_atomic_reply(const frame& head);

 private:
  result<memory> window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const;
  result<std::uint64_t> apply(const memory& range, const atomic_request& request);
  std::optional<failure> refuses_window(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes) const;

  messenger_context& context_;
  packet_channel& channel_;
  rendezvous& rendezvous_;
  std::map<std::uint32_t, memory> windows_;
  std::uint32_t next_window_ = 1;
};

}  // namespace pl::messaging
