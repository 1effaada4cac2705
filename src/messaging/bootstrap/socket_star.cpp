// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/socket_star.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/peer_identity.hpp"

namespace pl::link {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr unsigned kRetryMs = 100;          // between attempts to connect
constexpr unsigned kQuietMs = 2000;         // before a line tells what is being waited for
constexpr unsigned kIntroductionMs = 5000;  // a connection that has not introduced itself by then is a stranger's
constexpr unsigned kSendMs = 2000;          // of one small frame to a rank that waits for it
constexpr std::size_t kMaxVisitors = 64;    // under way at a time: then the oldest goes, it has had its time
constexpr unsigned kGraceMs = 3000;         // a rank's patience beyond rank 0's, whose sentence says more

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string text_of(std::span<const std::byte> body) { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
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

constexpr const char* kHowToShare =
    "give every rank the same secret: (umask 077; head -c 32 /dev/urandom | base64 > FILE), a copy of FILE for each, and "
    "PEERLANE_LINK_SECRET_FILE=FILE";

// What a hello says, as both ends prove it: who, of how many, of which job, and its host.
std::vector<std::byte> text_to_prove(const star_frame_head& hello, std::span<const std::byte> host) {
  const std::uint64_t numbers[] = {hello.rank, hello.nodes, hello.nonce};
  const auto raw = std::as_bytes(std::span(numbers));
  std::vector<std::byte> out(raw.begin(), raw.end());
  out.insert(out.end(), host.begin(), host.end());
  return out;
}

template <class Fixed>
std::optional<Fixed> take_fixed(std::span<const std::byte> from, std::size_t at = 0) {
  Fixed out;
  if (from.size() < at || from.size() - at < out.size()) return std::nullopt;
  std::memcpy(out.data(), from.data() + at, out.size());
  return out;
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
  host_side(const meeting& at, std::string secret) : at_(at), secret_(std::move(secret)) {}
  result<std::unique_ptr<star_channel>> gather();

 private:
  struct visitor {
    frame_stream stream;
    std::uint64_t since = 0;
    // With a secret: what it said, once it was challenged.
    std::optional<star_frame> hello{};
    nonce own{}, its{};
    bool is_over = false;
  };
  struct member {
    frame_stream stream;
    std::string host;
  };
  void accept_all(int listener);
  status look_after_visitors();
  status look_after_members();
  status hear(visitor& who, star_frame&& said);
  void challenge(visitor& who, star_frame&& hello);
  void turn_away(visitor& who, const std::string& text);
  status judge(visitor& who, const star_frame_head& head, const std::string& host);
  failure end(visitor* who, failure why);
  std::string missing() const;
  bool is_complete() const { return members_.size() + 1 == static_cast<std::size_t>(at_.size); }

  const meeting& at_;
  const std::string secret_;
  std::string turned_away_;  // the last one's reason
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

void host_side::turn_away(visitor& who, const std::string& text) {
  static_cast<void>(who.stream.send(head_of(at_, star_frame_kind::refusal, 0), bytes_of(text), kSendMs));
  turned_away_ = text;
  tell(at_, "turned away: " + text);
  who.is_over = true;
}

// Until it has shown that it belongs to the job, nothing that a visitor says ends the run of the others.
status host_side::hear(visitor& who, star_frame&& said) {
  if (secret_.empty()) {
    who.is_over = true;
    return judge(who, said.head, text_of(said.body));
  }
  if (!who.hello) return challenge(who, std::move(said)), status{};
  const auto shown = take_fixed<digest>(said.body);
  const auto host = std::span(std::as_const(who.hello->body)).subspan(who.its.size());
  const auto wanted = prove(prover::joining, secret_, who.own, who.its, text_to_prove(who.hello->head, host));
  if (said.head.kind != star_frame_kind::proof || !shown || !is_equal(*shown, wanted)) {
    turn_away(who, format("a visitor that says it is rank %u (%s) has another secret than rank 0 at %s; %s",
                          who.hello->head.rank, text_of(host).c_str(), at_.where.text.c_str(), kHowToShare));
    return {};
  }
  who.is_over = true;
  who.stream.trust();
  return judge(who, who.hello->head, text_of(host));
}

void host_side::challenge(visitor& who, star_frame&& hello) {
  const auto its = take_fixed<nonce>(hello.body);
  const auto own = make_nonce();
  if (hello.head.kind != star_frame_kind::hello || hello.head.version != kFrameVersion || !its || !own)
    return turn_away(who, format("a visitor without a secret, or with another version of peerlane, at %s; %s",
                                 at_.where.text.c_str(), kHowToShare));
  who.its = *its;
  who.own = *own;
  who.hello = std::move(hello);
  const auto host = std::span(std::as_const(who.hello->body)).subspan(who.its.size());
  const auto proof = prove(prover::rank_0, secret_, who.own, who.its, text_to_prove(who.hello->head, host));
  std::vector<std::byte> body(who.own.begin(), who.own.end());
  body.insert(body.end(), proof.begin(), proof.end());
  who.is_over = !who.stream.send(head_of(at_, star_frame_kind::challenge, 0), body, kSendMs);
}

status host_side::judge(visitor& who, const star_frame_head& hello, const std::string& host) {
  const int rank = static_cast<int>(hello.rank);
  const std::string name = format("rank %d (%s)", rank, host.c_str());
  if (hello.kind != star_frame_kind::hello || hello.nonce != at_.job) {
    turn_away(who, name + " belongs to another run than rank 0 (" + host_name() + ") at " + at_.where.text);
    return {};
  }
  if (hello.version != kFrameVersion)
    return end(
        &who,
        {EPROTO, format("%s speaks version %u of the protocol, rank 0 (%s) version %u: start the same peerlane everywhere",
                        name.c_str(), hello.version, host_name().c_str(), kFrameVersion)});
  if (hello.nodes != static_cast<std::uint32_t>(at_.size))
    return end(&who, {EINVAL, format("%s was started as one of %u ranks, rank 0 (%s) as one of %d: give all the same number",
                                     name.c_str(), hello.nodes, host_name().c_str(), at_.size)});
  if (rank < 1 || rank >= at_.size)
    return end(&who,
               {EINVAL, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, host_name().c_str(), host.c_str(), at_.size - 1)});
  if (const auto other = members_.find(rank); other != members_.end())
    return end(&who,
               {EEXIST, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, other->second.host.c_str(), host.c_str(), at_.size - 1)});
  who.stream.trust();
  members_.emplace(rank, member{std::move(who.stream), host});
  return {};
}

void host_side::accept_all(int listener) {
  for (std::size_t taken = 0; taken < kMaxVisitors; ++taken) {
    unique_fd socket(real_device_io(), accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const bool is_known = !secret_.empty() || is_same_user(socket.get());
    prepare_connection(socket.get(), at_.timeout_s);
    visitor who{frame_stream(std::move(socket), kMaxStrangerBody), monotonic_ns()};
    if (!is_known) {
      turn_away(who, format("a visitor that is not of rank 0's user and machine, as far as the kernel tells, at %s; %s",
                            at_.where.text.c_str(), kHowToShare));
      continue;
    }
    if (visitors_.size() == kMaxVisitors) visitors_.erase(visitors_.begin());
    visitors_.push_back(std::move(who));
  }
}

status host_side::look_after_visitors() {
  for (auto who = visitors_.begin(); who != visitors_.end();) {
    star_frame said;
    auto whole = who->stream.receive(said);
    if (whole && *whole)
      if (auto fine = hear(*who, std::move(said)); !fine) return fine;
    const bool is_slow = monotonic_ns() - who->since > kIntroductionMs * std::uint64_t{1'000'000};
    who = !whole || who->is_over || is_slow ? visitors_.erase(who) : who + 1;
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
  auto listener = listen_at(at_.where, at_.size + static_cast<int>(kMaxVisitors));
  if (!listener) return listener.error();
  const std::uint64_t begin = monotonic_ns();
  bool has_told = false;
  while (!is_complete()) {
    const std::uint64_t waited = monotonic_ns() - begin;
    if (waited > at_.timeout_s * kSecond)
      return end(nullptr, {ETIMEDOUT, format("of %d ranks these did not come to %s within %u s: %s%s%s", at_.size,
                                             at_.where.text.c_str(), at_.timeout_s, missing().c_str(),
                                             turned_away_.empty() ? "" : "; turned away: ", turned_away_.c_str())});
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

// Rank 0 asks for the secret, and shows first that it has it.
status answer_challenge(const meeting& at, const std::string& secret, const nonce& own, const star_frame& asked,
                        frame_stream& stream) {
  const auto its = take_fixed<nonce>(asked.body);
  const auto shown = take_fixed<digest>(asked.body, sizeof(nonce));
  const std::string host = host_name();
  const auto hello = text_to_prove(head_of(at, star_frame_kind::hello, at.job), bytes_of(host));
  if (secret.empty() || !its || !shown || !is_equal(*shown, prove(prover::rank_0, secret, *its, own, hello)))
    return failure{EACCES,
                   "rank 0 at " + at.where.text + " has " + (secret.empty() ? "a" : "another") + " secret; " + kHowToShare};
  return stream.send(head_of(at, star_frame_kind::proof, 0), prove(prover::joining, secret, *its, own, hello), kSendMs);
}

result<std::unique_ptr<star_channel>> join(const meeting& at, const std::string& secret) {
  auto socket = reach_rank_0(at);
  if (!socket) return socket.error();
  prepare_connection(socket->get(), at.timeout_s);
  frame_stream stream(std::move(*socket), kMaxStrangerBody);
  auto own = make_nonce();
  if (!own) return std::move(own).error();
  std::vector<std::byte> hello;
  if (!secret.empty()) hello.assign(own->begin(), own->end());
  const std::string host = host_name();
  hello.insert(hello.end(), bytes_of(host).begin(), bytes_of(host).end());
  if (auto sent = stream.send(head_of(at, star_frame_kind::hello, at.job), hello, kSendMs); !sent)
    return failure{sent.code(), "rank 0 at " + at.where.text + " closed the connection: " + sent.error().message};
  bool is_known = false;
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
    if (got.head.kind == star_frame_kind::challenge) {
      if (auto done = answer_challenge(at, secret, *own, got, stream); !done) return done.error();
      is_known = true;
      continue;
    }
    if (got.head.kind != star_frame_kind::welcome || got.head.version != kFrameVersion)
      return failure{EPROTO, "rank 0 at " + at.where.text + " runs another version; start the same peerlane everywhere"};
    if (!is_known && (!secret.empty() || !is_same_user(stream.fd())))
      return failure{EACCES, "what answers as rank 0 at " + at.where.text +
                                 " shows no secret and is not of this user and machine, as far as the kernel tells; " +
                                 kHowToShare};
    stream.trust();
    std::map<int, frame_stream> peers;
    peers.emplace(0, std::move(stream));
    return std::unique_ptr<star_channel>(std::make_unique<socket_channel>(at, got.head.nonce, std::move(peers)));
  }
  return failure{ETIMEDOUT, format("rank 0 at %s took the connection and then said nothing for %u s", at.where.text.c_str(),
                                   at.timeout_s)};
}

}  // namespace

// Without a secret only processes of this user on this machine meet, whatever the address: the kernel tells whose they are.
result<std::unique_ptr<star_channel>> meet(const meeting& at) {
  const bool is_local = at.where.addresses.front().family() == AF_UNIX;
  auto secret = is_local ? result<std::string>(std::string()) : read_secret();
  if (!secret) return std::move(secret).error();
  return at.rank == 0 ? host_side(at, *std::move(secret)).gather() : join(at, *secret);
}

}  // namespace pl::link
