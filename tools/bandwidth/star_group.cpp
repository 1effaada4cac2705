// SPDX-License-Identifier: Apache-2.0
#include "star_group.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "clock.hpp"
#include "text.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
// Rank 0 tells those who wait that it waits, too; so they can tell a silent rank 0 from one that waits for somebody else.
constexpr unsigned kHeartbeatMs = 1000;
// More patience with rank 0 than it has with the others: its sentence names the guilty one.
constexpr unsigned kGraceMs = 3 * kHeartbeatMs;
constexpr unsigned kGoodbyeMs = 200;  // for telling a rank that the group has failed

enum class message_kind : std::uint32_t { part = 1, whole, heartbeat, failure };

struct message_head {
  message_kind kind;
  std::int32_t code;  // errno of a failure
  std::uint64_t sequence;
};

using bytes = std::vector<std::byte>;

bytes make_message(const message_head& head, std::span<const std::byte> body) {
  bytes out(sizeof head + body.size());
  std::memcpy(out.data(), &head, sizeof head);
  if (!body.empty()) std::memcpy(out.data() + sizeof head, body.data(), body.size());
  return out;
}

std::optional<message_head> head_of(const bytes& message) {
  message_head head{};
  if (message.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, message.data(), sizeof head);
  return head;
}

bytes body_of(const bytes& message) { return {message.begin() + sizeof(message_head), message.end()}; }

// Each part as its length and its bytes, by rank.
bytes join(const std::vector<bytes>& parts) {
  bytes out;
  for (const bytes& part : parts) {
    const std::uint64_t length = part.size();
    const auto* raw = reinterpret_cast<const std::byte*>(&length);
    out.insert(out.end(), raw, raw + sizeof length);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

std::optional<std::vector<bytes>> split(const bytes& whole, std::size_t count) {
  std::vector<bytes> parts;
  std::size_t at = 0;
  while (parts.size() < count) {
    std::uint64_t length = 0;
    if (whole.size() - at < sizeof length) return std::nullopt;
    std::memcpy(&length, whole.data() + at, sizeof length);
    at += sizeof length;
    if (whole.size() - at < length) return std::nullopt;
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(at);
    parts.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    at += length;
  }
  return parts;
}

class star_group final : public group {
 public:
  star_group(std::unique_ptr<star_channel> channel, unsigned timeout_s)
      : channel_(std::move(channel)), timeout_ms_(timeout_s * 1000) {}

  int rank() const override { return channel_->rank(); }
  int size() const override { return channel_->size(); }
  std::string library() const override { return channel_->library(); }
  status barrier() override { return without_value(exchange({}, true)); }
  status patient_barrier() override { return without_value(exchange({}, false)); }
  result<std::vector<bytes>> all_gather(std::span<const std::byte> mine) override { return exchange(mine, true); }

 private:
  static status without_value(const result<std::vector<bytes>>& outcome) {
    return outcome ? status() : status(outcome.error());
  }

  result<std::vector<bytes>> exchange(std::span<const std::byte> mine, bool is_limited) {
    if (broken_) return *broken_;
    ++sequence_;
    auto outcome = rank() == 0 ? collect(mine, is_limited) : contribute(mine, is_limited);
    if (!outcome) give_up(outcome.error());
    return outcome;
  }

  result<std::vector<bytes>> collect(std::span<const std::byte> mine, bool is_limited);
  result<std::vector<bytes>> contribute(std::span<const std::byte> mine, bool is_limited);
  status take_part(channel_event&& event, std::vector<std::optional<bytes>>& parts) const;
  status spread(const bytes& message);
  void tell_the_waiting(const std::vector<std::optional<bytes>>& parts);
  void give_up(const failure& why);
  failure lost(int peer, const std::string& why) const {
    return {ECONNRESET, name_of(peer) + " is gone: " + why + "; look at what it printed last"};
  }
  failure silent(const std::vector<std::optional<bytes>>& parts) const;

  std::unique_ptr<star_channel> channel_;
  unsigned timeout_ms_;
  std::uint64_t sequence_ = 0;
  std::optional<failure> broken_;
};

failure star_group::silent(const std::vector<std::optional<bytes>>& parts) const {
  std::string names;
  for (std::size_t r = 0; r < parts.size(); ++r)
    if (!parts[r]) names += (names.empty() ? "" : ", ") + name_of(static_cast<int>(r));
  return {ETIMEDOUT,
          format("no sign of %s for %u s; does it hang, or wait for its GPU?", names.c_str(), timeout_ms_ / 1000)};
}

status star_group::take_part(channel_event&& event, std::vector<std::optional<bytes>>& parts) const {
  if (event.is_lost) return lost(event.peer, event.why);
  const auto head = head_of(event.data);
  if (!head || head->kind != message_kind::part)
    return failure{EPROTO, name_of(event.peer) + " sent what no peerlane of this version sends"};
  if (head->sequence != sequence_)
    return failure{EPROTO, format("%s is at step %llu of the run and rank 0 at step %llu; were all started alike?",
                                  name_of(event.peer).c_str(), static_cast<unsigned long long>(head->sequence),
                                  static_cast<unsigned long long>(sequence_))};
  parts[static_cast<std::size_t>(event.peer)] = body_of(event.data);
  return {};
}

void star_group::tell_the_waiting(const std::vector<std::optional<bytes>>& parts) {
  const bytes message = make_message({message_kind::heartbeat, 0, sequence_}, {});
  for (int peer = 1; peer < size(); ++peer)
    if (parts[static_cast<std::size_t>(peer)])
      static_cast<void>(channel_->send(peer, message, kGoodbyeMs));  // a loss is reported by receive()
}

status star_group::spread(const bytes& message) {
  for (int peer = 1; peer < size(); ++peer)
    if (auto sent = channel_->send(peer, message, timeout_ms_); !sent)
      return sent.code() == ETIMEDOUT ? failure{ETIMEDOUT, name_of(peer) + " does not take what it is sent"}
                                      : lost(peer, sent.error().message);
  return {};
}

result<std::vector<bytes>> star_group::collect(std::span<const std::byte> mine, bool is_limited) {
  std::vector<std::optional<bytes>> parts(static_cast<std::size_t>(size()));
  parts[0] = bytes(mine.begin(), mine.end());
  const std::uint64_t begin = monotonic_ns();
  std::uint64_t heartbeat = begin;
  while (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part; })) {
    if (auto event = channel_->receive(kHeartbeatMs)) {
      if (auto taken = take_part(std::move(*event), parts); !taken) return taken.error();
    }
    const std::uint64_t now = monotonic_ns();
    if (is_limited && now - begin > timeout_ms_ * kMillisecond) return silent(parts);
    if (now - heartbeat < kHeartbeatMs * kMillisecond) continue;
    tell_the_waiting(parts);
    heartbeat = now;
  }
  std::vector<bytes> all;
  for (auto& part : parts) all.push_back(std::move(*part));
  if (auto sent = spread(make_message({message_kind::whole, 0, sequence_}, join(all))); !sent) return sent.error();
  return all;
}

