// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows: directly where direct_windows reaches them, else by messages. The target's side of a
// message runs in its progress. Data then uses the protocols and transports of messages, with a part of the window in place
// of a receive, and without matching.
//
// Owns: the windows of this process. Threads: the messenger's lock guards all calls.
// Errors: EINVAL the window has ended or the range leaves it, ECONNRESET, EIO; refused arguments become an operation that
// has failed.
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

  // Keys of earlier processes of this rank are none of this one's windows.
  void number_from(std::uint32_t incarnation) noexcept { next_window_ = ((incarnation - 1) & 0xfffu) << 20 | 1u; }
  result<window::key_t> expose(const buffer& data);
  // Memory that the other processes of the node map.
  result<std::pair<window::key_t, std::byte*>> allocate(std::size_t bytes);
  // Later requests are refused. Transfers under way go on (window_revocation.hpp).
  void end_window(std::uint32_t id);
  // Nobody uses the memory of the window, which has ended.
  void free_window(std::uint32_t id) {
    ending_.erase(id);
    direct_.free(id);
  }
  // A short put or get between host memory and a window that direct_windows reaches, without an operation. False: use put()
  // or get(), which say what is wrong.
  bool put_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data) {
    return move_at_once(key, offset, data, true);
  }
  bool get_at_once(const window::key_t& key, std::uint64_t offset, const buffer& data) {
    return move_at_once(key, offset, data, false);
  }
  // `word`: changed behind the put, if that is short enough to go with it in one frame; the operation holds a signal_body
  // then.
  operation& put(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word* word = nullptr);
  operation& get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& put_signal(const window::key_t& key, std::uint64_t offset, const buffer& data, const signal_word& word);
  // Words that came behind deposits, which have ended meanwhile.
  void raise_due_words();
  result<std::uint64_t> read_word(std::uint32_t id, std::uint64_t offset);
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
  // `code`: of the frame; kBehindPut: by a frame, which must not overtake that of the put.
  void start_atomic(operation& made, const window::key_t& key, std::uint64_t offset, const atomic_request& request,
                    std::int32_t code = 0);
  void raise(operation& made, const signal_word& word, std::int32_t code = 0);
  void set_short_word(operation& made, const signal_word& word, std::int32_t code);
  // Also of a word that is refused.
  void answer_put(const peer_state& source, const frame& head, int code);
  // 0, or the errno value of the answer.
  int write_short(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  // What came, in our memory. 0, or an errno value.
  int store(const memory& range, const void* data, std::size_t bytes);
  // A put with its word. 0, or the errno value of the answer.
  int write_with_word(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void change_word(const peer_state& source, const frame& head, const std::byte* payload);
  // Whether a word waits for the put before it, or is refused with it.
  bool stops_word(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes);
  result<std::uint64_t> apply(const memory& range, const atomic_request& request);
  std::optional<failure> refuses_window(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes) const;

  messenger_context& context_;
  packet_channel& channel_;
  rendezvous& rendezvous_;
  direct_windows& direct_;
  std::map<std::uint32_t, memory> windows_;
  std::map<std::uint32_t, shared_pages> pages_, ending_;  // of live windows, and of those that have ended
  std::uint32_t next_window_ = 1;
};

}  // namespace pl::messaging
