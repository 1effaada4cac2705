// SPDX-License-Identifier: Apache-2.0
// Authenticates processes that connect to the socket of rank 0 (visitors): passes those of this job on, rejects all others.
//
// If the job has a secret, each side proves that it knows it. Otherwise the kernel must confirm that the visitor is a
// process of this user on this machine. Until then nothing that a visitor sends has any effect on the job.
//
// Owns: the connections of visitors. Threads: one. Errors: those of the judge. An error of a visitor only ends its
// connection.
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

inline constexpr unsigned kSendMs = 2000;  // time limit to send one small frame to a rank that waits for it

// Instructions for users: how to give all ranks the same secret.
inline constexpr const char* kHowToShare =
    "give every rank the same secret: (umask 077; head -c 32 /dev/urandom | base64 > FILE), a copy of FILE for each, and "
    "PEERLANE_LINK_SECRET_FILE=FILE";

std::string own_host_name();
star_frame_head head_of(const meeting& settings, star_frame_kind kind, std::uint64_t run);
// The part of a hello that the proofs of both sides cover: rank, number of ranks, job and host.
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
    // With a secret: its hello, once it was challenged.
    std::optional<star_frame> hello{};
    nonce own{}, peer_nonce{};
    bool is_over = false;
  };
  // Decides about an authenticated visitor. It may move the stream out of `candidate`; a failure ends look_after().
  using judge = std::function<status(visitor& candidate, const star_frame_head& hello, const std::string& host)>;

  visitor_desk(meeting settings, std::string secret, judge decide)
      : settings_(std::move(settings)), secret_(std::move(secret)), decide_(std::move(decide)) {}
  visitor_desk(const visitor_desk&) = delete;  // `decide_` refers to its owner
  visitor_desk& operator=(const visitor_desk&) = delete;

  // Limit for concurrent visitors: the ranks of the job, plus kMaxStrangers.
  std::size_t max_visitors() const { return static_cast<std::size_t>(settings_.size) + kMaxStrangers; }
  // Accepts all pending connections.
  void accept_all(int listener);
  // Handles what visitors have sent, without waiting for more. Errors: those of the judge.
  status look_after();
  // Sends `text` to the visitor as the reason; its connection is closed afterwards.
  void turn_away(visitor& candidate, const std::string& text);
  void add_descriptors(std::vector<pollfd>& out) const {
    for (const auto& each : visitors_) out.push_back({each.stream.fd(), POLLIN, 0});
  }
  bool is_empty() const noexcept { return visitors_.empty(); }
  const std::string& last_turned_away() const noexcept { return turned_away_; }  // reason of the last rejection

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
