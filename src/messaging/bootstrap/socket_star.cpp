// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/socket_star.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "base/attended_time.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/join_acceptor.hpp"
#include "messaging/bootstrap/peer_identity.hpp"
#include "messaging/bootstrap/rank_0_finder.hpp"
#include "messaging/bootstrap/rejoin_listener.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr unsigned kRetryMs = 100;   // between attempts to connect
constexpr unsigned kQuietMs = 2000;  // wait before reporting what is missing
constexpr unsigned kMaxAttempts =
    20;  // of a rank that rank 0 disconnects, as it does if too many unauthenticated processes connect
constexpr unsigned kJoinGraceMs = 3000;  // ranks wait longer than rank 0, whose error message says more

void report(const job_settings& settings, const std::string& line) {
  if (settings.report) settings.report(line);
}

class socket_channel final : public star_channel {
 public:
  // For elastic jobs.
  struct returns_t {
    std::uint32_t incarnation = 1;             // of this process
    std::unique_ptr<rejoin_listener> rejoins;  // rank 0 only
    std::unique_ptr<rank_0_finder> finder;     // other ranks only
    std::optional<survivor_table> survivors;   // rank 0 only, if it has come back
  };
  socket_channel(const job_settings& settings, std::uint64_t nonce, std::map<int, frame_stream> peers, returns_t returns)
      : settings_(settings), nonce_(nonce), peers_(std::move(peers)), returns_(std::move(returns)) {}

  int rank() const override { return settings_.rank; }
  int size() const override { return settings_.size; }
  std::string library() const override {
    return settings_.rendezvous.addresses.front().family() == AF_UNIX ? "local sockets" : "TCP";
  }
  status send(int peer, std::span<const std::byte> message, unsigned timeout_ms) override;
  std::optional<channel_event> receive(unsigned timeout_ms) override;
  void abandon() override {}  // the others detect a connection that is not closed properly
  bool stays_open() const override { return settings_.stays_open; }
  std::uint32_t incarnation() const override { return returns_.incarnation; }
  rejoin_listener* rejoins() override { return returns_.rejoins.get(); }
  rank_0_finder* finder() override { return returns_.finder.get(); }
  const survivor_table* survivors() const override { return returns_.survivors ? &*returns_.survivors : nullptr; }
  std::uint64_t run() const override { return nonce_; }
  void adopt(int peer, frame_stream stream) override { peers_.insert_or_assign(peer, std::move(stream)); }
  void drop(int peer) override { peers_.erase(peer); }

 private:
  std::optional<channel_event> read_from(int peer, frame_stream& stream);

  job_settings settings_;
  std::uint64_t nonce_;
  std::map<int, frame_stream> peers_;  // without the lost ones
  returns_t returns_;
};

status socket_channel::send(int peer, std::span<const std::byte> message, unsigned timeout_ms) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return failure{ECONNRESET, "its connection was closed"};
  return found->second.send(head_of(settings_, star_frame_kind::message, nonce_), message, timeout_ms);
}

