// SPDX-License-Identifier: Apache-2.0
#include "socket_star.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "clock.hpp"
#include "frame_stream.hpp"
#include "text.hpp"

namespace pl::link {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr unsigned kRetryMs = 100;          // between attempts to connect
constexpr unsigned kQuietMs = 2000;         // before a line tells what is being waited for
constexpr unsigned kIntroductionMs = 5000;  // a connection that has not introduced itself by then is a stranger's
constexpr unsigned kSendMs = 2000;          // of one small frame to a rank that waits for it
constexpr unsigned kGraceMs = 3000;         // a rank's patience beyond rank 0's, whose sentence says more

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string text_of(const std::vector<std::byte>& body) { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void tell(const meeting& at, const std::string& line) {
  if (at.tell) at.tell(line);
}

star_frame_head head_of(const meeting& at, star_frame_kind kind, std::uint64_t nonce) {
  star_frame_head head;
  head.kind = kind;
  head.rank = static_cast<std::uint32_t>(at.rank);
  head.nodes = static_cast<std::uint32_t>(at.size);
  head.nonce = nonce;
  return head;
}

class socket_channel final : public star_channel {
 public:
  socket_channel(const meeting& at, std::uint64_t nonce, std::map<int, frame_stream> peers)
      : at_(at), nonce_(nonce), peers_(std::move(peers)) {}

  int rank() const override { return at_.rank; }
  int size() const override { return at_.size; }
  std::string library() const override { return at_.where.addresses.front().family() == AF_UNIX ? "local sockets" : "TCP"; }
  status send(int peer, std::span<const std::byte> message, unsigned timeout_ms) override;
  std::optional<channel_event> receive(unsigned timeout_ms) override;
  void abandon() override {}  // what is not closed in order is noticed by the others

 private:
  std::optional<channel_event> read_from(int peer, frame_stream& stream);

  meeting at_;
  std::uint64_t nonce_;
  std::map<int, frame_stream> peers_;  // without the lost ones
};

status socket_channel::send(int peer, std::span<const std::byte> message, unsigned timeout_ms) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return failure{ECONNRESET, "its connection was closed"};
  return found->second.send(head_of(at_, star_frame_kind::message, nonce_), message, timeout_ms);
}

std::optional<channel_event> socket_channel::read_from(int peer, frame_stream& stream) {
  channel_event event;
  event.peer = peer;
  star_frame got;
  auto whole = stream.receive(got);
  if (whole && !*whole) return std::nullopt;
  if (!whole) event.why = whole.error().message;
  else if (got.head.kind != star_frame_kind::message || got.head.nonce != nonce_)
    event.why = "it sent a frame of another run";
  else event.data = std::move(got.body);
  event.is_lost = !event.why.empty();
  if (event.is_lost) peers_.erase(peer);  // `stream` ends here
  return event;
}

std::optional<channel_event> socket_channel::receive(unsigned timeout_ms) {
  std::vector<pollfd> waiting;
  std::vector<int> ranks;
  for (const auto& [peer, stream] : peers_) {
    waiting.push_back({stream.fd(), POLLIN, 0});
    ranks.push_back(peer);
  }
  if (poll(waiting.data(), waiting.size(), static_cast<int>(timeout_ms)) <= 0) return std::nullopt;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i].revents == 0) continue;
    if (auto event = read_from(ranks[i], peers_.at(ranks[i]))) return event;
  }
  return std::nullopt;
}

// Rank 0 until all have come.
class host_side {
 public:
  explicit host_side(const meeting& at) : at_(at) {}
  result<std::unique_ptr<star_channel>> gather();

 private:
  struct visitor {
    frame_stream stream;
    std::uint64_t since = 0;
  };
  struct member {
    frame_stream stream;
    std::string host;
  };
  void accept_all(int listener);
  status look_after_visitors();
  status look_after_members();
  status judge(visitor& who, const star_frame& hello);
  failure end(visitor* who, failure why);
  std::string missing() const;
  bool is_complete() const { return members_.size() + 1 == static_cast<std::size_t>(at_.size); }

  const meeting& at_;
  std::vector<visitor> visitors_;
  std::map<int, member> members_;
};

