// SPDX-License-Identifier: Apache-2.0
// Values between a store and a client by UCX, beside the connection that requests them. Client and server use the same
// code. A value travels in chunks of at most 1 MiB, up to 8 per transfer at a time. Each is an active message with its
// own head:
//
//   secret (16 bytes) | token | offset | bytes | crc32c     little-endian, 40 bytes; the chunk itself goes by rendezvous
//
// The secret belongs to the session: the server draws it and sends it in the handshake, over the connection that
// authenticated the client. The token names one transfer; the receiving end draws it at random. A chunk is accepted
// only if both are known here and it continues the previous chunk within what was granted. Anything else is refused
// before a byte of it moves.
//
// One thread at a time. `changed` functions are called from progress(), add() and close().
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <unordered_map>

#include "store/protocol/wire.hpp"
#include "ucx/am_port.hpp"

namespace pl::store_client {

inline constexpr std::uint64_t kStreamChunkBytes = 1 << 20;
inline constexpr unsigned kStreamWindow = 8;

enum class ucx_mode : std::uint8_t {
  off,
  automatic,  // if RDMA connects the two ends
  on,         // over any transport that UCX finds
};
// "off", "auto", "on".
std::optional<ucx_mode> ucx_mode_of(std::string_view name) noexcept;
// Whether a list of transports ("rc_verbs/mlx5_0:1,tcp/eth0") includes RDMA.
bool has_rdma(std::string_view transports) noexcept;

struct stream_transfer {
  bool is_out = false;
  std::uint64_t token = 0;
  std::vector<iovec> pieces;  // the value's memory, in order
  std::uint64_t bytes = 0;    // outgoing: all of them; incoming: the maximum
  // For device memory, replaces `pieces`: copies between its range [offset, offset + bytes) and host memory.
  std::function<status(std::uint64_t offset, std::byte* host, std::size_t bytes)> copy;
  std::function<void()> changed;

  std::uint64_t begun_bytes = 0;  // in chunks that are in progress or have ended
  std::uint64_t moved_bytes = 0;  // in chunks that have succeeded
  unsigned in_flight = 0;         // chunks in progress; UCX may touch the memory while there are any
  std::uint32_t crc = 0;          // of [0, begun_bytes)
  bool stopped = false;           // no more chunks
  failure bad{0, {}};             // the first failure; no chunks are sent after it
  bool ended_well() const noexcept { return bad.code == 0 && in_flight == 0 && moved_bytes == begun_bytes; }
};
using stream_transfer_ptr = std::shared_ptr<stream_transfer>;

struct stream_session {
  std::uint64_t secret[2] = {0, 0};
  ucx::am_port::peer_id peer = 0;
  std::string transports;  // "rc_verbs/mlx5_0:1"
  std::unordered_map<std::uint64_t, stream_transfer_ptr> transfers;
  bool lost = false;
  std::string why_lost;
  std::function<void()> on_lost;
};
using stream_session_ptr = std::shared_ptr<stream_session>;

class ucx_value_stream final : ucx::am_port::listener {
 public:
  struct options {
    ucx_mode mode = ucx_mode::automatic;
    bool is_store = false;                        // no key to this end's memory leaves it
    std::string library;                          // am_port::options::library
    std::function<void(void*, std::size_t)> pin;  // pins staging memory; may be empty
    // Called when a chunk names an unknown transfer: the last chance to add() incoming ones. May be empty.
    std::function<void()> unknown;
  };
  // ENODEV or ENOSYS if UCX cannot be used; the message says why.
  static result<std::unique_ptr<ucx_value_stream>> open(options wanted);
  // After destruction nothing touches the transfers' memory.
  ~ucx_value_stream();

  // This end's part of the handshake, without the secret.
  store_protocol::ucx_offer offer() const;
  // ENOTSUP if the other end has another version of UCX, or if there is no RDMA between the two and the mode is not
  // `on`.
  result<stream_session_ptr> connect(const store_protocol::ucx_offer& other_end, const std::uint64_t (&secret)[2]);
  // Its transfers end with ECONNABORTED as UCX releases their memory, in later calls of progress().
  void close(const stream_session_ptr& one);
  status keep_registered(void* address, std::size_t bytes) { return port_->keep_registered(address, bytes); }

  // Destroys UCX's worker: it no longer touches any memory, and everything in progress ends with ECONNABORTED before
  // this returns. Afterwards the object can only be destroyed.
  void shut();

  // An outgoing transfer starts now. If its session is lost, it ends at once.
  void add(const stream_session_ptr& session, const stream_transfer_ptr& transfer);
  // Starts no more chunks; those in progress end by themselves.
  void stop(const stream_session_ptr& session, const stream_transfer_ptr& transfer);

  bool progress() { return port_->progress(); }
  int fd() const noexcept { return port_->fd(); }
  bool arm() { return port_->arm(); }
  std::uint64_t refused() const noexcept { return refused_; }

 private:
  struct chunk {
    stream_session_ptr session;
    stream_transfer_ptr transfer;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, crc = 0;
    std::vector<iovec> memory;
    std::byte* staging = nullptr;
    std::list<chunk>::iterator place;
  };
  explicit ucx_value_stream(options wanted) : options_(std::move(wanted)) {}
  bool on_arrival(std::string_view head, std::size_t bytes, std::vector<iovec>& destination, void*& ticket) override;
  void on_received(void* ticket, int code) override;
  void on_sent(void* ticket, int code) override;
  void on_lost(ucx::am_port::peer_id id, const std::string& reason) override;
  void send_more(const stream_session_ptr& session, const stream_transfer_ptr& transfer);
  chunk& make_chunk(const stream_session_ptr& session, const stream_transfer_ptr& transfer, std::uint32_t bytes);
  void end_chunk(chunk& one, const failure& reason);
  void end_session(stream_session& one, const std::string& reason);
  std::byte* take_staging();

  options options_;
  std::unordered_map<std::uint64_t, stream_session_ptr> sessions_;  // by the first half of the secret
  std::list<chunk> chunks_;
  struct aligned_free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::vector<std::unique_ptr<std::byte[], aligned_free>> staging_;
  std::vector<std::byte*> free_staging_;
  std::uint64_t refused_ = 0;
  std::unique_ptr<ucx::am_port> port_;  // destroyed first: it still calls into the members above
};

}  // namespace pl::store_client
