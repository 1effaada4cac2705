// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/star_exchange.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/attended_time.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/rank_0_finder.hpp"
#include "messaging/bootstrap/rejoin_listener.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
// Rank 0 tells waiting ranks that it is waiting too, so that they can distinguish it from a silent rank 0.
constexpr unsigned kHeartbeatMs = 1000;
// Ranks wait longer for rank 0 than it waits for them, because its error message names the rank at fault.
constexpr unsigned kSilenceGraceMs = 3 * kHeartbeatMs;
constexpr unsigned kPatientMs = 2000;  // to send to a rejoined rank, while all others wait
constexpr unsigned kGoodbyeMs = 200;   // to tell a rank that the group has failed

// At most kHeartbeatMs.
unsigned poll_ms(unsigned limit_ms) noexcept {
  return static_cast<unsigned>(attended_time::poll_interval(std::chrono::milliseconds(limit_ms)).count());
}

enum class message_kind : std::uint32_t { part = 1, whole, heartbeat, failure };

struct message_head {
  message_kind kind;
  std::int32_t code;  // errno of a failure
  std::uint64_t sequence;
};

byte_string make_message(const message_head& head, std::span<const std::byte> body) {
  byte_string out(sizeof head + body.size());
  std::memcpy(out.data(), &head, sizeof head);
  if (!body.empty()) std::memcpy(out.data() + sizeof head, body.data(), body.size());
  return out;
}

std::optional<message_head> message_head_of(const byte_string& message) {
  message_head head{};
  if (message.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, message.data(), sizeof head);
  return head;
}

byte_string body_of(const byte_string& message) { return {message.begin() + sizeof(message_head), message.end()}; }

// Serialises the parts by rank, each as its length and its bytes.
byte_string joined_message(const std::vector<byte_string>& parts) {
  byte_string out;
  for (const byte_string& part : parts) {
    const std::uint64_t length = part.size();
    const auto* raw = reinterpret_cast<const std::byte*>(&length);
    out.insert(out.end(), raw, raw + sizeof length);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

std::optional<std::vector<byte_string>> split(const byte_string& whole, std::size_t count) {
  std::vector<byte_string> parts;
  std::size_t offset = 0;
  while (parts.size() < count) {
    std::uint64_t length = 0;
    if (whole.size() - offset < sizeof length) return std::nullopt;
    std::memcpy(&length, whole.data() + offset, sizeof length);
    offset += sizeof length;
    if (whole.size() - offset < length) return std::nullopt;
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(offset);
    parts.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    offset += length;
  }
  return parts;
}

}  // namespace

std::string star_exchange::name_of(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < hosts_.size() ? format("rank %d (%s)", rank, hosts_[index].c_str()) : format("rank %d", rank);
}

status star_exchange::slow_barrier() {
  auto all = exchange({}, false);
  return all ? status() : status(all.error());
}

result<std::vector<byte_string>> star_exchange::exchange(std::span<const std::byte> mine, bool is_limited) {
  if (broken_) return *broken_;
  ++sequence_;
  const bool has_come_back = rank() == 0 && channel_->survivors() != nullptr;
  auto outcome = has_come_back ? ask_survivors(mine)
                 : rank() == 0 ? collect(mine, is_limited)
                               : contribute(mine, is_limited);
  if (!outcome) give_up(outcome.error());
  return outcome;
}

failure star_exchange::lost(int peer, const std::string& reason) const {
  return {ECONNRESET, name_of(peer) + " is gone: " + reason + "; look at what it printed last"};
}

failure star_exchange::silent(const parts_t& parts) const {
  std::string names;
  for (std::size_t r = 0; r < parts.size(); ++r)
    if (!parts[r]) names += (names.empty() ? "" : ", ") + name_of(static_cast<int>(r));
  return {ETIMEDOUT,
          format("no sign of %s for %u s; does it hang, or wait for its GPU?", names.c_str(), timeout_ms_ / 1000)};
}

status star_exchange::take_part(channel_event&& event, parts_t& parts) const {
  if (event.is_lost) return lost(event.peer, event.reason);
  const auto head = message_head_of(event.data);
  if (!head || head->kind != message_kind::part)
    return failure{EPROTO, name_of(event.peer) + " sent what no peerlane of this version sends"};
  if (head->sequence != sequence_)
    return failure{EPROTO, format("%s is at step %llu of the run and rank 0 at step %llu; were all started alike?",
                                  name_of(event.peer).c_str(), static_cast<unsigned long long>(head->sequence),
                                  static_cast<unsigned long long>(sequence_))};
  parts[static_cast<std::size_t>(event.peer)] = body_of(event.data);
  return {};
}

void star_exchange::send_heartbeats(const parts_t& parts) {
  const byte_string message = make_message({message_kind::heartbeat, 0, sequence_}, {});
  for (int peer = 1; peer < size(); ++peer)
    if (parts[static_cast<std::size_t>(peer)])
      static_cast<void>(channel_->send(peer, message, kGoodbyeMs));  // a loss is reported by receive()
}

status star_exchange::spread(const byte_string& message) {
  for (int peer = 1; peer < size(); ++peer)
    if (auto sent = channel_->send(peer, message, timeout_ms_); !sent)
      return sent.code() == ETIMEDOUT ? failure{ETIMEDOUT, name_of(peer) + " does not take what it is sent"}
                                      : lost(peer, sent.error().message);
  return {};
}

result<std::vector<byte_string>> star_exchange::collect(std::span<const std::byte> mine, bool is_limited) {
  parts_t parts(static_cast<std::size_t>(size()));
  parts[0] = byte_string(mine.begin(), mine.end());
  attended_time waited;
  std::uint64_t heartbeat = monotonic_ns();
  while (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part; })) {
    if (auto event = channel_->receive(poll_ms(timeout_ms_))) {
      if (auto taken = take_part(std::move(*event), parts); !taken) return taken.error();
    }
    const std::uint64_t now = monotonic_ns();
    if (is_limited && waited.has_reached(std::chrono::milliseconds(timeout_ms_))) return silent(parts);
    if (now - heartbeat < kHeartbeatMs * kMillisecond) continue;
    send_heartbeats(parts);
    heartbeat = now;
  }
  std::vector<byte_string> all;
  for (auto& part : parts) all.push_back(std::move(*part));
  if (auto sent = spread(make_message({message_kind::whole, 0, sequence_}, joined_message(all))); !sent) return sent.error();
  return all;
}

