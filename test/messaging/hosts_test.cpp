// SPDX-License-Identifier: Apache-2.0
// Two hosts joined by a wire (two_hosts.hpp): random traffic against a model while packets are delayed, overtake each other
// and are lost; a process that is stopped or killed while everything is under way to it.
#include <fcntl.h>

#include <filesystem>
#include <memory>
#include <random>

#include "test/messaging/any_memory.hpp"
#include "test/messaging/job.hpp"
#include "test/messaging/two_hosts.hpp"

namespace pl::messaging {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kMaxBytes = 8u << 20;
constexpr int kMessages = 16;
#else
constexpr std::size_t kMaxBytes = 64u << 20;
constexpr int kMessages = 40;
#endif
constexpr auto kHostsInTime = 10s;  // generous for a loaded machine: it takes some milliseconds

struct message {
  std::uint64_t tag;
  std::size_t bytes;
  memory_of source, destination;
  bool is_wild, is_short;
};

// Mostly small; one of the list has the largest size.
std::vector<message> messages_of(std::uint64_t seed, int source_rank) {
  std::mt19937_64 random(seed * 10 + static_cast<unsigned>(source_rank));
  std::vector<message> out;
  const auto largest = static_cast<int>(random() % kMessages);
  for (int i = 0; i < kMessages; ++i) {
    const auto most = std::size_t{1} << random() % 20;
    const std::size_t bytes = i == largest ? kMaxBytes : random() % (most + 1);
    out.push_back({random() % 3, bytes, memory_of(random() % kKindsOfMemory), memory_of(random() % kKindsOfMemory),
                   random() % 3 == 0, random() % 8 == 0});
  }
  return out;
}

struct expected {
  std::unique_ptr<any_memory> destination;
  request received;
  std::size_t capacity;
  const message* wanted;
  std::uint64_t seed;
};

int check(expected& one) {
  const auto& wanted = *one.wanted;
  const auto done = one.received.wait(60s);
  CHECK(done.code() == (wanted.bytes > one.capacity ? EMSGSIZE : 0));
  CHECK(one.received.info().bytes == wanted.bytes && one.received.info().tag == wanted.tag);
  auto data = test::random_bytes(wanted.bytes, one.seed);
  data.resize(one.capacity);
  CHECK(one.destination->get(one.capacity) == data);
  return 0;
}

// Receives are posted one by one, each before or after its message has come: it gets the first of those that fit.
int talk_at_random(const rank_context& ctx, std::uint64_t seed) {
  const int peer = 1 - ctx.rank;
  const auto outgoing = messages_of(seed, ctx.rank), incoming = messages_of(seed, peer);
  std::mt19937_64 random(seed * 7 + static_cast<unsigned>(ctx.rank));
  std::vector<std::unique_ptr<any_memory>> kept;
  std::vector<request> sends;
  std::vector<expected> receives;
  std::vector<std::size_t> left(incoming.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (std::size_t sent = 0; sent < outgoing.size() || !left.empty();) {
    if (sent < outgoing.size() && random() % 2 == 0) {
      const auto& one = outgoing[sent];
      kept.push_back(std::make_unique<any_memory>(one.source, one.bytes));
      kept.back()->set(test::random_bytes(one.bytes, seed * 1000 + sent * 2 + static_cast<unsigned>(ctx.rank)));
      sends.push_back(ctx.messenger->isend(peer, kept.back()->all(), one.tag));
      ++sent;
    } else if (!left.empty()) {
      const bool is_wild = incoming[left.front()].is_wild;
      const auto tag = incoming[left[random() % left.size()]].tag;
      auto found = left.begin();
      while (!is_wild && incoming[*found].tag != tag) ++found;
      const auto& wanted = incoming[*found];
      const std::size_t capacity = wanted.is_short ? wanted.bytes / 2 : wanted.bytes;
      receives.push_back({std::make_unique<any_memory>(wanted.destination, capacity),
                          {},
                          capacity,
                          &wanted,
                          seed * 1000 + *found * 2 + static_cast<unsigned>(peer)});
      receives.back().received =
          ctx.messenger->irecv(random() % 2 == 0 ? peer : kAnySource, receives.back().destination->all(), is_wild ? 0 : tag,
                               is_wild ? 0 : kWholeTag);
      left.erase(found);
    }
    ctx.messenger->progress();
  }
  for (auto& one : receives)
    if (const int line = check(one)) return line;
  for (auto& each : sends) CHECK_OK(each.wait(60s));
  CHECK_OK(ctx.messenger->barrier(60s));
  CHECK(ctx.messenger->counts().unexpected_bytes == 0);
  return 0;
}

class hosts : public testing::Test {
 protected:
  // Why there are none, or "".
  std::string join(const wire& between) { return both_.make(between); }
  int run(gpus layout, const std::function<int(const rank_context&)>& body, int killed = -1, bool is_cut = false) {
    auto options = test_options();
    if (is_cut) options.rails = "lo";
    return run_job(2, layout, options, body, killed,
                   [&](int rank) { return both_.enter(rank) && (!is_cut || two_hosts::switch_on_loopback()); });
  }

  two_hosts both_;
};

class lossy_hosts : public hosts, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(seeds, lossy_hosts, testing::Range(1, 3));

TEST_P(lossy_hosts, lose_no_message) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  SCOPED_TRACE("seed " + std::to_string(seed));
  if (const auto reason = join({seed, 100, 600, 0.005}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run(gpus::one_each,
                [&](const rank_context& ctx) {
                  return ctx.messenger->is_same_node(1 - ctx.rank) ? __LINE__ : talk_at_random(ctx, seed);
                }),
            0);
}

int open_sockets() {
  int found = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own descriptor
    if (std::filesystem::read_symlink(each.path(), gone).string().starts_with("socket:")) ++found;
  }
  return found;
}

// Everything that can be under way to a process that answers nothing.
struct in_flight {
  explicit in_flight(const rank_context& ctx, const window::key_t& key)
      : target(true, 1 << 20), small(true, 64), large(true, 8u << 20), many(false, 8192) {
    const auto add = [&](request added) { all.push_back(std::move(added)); };
    add(ctx.messenger->irecv(1, target.all(), 1));
    add(ctx.messenger->irecv(kAnySource, target.all(), 1));
    add(ctx.messenger->isend(1, large.all(), 2));  // announced
    add(ctx.messenger->put(key, 0, small.all()));
    add(ctx.messenger->put(key, 0, large.part(0, 1 << 20)));
    add(ctx.messenger->get(key, 0, small.all()));
    add(ctx.messenger->atomic(key, 0, atomic_op::add, 1));
    // Beyond what the other side may hold, and what the connection's buffers do.
    for (int i = 0; i < 2000; ++i) flood.push_back(ctx.messenger->isend(1, many.all(), 3));
  }
  piece target, small, large, many;
  std::vector<request> all, flood;
};

int outlive(const rank_context& ctx, const std::function<void()>& stop_peer, const std::function<void()>& kill_peer) {
  piece exposed(true, 1 << 20), moving(true, 16u << 20);
  auto window_here = ctx.messenger->expose(exposed.all());
  CHECK_OK(window_here);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  auto moved = ctx.messenger->irecv(1, moving.all(), 5);  // the peer sends it, and stops somewhere in it
  CHECK_OK(ctx.group->barrier());
  const int sockets = open_sockets();
  ctx.messenger->progress();
  stop_peer();
  auto key = window_here->key();
  key.rank = 1;
  in_flight pending(ctx, key);
  // A stopped process is not a dead one: waits end in time, operations do not.
  for (auto& each : pending.all) CHECK(each.wait(20ms).code() == ETIMEDOUT);
  CHECK(ctx.messenger->barrier(20ms).code() == ETIMEDOUT);
  CHECK(pending.flood.back().wait(20ms).code() == ETIMEDOUT);
  kill_peer();
  for (auto& each : pending.all) CHECK(each.wait(kHostsInTime).code() == ECONNRESET);
  for (auto& each : pending.flood) {
    const auto done = each.wait(kHostsInTime);
    CHECK(done.ok() || done.code() == ECONNRESET);  // what had left had ended
  }
  CHECK(pending.flood.back().wait(kHostsInTime).code() == ECONNRESET);
  CHECK(moved.wait(kHostsInTime).code() == ECONNRESET);
  CHECK(ctx.messenger->peer_state(1).code() == ECONNRESET && ctx.messenger->barrier(kHostsInTime).code() == ECONNRESET);
  pending.all.clear();
  pending.flood.clear();
  moved = {};
  CHECK(ctx.messenger->counts().operations == 0);
  CHECK(open_sockets() < sockets);  // its connections are closed
  return 0;
}

TEST_F(hosts, outlive_a_process_that_stops_and_dies) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  // The peer tells its number through a pipe: it is stopped from outside, at any place in its calls.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(run(
                gpus::one_each,
                [&](const rank_context& ctx) {
                  if (ctx.rank == 0) {
                    pid_t peer = 0;
                    CHECK(read(ends[0], &peer, sizeof peer) == sizeof peer);
                    return outlive(
                        ctx, [&] { kill(peer, SIGSTOP); }, [&] { kill(peer, SIGKILL); });
                  }
                  const pid_t self = getpid();
                  CHECK(write(ends[1], &self, sizeof self) == sizeof self);
                  piece exposed(true, 1 << 20), moving(true, 16u << 20);
                  auto window_here = ctx.messenger->expose(exposed.all());
                  CHECK_OK(window_here);
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  CHECK_OK(ctx.group->barrier());
                  auto sent = ctx.messenger->isend(0, moving.all(), 5);
                  static_cast<void>(sent.wait());  // the alarm of a child ends it if nobody kills it
                  return __LINE__;
                },
                1),
            0);
  close(ends[0]);
  close(ends[1]);
}

