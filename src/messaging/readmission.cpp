// SPDX-License-Identifier: Apache-2.0
#include "messaging/readmission.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kRank0SearchNs = 1'000'000;
constexpr unsigned kRoundsBetweenRank0Searches = 64;
// A closed connection means that rank 0 has ended or is closing; its last messages say which.
constexpr std::chrono::milliseconds kClosing{200};

byte_string own_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const auto raw = std::as_bytes(std::span(std::string_view(name)));
  return {raw.begin(), raw.end()};
}

}  // namespace

readmission::readmission(messenger_context& context, packet_channel& channel, peer_watch& watch, rendezvous& transfers,
                         tagged_messages& messages, direct_windows& windows, dissemination_barrier& barrier,
                         failure_reports& failures)
    : context_(context),
      channel_(channel),
      watch_(watch),
      rendezvous_(transfers),
      messages_(messages),
      windows_(windows),
      barrier_(barrier),
      failures_(failures),
      handshake_(context, channel, watch, windows),
      rejoin_messages_(context, messages),
      host_(context, watch, rejoin_messages_) {}

void readmission::open(bootstrap& group) {
  is_open_ = true;
  context_.peer(context_.rank).incarnation = group.incarnation();
  requests_ = group.returns();
  group_rank_0_ = group.rank_0();
  last_rank_0_ = context_.peer(0).incarnation;
  if (group.incarnation() == 1) return;
  losses_ = 1;  // the loss of its predecessor: all ranks must start again
  barrier_.stop(format("rank %d has come back: all ranks call peerlane_comm_restore_collectives() first", context_.rank));
  for (const auto& each : context_.peers)
    if (each.is_dead) failures_.report(each.rank, failure_kind::lost);
}

void readmission::accept_rejoins(std::string opening_text) {
  opening_text_ = opening_text;
  rank_0_ = group_rank_0_;
  if (rank_0_ != nullptr) context_.wake.watch(rank_0_->rank_0_descriptor());
  if (requests_ == nullptr || host_.is_open()) return;
  host_.open(*requests_, std::move(opening_text));
  context_.wake.watch(host_.descriptor());
  for (const auto& each : context_.peers)
    if (each.is_dead) host_.on_lost(each.rank, each.has_left);
}

// ---- Operations that wait

operation& readmission::begin() {
  constexpr auto kKind = operation_kind::arrival;
  if (!is_open_)
    return context_.failed(
        kKind, ENOTSUP,
        "ranks of this job cannot come back: open the communicator with elastic (PEERLANE_LINK_ELASTIC=1) "
        "at all ranks");
  operation& made = context_.operations.take(kKind);
  made.peer = kAnySource;
  if (!unreported_.empty()) {
    tell(made, unreported_.front());
    unreported_.pop_front();
  } else {
    waiting_.push_back(&made);
    context_.wake.note();  // a sleeping thread must check the operations that wait
  }
  return made;
}

void readmission::tell(operation& op, const known_return& one) {
  op.info.source = one.rank;
  op.info.tag = one.incarnation;
  context_.end(op, 0, {});
}

void readmission::cancel(operation& op) {
  std::erase(waiting_, &op);
  if (coming_ && coming_->waiter == &op) coming_->waiter = nullptr;
  context_.end(op, ECANCELED, "cancelled");
}

void readmission::on_lost(const peer_state& lost) {
  if (!is_open_) return;
  ++losses_;
  barrier_.stop(lost.loss + "; once it is back, all ranks call peerlane_comm_restore_collectives()");
  if (host_.is_open()) host_.on_lost(lost.rank, lost.has_left);
  if (lost.rank != 0) return;
  closing_.reset();
  give_up_coming();
}

// Ends the return in progress, because rank 0 is gone. The process will ask again.
void readmission::give_up_coming() {
  if (coming_ && coming_->waiter != nullptr) waiting_.push_front(coming_->waiter);
  coming_.reset();
}

