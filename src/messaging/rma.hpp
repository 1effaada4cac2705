// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows (RMA): directly if direct_windows can access the window, else by messages. With messages,
// the target's side runs during the target's progress. The data uses the protocols and transports of messages, without
// matching; a part of the window takes the place of the receive.
//
// Owns: the windows of this process. Threads: the messenger's lock guards all calls.
// Errors: EINVAL: the window has ended, or the range is not inside it; ECONNRESET; EIO. Rejected arguments return an
// operation that has failed.
#pragma once

#include <map>

#include "messaging/direct_windows.hpp"
#include "messaging/packet_channel.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

class remote_access {
 public:
  remote_access(messenger_context& context, packet_channel& channel, rendezvous& transfers, direct_windows& direct)
      : context_(context), channel_(channel), rendezvous_(transfers), direct_(direct) {}

  // Selects window numbers that no earlier process of this rank has used, so that its keys match no window of this process.
  void number_from(std::uint32_t incarnation) noexcept { next_window_ = ((incarnation - 1) & 0xfffu) << 20 | 1u; }
  // Makes a window of the caller's memory, which must stay allocated until free_window().
  result<window::key_t> expose(const buffer& data);
  // Makes a window of new, zeroed memory that the other processes of the node can map.
  result<std::pair<window::key_t, std::byte*>> allocate(std::size_t bytes);
  // Rejects later requests. Transfers in progress continue (window_revocation.hpp).
  void end_window(std::uint32_t id);
  // Call it once nobody uses the memory of the window, which has ended.
  void free_window(std::uint32_t id) {
    ending_.erase(id);
    direct_.free(id);
  }
  // A put or get of at most kMaxAtOnce bytes between host memory and a window that direct_windows can access, without an
  // operation. Complete on return. False: nothing was moved; use put() or get(), which report errors.
  bool put_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data) {
    return move_at_once(key, offset, data, true);
  }
  bool get_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data) {
    return move_at_once(key, offset, data, false);
  }
  // `word`: changed after the put, if both fit into one frame; then the operation contains a signal_body.
  operation& put(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word* word = nullptr);
  operation& get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word& word);
  // Changes the words of deposits that have ended since the last call.
  void raise_due_words();
  // Reads an aligned 64-bit word of a window of this process.
  result<std::uint64_t> read_word(std::uint32_t id, std::uint64_t offset);
  // `before`: receives the old value, and must live until the operation ends; may be null.
  operation& atomic(const window::key_t& key, std::uint64_t offset, const atomic_request& request, std::uint64_t* before);

  void on_put(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_get(peer_state& source, const frame& head);
  void on_reply(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_atomic(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes);
  void on_atomic_reply(const frame& head);

 private:
  result<memory> window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const;
  static constexpr std::size_t kMaxAtOnce = 8u << 10;
  bool move_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data, bool is_put);
  std::optional<failure> refuses_word(const window::key_t& key, std::uint64_t offset,
                                      std::size_t bytes = sizeof(std::uint64_t)) const;
  // `code`: of the frame. kBehindPut: always send a frame, which must not overtake that of the put.
  void start_atomic(operation& made, const window::key_t& key, std::uint64_t offset, const atomic_request& request,
                    std::int32_t code = 0);
  void raise(operation& made, const signal_word& word, std::int32_t code = 0);
  void set_short_word(operation& made, const signal_word& word, std::int32_t code);
  // Also answers for a word that is rejected.
  void answer_put(const peer_state& source, const frame& head, int code);
  // Returns 0, or the errno value of the answer.
  int write_short(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  // Writes received bytes to memory of this process. Returns 0 or an errno value.
  int store(const memory& range, const void* data, std::size_t bytes);
  // Writes a put and changes its word. Returns 0, or the errno value of the answer.
  int write_with_word(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void change_word(const peer_state& source, const frame& head, const std::byte* payload);
  // Whether a word must wait for the put before it, or is rejected together with it.
  bool stops_word(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes);
  result<std::uint64_t> apply(const memory& range, const atomic_request& request);
  std::optional<failure> refuses_window(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes) const;

  messenger_context& context_;
  packet_channel& channel_;
  rendezvous& rendezvous_;
  direct_windows& direct_;
  std::map<std::uint32_t, memory> windows_;
  std::map<std::uint32_t, shared_pages> pages_, ending_;  // of live windows, and of windows that have ended
  std::uint32_t next_window_ = 1;
};

}  // namespace pl::messaging
