// SPDX-License-Identifier: Apache-2.0
// What a rail set keeps of one peer: which rails carry its messages, what it has not acknowledged, and what came from it.
//
// Owns: the shipments under way. Threads: the messenger's lock guards all calls. Errors: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "messaging/transport/network.hpp"

namespace pl::messaging {

class rail_set;

constexpr std::size_t kMaxKept = 8u << 20;  // copies of packets for one peer
// A peer that keeps no more than that has no packet further ahead of one that has not come: a packet is a frame at least.
constexpr std::uint64_t kMaxPacketsAhead = kMaxKept / frame_bytes(frame_kind::eager);

// Numbers of which each counts once, in any order of coming.
class arrivals {
 public:
  // True: it is new, and no further ahead than a packet can be.
  bool accept(std::uint64_t number);
  // All below have come.
  std::uint64_t next() const noexcept { return next_; }

 private:
  std::uint64_t next_ = 0;
  std::set<std::uint64_t> ahead_;
};

// A packet or a part that the peer has not acknowledged: it can be sent again by another rail. A packet's bytes are its own,
// a part's lie in the message, which keeps them until part->done().
struct shipment : rail_message {
  rail_set* owner = nullptr;
  int rank = -1;
  unsigned rail = 0;  // the last that it was sent by
  std::uint64_t sent_ns = 0;
  unsigned with_ucx = 0;         // sends that UCX has not ended
  std::uint64_t settled_ns = 0;  // when it was acknowledged or given up; 0: neither
  int code = 0;                  // for part->done()
  ucx_part* part = nullptr;      // null: a packet
  unsigned life = 0;             // rail_peer::life
  bool is_uncounted = false;     // not in lingering_bytes any more
  std::unique_ptr<std::byte[]> packed;
};

// Silence of a rail to a peer that answers by another rail.
class silence {
 public:
  // A ping was answered by another rail that was sent when this one had been silent for long enough. True: it has failed.
  // Two answers apart from each other are needed: after a process was stopped, its rails are heard one after the other.
  bool note_answer(std::uint64_t pinged_ns, std::uint64_t apart_ns);
  void end() noexcept { first_ns_ = 0; }

 private:
  std::uint64_t first_ns_ = 0;
};

struct rail_peer {
  struct rail_state {
    bool is_up = true;
    std::size_t load = 0;  // bytes that were sent by it and are not acknowledged
    std::uint64_t heard_ns = 0, pinged_ns = 0;
    std::size_t controls = 0;  // that UCX has not sent
    silence silent;
  };
  using shipments = std::map<std::uint64_t, std::unique_ptr<shipment>>;

  explicit rail_peer(unsigned count) : rails(count) {}
  // The first that is up: packets take it, so that they seldom overtake each other.
  std::optional<unsigned> first_rail() const;
  // The one with the least load.
  std::optional<unsigned> free_rail() const;
  bool has_other_rail(unsigned rail) const;
  // UCX may hold packets that are acknowledged already: a peer can acknowledge what it has not got.
  bool has_room() const noexcept { return kept_bytes + lingering_bytes < kMaxKept; }
  bool has_outstanding() const noexcept { return !packets.empty() || !parts.empty() || !waiting.empty(); }
  // When the oldest unacknowledged shipment of a rail was sent; 0: there is none.
  std::uint64_t oldest_ns(unsigned rail) const;

  std::vector<rail_state> rails;
  shipments packets;            // by number
  shipments parts;              // by tag
  std::deque<packet*> waiting;  // for room in `packets`
  std::uint64_t next_number = 0;
  std::size_t kept_bytes = 0;       // of `packets`
  std::size_t lingering_bytes = 0;  // of packets that are acknowledged, and with UCX
  unsigned life = 0;                // another process of the rank has another one
  arrivals arrived;
  std::size_t due_bytes = 0;       // arrived, not acknowledged
  std::uint64_t due_since_ns = 0;  // 0: none
  bool is_closed = false;
  bool is_draining = false;  // is closed as soon as nothing is outstanding
};

}  // namespace pl::messaging