// What the rank says that meets the other one by hand, at the first host's address.
std::string meet_by_hand(int rank, const std::string& secret) {
  const std::string file = "/tmp/peerlane-hosts-secret." + std::to_string(getpid());
  if (!secret.empty()) {
    const unique_fd made(real_device_io(), open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (write(made.get(), secret.data(), secret.size()) < 0) return "no file";
    setenv("PEERLANE_LINK_SECRET_FILE", file.c_str(), 1);
  }
  bootstrap_options options;
  options.rendezvous = "10.77.0.1:18999";
  options.rank = rank;
  options.size = 2;
  options.timeout_s = 4;
  auto group = open_bootstrap(options);
  unlink(file.c_str());
  if (!group) return group.error().message;
  return (*group)->barrier() ? "met" : "no barrier";
}

TEST_F(hosts, meet_by_hand_only_with_a_secret) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  for (const bool has_secret : {false, true}) {
    EXPECT_EQ(fork_ranks(2,
                         [&](int rank, fork_bootstrap&) {
                           CHECK(both_.enter(rank));
                           const auto said = meet_by_hand(rank, has_secret ? "a secret of both hosts" : "");
                           const bool is_right =
                               has_secret ? said == "met" : said.find("PEERLANE_LINK_SECRET_FILE") != std::string::npos;
                           if (!is_right) std::fprintf(stderr, "rank %d: %s\n", rank, said.c_str());
                           return is_right ? 0 : __LINE__;
                         }),
              0);
  }
}

// Each process has a rail of its own, and there is no way from one to the other.
TEST_F(hosts, rails_without_a_route_are_an_error) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run(
                gpus::none,
                [](const rank_context& ctx) {
                  piece data(false, 64);
                  auto sent = ctx.messenger->isend(1 - ctx.rank, data.all(), 1);
                  auto received = ctx.messenger->irecv(1 - ctx.rank, data.all(), 1);
                  const auto done = received.wait(kHostsInTime);
                  if (done.code() != ECONNRESET) std::fprintf(stderr, "got %d\n", done.code());
                  CHECK(done.code() == ECONNRESET);
                  CHECK(ctx.messenger->peer_state(1 - ctx.rank).code() == ECONNRESET);
                  return 0;
                },
                -1, true),
            0);
}

}  // namespace
}  // namespace pl::messaging
