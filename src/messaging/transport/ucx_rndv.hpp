// SPDX-License-Identifier: Apache-2.0
// Rendezvous through UCX, to other hosts. With RDMA a message from host memory uses UCX's own rendezvous in place, with no
// more packets than UCX alone needs. All other messages are sent as tagged parts. Between host memories the parts are sent
// from and received into the messages' own memory, and the whole message is one part where that is fastest. The same is done
// for GPU memory if UCX has RDMA lanes for it. Otherwise the parts pass through pinned chunks in a pipeline: while one part
// is copied from the GPU, the next is on the wire, and a third is copied to the other GPU.
//
// Owns: the parts in progress, the pinned chunks, and memory that UCX may still use after its peer was lost.
// Threads: as transport.hpp; UCX's callbacks run inside packet_channel::advance().
// Errors: ECONNRESET: the peer is lost; EIO: the sender could not read its memory; EPROTO; errors of UCX and of the copies.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "messaging/transport/chunk_copy.hpp"
#include "messaging/transport/pinned_pool.hpp"
#include "messaging/transport/transport.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::messaging {

class ucx_rndv;
struct peer_state;

constexpr std::size_t kChunksInFlight = 4;

// A tagged part of a message.
struct tagged_part : ucx_part {
  operation* op = nullptr;  // null: free, or abandoned
  std::uint64_t offset = 0, bytes = 0;
  std::byte* chunk = nullptr;  // from the pinned pool; null if direct
  bool is_busy = false;        // UCX uses the part
  bool is_arrived = false;     // UCX has completed the part
  bool is_filling = false;     // its copy is in progress
  bool is_scratch = false;     // received into `scratch`, because the message's memory was withdrawn
  int code = 0;                // UCX's result
  chunk_copy copy;
};

// This transport's part of the state of a transfer (transfer.hpp).
struct ucx_transfer {
  explicit ucx_transfer(ucx_rndv* transport) : owner(transport) {}
  ucx_rndv* owner;
  std::uint64_t chunk = 0;  // bytes in a part
  std::uint64_t first_tag = 0;
  std::uint64_t granted = 0;  // bytes whose receives are posted at the receiver, as far as the sender knows
  std::uint64_t lost_ns = 0;  // time when the peer was lost
  bool is_withdrawn = false;  // nothing more is sent or received
  bool is_direct = false;     // parts are in the message's own memory
  bool is_raw_gpu = false;
  unsigned parts_busy = 0;
  std::array<std::byte, 8> scratch;  // shorter than any part: UCX drops the bytes that do not fit
  // Active parts, in order of their offsets modulo their number. Empty while a send waits for its RTR.
  std::unique_ptr<std::array<tagged_part, kChunksInFlight>> parts;
};

class ucx_rndv final : public transport {
 public:
  explicit ucx_rndv(rendezvous& owner);
  ~ucx_rndv() override;
  // Call it once the limits of the messenger are known.
  void open();
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  bool start_send(operation& send, const rtr_body& request) override;
  void advance() override;
  bool must_poll() const override;
  bool abort(operation& op, const abort_reason& reason) override;

  // Whether a message from this memory to this remote peer uses UCX's own rendezvous.
  bool moves_in_place(int rank, const memory& source) const;
  // The receiver has posted receives for all parts up to byte `granted`.
  static void raise_grant(operation& send, std::uint64_t granted);
  // packet::done of an RTS in place.
  static void on_in_place_sent(packet& outgoing, int code);

 private:
  void end_in_place(operation& op, int code);
  void receive_in_place(operation& receive);
  void advance_send(operation& op);
  bool fill_part(operation& op, tagged_part& part);
  void send_part(operation& op, tagged_part& part);
  void advance_receive(operation& op);
  void empty_part(operation& op, tagged_part& part);
  void post_parts(operation& op);
  void post_part(operation& op, tagged_part& part);
  void post_scratch(operation& op, tagged_part& part);
  static void on_part(ucx_part& bulk, int code, std::size_t bytes);
  void end_part(operation& op, tagged_part& part);
  void abandon_parts(operation& op);
  bool give_up(operation& op);
  bool revoke_send(operation& op, const abort_reason& reason);
  bool revoke_receive(operation& op, const abort_reason& reason);
  void refuse(operation& op, const abort_reason& reason);
  void lose(operation& op, const abort_reason& reason);

  std::optional<pinned_pool> pinned_;
  std::vector<std::unique_ptr<transfer_state>> given_up_;  // transfers whose parts UCX has not released
};

}  // namespace pl::messaging
