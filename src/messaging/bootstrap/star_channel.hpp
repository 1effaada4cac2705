// SPDX-License-Identifier: Apache-2.0
// Interface of the channel under a star_exchange: whole messages between rank 0 and every other rank.
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

class rank_0_finder;
class rejoin_listener;

// What a new process of rank 0 has learnt from the survivors of its predecessor.
struct survivor_table {
  std::vector<std::uint32_t> living;  // by rank: incarnation of the process that sent a claim; 0: none
  std::vector<std::uint32_t> last;    // by rank: highest incarnation in any claim
};

struct channel_event {
  int peer = -1;
  bool is_lost = false;         // the peer is gone; reported once
  std::vector<std::byte> data;  // the message, unless is_lost
  std::string reason;           // why the peer is gone, if is_lost
};

// Use it from one thread. Rank 0 exchanges messages with every rank, the others only with rank 0.
class star_channel {
 public:
  virtual ~star_channel() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;  // star_exchange::library()
  // Waits at most `timeout_ms`. ECONNRESET: the peer is gone. ETIMEDOUT: the peer does not read.
  virtual status send(int peer, std::span<const std::byte> message, unsigned timeout_ms) = 0;
  // Waits for the next message from any peer, or the loss of one. Empty: nothing within `timeout_ms`.
  virtual std::optional<channel_event> receive(unsigned timeout_ms) = 0;
  // The group has failed: close without the orderly shutdown.
  virtual void abandon() = 0;

  // ---- Elastic jobs: ranks may leave and come back
  virtual bool stays_open() const { return false; }
  // Counts the processes that have had this rank, from 1. Above 1: this process has rejoined, and only rank 0 answers it.
  virtual std::uint32_t incarnation() const { return 1; }
  // Rank 0: accepts processes that ask to rejoin. Null: rejoining is not possible, or another rank.
  virtual rejoin_listener* rejoins() { return nullptr; }
  // Other ranks: searches for a new process of rank 0. Null: rank 0 cannot come back, or this is rank 0.
  virtual rank_0_finder* finder() { return nullptr; }
  // Rank 0 that has rejoined; null otherwise.
  virtual const survivor_table* survivors() const { return nullptr; }
  // Number of this run, which all its frames contain.
  virtual std::uint64_t run() const { return 0; }
  // Replaces the connection with the rank.
  virtual void adopt(int, frame_stream) {}
  // Closes the connection with the rank.
  virtual void drop(int) {}
};

}  // namespace pl::messaging
