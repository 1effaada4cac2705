// SPDX-License-Identifier: Apache-2.0
// Values between a store and a client by UCX, beside the connection that asks for them: the client's end and the server's
// are the same code. A value travels in chunks of at most 1 MiB, up to 8 of a transfer under way; each is an active message
// with a head of its own:
//
//   secret (16 bytes) | token | offset | bytes | crc32c     little-endian, 40 bytes; the chunk itself goes by rendezvous
//
// The secret belongs to the session: the server draws it and greets with it, over the connection that authenticated
// the client. The token names one transfer; the receiving end draws it at random. A chunk is taken only if both are known
// here and it continues the one before within what was granted; anything else is refused before a byte of it moves.
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
  automatic,  // where RDMA joins the two ends
  on,         // over whatever UCX finds
};
// "off", "auto", "on".
std::optional<ucx_mode> ucx_mode_of(std::string_view name) noexcept;
// Whether one of the transports of a list ("rc_verbs/mlx5_0:1,tcp/eth0") is RDMA's.
bool has_rdma(std::string_view transports) noexcept;

struct stream_transfer {
  bool is_out = false;
  std::uint64_t token = 0;
  std::vector<iovec> pieces;  // the value's memory, in its order
  std::uint64_t bytes = 0;    // out: all of them; in: at most
  // Device memory instead of `pieces`: between [offset, offset + bytes) of it and host memory.
  std::function<status(std::uint64_t offset, std::byte* host, std::size_t bytes)> copy;
  std::function<void()> changed;

  std::uint64_t begun_bytes = 0;  // chunks that are under way or have ended
  std::uint64_t moved_bytes = 0;  // in chunks that have ended well
  unsigned under_way = 0;         // chunks: while there are, UCX may touch the memory
  std::uint32_t crc = 0;          // of [0, begun_bytes)
  bool stopped = false;           // no more chunks
  failure bad{0, {}};             // the first failure, and no more chunks after it
  bool ended_well() const noexcept { return bad.code == 0 && under_way == 0 && moved_bytes == begun_bytes; }
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
    std::function<void(void*, std::size_t)> pin;  // for staging memory; may be empty
    // A chunk names a transfer that is not known here: the last moment to add() those that come in. May be empty.
    std::function<void()> unknown;
  };
  // ENODEV, ENOSYS: the text says why UCX cannot be used.
  static result<std::unique_ptr<ucx_value_stream>> open(options wanted);
  // After destruction nothing touches the transfers' memory.
  ~ucx_value_stream();

  // This end's part of the greeting, without the secret.
  store_protocol::ucx_offer offer() const;
  // ENOTSUP: another version of UCX at the other end, or no RDMA between the two and mode is not `on`.
  result<stream_session_ptr> connect(const store_protocol::ucx_offer& other_end, const std::uint64_t (&secret)[2]);
  // Its transfers end with ECONNABORTED as UCX lets go of their memory, in the coming calls of progress().
  void close(const stream_session_ptr& one);
  status keep_registered(void* address, std::size_t bytes) { return port_->keep_registered(address, bytes); }

  // Takes UCX's worker down: it touches no memory any more, and whatever was under way ends with ECONNABORTED before this
  // returns. Only to be destroyed afterwards.
  void shut();

  // A transfer that goes out begins now. One whose session is lost ends at once.
  void add(const stream_session_ptr& session, const stream_transfer_ptr& transfer);
  // No more chunks; those under way end by themselves.
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
  std::unique_ptr<ucx::am_port> port_;  // goes first: it still calls into what is above
};

}  // namespace pl::store_client