std::optional<channel_event> socket_channel::read_from(int peer, frame_stream& stream) {
  channel_event event;
  event.peer = peer;
  star_frame got;
  auto whole = stream.receive(got);
  if (whole && !*whole) return std::nullopt;
  if (!whole) event.reason = whole.error().message;
  else if (got.head.kind != star_frame_kind::message || got.head.nonce != nonce_)
    event.reason = "it sent a frame of another run";
  else event.data = std::move(got.body);
  event.is_lost = !event.reason.empty();
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

// Rank 0 until all ranks are connected.
class host_side {
 public:
  host_side(const job_settings& settings, const std::string& secret)
      : settings_(settings),
        secret_(secret),
        acceptor_(settings, secret,
                  [this](join_acceptor::joining_process& candidate, const star_frame_head& hello, const std::string& host) {
                    return judge(candidate, hello, host);
                  }) {}
  result<std::unique_ptr<star_channel>> gather(unique_fd listener);

 private:
  struct member {
    frame_stream stream;
    std::string host;
    std::optional<survivor_claim> claim;  // of a survivor of an earlier process of rank 0
  };
  status serve_members();
  bool refuse_odd(join_acceptor::joining_process& candidate, int rank, const std::string& name,
                  const std::optional<survivor_claim>& claim);
  bool is_missed_by_others(int rank) const;
  result<std::unique_ptr<star_channel>> welcome_all(unique_fd listener);
  std::unique_ptr<star_channel> come_back(unique_fd listener);
  survivor_table take_survivors();
  bool has_survivors() const {
    return std::any_of(members_.begin(), members_.end(), [](const auto& each) { return each.second.claim.has_value(); });
  }
  status judge(join_acceptor::joining_process& candidate, const star_frame_head& hello, const std::string& peer_info);
  failure end(join_acceptor::joining_process* candidate, failure reason);
  std::string missing() const;
  bool is_complete() const;

  const job_settings& settings_;
  const std::string secret_;
  join_acceptor acceptor_;
  std::map<int, member> members_;
};

// A rank that one survivor has lost is lost for all.
bool host_side::is_missed_by_others(int rank) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& each) {
    return each.second.claim && each.second.claim->ranks[static_cast<std::size_t>(rank)].is_gone;
  });
}

// Do not wait for a rank that the survivors know to have ended.
bool host_side::is_complete() const {
  for (int r = 1; r < settings_.size; ++r)
    if (!members_.contains(r) && !is_missed_by_others(r)) return false;
  return true;
}

std::string host_side::missing() const {
  std::string names;
  for (int r = 1; r < settings_.size; ++r)
    if (!members_.contains(r) && !is_missed_by_others(r)) names += (names.empty() ? "" : ", ") + std::to_string(r);
  return names;
}

// Tells all ranks that the run ends.
failure host_side::end(join_acceptor::joining_process* candidate, failure reason) {
  const auto head = head_of(settings_, star_frame_kind::refusal, 0);
  if (candidate != nullptr) static_cast<void>(candidate->stream.send(head, bytes_of(reason.message), kSendMs));
  for (auto& [rank, one] : members_) static_cast<void>(one.stream.send(head, bytes_of(reason.message), kSendMs));
  return reason;
}

// If there are survivors, nothing that a connecting process sends ends the job; only the process itself is rejected.
bool host_side::refuse_odd(join_acceptor::joining_process& candidate, int rank, const std::string& name,
                           const std::optional<survivor_claim>& claim) {
  const auto refuse_it = [&](const std::string& reason) { return acceptor_.reject(candidate, reason), true; };
  if (claim && !settings_.stays_open)
    return refuse_it(
        "rank 0 has come back, and its options do not say so: open it as the others did (elastic, or "
        "PEERLANE_LINK_ELASTIC=1)");
  if (!claim && !has_survivors()) return false;
  if (rank < 1 || rank >= settings_.size) return refuse_it(name + " is not a rank of this job");
  for (const auto& [other, one] : members_)
    if (claim && one.claim && one.claim->run != claim->run) return refuse_it(name + " was left behind by another run");
  return members_.contains(rank) && refuse_it(format("two processes are rank %d: %s is the second one", rank, name.c_str()));
}

