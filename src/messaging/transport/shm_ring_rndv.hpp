// SPDX-License-Identifier: Apache-2.0
// Rendezvous through shared memory on one node: copies into chunks at the sender and out of them at the receiver
// overlap, as many as the ring has chunks. Each chunk is labelled with its operation, so transfers of one pair follow
// each other without a gap. The last resort of a node: it suits every pair of memories.
//
// Owns: the rings to and from each peer, and the threads that fill them from host memory.
// Threads: as transport.hpp; the fill threads only copy, inside a call.
// Errors: ECONNRESET the ring's owner has ended, EPROTO a label that does not fit, ECANCELED, errors of the copies.
#pragma once

#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "copy/worker_pool.hpp"
#include "messaging/transport/chunk_copy.hpp"
#include "messaging/transport/shm_ring.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

struct peer_state;

// Its slice of a transfer's state.
struct shm_ring_transfer {
  bool is_for_device = false;  // sender: the receiver empties the chunks by GPU copies
};

// One end of a ring: copies into or out of its chunks. They end in order.
struct ring_end {
  std::unique_ptr<shm_ring> ring;
  int refusal = 0;  // errno of the only attempt to make or open it
  // Opening failed because the owning process has ended.
  bool is_gone() const noexcept {
    return refusal == ENOENT || refusal == ESRCH || refusal == ESTALE || refusal == ECONNRESET;
  }
  std::uint64_t begun = 0;  // chunks whose copy has begun
  std::uint64_t ended = 0;  // chunks whose copy has ended: published, or emptied
  std::array<chunk_copy, shm_ring::kChunks> copies;
  std::array<shm_ring::label, shm_ring::kChunks> labels{};
  std::array<std::uint64_t, shm_ring::kChunks> senders{};  // outbound: the operations that fill
  unsigned expected = 0;                                   // inbound: transfers whose RTR was sent
};

class shm_ring_rndv final : public transport {
 public:
  explicit shm_ring_rndv(rendezvous& owner);
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  bool start_send(operation& send, const rtr_body& request) override;
  void advance() override;
  bool must_poll() const override;
  bool abort(operation& op, const abort_reason& reason) override;
  // Waits for the copies of both rings.
  void forget(int rank) override;
  void admit(int rank) override;

 private:
  struct ring_pair {
    ring_end outbound, inbound;
    intrusive_list<operation, &operation::in_queue> fill_queue;  // transfers that leave through `outbound`
  };
  ring_pair& rings(int rank) { return rings_[static_cast<std::size_t>(rank)]; }
  bool open_outbound(ring_end& end_out);
  bool open_inbound(ring_end& end_in, const shm_ring::name& file);
  void watch_peer(int rank);
  bool revoke(operation& op, const abort_reason& reason);
  bool fill_ring(int rank);
  void note_step(int rank);
  bool publish_filled(ring_pair& destination);
  status begin_filling(operation& op, shm_ring& ring, std::uint64_t number, std::uint64_t bytes, chunk_copy& copy);
  void fill_by_threads(void* chunk, const void* source, std::size_t bytes);
  void chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done);
  bool empty_ring(int source_rank);
  int begin_emptying(int source_rank, const shm_ring::label& label, shm_ring& ring, std::uint64_t number, chunk_copy& copy);
  void chunk_emptied(const shm_ring::label& label, const status& done);

  std::vector<ring_pair> rings_;                // by rank
  std::vector<int> busy_peers_;                 // with data under way
  std::unique_ptr<copy::worker_pool> fillers_;  // made by the first chunk that they share
};

}  // namespace pl::messaging
