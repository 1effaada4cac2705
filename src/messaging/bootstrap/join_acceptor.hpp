// SPDX-License-Identifier: Apache-2.0
// Authenticates processes that connect to the socket of rank 0: passes those of this job on, rejects all others.
//
// If the job has a secret, each side proves that it knows it. Otherwise the kernel must confirm that the process is a
// one of this user on this machine. Until then nothing that it sends has any effect on the job.
//
// Owns: the connections of these processes. Threads: one. Errors: those of the judge. An error of a process only ends its
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
star_frame_head head_of(const job_settings& settings, star_frame_kind kind, std::uint64_t run);
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

class join_acceptor {
 public:
  struct joining_process {
    frame_stream stream;
    std::uint64_t arrived_ns = 0;
    // With a secret: its hello, once it was challenged.
    std::optional<star_frame> hello{};
    nonce own{}, peer_nonce{};
    bool is_over = false;
  };
  // Decides about an authenticated process. It may move the stream out of `candidate`; a failure ends serve().
  using judge = std::function<status(joining_process& candidate, const star_frame_head& hello, const std::string& host)>;

  join_acceptor(job_settings settings, std::string secret, judge decide)
      : settings_(std::move(settings)), secret_(std::move(secret)), decide_(std::move(decide)) {}
  join_acceptor(const join_acceptor&) = delete;  // `decide_` refers to its owner
  join_acceptor& operator=(const join_acceptor&) = delete;

  // Limit for concurrent connections: the ranks of the job, plus kMaxUnauthenticated.
  std::size_t max_joining() const { return static_cast<std::size_t>(settings_.size) + kMaxUnauthenticated; }
  // Accepts all pending connections.
  void accept_all(int listener);
  // Handles what the processes have sent, without waiting for more. Errors: those of the judge.
  status serve();
  // Sends `text` to the process as the reason; its connection is closed afterwards.
  void reject(joining_process& candidate, const std::string& text);
  void add_descriptors(std::vector<pollfd>& out) const {
    for (const auto& each : joining_processes_) out.push_back({each.stream.fd(), POLLIN, 0});
  }
  bool is_empty() const noexcept { return joining_processes_.empty(); }
  const std::string& last_rejected() const noexcept { return rejected_; }  // reason of the last rejection

 private:
  static constexpr std::size_t kMaxUnauthenticated = 64;
  void make_room();
  status handle_frame(joining_process& candidate, star_frame&& said);
  void challenge(joining_process& candidate, star_frame&& hello);

  const job_settings settings_;
  const std::string secret_;
  const judge decide_;
  std::string rejected_;
  std::vector<joining_process> joining_processes_;
};

}  // namespace pl::messaging
