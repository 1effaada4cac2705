// SPDX-License-Identifier: Apache-2.0
// Ranks that leave and come back as new processes (docs/design/0013-ranks-that-come-back.md): at each rank, who waits for a
// return, and the rank that is coming back.
//
// A return needs the consent of every process: an operation of begin(), or let_all(). Nothing of the new process reaches
// this one before. When the operation ends the rank is like one that has just opened: no message, memory, window, number or
// credit of its former process is left.
//
// Rank 0 holds the meeting. While it is gone nobody can come back; the others look for its new process, which holds the
// meeting from then on.
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
#include "messaging/peer_introduction.hpp"
#include "messaging/return_host.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

class readmission {
 public:
  readmission(messenger_context& context, packet_channel& channel, peer_watch& watch, rendezvous& transfers,
              tagged_messages& messages, direct_windows& windows, dissemination_barrier& barrier, failure_reports& failures);
  introducer& introductions() noexcept { return introducer_; }
  // Of a job that is elastic, once all know each other.
  void open(bootstrap& group);
  bool is_open() const noexcept { return is_open_; }
  // The meeting's last exchange is over: who comes back is heard from now on.
  void hold_meeting(std::string opening_text);

  // An operation that ends well when a rank is back: `info.source` is its rank, `info.tag` its incarnation.
  operation& begin();
  void cancel(operation& op);
  // While it is true every return is consented to, without an operation.
  void let_all(bool is_let) noexcept {
    lets_all_ = is_let;
    context_.wake.note();  // a thread that sleeps must look at who waits for this
  }
  // For errors: what the return of this rank waits for, as far as this process knows. Empty: it is not gone.
  std::string awaited(int rank);
  // How many losses this process has seen.
  std::uint64_t losses() const noexcept { return losses_; }

  void advance();
  void on_lost(const peer_state& lost);
  bool must_poll() const noexcept { return (host_.is_open() && host_.is_busy()) || closing_ || must_look_; }
  // Readable when somebody asks to come back, or rank 0 ends or comes back; -1: nobody can.
  int descriptor() const noexcept;

 private:
  struct arrival {
    int rank = -1;
    std::uint32_t incarnation = 0;
    byte_string first{};          // its first introduction
    bool is_answered = false;     // this process has consented
    operation* waiter = nullptr;  // who asked for it
  };
  struct known_return {
    int rank;
    std::uint32_t incarnation;
  };
  void take(return_letter&& letter);
  void take_step(return_letter&& letter);
  void give_up_coming();
  void look_for_rank_0();
  void take_rank_0(rank_0_event&& event);
  void answer(std::uint32_t step, byte_string part);
  void consent();
  bool is_quiet(int rank) { return count_busy(rank) == 0; }
  unsigned count_busy(int rank);
  void complete();
  void drop(const return_letter& letter);
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
  introducer introducer_;
  return_mail mail_;
  return_host host_;
  return_desk* desk_ = nullptr;            // of rank 0
  rank_0_desk* meeting_rank_0_ = nullptr;  // of the others
  rank_0_desk* rank_0_ = nullptr;  // the same, once the meeting's exchanges are over: until then its messages are theirs
  std::string opening_text_;
  std::optional<attended_time> closing_;  // since rank 0's connection has ended
  std::uint32_t last_rank_0_ = 1;         // the last process of rank 0 that was heard of
  std::uint64_t told_losses_ = 0;         // of which the claim to a new process of rank 0 tells
  bool must_look_ = false;                // a new process of rank 0 is to be looked for, and is not yet
  std::uint64_t looked_ns_ = 0;
  unsigned rounds_ = 0;
  bool is_open_ = false, lets_all_ = false;
  std::uint64_t losses_ = 0;
  std::optional<arrival> coming_;
  std::deque<operation*> waiting_;
  std::deque<known_return> untold_;
};

}  // namespace pl::messaging
