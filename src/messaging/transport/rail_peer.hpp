// SPDX-License-Identifier: Apache-2.0
// The state of a rail set for one peer: which rails work, what the peer has not acknowledged, and what has arrived from it.
//
// Owns: the sent units in progress. Threads: the messenger's lock guards all calls. Errors: none.
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
// A peer that keeps at most kMaxKept bytes cannot be further ahead of a missing packet, because a packet is at least a
// frame.
constexpr std::uint64_t kMaxPacketsAhead = kMaxKept / frame_bytes(frame_kind::eager);

// Packet numbers that have arrived, in any order. Each counts once.
class arrivals {
 public:
  // True: the number is new, and not further ahead than kMaxPacketsAhead.
  bool accept(std::uint64_t number);
  // All numbers below this one have arrived.
  std::uint64_t next() const noexcept { return next_; }

 private:
  std::uint64_t next_ = 0;
  std::set<std::uint64_t> ahead_;
};

// A packet or part that the peer has not acknowledged, so that it can be sent again over another rail. It owns the bytes of
// a packet. The bytes of a part are in the message's memory, which stays valid until part->done().
struct sent_unit : rail_message {
  rail_set* owner = nullptr;
  int rank = -1;
  unsigned rail = 0;  // over which it was sent last
  std::uint64_t sent_ns = 0;
  unsigned with_ucx = 0;         // sends that UCX has not completed
  std::uint64_t settled_ns = 0;  // when it was acknowledged or given up; 0: neither
  int code = 0;                  // for part->done()
  ucx_part* part = nullptr;      // null: a packet
  unsigned life = 0;             // value of rail_peer::life when it was sent
  bool is_uncounted = false;     // no longer counted in lingering_bytes
  std::unique_ptr<std::byte[]> packed;
};

// Detects a rail that is silent while the peer answers on another rail.
class silence {
 public:
  // Call it for each answer on another rail to a ping that was sent after this rail had been silent for long enough. True:
  // the rail has failed. It takes two answers to pings that are `apart_ns` apart, because a process that was stopped answers
  // on one rail after the other.
  bool note_answer(std::uint64_t pinged_ns, std::uint64_t apart_ns);
  void end() noexcept { first_ns_ = 0; }

 private:
  std::uint64_t first_ns_ = 0;
};

struct rail_peer {
  struct rail_state {
    bool is_up = true;
    std::size_t load = 0;  // unacknowledged bytes that were sent over it
    std::uint64_t last_received_ns = 0, pinged_ns = 0;
    std::size_t controls = 0;  // control messages that UCX has not sent
    silence silent;
  };
  using sent_units = std::map<std::uint64_t, std::unique_ptr<sent_unit>>;

  explicit rail_peer(unsigned count) : rails(count) {}
  // The first rail that is up. Packets take it, so that they rarely overtake each other.
  std::optional<unsigned> first_rail() const;
  // The rail with the least load, for parts.
  std::optional<unsigned> free_rail() const;
  bool has_other_rail(unsigned rail) const;
  // Counts acknowledged packets that UCX still holds, because a peer can acknowledge packets that it has not received.
  bool has_room() const noexcept { return kept_bytes + lingering_bytes < kMaxKept; }
  bool has_outstanding() const noexcept { return !packets.empty() || !parts.empty() || !waiting.empty(); }
  // When the oldest unacknowledged sent unit of a rail was sent; 0: there is none.
  std::uint64_t oldest_ns(unsigned rail) const;

  std::vector<rail_state> rails;
  sent_units packets;           // by number
  sent_units parts;             // by tag
  std::deque<packet*> waiting;  // for room in `packets`
  std::uint64_t next_number = 0;
  std::size_t kept_bytes = 0;       // of `packets`
  std::size_t lingering_bytes = 0;  // of packets that are acknowledged but still held by UCX
  unsigned life = 0;                // counts the processes of this rank
  arrivals arrived;
  std::size_t due_bytes = 0;       // arrived, not acknowledged
  std::uint64_t due_since_ns = 0;  // 0: none
  bool is_closed = false;
  bool is_draining = false;  // closes when nothing is outstanding
};

}  // namespace pl::messaging
