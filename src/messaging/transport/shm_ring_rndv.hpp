// SPDX-License-Identifier: Apache-2.0
// Rendezvous through a shared-memory ring on one node. The sender copies into chunks while the receiver copies out of
// earlier ones, with up to a ring of chunks in progress. Each chunk is labelled with its operation, so consecutive transfers
// between two processes leave no gap. This is the fallback on a node, because it works for every pair of memories.
//
// Owns: the rings to and from each peer, and the threads that copy between them and host memory.
// Threads: as transport.hpp; those threads only copy, during a call.
// Errors: ECONNRESET: the owner of the ring has ended; EPROTO: an invalid label; ECANCELED; errors of the copies.
#pragma once

#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/shortage.hpp"
#include "copy/worker_pool.hpp"
#include "messaging/transport/chunk_copy.hpp"
#include "messaging/transport/shm_ring.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

struct peer_state;

// This transport's part of the state of a transfer (transfer.hpp).
struct shm_ring_transfer {
  bool is_other_side_device = false;  // the other side fills or empties the chunks with GPU copies
};

// One end of a ring, with the copies into or out of its chunks. The copies end in order.
struct ring_end {
  std::unique_ptr<shm_ring> ring;
  int refusal = 0;  // errno of the last attempt to make or open the ring
  // Only a lack of descriptors or memory may end: the next message tries again.
  bool may_try() const noexcept { return ring == nullptr && (refusal == 0 || is_shortage_or_full(refusal)); }
  // Opening failed because the owning process has ended.
  bool is_gone() const noexcept {
    return refusal == ENOENT || refusal == ESRCH || refusal == ESTALE || refusal == ECONNRESET;
  }
  std::uint64_t begun = 0;  // chunks whose copy has begun
  std::uint64_t ended = 0;  // chunks whose copy has ended: published, or emptied
  std::array<chunk_copy, shm_ring::kChunks> copies;
  std::array<shm_ring::label, shm_ring::kChunks> labels{};
  std::array<std::uint64_t, shm_ring::kChunks> senders{};  // outbound: operation that fills each chunk
  unsigned expected = 0;                                   // inbound: number of transfers whose RTR was sent
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
  // Waits for the pending copies of both rings.
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
  static bool is_shared_by_threads(const operation& op, std::uint64_t bytes, std::size_t alone);
  // copy_share(offset, bytes) is called for each share of `bytes`, by up to `most` threads at a time.
  template <class Copy>
  void copy_by_threads(unsigned most, std::size_t bytes, Copy&& copy_share);
  void fill_by_threads(std::byte* chunk, const void* source, std::uint64_t bytes);
  void empty_by_threads(void* destination, const std::byte* chunk, std::uint64_t bytes);
  void chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done);
  bool empty_ring(int source_rank);
  int begin_emptying(int source_rank, const shm_ring::label& label, shm_ring& ring, std::uint64_t number, chunk_copy& copy);
  void chunk_emptied(const shm_ring::label& label, const status& done);

  std::vector<ring_pair> rings_;                // by rank
  std::vector<int> busy_peers_;                 // ranks with data in progress
  std::unique_ptr<copy::worker_pool> threads_;  // created for the first chunk that several threads copy
};

}  // namespace pl::messaging
