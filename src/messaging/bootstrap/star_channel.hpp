// SPDX-License-Identifier: Apache-2.0
// What a group needs of its transport: whole messages between rank 0 and each other rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/frame_stream.hpp"

namespace pl::messaging {

class rank_0_seeker;
class rejoin_listener;

// What a new process of rank 0 has learnt from those that its predecessor left behind.
struct survivor_table {
  std::vector<std::uint32_t> living;  // by rank: which process of its rank has told; 0: none
  std::vector<std::uint32_t> last;    // the highest incarnation that anybody knows
};

struct channel_event {
  int peer = -1;
  bool is_lost = false;         // the peer is gone; reported once
  std::vector<std::byte> data;  // the message, if it is not
  std::string reason;           // of the loss
};

// One thread. Rank 0 may send to and hears every rank, the others only rank 0.
class star_channel {
 public:
  virtual ~star_channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;
  // ECONNRESET: the peer is gone; ETIMEDOUT: it does not take what it was sent.
  virtual status send(int peer, std::span<const std::byte> message, unsigned timeout_ms) = 0;
  // The next message or loss of any peer; nothing after the time-out.
  virtual std::optional<channel_event> receive(unsigned timeout_ms) = 0;
  // The group has failed: the end will not be an orderly one.
  virtual void abandon() = 0;

  // ---- Of a meeting that stays open
  virtual bool stays_open() const { return false; }
  // Which process of its rank this one is; above 1 it has come back, and rank 0 alone answers it.
  virtual std::uint32_t incarnation() const { return 1; }
  // Rank 0: who asks to come back (rejoin_listener.hpp). Null: nobody can.
  virtual rejoin_listener* rejoins() { return nullptr; }
  // Others: who looks for a new process of rank 0 (rank_0_seeker.hpp). Null: none can come.
  virtual rank_0_seeker* seeker() { return nullptr; }
  // Rank 0, if it has come back. Else null.
  virtual const survivor_table* survivors() const { return nullptr; }
  // The number that all frames of this run carry.
  virtual std::uint64_t run() const { return 0; }
  // From now on this is the connection with the rank.
  virtual void adopt(int, frame_stream) {}
  // Ends the connection with the rank.
  virtual void drop(int) {}
};

}  // namespace pl::messaging
