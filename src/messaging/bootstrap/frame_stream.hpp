// SPDX-License-Identifier: Apache-2.0
// Length-prefixed frames over a stream socket that does not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "os/unique_fd.hpp"

namespace pl::messaging {

inline constexpr std::uint32_t kFrameMagic = 0x524c4c50;  // "PLLR"
inline constexpr std::uint16_t kFrameVersion = 1;

// challenge and proof: where the job has a secret, between hello and welcome.
enum class star_frame_kind : std::uint16_t { hello = 1, welcome, refusal, message, challenge, proof };

inline constexpr std::size_t kMaxBody = 64u << 20;  // results of the largest run are far below; a stray length is not
// From a peer that has not proved yet that it belongs to the job: a hello with what a survivor knows of some thousand ranks.
inline constexpr std::size_t kMaxStrangerBody = 32u << 10;

// Little-endian, as x86 and ARM store it. The magic number of a big-endian sender differs and is rejected.
struct star_frame_head {
  std::uint32_t magic = kFrameMagic;
  std::uint16_t version = kFrameVersion;
  star_frame_kind kind = star_frame_kind::message;
  std::uint32_t rank = 0;    // the sender's
  std::uint32_t nodes = 0;   // how many ranks it expects
  std::uint64_t nonce = 0;   // hello: key of the job; later: the run's, given by rank 0
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
  void trust() { max_body_ = kMaxBody; }
  int fd() const { return socket_.get(); }
  // ECONNRESET, or ETIMEDOUT when the other end takes nothing.
  status send(star_frame_head head, std::span<const std::byte> body, unsigned timeout_ms);
  // Reads the available bytes. True: `out` is a whole frame. ECONNRESET: the other end is closed; EPROTO: it is no peerlane.
  result<bool> receive(star_frame& out);

 private:
  unique_fd socket_;
  std::size_t max_body_;
  star_frame partial_;
  std::size_t have_ = 0;  // bytes of head and body read so far
};

}  // namespace pl::messaging