std::string host_side::missing() const {
  std::string names;
  for (int r = 1; r < at_.size; ++r)
    if (!members_.contains(r)) names += (names.empty() ? "" : ", ") + std::to_string(r);
  return names;
}

// Tells everybody that the run ends here.
failure host_side::end(visitor* who, failure why) {
  const auto head = head_of(at_, star_frame_kind::refusal, 0);
  if (who != nullptr) static_cast<void>(who->stream.send(head, bytes_of(why.message), kSendMs));
  for (auto& [rank, one] : members_) static_cast<void>(one.stream.send(head, bytes_of(why.message), kSendMs));
  return why;
}

status host_side::judge(visitor& who, const star_frame& hello) {
  const std::string host = text_of(hello.body);
  const int rank = static_cast<int>(hello.head.rank);
  const std::string name = format("rank %d (%s)", rank, host.c_str());
  if (hello.head.kind != star_frame_kind::hello || hello.head.nonce != at_.job) {
    const std::string text = name + " belongs to another run than rank 0 (" + host_name() + ") at " + at_.where.text;
    static_cast<void>(who.stream.send(head_of(at_, star_frame_kind::refusal, 0), bytes_of(text), kSendMs));
    tell(at_, "turned away: " + text);
    return {};
  }
  if (hello.head.version != kFrameVersion)
    return end(
        &who,
        {EPROTO, format("%s speaks version %u of the protocol, rank 0 (%s) version %u: start the same peerlane everywhere",
                        name.c_str(), hello.head.version, host_name().c_str(), kFrameVersion)});
  if (hello.head.nodes != static_cast<std::uint32_t>(at_.size))
    return end(&who, {EINVAL, format("%s was started as one of %u ranks, rank 0 (%s) as one of %d: give all the same number",
                                     name.c_str(), hello.head.nodes, host_name().c_str(), at_.size)});
  if (rank < 1 || rank >= at_.size)
    return end(&who,
               {EINVAL, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, host_name().c_str(), host.c_str(), at_.size - 1)});
  if (const auto other = members_.find(rank); other != members_.end())
    return end(&who,
               {EEXIST, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, other->second.host.c_str(), host.c_str(), at_.size - 1)});
  members_.emplace(rank, member{std::move(who.stream), host});
  return {};
}

