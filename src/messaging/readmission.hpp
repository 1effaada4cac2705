// SPDX-License-Identifier: Apache-2.0
// Ranks that come back as new processes (docs/design/0013-ranks-that-come-back.md). Every rank has this part: the operations
// that wait for a return, and the state of the return in progress.
//
// A return needs the consent of every process, by an operation of begin() or by allow_all(). Before that, nothing from the
// new process arrives here. When the operation ends, the rank is in the state of a rank that has just opened: no message,
// memory, window, number or credit of the old process is left.
//
// Rank 0 coordinates returns ("holds the meeting"). While rank 0 is gone, nobody can come back. The others then search for
// its new process, which coordinates from then on.
//
// Owns: the operations that wait, and the state of one return. Threads: the messenger's lock guards all calls.
// Errors: ENOTSUP in a job that is not elastic.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/attended_time.hpp"
#include "messaging/barrier.hpp"
#include "messaging/failure_reports.hpp"
#include "messaging/peer_handshake.hpp"
#include "messaging/return_host.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

class readmission {
 public:
  readmission(messenger_context& context, packet_channel& channel, peer_watch& watch, rendezvous& transfers,
              tagged_messages& messages, direct_windows& windows, dissemination_barrier& barrier, failure_reports& failures);
  peer_handshake& handshake() noexcept { return handshake_; }
  // Call it in an elastic job after all ranks have exchanged their peer_info.
  void open(bootstrap& group);
  bool is_open() const noexcept { return is_open_; }
  // Call it after the last exchange of opening. From then on, rank 0 accepts processes that come back.
  void accept_rejoins(std::string opening_text);

  // Begins an operation that succeeds when a rank is back: `info.source` is the rank, `info.tag` its incarnation.
  operation& begin();
  void cancel(operation& op);
  // While it is true, this process consents to every return without an operation.
  void allow_all(bool is_let) noexcept {
    allows_all_ = is_let;
    context_.wake.note();  // a sleeping thread must check which returns wait for consent
  }
  // For error messages: what the return of this rank waits for, as far as this process knows. Empty: the rank is not lost.
  std::string awaited(int rank);
  // Number of lost ranks that this process has noticed.
  std::uint64_t losses() const noexcept { return losses_; }

  void advance();
  void on_lost(const peer_state& lost);
  bool must_poll() const noexcept { return (host_.is_open() && host_.is_busy()) || closing_ || must_search_; }
  // Readable when a process asks to come back, or rank 0 ends or comes back. -1: there is no such descriptor.
  int descriptor() const noexcept;

 private:
  struct arrival {
    int rank = -1;
    std::uint32_t incarnation = 0;
    byte_string first{};          // its first peer_info
    bool is_answered = false;     // this process has consented
    operation* waiter = nullptr;  // the operation that consents
  };
  struct known_return {
    int rank;
    std::uint32_t incarnation;
  };
  void take(rejoin_message&& message);
  void take_step(rejoin_message&& message);
  void give_up_coming();
  void find_rank_0();
  void take_rank_0(rank_0_event&& event);
  void answer(std::uint32_t step, byte_string part);
  void consent();
  bool is_quiet(int rank) { return count_busy(rank) == 0; }
  unsigned count_busy(int rank);
  void complete();
  void drop(const rejoin_message& message);
  void report(int rank, std::uint32_t incarnation, const char* reason, bool has_left);
  void tell(operation& op, const known_return& one);

  messenger_context& context_;
  packet_channel& channel_;
  peer_watch& watch_;
  rendezvous& rendezvous_;
  tagged_messages& messages_;
  direct_windows& windows_;
  dissemination_barrier& barrier_;
  failure_reports& failures_;
  peer_handshake handshake_;
  rejoin_messages rejoin_messages_;
  return_host host_;
  rejoin_requests* requests_ = nullptr;    // of rank 0
  rank_0_search* group_rank_0_ = nullptr;  // of the others
  rank_0_search* rank_0_ = nullptr;  // the same, after opening; until then its messages belong to the exchanges of opening
  std::string opening_text_;
  std::optional<attended_time> closing_;  // since rank 0's connection has ended
  std::uint32_t last_rank_0_ = 1;         // the last known incarnation of rank 0
  std::uint64_t reported_losses_ = 0;     // losses that the hello to a new process of rank 0 reports
  bool must_search_ = false;              // the search for a new process of rank 0 must start
  std::uint64_t polled_ns_ = 0;
  unsigned rounds_ = 0;
  bool is_open_ = false, allows_all_ = false;
  std::uint64_t losses_ = 0;
  std::optional<arrival> coming_;
  std::deque<operation*> waiting_;
  std::deque<known_return> unreported_;
};

}  // namespace pl::messaging