result<std::vector<bytes>> star_group::contribute(std::span<const std::byte> mine, bool is_limited) {
  if (auto sent = channel_->send(0, make_message({message_kind::part, 0, sequence_}, mine), timeout_ms_);
      !sent && sent.code() == ETIMEDOUT)
    return failure{ETIMEDOUT, name_of(0) + " does not take what it is sent"};
  // Where the connection is gone, what rank 0 said before it went may still be waiting to be read.
  std::uint64_t heard = monotonic_ns();
  while (!is_limited || monotonic_ns() - heard < (timeout_ms_ + kGraceMs) * kMillisecond) {
    auto event = channel_->receive(kHeartbeatMs);
    if (!event) continue;
    if (event->is_lost) return lost(0, event->why);
    heard = monotonic_ns();
    const auto head = head_of(event->data);
    if (!head) return failure{EPROTO, name_of(0) + " sent what no peerlane of this version sends"};
    if (head->kind == message_kind::heartbeat) continue;
    const bytes body = body_of(event->data);
    if (head->kind == message_kind::failure)
      return failure{head->code, std::string(reinterpret_cast<const char*>(body.data()), body.size())};
    auto all = split(body, static_cast<std::size_t>(size()));
    if (head->kind != message_kind::whole || head->sequence != sequence_ || !all)
      return failure{EPROTO, name_of(0) + " is at another step of the run; were all started alike?"};
    return std::move(*all);
  }
  return failure{ETIMEDOUT, format("no sign of %s for %u s; does it hang, or wait for its GPU?", name_of(0).c_str(),
                                   (timeout_ms_ + kGraceMs) / 1000)};
}

void star_group::give_up(const failure& why) {
  broken_ = why;
  channel_->abandon();
  if (rank() != 0) return;
  const std::span text(reinterpret_cast<const std::byte*>(why.message.data()), why.message.size());
  const bytes message = make_message({message_kind::failure, why.code, sequence_}, text);
  for (int peer = 1; peer < size(); ++peer)
    static_cast<void>(channel_->send(peer, message, kGoodbyeMs));  // the lost one cannot be told
}

}  // namespace

std::unique_ptr<group> make_star_group(std::unique_ptr<star_channel> channel, unsigned timeout_s) {
  return std::make_unique<star_group>(std::move(channel), timeout_s);
}

}  // namespace pl::bandwidth