status host_side::judge(join_acceptor::joining_process& candidate, const star_frame_head& hello,
                        const std::string& peer_info) {
  const int rank = static_cast<int>(hello.rank);
  auto [host, claim] = parse_peer_info(peer_info, settings_.size);
  const std::string name = format("rank %d (%s)", rank, host.c_str());
  if (hello.kind != star_frame_kind::hello || hello.nonce != settings_.job) {
    acceptor_.reject(candidate,
                     name + " belongs to another run than rank 0 (" + own_host_name() + ") at " + settings_.rendezvous.text);
    return {};
  }
  if (hello.version != kFrameVersion)
    return end(
        &candidate,
        {EPROTO, format("%s speaks version %u of the protocol, rank 0 (%s) version %u: start the same peerlane everywhere",
                        name.c_str(), hello.version, own_host_name().c_str(), kFrameVersion)});
  if (refuse_odd(candidate, rank, name, claim)) return {};
  if (hello.nodes != static_cast<std::uint32_t>(settings_.size))
    return end(&candidate,
               {EINVAL, format("%s was started as one of %u ranks, rank 0 (%s) as one of %d: give all the same number",
                               name.c_str(), hello.nodes, own_host_name().c_str(), settings_.size)});
  if (rank < 1 || rank >= settings_.size)
    return end(&candidate,
               {EINVAL, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, own_host_name().c_str(), host.c_str(), settings_.size - 1)});
  if (const auto other = members_.find(rank); other != members_.end())
    return end(&candidate,
               {EEXIST, format("two processes are rank %d: on %s and on %s; every number from 0 to %d goes to one process",
                               rank, other->second.host.c_str(), host.c_str(), settings_.size - 1)});
  candidate.stream.trust();
  members_.emplace(rank, member{std::move(candidate.stream), host, std::move(claim)});
  return {};
}

// A member must not send anything before it is welcomed.
status host_side::serve_members() {
  const bool goes_on = has_survivors();
  for (auto each = members_.begin(); each != members_.end();) {
    auto& [rank, one] = *each;
    star_frame ignored;
    const auto whole = one.stream.receive(ignored);
    const bool is_there = whole && !*whole;
    if (!is_there && !goes_on)
      return end(nullptr, {ECONNRESET, format("rank %d (%s) left before all had come", rank, one.host.c_str())});
    each = is_there ? std::next(each) : members_.erase(each);
  }
  return {};
}