result<std::vector<byte_string>> star_exchange::contribute(std::span<const std::byte> mine, bool is_limited) {
  if (auto sent = channel_->send(0, make_message({message_kind::part, 0, sequence_}, mine), timeout_ms_);
      !sent && sent.code() == ETIMEDOUT)
    return failure{ETIMEDOUT, name_of(0) + " does not take what it is sent"};
  // Even if the connection is gone, the last message of rank 0 may still be unread.
  attended_time unheard;
  while (!is_limited || !unheard.has_reached(std::chrono::milliseconds(timeout_ms_ + kSilenceGraceMs))) {
    auto event = channel_->receive(poll_ms(timeout_ms_));
    if (!event) continue;
    if (event->is_lost) return lost(0, event->reason);
    unheard = {};
    const auto head = message_head_of(event->data);
    if (!head) return failure{EPROTO, name_of(0) + " sent what no peerlane of this version sends"};
    if (head->kind == message_kind::heartbeat) continue;
    const byte_string body = body_of(event->data);
    if (head->kind == message_kind::failure)
      return failure{head->code, std::string(reinterpret_cast<const char*>(body.data()), body.size())};
    auto all = split(body, static_cast<std::size_t>(size()));
    if (head->kind != message_kind::whole || head->sequence != sequence_ || !all)
      return failure{EPROTO, name_of(0) + " is at another step of the run; were all started alike?"};
    return std::move(*all);
  }
  return failure{ETIMEDOUT, format("no sign of %s for %u s; does it hang, or wait for its GPU?", name_of(0).c_str(),
                                   (timeout_ms_ + kSilenceGraceMs) / 1000)};
}

void star_exchange::give_up(const failure& reason) {
  broken_ = reason;
  channel_->abandon();
  if (rank() != 0) return;
  const std::span text(reinterpret_cast<const std::byte*>(reason.message.data()), reason.message.size());
  const byte_string message = make_message({message_kind::failure, reason.code, sequence_}, text);
  for (int peer = 1; peer < size(); ++peer)
    static_cast<void>(channel_->send(peer, message, kGoodbyeMs));  // fails for the rank that is lost
}

// ---- Rank 0 comes back: it asks the survivors for their parts, step by step

// The incarnation of each rank; 0: it is gone.
byte_string star_exchange::living() const {
  auto numbers = channel_->survivors()->living;
  for (const int rank : ended_) numbers[static_cast<std::size_t>(rank)] = 0;
  const auto raw = std::as_bytes(std::span(numbers));
  return {raw.begin(), raw.end()};
}

