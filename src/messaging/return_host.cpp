// SPDX-License-Identifier: Apache-2.0
#include "messaging/return_host.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kDeskNs = kMillisecond;
constexpr unsigned kRoundsBetweenPolls = 64;
// A closed connection means that a process has ended or is closing; its last messages say which.
constexpr std::chrono::milliseconds kLeaving{200};
// Time limit for a process that asks for a rank whose process seems alive, because its end may not have been detected yet.
constexpr std::chrono::milliseconds kSuspectAfter{3000};
constexpr std::uint64_t kHeartbeatNs = 1000 * kMillisecond;

}  // namespace

void return_host::advance() {
  if (!is_busy() && ++rounds_ % kRoundsBetweenPolls != 0) return;
  const auto now = monotonic_ns();
  if (now - polled_ns_ < kDeskNs) return;
  polled_ns_ = now;
  while (auto event = requests_->poll()) take_event(*std::move(event));
  for (auto each = leaving_.begin(); each != leaving_.end();) {
    const bool is_due = each->second.has_reached(kLeaving);
    if (is_due && !context_.peer(each->first).is_dead)
      watch_.report(each->first, "has ended: its connection with rank 0 is closed");
    each = is_due ? leaving_.erase(each) : std::next(each);
  }
  if (!current_ && !asking_.empty()) check_requests(now);
  if (current_) check_replies(now);
}

void return_host::take_event(return_event&& event) {
  const bool is_current = current_ && current_->rank == event.rank;
  switch (event.type) {
    case return_event::kind::asks:
      asking_[event.rank] = {};
      return;
    case return_event::kind::part:
      if (is_current) return begin_step(std::move(event.data));
      {
        std::vector<byte_string> all(context_.peers.size());
        const auto text = std::as_bytes(std::span(opening_text_));
        all.front().assign(text.begin(), text.end());
        return requests_->answer(event.rank, all);
      }
    case return_event::kind::gone:
      if (is_current) return give_up({ECONNRESET, "it has ended"});
      leaving_[event.rank] = {};
      return;
  }
}

void return_host::check_requests(std::uint64_t now) {
  for (auto& [asking, asked] : asking_) {
    const int rank = asking;
    if (context_.peer(rank).is_dead) return begin(rank, now);
    // An end that was detected in this round takes effect in the next one.
    if (!asked.has_reached(kSuspectAfter) || leaving_.contains(rank) || watch_.has_ended(context_.peer(rank))) continue;
    requests_->refuse(rank,
                      {EEXIST, format("rank %d is alive (process %d%s): two processes cannot be one rank. If it hangs or is "
                                      "stopped, end it first",
                                      rank, static_cast<int>(context_.peer(rank).pid),
                                      context_.peer(rank).is_same_node ? "" : " of another host")});
    asking_.erase(rank);
    return;
  }
}

void return_host::begin(int rank, std::uint64_t now) {
  asking_.erase(rank);
  leaving_.erase(rank);
  auto& last = last_incarnation_.try_emplace(rank, 1u).first->second;
  if (!requests_->admit(rank, last + 1)) return;
  ++last;
  current_ = admission{rank, last};
  current_->heartbeat_ns = now;
}

void return_host::begin_step(byte_string part) {
  auto& one = *current_;
  if (++one.step > kReturnSteps) return;
  one.parts.assign(context_.peers.size(), std::nullopt);
  one.parts[static_cast<std::size_t>(one.rank)] = part;
  const rejoin_message message{
      rejoin_message::kind::step, one.rank, one.incarnation, one.step, context_.rank, std::move(part)};
  for_each_living([&](int rank) { rejoin_messages_.send(rank, message); });
  rejoin_messages_.send(context_.rank, message);
}

void return_host::take_answer(rejoin_message&& message) {
  const bool is_due = current_ && current_->rank == message.rank && current_->incarnation == message.incarnation &&
                      current_->step == message.step && !current_->parts.empty();
  if (is_due) current_->parts[static_cast<std::size_t>(message.source)] = std::move(message.part);
}

void return_host::check_replies(std::uint64_t now) {
  auto& one = *current_;
  bool is_whole = !one.parts.empty();
  for (const auto& each : context_.peers) {
    if (one.parts.empty() || each.rank == one.rank) continue;
    auto& part = one.parts[static_cast<std::size_t>(each.rank)];
    if (each.is_dead) part = byte_string{};  // also if it had answered before it died
    is_whole = is_whole && part;
  }
  if (is_whole) return end_step();
  if (one.waited.has_reached(std::chrono::milliseconds(requests_->timeout_ms())))
    return give_up(
        {ETIMEDOUT, format("rank %d was not taken back by rank %s within %u s: they call "
                           "peerlane_comm_await_return() or peerlane_comm_restore_collectives(), and make progress",
                           one.rank, missing().c_str(), requests_->timeout_ms() / 1000)});
  if (now - one.heartbeat_ns < kHeartbeatNs) return;
  one.heartbeat_ns = now;
  requests_->extend_time_limit(one.rank);
}

void return_host::end_step() {
  auto& one = *current_;
  std::vector<byte_string> all;
  for (auto& each : one.parts) all.push_back(std::move(*each));
  one.parts.clear();
  const bool is_last = one.step == kReturnSteps;
  if (is_last) all.front() = incarnations();
  requests_->answer(one.rank, all);
  if (is_last) current_.reset();
}

// The incarnation of each rank, for the process that comes back; 0: it is gone.
byte_string return_host::incarnations() const {
  std::vector<std::uint32_t> numbers;
  for (const auto& each : context_.peers) numbers.push_back(each.is_dead ? 0 : each.incarnation);
  numbers[static_cast<std::size_t>(current_->rank)] = current_->incarnation;
  const auto raw = std::as_bytes(std::span(numbers));
  return {raw.begin(), raw.end()};
}

void return_host::give_up(const failure& reason) {
  const auto ended = *std::exchange(current_, std::nullopt);
  requests_->dismiss(ended.rank, reason);
  const rejoin_message message{rejoin_message::kind::abort, ended.rank, ended.incarnation, ended.step, context_.rank};
  for_each_living([&](int rank) { rejoin_messages_.send(rank, message); });
  rejoin_messages_.send(context_.rank, message);
}

std::string return_host::awaited(int rank) const {
  if (current_ && current_->rank == rank)
    return current_->parts.empty()
               ? format("its new process has not begun step %u of %u", current_->step + 1, kReturnSteps)
               : format("step %u of %u waits for rank %s", current_->step, kReturnSteps, missing().c_str());
  if (asking_.contains(rank))
    return current_ ? format("its new process waits until rank %d is back", current_->rank)
                    : "its new process has just come";
  return "no new process of it has come";
}

std::string return_host::missing() const {
  std::string names;
  for (std::size_t rank = 0; rank < current_->parts.size(); ++rank)
    if (!current_->parts[rank]) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  return names.empty() ? "(none: it said nothing itself)" : names;
}

// Tells the others, which may have no connection on which they could detect it.
void return_host::on_lost(int rank, bool has_left) {
  leaving_.erase(rank);
  rejoin_message message{rejoin_message::kind::gone, rank, context_.peer(rank).incarnation};
  message.step = has_left ? 1 : 0;
  for_each_living([&](int other) { rejoin_messages_.send(other, message); });
}

}  // namespace pl::messaging