// ---- A return

void readmission::advance() {
  if (host_.is_open()) host_.advance();
  if (rank_0_ != nullptr) find_rank_0();
  while (auto message = rejoin_messages_.next()) take(*std::move(message));
  if (coming_ && !coming_->first.empty() && !coming_->is_answered) consent();
}

void readmission::take(rejoin_message&& message) {
  using kind = rejoin_message::kind;
  if (message.rank < 0 || message.rank >= context_.size || message.rank == context_.rank) return;
  switch (message.type) {
    case kind::step:
      if (message.source == 0) take_step(std::move(message));
      return;
    case kind::answer:
      return host_.take_answer(std::move(message));
    case kind::abort:
      if (message.source == 0) drop(message);
      return;
    case kind::gone:
      if (message.source == 0)
        report(message.rank, message.incarnation, "has ended: rank 0 has noticed it", message.step != 0);
      return;
  }
}

void readmission::report(int rank, std::uint32_t incarnation, const char* reason, bool has_left) {
  auto& remote = context_.peer(rank);
  if (remote.is_dead || remote.incarnation != incarnation) return;
  remote.has_left = remote.has_left || has_left;
  watch_.report(rank, reason);
}

void readmission::take_step(rejoin_message&& message) {
  const bool is_due = coming_ && coming_->rank == message.rank && coming_->incarnation == message.incarnation;
  if (message.step == 1) {
    if (message.rank != 0) give_up_coming();
    coming_ = arrival{message.rank, message.incarnation};
    // Rank 0 knows of the end before this process has detected it on a connection.
    report(message.rank, context_.peer(message.rank).incarnation, "is replaced by a new process", false);
    return answer(1, own_host());
  }
  if (!is_due) return;
  if (message.step == 2) coming_->first = std::move(message.part);
  if (message.step == 3) answer(3, handshake_.answer_second(context_.peer(message.rank), message.part));
  if (message.step == kReturnSteps) complete();
}

// Answers rank 0, which may itself be coming back and then cannot receive messages yet.
void readmission::answer(std::uint32_t step, byte_string part) {
  if (coming_->rank == 0) return rank_0_->answer_rank_0(step, part);
  rejoin_messages_.send(
      0, {rejoin_message::kind::answer, coming_->rank, coming_->incarnation, step, context_.rank, std::move(part)});
}

// ---- The return of rank 0, at other ranks

int readmission::descriptor() const noexcept {
  if (rank_0_ != nullptr) return rank_0_->rank_0_descriptor();
  return host_.is_open() ? host_.descriptor() : -1;
}

void readmission::find_rank_0() {
  const auto& zero = context_.peer(0);
  if (!zero.is_dead && !closing_ && ++rounds_ % kRoundsBetweenRank0Searches != 0) return;
  const auto now = monotonic_ns();
  if (now - polled_ns_ < kRank0SearchNs) return;
  polled_ns_ = now;
  while (auto event = rank_0_->poll_rank_0()) take_rank_0(*std::move(event));
  if (closing_ && closing_->has_reached(kClosing)) {
    closing_.reset();
    watch_.report(0, "has ended: its connection is closed");
  }
  if (!zero.is_dead || coming_) return;
  // Does not search for rank 0 without consent, so that a process that is ending does not disturb a new job at the same
  // address.
  if (!allows_all_ && waiting_.empty()) {
    must_search_ = false;
    if (rank_0_->is_finding_rank_0()) rank_0_->stop_finding_rank_0();
    return;
  }
  if (!must_search_ && rank_0_->is_finding_rank_0() && reported_losses_ == losses_) return;
  survivor_claim claim;
  for (const auto& each : context_.peers) claim.ranks.push_back({each.incarnation, each.is_dead && each.rank != 0});
  claim.ranks.front().incarnation = last_rank_0_;
  reported_losses_ = losses_;
  must_search_ = !rank_0_->find_rank_0(std::move(claim));
}