result<std::unique_ptr<star_channel>> host_side::gather(unique_fd listener) {
  if (!listener) {
    auto made = listen_at(settings_.rendezvous, static_cast<int>(acceptor_.max_joining()));
    if (!made) return made.error();
    listener = *std::move(made);
  }
  attended_time waiting_time;
  bool has_reported = false;
  while (!is_complete()) {
    const std::uint64_t waited = waiting_time.measure(std::chrono::seconds(settings_.timeout_s));
    if (waited > settings_.timeout_s * kSecond)
      return end(
          nullptr,
          {ETIMEDOUT, format("of %d ranks these did not connect to %s within %u s: %s%s%s%s", settings_.size,
                             settings_.rendezvous.text.c_str(), settings_.timeout_s, missing().c_str(),
                             has_survivors() ? " (to take rank 0 back they call peerlane_comm_await_return() or "
                                               "peerlane_comm_restore_collectives())"
                                             : "",
                             acceptor_.last_rejected().empty() ? "" : "; rejected: ", acceptor_.last_rejected().c_str())});
    if (!has_reported && waited > kQuietMs * std::uint64_t{1'000'000})
      report(settings_, format("rank 0 waits at %s for rank %s (up to %u s)", settings_.rendezvous.text.c_str(),
                               missing().c_str(), settings_.timeout_s));
    has_reported |= waited > kQuietMs * std::uint64_t{1'000'000};
    std::vector<pollfd> waiting = {{listener.get(), POLLIN, 0}};
    acceptor_.add_descriptors(waiting);
    for (const auto& [rank, one] : members_) waiting.push_back({one.stream.fd(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), kRetryMs);
    acceptor_.accept_all(listener.get());
    if (auto fine = acceptor_.serve(); !fine) return fine.error();
    if (auto fine = serve_members(); !fine) return fine.error();
  }
  if (has_survivors()) return come_back(std::move(listener));
  return welcome_all(std::move(listener));
}

result<std::unique_ptr<star_channel>> host_side::welcome_all(unique_fd listener) {
  std::random_device random;
  const std::uint64_t nonce = (std::uint64_t{random()} << 32) | random();
  std::map<int, frame_stream> peers;
  for (auto& [rank, one] : members_) {
    if (auto sent = one.stream.send(head_of(settings_, star_frame_kind::welcome, nonce), {}, kSendMs); !sent)
      return end(nullptr, {ECONNRESET, format("rank %d (%s) left before all had come", rank, one.host.c_str())});
  }
  for (auto& [rank, one] : members_) peers.emplace(rank, std::move(one.stream));
  socket_channel::returns_t returns;
  if (settings_.stays_open) {
    returns.rejoins = std::make_unique<rejoin_listener>(settings_, secret_, std::move(listener), nonce);
    for (const auto& [rank, stream] : peers) returns.rejoins->watch(stream.fd());
  }
  return std::unique_ptr<star_channel>(
      std::make_unique<socket_channel>(settings_, nonce, std::move(peers), std::move(returns)));
}

// Determines the ranks that are alive, as all will know them. A survivor that another one has lost is told so.
survivor_table host_side::take_survivors() {
  const auto count = static_cast<std::size_t>(settings_.size);
  survivor_table out{std::vector<std::uint32_t>(count, 0), std::vector<std::uint32_t>(count, 1)};
  for (const auto& [rank, one] : members_)
    for (std::size_t r = 0; one.claim && r < count; ++r)
      out.last[r] = std::max(out.last[r], one.claim->ranks[r].incarnation);
  const std::string lost = "another rank has lost this one, so it is lost to all: end it, and start it again";
  for (auto each = members_.begin(); each != members_.end();) {
    auto& [rank, one] = *each;
    const auto own = static_cast<std::size_t>(rank);
    const bool is_lost = one.claim && is_missed_by_others(rank);
    if (is_lost)
      static_cast<void>(one.stream.send(head_of(settings_, star_frame_kind::refusal, 0), bytes_of(lost), kSendMs));
    else if (one.claim) out.living[own] = one.claim->ranks[own].incarnation;
    each = is_lost ? members_.erase(each) : std::next(each);
  }
  out.living.front() = ++out.last.front();
  return out;
}

// This process is a new process of rank 0. The survivors of its predecessor take it back. Other processes that have
// connected ask to rejoin themselves, after it.
std::unique_ptr<star_channel> host_side::come_back(unique_fd listener) {
  const auto first = std::find_if(members_.begin(), members_.end(), [](const auto& each) { return each.second.claim; });
  const std::uint64_t run = first->second.claim->run;
  socket_channel::returns_t returns;
  const auto table = take_survivors();
  returns.incarnation = table.living.front();
  returns.rejoins = std::make_unique<rejoin_listener>(settings_, secret_, std::move(listener), run);
  std::vector<std::uint32_t> numbers{returns.incarnation};
  numbers.insert(numbers.end(), table.living.begin(), table.living.end());
  std::map<int, frame_stream> peers;
  for (auto& [rank, one] : members_) {
    if (!one.claim) {
      returns.rejoins->take_over(rank, std::move(one.stream));
      continue;
    }
    // A rank that has left in the meantime is detected in the first step, which gathers all ranks again.
    static_cast<void>(
        one.stream.send(head_of(settings_, star_frame_kind::welcome, run), std::as_bytes(std::span(numbers)), kSendMs));
    returns.rejoins->watch(one.stream.fd());
    peers.emplace(rank, std::move(one.stream));
  }
  returns.survivors = table;
  return std::make_unique<socket_channel>(settings_, run, std::move(peers), std::move(returns));
}

result<unique_fd> reach_rank_0(const job_settings& settings) {
  const std::chrono::seconds limit(settings.timeout_s);
  attended_time waiting_time;
  bool has_reported = false;
  for (;;) {
    auto made = connect_to(settings.rendezvous, static_cast<unsigned>(attended_time::poll_interval(limit).count()));
    if (made) return made;
    const std::uint64_t waited = waiting_time.measure(limit);
    if (waited > settings.timeout_s * kSecond)
      return failure{
          ETIMEDOUT,
          format("rank 0 does not answer at %s for %u s (%s); was it started, and does a firewall let this port pass?",
                 settings.rendezvous.text.c_str(), settings.timeout_s, made.error().message.c_str())};
    if (!has_reported && waited > kQuietMs * std::uint64_t{1'000'000}) {
      report(settings, format("rank %d looks for rank 0 at %s (up to %u s)", settings.rank, settings.rendezvous.text.c_str(),
                              settings.timeout_s));
      has_reported = true;
    }
    poll(nullptr, 0, kRetryMs);
  }
}

// Rank 0 first proves that it knows the secret, then asks for it.
status answer_challenge(const job_settings& settings, const std::string& secret, const nonce& own,
                        const std::string& peer_info, const star_frame& asked, frame_stream& stream) {
  const auto peer_nonce = take_fixed<nonce>(asked.body);
  const auto shown = take_fixed<digest>(asked.body, sizeof(nonce));
  const auto hello = text_to_prove(head_of(settings, star_frame_kind::hello, settings.job), bytes_of(peer_info));
  if (secret.empty() || !peer_nonce || !shown || !is_equal(*shown, prove(prover::rank_0, secret, *peer_nonce, own, hello)))
    return failure{EACCES, "rank 0 at " + settings.rendezvous.text + " has " + (secret.empty() ? "a" : "another") +
                               " secret; " + kHowToShare};
  return stream.send(head_of(settings, star_frame_kind::proof, 0), prove(prover::joining, secret, *peer_nonce, own, hello),
                     kSendMs);
}

// Rank 0's welcome. It tells a rejoining rank its incarnation, and a survivor the incarnations of rank 0 and of all ranks.
result<joined_job> finish_join(const job_settings& settings, const join_terms& terms, star_frame&& welcome,
                               frame_stream&& stream) {
  joined_job out{std::move(stream), welcome.head.nonce};
  out.stream.trust();
  if (!welcome.body.empty()) out.incarnation = take_fixed<std::uint32_t>(welcome.body).value_or(0);
  const auto count = static_cast<std::size_t>(settings.size);
  if (terms.claim != nullptr) {
    const bool fits = welcome.body.size() == (1 + count) * sizeof(std::uint32_t) && out.run == terms.claim->run &&
                      out.incarnation > terms.claim->ranks.front().incarnation;
    if (!fits)
      return failure{EPROTO,
                     "the process that answers as rank 0 at " + settings.rendezvous.text + " does not know this run"};
    out.living.resize(count);
    std::memcpy(out.living.data(), welcome.body.data() + sizeof(std::uint32_t), count * sizeof(std::uint32_t));
    return out;
  }
  if (out.incarnation == 0 || (out.incarnation > 1 && !settings.stays_open))
    return failure{EINVAL, format("rank %d comes back to a running job, but its options do not say so: open it as "
                                  "the others did (elastic, or PEERLANE_LINK_ELASTIC=1)",
                                  settings.rank)};
  return out;
}

bool has_other_end_closed(int socket) {
  pollfd now{socket, POLLRDHUP, 0};
  return poll(&now, 1, 0) > 0 && (now.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

result<joined_job> join_by(unique_fd socket, const job_settings& settings, const std::string& secret,
                           const join_terms& terms) {
  prepare_connection(socket.get(), settings.timeout_s);
  frame_stream stream(std::move(socket), kMaxUnauthenticatedBody);
  auto own = make_nonce();
  if (!own) return std::move(own).error();
  std::vector<std::byte> hello;
  if (!secret.empty()) hello.assign(own->begin(), own->end());
  const std::string peer_info = peer_info_of(own_host_name(), terms.claim);
  hello.insert(hello.end(), bytes_of(peer_info).begin(), bytes_of(peer_info).end());
  if (auto sent = stream.send(head_of(settings, star_frame_kind::hello, settings.job), hello, kSendMs); !sent)
    return failure{sent.code(), "rank 0 at " + settings.rendezvous.text + " closed the connection: " + sent.error().message};
  bool is_known = false;
  attended_time waited;
  while (!waited.has_reached(std::chrono::milliseconds(settings.timeout_s * 1000 + kJoinGraceMs))) {
    if (terms.is_over && terms.is_over()) return failure{ECANCELED, "given up"};
    pollfd ready{stream.fd(), POLLIN, 0};
    poll(&ready, 1, kRetryMs);
    star_frame got;
    auto whole = stream.receive(got);
    if (!whole && whole.code() == EPROTO)
      return failure{EPROTO, "a program other than Peerlane answers at " + settings.rendezvous.text + "; use another port"};
    if (!whole)
      return failure{ECONNRESET,
                     "rank 0 at " + settings.rendezvous.text + " closed the connection; see the output of rank 0"};
    if (!*whole) continue;
    if (got.head.kind == star_frame_kind::refusal) return failure{ECONNREFUSED, text_of(got.body)};
    if (got.head.kind == star_frame_kind::challenge) {
      if (auto done = answer_challenge(settings, secret, *own, peer_info, got, stream); !done) return done.error();
      is_known = true;
      continue;
    }
    if (got.head.kind != star_frame_kind::welcome || got.head.version != kFrameVersion)
      return failure{EPROTO,
                     "rank 0 at " + settings.rendezvous.text + " runs another version; start the same peerlane everywhere"};
    const bool is_trusted = is_known || (secret.empty() && is_same_user(stream.fd()));
    if (!is_trusted && secret.empty() && has_other_end_closed(stream.fd()))  // then the kernel does not tell whose it was
      return failure{ECONNRESET, "rank 0 at " + settings.rendezvous.text + " ended at once"};
    if (!is_trusted)
      return failure{
          EACCES, "the process that answers as rank 0 at " + settings.rendezvous.text +
                      " has no secret, and the kernel does not confirm that it is a process of this user on this machine; " +
                      kHowToShare};
    return finish_join(settings, terms, std::move(got), std::move(stream));
  }
  return failure{ETIMEDOUT, format("rank 0 at %s took the connection and then said nothing for %u s",
                                   settings.rendezvous.text.c_str(), settings.timeout_s)};
}

namespace {

std::unique_ptr<star_channel> member_of(const job_settings& settings, const std::string& secret, joined_job&& joined) {
  socket_channel::returns_t returns;
  returns.incarnation = joined.incarnation;
  if (settings.stays_open) {
    returns.finder = std::make_unique<rank_0_finder>(settings, secret);
    returns.finder->watch(joined.stream.fd());
  }
  std::map<int, frame_stream> peers;
  peers.emplace(0, std::move(joined.stream));
  return std::make_unique<socket_channel>(settings, joined.run, std::move(peers), std::move(returns));
}

// A rank that was disconnected connects again while a process listens there. If rank 0 has ended, none does, except in an
// elastic job.
result<std::unique_ptr<star_channel>> join(const job_settings& settings, const std::string& secret) {
  auto socket = reach_rank_0(settings);
  if (!socket) return socket.error();
  for (unsigned attempt = 1;; ++attempt) {
    auto joined = join_by(std::move(*socket), settings, secret, {});
    if (joined) return member_of(settings, secret, *std::move(joined));
    if (joined.code() != ECONNRESET || attempt == kMaxAttempts) return std::move(joined).error();
    poll(nullptr, 0, kRetryMs);
    socket = settings.stays_open ? reach_rank_0(settings) : connect_to(settings.rendezvous, 1000);
    if (!socket) return std::move(joined).error();
  }
}

}  // namespace

// Without a secret, only processes of this user on this machine can connect, at any address: the kernel identifies them.
result<std::unique_ptr<star_channel>> meet(const job_settings& settings, unique_fd listener) {
  const bool is_local = settings.rendezvous.addresses.front().family() == AF_UNIX;
  auto secret = is_local ? result<std::string>(std::string()) : read_secret();
  if (!secret) return std::move(secret).error();
  if (!is_local && secret->empty()) *secret = settings.secret;
  if (settings.rank != 0) return join(settings, *secret);
  return host_side(settings, *std::move(secret)).gather(std::move(listener));
}

}  // namespace pl::messaging