result<std::vector<byte_string>> star_exchange::ask_survivors(std::span<const std::byte> mine) {
  std::vector<byte_string> all(static_cast<std::size_t>(size()));
  if (sequence_ > kReturnSteps) return all.front() = opening_text_, all;  // the job's settings of collectives
  const auto& known = channel_->survivors()->living;
  const byte_string message = make_message({message_kind::part, 0, sequence_}, mine);
  parts_t parts(all.size());
  parts[0] = byte_string(mine.begin(), mine.end());
  for (int peer = 1; peer < size(); ++peer) {
    const bool is_there = known[static_cast<std::size_t>(peer)] != 0 && !ended_.contains(peer);
    if (is_there && channel_->send(peer, message, timeout_ms_)) continue;
    if (is_there && sequence_ == 1) return lost(peer, "its connection was closed");
    if (is_there) ended_.insert(peer);
    parts[static_cast<std::size_t>(peer)] = byte_string();
  }
  attended_time waited;
  while (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part; })) {
    auto event = channel_->receive(kHeartbeatMs);
    if (event && event->is_lost) {
      if (sequence_ == 1) return lost(event->peer, event->reason);  // it may be alive, and return with a new claim
      ended_.insert(event->peer);
      parts[static_cast<std::size_t>(event->peer)] = byte_string();
    } else if (event) {
      if (auto taken = take_part(std::move(*event), parts); !taken) return taken.error();
    }
    if (waited.has_reached(std::chrono::milliseconds(timeout_ms_)))
      return failure{ETIMEDOUT,
                     format("rank 0 was not taken back within %u s: %s; they call peerlane_comm_await_return() or "
                            "peerlane_comm_restore_collectives(), and make progress",
                            timeout_ms_ / 1000, silent(parts).message.c_str())};
  }
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = std::move(*parts[r]);
  if (sequence_ == kReturnSteps) {
    for (const auto& each : all)
      if (!each.empty()) opening_text_ = each;
    all.front() = living();
  }
  return all;
}

// ---- Rank 0 comes back: the part of a survivor

std::optional<rank_0_event> star_exchange::poll_rank_0() {
  using kind = rank_0_event::kind;
  if (auto found = channel_->finder()->take()) {
    channel_->finder()->watch(found->stream.fd());
    channel_->adopt(0, std::move(found->stream));
    return rank_0_event{kind::found, found->incarnation, std::move(found->living)};
  }
  auto heard = channel_->receive(0);
  if (!heard) return std::nullopt;
  if (heard->is_lost) return rank_0_event{};
  const auto head = message_head_of(heard->data);
  if (head && head->kind == message_kind::part) return rank_0_event{kind::step, head->sequence, {}, body_of(heard->data)};
  if (head && head->kind == message_kind::heartbeat) return std::nullopt;
  channel_->drop(0);  // rank 0 has abandoned its return
  return rank_0_event{};
}

int star_exchange::rank_0_descriptor() const noexcept { return channel_->finder()->descriptor(); }

status star_exchange::find_rank_0(survivor_claim known) {
  channel_->drop(0);
  known.run = channel_->run();
  return channel_->finder()->start(std::move(known));
}

void star_exchange::stop_finding_rank_0() { channel_->finder()->stop_search(); }

bool star_exchange::is_finding_rank_0() { return channel_->finder()->is_searching(); }

void star_exchange::answer_rank_0(std::uint64_t step, const std::vector<std::byte>& part) {
  static_cast<void>(channel_->send(0, make_message({message_kind::part, 0, step}, part), kPatientMs));
}

// ---- Ranks that come back

std::optional<return_event> star_exchange::poll() {
  if (const auto rank = channel_->rejoins()->next()) return return_event{return_event::kind::asks, *rank};
  auto heard = channel_->receive(0);
  if (!heard) return std::nullopt;
  if (heard->is_lost) {
    admitted_.erase(heard->peer);
    return return_event{return_event::kind::gone, heard->peer};
  }
  const auto head = message_head_of(heard->data);
  const auto found = admitted_.find(heard->peer);
  if (!head || head->kind != message_kind::part || found == admitted_.end()) return std::nullopt;
  found->second = head->sequence;
  return return_event{return_event::kind::part, heard->peer, body_of(heard->data)};
}

int star_exchange::descriptor() const noexcept { return channel_->rejoins()->descriptor(); }

status star_exchange::admit(int rank, std::uint32_t incarnation) {
  auto stream = channel_->rejoins()->admit(rank, incarnation);
  if (!stream) return std::move(stream).error();
  channel_->rejoins()->watch(stream->fd());
  channel_->adopt(rank, *std::move(stream));
  admitted_[rank] = 0;
  return {};
}

void star_exchange::refuse(int rank, const failure& reason) { channel_->rejoins()->refuse(rank, reason.message); }

void star_exchange::dismiss(int rank, const failure& reason) {
  const auto found = admitted_.find(rank);
  if (found == admitted_.end()) return;
  const auto text = std::as_bytes(std::span(reason.message));
  static_cast<void>(
      channel_->send(rank, make_message({message_kind::failure, reason.code, found->second}, text), kGoodbyeMs));
  channel_->drop(rank);
  admitted_.erase(found);
}

void star_exchange::answer(int rank, const std::vector<byte_string>& all) {
  const auto found = admitted_.find(rank);
  if (found == admitted_.end()) return;
  static_cast<void>(
      channel_->send(rank, make_message({message_kind::whole, 0, found->second}, joined_message(all)), kPatientMs));
}

void star_exchange::extend_time_limit(int rank) {
  if (const auto found = admitted_.find(rank); found != admitted_.end())
    static_cast<void>(channel_->send(rank, make_message({message_kind::heartbeat, 0, found->second}, {}), kGoodbyeMs));
}

}  // namespace pl::messaging
