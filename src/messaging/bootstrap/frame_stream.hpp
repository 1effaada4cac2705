// SPDX-License-Identifier: Apache-2.0
// Length-prefixed frames over a non-blocking stream socket.
//
// Owns: the socket. Threads: one. Errors: as stated at each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "os/unique_fd.hpp"

namespace pl::messaging {

inline constexpr std::uint32_t kFrameMagic = 0x524c4c50;  // "PLLR"
inline constexpr std::uint16_t kFrameVersion = 1;

// If the job has a secret, `challenge` and `proof` are exchanged between `hello` and `welcome`.
enum class star_frame_kind : std::uint16_t { hello = 1, welcome, refusal, message, challenge, proof };

// Far above the results of the largest run; rejects a length that is garbage.
inline constexpr std::size_t kMaxBody = 64u << 20;
// Limit for a peer that is not authenticated yet: fits a hello with the claim of a survivor for some thousand ranks.
inline constexpr std::size_t kMaxUnauthenticatedBody = 32u << 10;

// Little-endian, the byte order of x86 and ARM. A big-endian sender is rejected because its magic number differs.
struct star_frame_head {
  std::uint32_t magic = kFrameMagic;
  std::uint16_t version = kFrameVersion;
  star_frame_kind kind = star_frame_kind::message;
  std::uint32_t rank = 0;    // the sender's
  std::uint32_t nodes = 0;   // how many ranks it expects
  std::uint64_t nonce = 0;   // hello: key of the job; later: number of the run, assigned by rank 0
  std::uint64_t length = 0;  // of the body
};
static_assert(sizeof(star_frame_head) == 32);

struct star_frame {
  star_frame_head head;
  std::vector<std::byte> body;
};

class frame_stream {
 public:
  explicit frame_stream(unique_fd socket, std::size_t max_body = kMaxBody)
      : socket_(std::move(socket)), max_body_(max_body) {}
  // The peer is authenticated: accept bodies up to kMaxBody.
  void trust() { max_body_ = kMaxBody; }
  int fd() const { return socket_.get(); }
  // Sends a whole frame; waits at most `timeout_ms`. ECONNRESET: the peer has closed the connection. ETIMEDOUT: the peer
  // does not read.
  status send(star_frame_head head, std::span<const std::byte> body, unsigned timeout_ms);
  // Reads the available bytes without waiting. True: `out` is a whole frame. ECONNRESET: the peer has closed the connection.
  // EPROTO: the peer is not a Peerlane process.
  result<bool> receive(star_frame& out);

 private:
  unique_fd socket_;
  std::size_t max_body_;
  star_frame partial_;
  std::size_t have_ = 0;  // bytes of head and body read so far
};

}  // namespace pl::messaging
