// SPDX-License-Identifier: Apache-2.0
// A process is killed while others have operations under way with it: each ends with an error in time, nothing hangs, and
// the others go on among themselves.
#include <sys/time.h>

#include "test/messaging/job.hpp"
#include "test/messaging/refused_call.hpp"
#include "test/messaging/two_hosts.hpp"

namespace pl::messaging {
namespace {

constexpr auto kInTime = 5s;  // generous for a loaded machine: it takes some milliseconds

// This process is gone at some moment from now, wherever it is then.
void die_in(long us) {
  signal(SIGALRM, SIG_DFL);
  itimerval timer{};
  timer.it_value = {us / 1000000, us % 1000000};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

bool is_lost(request& operation) {
  const auto done = operation.wait(kInTime);
  if (done.code() != ECONNRESET) std::fprintf(stderr, "got %d: %s\n", done.code(), done ? "" : done.error().message.c_str());
  return done.code() == ECONNRESET;
}

struct way {
  const char* name;
  gpus layout;
  bool use_ipc;
  messenger_options::path_t path;
  bool use_cma = true;
  bool has_two_hosts = false;  // where only the network shows a death
  bool from_host = false;      // every message of two processes in traffic, to GPU memory
  bool by_rendezvous = false;  // UCX's, as where it has RDMA
};
constexpr way kWays[] = {
    {"ipc", gpus::one_each, true, messenger_options::path_t::automatic},
    {"dma", gpus::one_each, true, messenger_options::path_t::automatic},
    {"dma_shared", gpus::shared, true, messenger_options::path_t::automatic},
    {"ring", gpus::one_each, false, messenger_options::path_t::automatic},
    {"shared", gpus::shared, true, messenger_options::path_t::automatic},
    {"network", gpus::one_each, true, messenger_options::path_t::network},
    {"two_hosts", gpus::one_each, true, messenger_options::path_t::automatic, true, true},
    {"to_gpu", gpus::one_each, true, messenger_options::path_t::automatic, true, false, true},
    {"host", gpus::none, true, messenger_options::path_t::automatic},
    {"host_ring", gpus::none, true, messenger_options::path_t::automatic, false},
    {"host_network", gpus::none, true, messenger_options::path_t::network},
    {"rendezvous", gpus::none, true, messenger_options::path_t::network, true, false, false, true},
    {"rendezvous_to_gpu", gpus::one_each, true, messenger_options::path_t::network, true, false, true, true},
    {"rendezvous_two_hosts", gpus::none, true, messenger_options::path_t::automatic, true, true, false, true}};

class death : public testing::TestWithParam<way> {
 protected:
  void SetUp() override {
    if (!GetParam().has_two_hosts) return;
    if (const auto reason = hosts_.make({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  }
  messenger_options options() const {
    auto out = test_options();
    out.use_ipc = GetParam().use_ipc;
    out.use_channels = std::string_view(GetParam().name).starts_with("dma");
    out.path = GetParam().path;
    out.use_cma = GetParam().use_cma;
    if (GetParam().by_rendezvous) out.rendezvous = messenger_options::rendezvous_t::always;
    return out;
  }
  int run(int size, const std::function<int(const rank_context&)>& body) {
    return run_job(size, GetParam().layout, options(), body, size - 1,
                   [&](int rank) { return !GetParam().has_two_hosts || hosts_.enter(rank % 2); });
  }
  bool has_gpu() const { return GetParam().layout != gpus::none; }
  // Windows of the same node: of host memory, and small ones of GPU memory.
  bool copies_in_the_call() const {
    const way& tried = GetParam();
    return (has_gpu() || tried.use_cma) && !tried.has_two_hosts && tried.path == messenger_options::path_t::automatic;
  }

 private:
  two_hosts hosts_;
};
INSTANTIATE_TEST_SUITE_P(every_way, death, testing::ValuesIn(kWays),
                         [](const auto& values) { return std::string(values.param.name); });

TEST_P(death, ends_what_waits) {
  EXPECT_EQ(run(2,
                [&](const rank_context& ctx) {
                  piece small(has_gpu(), 64), large(has_gpu(), 1 << 20), target(has_gpu(), 1 << 20);
                  auto exposed = ctx.messenger->expose(small.all());
                  CHECK_OK(exposed);
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  CHECK_OK(ctx.group->barrier());  // from here on, rank 1 answers nothing any more
                  if (ctx.rank == 1) return raise(SIGKILL);
                  window::key_t key = exposed->key();
                  key.rank = 1;  // both windows are the first of their process
                  auto named = ctx.messenger->irecv(1, target.all(), 1);
                  auto any = ctx.messenger->irecv(kAnySource, target.all(), 1);
                  auto rendezvous = ctx.messenger->isend(1, large.all(), 2);
                  // The copy is made in the call, so that it may be done before the other process has ended.
                  if (copies_in_the_call()) CHECK(is_lost(named));
                  auto put = ctx.messenger->put(key, 0, small.all());
                  auto got = ctx.messenger->get(key, 0, small.all());
                  auto counted = ctx.messenger->atomic(key, 0, atomic_op::add, 1);
                  CHECK(is_lost(named) && is_lost(any));
                  CHECK(is_lost(rendezvous));
                  CHECK(is_lost(put));
                  CHECK(is_lost(got));
                  CHECK(is_lost(counted));
                  CHECK(ctx.messenger->peer_state(1).code() == ECONNRESET);
                  CHECK(ctx.messenger->flush(1, kInTime).code() == ECONNRESET);
                  CHECK(ctx.messenger->barrier(kInTime).code() == ECONNRESET);
                  auto late = ctx.messenger->isend(1, small.all(), 3);
                  auto late_receive = ctx.messenger->irecv(kAnySource, target.all(), 3);
                  CHECK(is_lost(late) && is_lost(late_receive));
                  // Those whose requests still live; nothing begins towards a process that is known to have ended.
                  CHECK(ctx.messenger->counts().operations == (copies_in_the_call() ? 4 : 7));
                  return 0;
                }),
            0);
}

// Traffic in both directions with several operations under way; the other process ends somewhere in it.
int talk_until_error(const rank_context& ctx, bool from_device, bool to_device, std::size_t bytes) {
  constexpr int kWindow = 6;
  piece source(from_device, bytes), destination(to_device, bytes * kWindow);
  for (int round = 0; round < 100000; ++round) {
    std::vector<request> all;
    for (int i = 0; i < kWindow; ++i) {
      all.push_back(ctx.messenger->irecv(1 - ctx.rank, destination.part(static_cast<std::size_t>(i) * bytes, bytes),
                                         static_cast<unsigned>(i)));
      all.push_back(ctx.messenger->isend(1 - ctx.rank, source.all(), static_cast<unsigned>(i)));
    }
    int lost = 0;
    for (auto& each : all) {
      const auto done = each.wait(kInTime);
      if (!done.ok() && done.code() != ECONNRESET)
        std::fprintf(stderr, "got %d: %s\n", done.code(), done.error().message.c_str());
      CHECK(done.ok() || done.code() == ECONNRESET);
      lost += done.ok() ? 0 : 1;
    }
    if (lost > 0) return 0;
  }
  return __LINE__;
}

// A container's filter: the end is seen by the process number, also by who sleeps.
TEST(death_without_pidfds, ends_what_waits) {
  for (const bool has_progress_thread : {false, true}) {
    auto options = test_options();
    options.progress_thread = has_progress_thread;
    EXPECT_EQ(run_job(
                  2, gpus::none, options,
                  [&](const rank_context& ctx) {
                    piece target(false, 64);
                    CHECK_OK(ctx.messenger->barrier(kTimeout));
                    CHECK_OK(ctx.group->barrier());
                    if (ctx.rank == 1) return raise(SIGKILL);
                    auto named = ctx.messenger->irecv(1, target.all(), 1);
                    CHECK(is_lost(named));
                    return 0;
                  },
                  1, [](int) { return refuse_call(SYS_pidfd_open, EPERM); }),
              0)
        << has_progress_thread;
  }
}

TEST_P(death, at_any_moment) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{40000}, std::size_t{400000}}) {
    for (const long us : {3000L, 7700L, 15000L}) {
      EXPECT_EQ(run(2,
                    [&](const rank_context& ctx) {
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 1) die_in(us);
                      return talk_until_error(ctx, has_gpu() && !GetParam().from_host, has_gpu(), bytes);
                    }),
                0)
          << bytes << " bytes, " << us << " us";
    }
  }
}

TEST_P(death, leaves_the_others_alone) {
  EXPECT_EQ(run(3,
                [&](const rank_context& ctx) {
                  piece source(has_gpu() && !GetParam().from_host, 300000), destination(has_gpu(), 300000);
                  source.set(test::random_bytes(300000, static_cast<unsigned>(ctx.rank)));
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  if (ctx.rank == 2) return raise(SIGKILL);
                  auto lost = ctx.messenger->irecv(2, destination.all(), 9);
                  CHECK(is_lost(lost));
                  const int peer = 1 - ctx.rank;
                  auto received = ctx.messenger->irecv(peer, destination.all(), 1);
                  auto sent = ctx.messenger->isend(peer, source.all(), 1);
                  CHECK_OK(sent.wait(kTimeout));
                  CHECK_OK(received.wait(kTimeout));
                  CHECK(destination.get(300000) == test::random_bytes(300000, static_cast<unsigned>(peer)));
                  return 0;
                }),
            0);
}

TEST_P(death, each_failure_is_reported_once) {
  EXPECT_EQ(run(3,
                [&](const rank_context& ctx) {
                  auto first = ctx.messenger->await_failure(), second = ctx.messenger->await_failure();
                  auto dropped = std::make_unique<request>(ctx.messenger->await_failure());
                  auto cancelled = ctx.messenger->await_failure();
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  if (ctx.rank == 2) return raise(SIGKILL);
                  // No message is under way with it.
                  CHECK_OK(first.wait(kInTime));
                  CHECK(first.info().source == 2 && first.info().tag == static_cast<std::uint64_t>(failure_kind::lost));
                  const auto state = ctx.messenger->peer_state(2);
                  CHECK(state.code() == ECONNRESET && state.error().message.find("rank 2 ") == 0);
                  CHECK(second.wait(20ms).code() == ETIMEDOUT);
                  dropped.reset();
                  CHECK_OK(cancelled.cancel());
                  CHECK(cancelled.outcome().code() == ECANCELED);
                  CHECK_OK(ctx.messenger->send(1 - ctx.rank, {}, 1, kTimeout));
                  CHECK_OK(ctx.messenger->recv(1 - ctx.rank, {}, 1, kWholeTag, kTimeout));
                  if (ctx.rank == 1) return 0;  // closes
                  CHECK_OK(second.wait(kTimeout));
                  CHECK(second.info().source == 1 && second.info().tag == static_cast<std::uint64_t>(failure_kind::closed));
                  CHECK(ctx.messenger->await_failure().wait(20ms).code() == ETIMEDOUT);
                  CHECK(ctx.messenger->counts().operations == 3);  // those whose requests still live
                  return 0;
                }),
            0);
}

TEST(leaving, is_told_and_loses_nothing) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      piece data(false, 64);
                      if (ctx.rank == 1) {
                        data.set(test::random_bytes(64, 1));
                        CHECK_OK(ctx.messenger->send(0, data.all(), 5, kTimeout));
                        return 0;
                      }
                      auto never = ctx.messenger->irecv(1, data.all(), 6);
                      CHECK(is_lost(never));
                      auto late = ctx.messenger->await_failure();  // tells what was before
                      CHECK(late.has_ended() && late.info().source == 1);
                      CHECK_OK(ctx.messenger->recv(1, data.all(), 5, kWholeTag, kTimeout));
                      CHECK(data.get(64) == test::random_bytes(64, 1));
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