void host_side::accept_all(int listener) {
  for (;;) {
    unique_fd socket(real_device_io(), accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (!is_same_user(socket.get())) continue;
    prepare_connection(socket.get(), at_.timeout_s);
    visitors_.push_back({frame_stream(std::move(socket)), monotonic_ns()});
  }
}

status host_side::look_after_visitors() {
  for (auto who = visitors_.begin(); who != visitors_.end();) {
    star_frame hello;
    auto whole = who->stream.receive(hello);
    if (whole && *whole)
      if (auto fine = judge(*who, hello); !fine) return fine;
    const bool is_slow = monotonic_ns() - who->since > kIntroductionMs * std::uint64_t{1'000'000};
    who = !whole || *whole || is_slow ? visitors_.erase(who) : who + 1;
  }
  return {};
}

// A member has nothing to say before it is welcomed.
status host_side::look_after_members() {
  for (auto& [rank, one] : members_) {
    star_frame ignored;
    if (auto whole = one.stream.receive(ignored); !whole || *whole)
      return end(nullptr, {ECONNRESET, format("rank %d (%s) left before all had come", rank, one.host.c_str())});
  }
  return {};
}

result<std::unique_ptr<star_channel>> host_side::gather() {
  auto listener = listen_at(at_.where, at_.size + 16);
  if (!listener) return listener.error();
  const std::uint64_t begin = monotonic_ns();
  bool has_told = false;
  while (!is_complete()) {
    const std::uint64_t waited = monotonic_ns() - begin;
    if (waited > at_.timeout_s * kSecond)
      return end(nullptr, {ETIMEDOUT, format("of %d ranks these did not come to %s within %u s: %s", at_.size,
                                             at_.where.text.c_str(), at_.timeout_s, missing().c_str())});
    if (!has_told && waited > kQuietMs * std::uint64_t{1'000'000})
      tell(at_,
           format("rank 0 waits at %s for rank %s (up to %u s)", at_.where.text.c_str(), missing().c_str(), at_.timeout_s));
    has_told |= waited > kQuietMs * std::uint64_t{1'000'000};
    std::vector<pollfd> waiting = {{listener->get(), POLLIN, 0}};
    for (const auto& who : visitors_) waiting.push_back({who.stream.fd(), POLLIN, 0});
    for (const auto& [rank, one] : members_) waiting.push_back({one.stream.fd(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), kRetryMs);
    accept_all(listener->get());
    if (auto fine = look_after_visitors(); !fine) return fine.error();
    if (auto fine = look_after_members(); !fine) return fine.error();
  }
  std::random_device random;
  const std::uint64_t nonce = (std::uint64_t{random()} << 32) | random();
  std::map<int, frame_stream> peers;
  for (auto& [rank, one] : members_) {
    if (auto sent = one.stream.send(head_of(at_, star_frame_kind::welcome, nonce), {}, kSendMs); !sent)
      return end(nullptr, {ECONNRESET, format("rank %d (%s) left before all had come", rank, one.host.c_str())});
  }
  for (auto& [rank, one] : members_) peers.emplace(rank, std::move(one.stream));
  return std::unique_ptr<star_channel>(std::make_unique<socket_channel>(at_, nonce, std::move(peers)));
}

result<unique_fd> reach_rank_0(const meeting& at) {
  const std::uint64_t begin = monotonic_ns();
  bool has_told = false;
  for (;;) {
    auto made = connect_to(at.where, 1000);
    if (made && !is_same_user(made->get())) return failure{EPERM, "another user's process answers at " + at.where.text};
    if (made) return made;
    const std::uint64_t waited = monotonic_ns() - begin;
    if (waited > at.timeout_s * kSecond)
      return failure{
          ETIMEDOUT,
          format("rank 0 does not answer at %s for %u s (%s); was it started, and does a firewall let this port pass?",
                 at.where.text.c_str(), at.timeout_s, made.error().message.c_str())};
    if (!has_told && waited > kQuietMs * std::uint64_t{1'000'000}) {
      tell(at, format("rank %d looks for rank 0 at %s (up to %u s)", at.rank, at.where.text.c_str(), at.timeout_s));
      has_told = true;
    }
    poll(nullptr, 0, kRetryMs);
  }
}

result<std::unique_ptr<star_channel>> join(const meeting& at) {
  auto socket = reach_rank_0(at);
  if (!socket) return socket.error();
  prepare_connection(socket->get(), at.timeout_s);
  frame_stream stream(std::move(*socket));
  if (auto sent = stream.send(head_of(at, star_frame_kind::hello, at.job), bytes_of(host_name()), kSendMs); !sent)
    return failure{sent.code(), "rank 0 at " + at.where.text + " closed the connection: " + sent.error().message};
  const std::uint64_t deadline = monotonic_ns() + at.timeout_s * kSecond + kGraceMs * std::uint64_t{1'000'000};
  while (monotonic_ns() < deadline) {
    pollfd ready{stream.fd(), POLLIN, 0};
    poll(&ready, 1, kRetryMs);
    star_frame got;
    auto whole = stream.receive(got);
    if (!whole && whole.code() == EPROTO)
      return failure{EPROTO, "something else than a peerlane answers at " + at.where.text + "; take another port"};
    if (!whole) return failure{ECONNRESET, "rank 0 at " + at.where.text + " closed the connection; look at what it printed"};
    if (!*whole) continue;
    if (got.head.kind == star_frame_kind::refusal) return failure{ECONNREFUSED, text_of(got.body)};
    if (got.head.kind != star_frame_kind::welcome || got.head.version != kFrameVersion)
      return failure{EPROTO, "rank 0 at " + at.where.text + " runs another version; start the same peerlane everywhere"};
    std::map<int, frame_stream> peers;
    peers.emplace(0, std::move(stream));
    return std::unique_ptr<star_channel>(std::make_unique<socket_channel>(at, got.head.nonce, std::move(peers)));
  }
  return failure{ETIMEDOUT, format("rank 0 at %s took the connection and then said nothing for %u s", at.where.text.c_str(),
                                   at.timeout_s)};
}

}  // namespace

result<std::unique_ptr<star_channel>> meet(const meeting& at) { return at.rank == 0 ? host_side(at).gather() : join(at); }

}  // namespace pl::link
