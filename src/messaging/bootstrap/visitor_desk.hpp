// SPDX-License-Identifier: Apache-2.0
// Whoever connects to rank 0's socket: strangers are turned away, and who shows that it belongs to the job is handed on.
//
// With a secret each side proves that it knows it, else the kernel tells that a visitor is of this user and machine. Until
// then nothing that a visitor says has any effect on the job.
//
// Owns: the connections of visitors. Threads: one. Errors: those of the judge; a visitor's own end with its connection.
#pragma once

#include <poll.h>

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/peer_identity.hpp"
#include "messaging/bootstrap/socket_star.hpp"

namespace pl::messaging {

inline constexpr unsigned kSendMs = 2000;  // of one small frame to a rank that waits for it

// How all ranks come to the same secret, for people.
inline constexpr const char* kHowToShare =
    "give every rank the same secret: (umask 077; head -c 32 /dev/urandom | base64 > FILE), a copy of FILE for each, and "
    "PEERLANE_LINK_SECRET_FILE=FILE";

std::string own_host_name();
star_frame_head head_of(const meeting& settings, star_frame_kind kind, std::uint64_t run);
// What a hello says, as both ends prove it: who, of how many, of which job, and its host.
std::vector<std::byte> text_to_prove(const star_frame_head& hello, std::span<const std::byte> host);

// ---- Bodies of frames
inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
inline std::string text_of(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}
template <class Fixed>
std::optional<Fixed> take_fixed(std::span<const std::byte> bytes, std::size_t offset = 0) {
  Fixed out;
  if (bytes.size() < offset || bytes.size() - offset < sizeof out) return std::nullopt;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

class visitor_desk {
 public:
  struct visitor {
    frame_stream stream;
    std::uint64_t arrived_ns = 0;
    // With a secret: what it said, once it was challenged.
    std::optional<star_frame> hello{};
    nonce own{}, peer_nonce{};
    bool is_over = false;
  };
  // What becomes of a visitor that belongs to the job's user. It may take the stream; a failure ends look_after().
  using judge = std::function<status(visitor& candidate, const star_frame_head& hello, const std::string& host)>;

  visitor_desk(meeting settings, std::string secret, judge decide)
      : settings_(std::move(settings)), secret_(std::move(secret)), decide_(std::move(decide)) {}
  visitor_desk(const visitor_desk&) = delete;  // `decide_` knows its owner
  visitor_desk& operator=(const visitor_desk&) = delete;

  // Of whom so many are under way at a time: the job's ranks, and strangers beside them.
  std::size_t max_visitors() const { return static_cast<std::size_t>(settings_.size) + kMaxStrangers; }
  void accept_all(int listener);
  status look_after();
  void turn_away(visitor& candidate, const std::string& text);
  void add_descriptors(std::vector<pollfd>& out) const {
    for (const auto& each : visitors_) out.push_back({each.stream.fd(), POLLIN, 0});
  }
  bool is_empty() const noexcept { return visitors_.empty(); }
  const std::string& last_turned_away() const noexcept { return turned_away_; }  // the last one's reason

 private:
  static constexpr std::size_t kMaxStrangers = 64;
  void make_room();
  status hear(visitor& candidate, star_frame&& said);
  void challenge(visitor& candidate, star_frame&& hello);

  const meeting settings_;
  const std::string secret_;
  const judge decide_;
  std::string turned_away_;
  std::vector<visitor> visitors_;
};

}  // namespace pl::messaging