void readmission::take_rank_0(rank_0_event&& event) {
  using kind = rank_0_event::kind;
  const auto number = static_cast<std::uint32_t>(event.number);
  switch (event.type) {
    case kind::found:
      last_rank_0_ = number;
      coming_ = arrival{0, number};
      for (const auto& each : context_.peers)
        if (each.rank != 0 && each.rank != context_.rank && event.living[static_cast<std::size_t>(each.rank)] == 0)
          report(each.rank, each.incarnation, "is gone, as the new process of rank 0 knows", false);
      return;
    case kind::step:
      if (coming_ && coming_->rank == 0)
        take_step({rejoin_message::kind::step, 0, coming_->incarnation, number, 0, std::move(event.data)});
      return;
    case kind::gone:
      if (coming_ && coming_->rank == 0) give_up_coming();
      else if (!context_.peer(0).is_dead) closing_.emplace();
      return;
  }
}

// Whether operations with the earlier process are in progress, or UCX still uses their memory.
unsigned readmission::count_busy(int rank) {
  unsigned busy = 0;
  context_.operations.for_each([&](const operation& each) {
    const bool is_of_it = each.peer == rank && each.kind != operation_kind::unexpected;
    busy += is_of_it && (!each.has_ended() || each.is_sending) ? 1 : 0;
  });
  return busy;
}

std::string readmission::awaited(int rank) {
  const auto& remote = context_.peer(rank);
  if (!remote.is_dead) return {};
  const bool is_here = coming_ && coming_->rank == rank;
  if (is_here && !coming_->first.empty() && !coming_->is_answered) {
    if (const unsigned busy = count_busy(rank); busy != 0)
      return format("%u operations with its former process have not ended here", busy);
    return "this process has not accepted it";
  }
  if (host_.is_open()) return host_.awaited(rank);
  if (is_here) return "its new process comes back";
  if (rank == 0) return "no new process of it answers at its address";
  return context_.peer(0).is_dead ? "rank 0 must come back first" : "rank 0 has not reported a new process";
}

void readmission::consent() {
  auto& one = *coming_;
  auto& remote = context_.peer(one.rank);
  if ((waiting_.empty() && !allows_all_) || !remote.is_dead || !is_quiet(one.rank)) return;
  if (!waiting_.empty()) {
    one.waiter = waiting_.front();
    waiting_.pop_front();
  }
  one.is_answered = true;
  messages_.forget_sender(one.rank);
  rendezvous_.admit(one.rank);
  windows_.admit(one.rank);
  watch_.forget(one.rank);
  auto first = handshake_.answer_first(remote, one.first);
  answer(2, first ? *std::move(first) : byte_string{});
}

// From here on the rank is alive.
void readmission::complete() {
  const auto text = std::as_bytes(std::span(opening_text_));
  if (coming_->rank == 0) answer(kReturnSteps, {text.begin(), text.end()});
  const auto one = *std::exchange(coming_, std::nullopt);
  auto& remote = context_.peer(one.rank);
  remote.is_dead = remote.is_lost = false;
  remote.loss.clear();
  remote.incarnation = one.incarnation;
  if (handshake_.is_on_node(one.first)) watch_.add(one.rank, remote.pid);
  failures_.forget(one.rank);
  barrier_.abandon();
  if (one.rank != 0)
    rejoin_messages_.send(0, {rejoin_message::kind::answer, one.rank, one.incarnation, kReturnSteps, context_.rank, {}});
  context_.wake.note();
  const known_return done{one.rank, one.incarnation};
  if (one.waiter != nullptr) tell(*one.waiter, done);
  else if (!allows_all_) unreported_.push_back(done);
}

void readmission::drop(const rejoin_message& message) {
  if (coming_ && coming_->rank == message.rank && coming_->incarnation == message.incarnation) give_up_coming();
  report(message.rank, message.incarnation, "ended while it was coming back", false);
}

}  // namespace pl::messaging
