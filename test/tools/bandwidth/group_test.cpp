// SPDX-License-Identifier: Apache-2.0
// Ranks as threads and as processes on this host's loopback device. Nothing here touches CUDA.
#include "tools/bandwidth/group.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>

#include "base/clock.hpp"
#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/launcher.hpp"
#include "messaging/bootstrap/socket_star.hpp"
#include "test/support/reserved_port.hpp"

namespace pl::bandwidth {
namespace {

using messaging::connect_to, messaging::frame_stream, messaging::parse_endpoint, messaging::read_launcher,
    messaging::star_frame, messaging::star_frame_head, messaging::star_frame_kind;

constexpr unsigned kShort = 2;  // seconds, where a time-out is what is tested
constexpr unsigned kLong = 30;  // where it must not come

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string loopback() { return "127.0.0.1:" + std::to_string(test::free_port()); }

group_options options_of(int nodes, int rank, const std::string& endpoint, unsigned timeout_s = kLong) {
  group_options out;
  out.nodes = nodes;
  out.rank = rank;
  out.rendezvous = endpoint;
  out.timeout_s = timeout_s;
  return out;
}

using rank_body = std::function<std::string(group&)>;

// What a rank has to say: the body's text, or the error's.
std::string be_rank(const group_options& options, const rank_body& body) {
  auto made = open_group(options);
  return made ? body(**made) : made.error().message;
}

std::vector<std::string> run_ranks(const std::vector<group_options>& ranks, const rank_body& body) {
  std::vector<std::future<std::string>> running;
  for (const auto& one : ranks) running.push_back(std::async(std::launch::async, be_rank, one, body));
  std::vector<std::string> said;
  for (auto& one : running) said.push_back(one.get());
  return said;
}

std::string all_of(group& ranks) {
  auto all =
      ranks.all_gather(bytes_of(std::string(static_cast<std::size_t>(ranks.rank()), static_cast<char>('a' + ranks.rank()))));
  if (!all) return all.error().message;
  std::string text = std::to_string(ranks.local_rank());
  for (const auto& one : *all) text += "," + text_of(one);
  if (auto fine = ranks.barrier(); !fine) return fine.error().message;
  return ranks.same_host(0, ranks.size() - 1) ? text : "another host";
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no '" << part << "' in '" << text << "'";
}

TEST(Group, OfOneNeedsNobody) {
  auto made = open_group({});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->size(), 1);
  EXPECT_EQ(all_of(**made), "0,");
}

TEST(Group, GathersTextsOfAnyLength) {
  const auto endpoint = loopback();
  const auto said = run_ranks(
      {options_of(4, 2, endpoint), options_of(4, 0, endpoint), options_of(4, 3, endpoint), options_of(4, 1, endpoint)},
      all_of);
  EXPECT_EQ(said, (std::vector<std::string>{"2,,b,cc,ddd", "0,,b,cc,ddd", "3,,b,cc,ddd", "1,,b,cc,ddd"}));
}

TEST(Group, MeetsOverIPv6) {
  const int port = test::free_port(AF_INET6);
  if (port == 0) GTEST_SKIP() << "this machine has no IPv6 loopback address";
  const auto endpoint = "[::1]:" + std::to_string(port);
  EXPECT_EQ(run_ranks({options_of(2, 0, endpoint), options_of(2, 1, endpoint)}, all_of),
            (std::vector<std::string>{"0,,b", "1,,b"}));
}

TEST(Group, CarriesMoreThanASocketHolds) {
  const auto endpoint = loopback();
  const auto said =
      run_ranks({options_of(3, 0, endpoint), options_of(3, 1, endpoint), options_of(3, 2, endpoint)}, [](group& ranks) {
        const std::vector<std::byte> mine(8u << 20, static_cast<std::byte>(ranks.rank()));
        auto all = ranks.all_gather(mine);
        if (!all) return all.error().message;
        for (int r = 0; r < 3; ++r)
          if ((*all)[static_cast<std::size_t>(r)] != std::vector<std::byte>(8u << 20, static_cast<std::byte>(r)))
            return std::string("wrong");
        return std::string("right");
      });
  EXPECT_EQ(said, (std::vector<std::string>{"right", "right", "right"}));
}

TEST(Group, RefusesPlacesThatAreNone) {
  for (const char* endpoint :
       {"node", ":5000", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x", "::1:5000", "no-such-host.invalid:5000"}) {
    auto made = open_group(options_of(2, 0, endpoint));
    ASSERT_FALSE(made) << endpoint;
    EXPECT_EQ(made.code(), EINVAL) << endpoint;
    EXPECT_TRUE(has(made.error().message, endpoint));
  }
}

TEST(Group, RefusesHalfASetOfOptions) {
  EXPECT_EQ(open_group(options_of(2, 0, "")).code(), EINVAL);
  EXPECT_EQ(open_group(options_of(2, -1, "127.0.0.1:5000")).code(), EINVAL);
  EXPECT_EQ(open_group(options_of(2, 2, "127.0.0.1:5000")).code(), EINVAL);
  EXPECT_EQ(open_group(options_of(0, 0, "127.0.0.1:5000")).code(), EINVAL);
}

TEST(Group, AMissingRankIsNamedByItsNumber) {
  const auto endpoint = loopback();
  const auto said = run_ranks({options_of(3, 0, endpoint, kShort), options_of(3, 2, endpoint, kShort)}, all_of);
  for (const auto& text : said) EXPECT_TRUE(has(text, "within 2 s: 1")) << text;
}

TEST(Group, AMissingRank0IsNamedByItsPlace) {
  const auto endpoint = loopback();
  EXPECT_TRUE(has(run_ranks({options_of(2, 1, endpoint, kShort)}, all_of)[0], "rank 0 does not answer at " + endpoint));
}

TEST(Group, AnotherNumberOfNodesEndsTheRunForAll) {
  const auto endpoint = loopback();
  const auto begin = monotonic_ns();
  for (const auto& text : run_ranks({options_of(3, 0, endpoint), options_of(4, 1, endpoint)}, all_of)) {
    EXPECT_TRUE(has(text, "one of 4"));
    EXPECT_TRUE(has(text, "one of 3"));
  }
  EXPECT_LT(monotonic_ns() - begin, 10'000'000'000u);
}

TEST(Group, TwoProcessesOfOneRankEndTheRunForAll) {
  const auto endpoint = loopback();
  for (const auto& text :
       run_ranks({options_of(3, 0, endpoint), options_of(3, 1, endpoint), options_of(3, 1, endpoint)}, all_of))
    EXPECT_TRUE(has(text, "two processes are rank 1"));
}

TEST(Group, TheSecondRank0IsToldThatThePortIsTaken) {
  const auto endpoint = loopback();
  const auto said = run_ranks({options_of(2, 0, endpoint, kShort), options_of(2, 0, endpoint, kShort)}, all_of);
  const bool first_won = said[0].find("did not connect") != std::string::npos;
  EXPECT_TRUE(has(said[first_won ? 1 : 0], "another rank 0"));
  EXPECT_TRUE(has(said[first_won ? 0 : 1], "within 2 s: 1"));
}

// A client with frames of its own making.
class Stranger : public testing::Test {
 protected:
  result<frame_stream> connect() {
    auto endpoint = parse_endpoint(endpoint_);
    for (int attempt = 0; attempt < 50; ++attempt, poll(nullptr, 0, 50))
      if (auto made = connect_to(*endpoint, 1000)) return frame_stream(std::move(*made));
    return failure{ETIMEDOUT, "rank 0 does not listen"};
  }
  std::string answer_to(const star_frame_head& head) {
    auto made = connect();
    if (!made) return made.error().message;
    static_cast<void>(made->send(head, bytes_of("stranger"), 1000));
    star_frame got;
    for (int attempt = 0; attempt < 100; ++attempt, poll(nullptr, 0, 50)) {
      auto whole = made->receive(got);
      if (!whole) return whole.error().message;
      if (*whole) return text_of(got.body);
    }
    return "no answer";
  }
  std::future<std::string> start(int rank) {
    return std::async(std::launch::async, be_rank, options_of(2, rank, endpoint_), all_of);
  }
  star_frame_head hello() const {
    star_frame_head head;
    head.kind = star_frame_kind::hello;
    head.rank = 1;
    head.nodes = 2;
    return head;
  }
  std::string endpoint_ = loopback();
};

TEST_F(Stranger, OfAnotherRunIsRejected) {
  auto first = start(0);
  auto head = hello();
  head.nonce = 7;
  EXPECT_TRUE(has(answer_to(head), "another run"));
  auto second = start(1);
  EXPECT_EQ(first.get(), "0,,b");
  EXPECT_EQ(second.get(), "1,,b");
}

TEST_F(Stranger, OfAnotherProtocolIsRejected) {
  auto first = start(0);
  auto head = hello();
  head.magic = 0x20544547;  // "GET "
  EXPECT_TRUE(has(answer_to(head), "closed"));
  auto second = start(1);
  EXPECT_EQ(first.get(), "0,,b");
  EXPECT_EQ(second.get(), "1,,b");
}

TEST_F(Stranger, OfAnotherVersionEndsTheRun) {
  auto first = start(0);
  auto head = hello();
  head.version = 9;
  EXPECT_TRUE(has(answer_to(head), "version 9"));
  EXPECT_TRUE(has(first.get(), "version 9"));
}

// ---- Ranks that go or fall silent --------------------------------------------------------------------------------------

struct child_rank {
  pid_t pid = -1;
  ~child_rank() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

// Forked before this process has threads of the test's own. The child never returns.
pid_t fork_rank(const group_options& options, const rank_body& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  be_rank(options, body);
  _exit(0);
}

std::string barrier_twice(group& ranks) {
  auto fine = ranks.barrier();
  if (fine) fine = ranks.barrier();
  const std::string said = fine ? "fine" : fine.error().message;
  if (!fine && ranks.barrier().code() != fine.code()) return "the group works again";
  return said;
}

std::string one_barrier_then_sleep(group& ranks) {
  static_cast<void>(ranks.barrier());
  poll(nullptr, 0, 60'000);
  return "";
}

TEST(GroupLoss, AKilledRankIsNamedAtOnceOnAllOthers) {
  const auto endpoint = loopback();
  child_rank victim{fork_rank(options_of(3, 2, endpoint), one_barrier_then_sleep)};
  auto killer = std::async(std::launch::async, [&] {
    poll(nullptr, 0, 1500);
    kill(victim.pid, SIGKILL);
  });
  const auto begin = monotonic_ns();
  for (const auto& text : run_ranks({options_of(3, 0, endpoint), options_of(3, 1, endpoint)}, barrier_twice)) {
    EXPECT_TRUE(has(text, "rank 2 ("));
    EXPECT_TRUE(has(text, "is gone"));
  }
  EXPECT_LT(monotonic_ns() - begin, 10'000'000'000u);
}

TEST(GroupLoss, AKilledRank0IsNamedAtOnce) {
  const auto endpoint = loopback();
  child_rank victim{fork_rank(options_of(3, 0, endpoint), one_barrier_then_sleep)};
  auto killer = std::async(std::launch::async, [&] {
    poll(nullptr, 0, 1500);
    kill(victim.pid, SIGKILL);
  });
  for (const auto& text : run_ranks({options_of(3, 1, endpoint), options_of(3, 2, endpoint)}, barrier_twice)) {
    EXPECT_TRUE(has(text, "rank 0 ("));
    EXPECT_TRUE(has(text, "is gone"));
  }
}

TEST(GroupLoss, ASilentRankIsNamedAfterTheTimeOut) {
  const auto endpoint = loopback();
  child_rank silent{fork_rank(options_of(3, 2, endpoint, kShort), one_barrier_then_sleep)};
  for (const auto& text :
       run_ranks({options_of(3, 0, endpoint, kShort), options_of(3, 1, endpoint, kShort)}, barrier_twice)) {
    EXPECT_TRUE(has(text, "no sign of rank 2 ("));
    EXPECT_FALSE(has(text, "rank 1"));
  }
}

TEST(GroupLoss, ASilentRank0IsNamedAfterTheTimeOut) {
  const auto endpoint = loopback();
  child_rank silent{fork_rank(options_of(2, 0, endpoint, kShort), one_barrier_then_sleep)};
  EXPECT_TRUE(has(run_ranks({options_of(2, 1, endpoint, kShort)}, barrier_twice)[0], "no sign of rank 0 ("));
}

TEST(GroupLoss, APatientBarrierOutlastsTheTimeOut) {
  const auto endpoint = loopback();
  const auto said = run_ranks({options_of(3, 0, endpoint, 1), options_of(3, 1, endpoint, 1), options_of(3, 2, endpoint, 1)},
                              [](group& ranks) {
                                if (ranks.rank() == 0) poll(nullptr, 0, 6000);
                                auto fine = ranks.slow_barrier();
                                return fine ? std::string("fine") : fine.error().message;
                              });
  EXPECT_EQ(said, (std::vector<std::string>{"fine", "fine", "fine"}));
}

// ---- Launchers ---------------------------------------------------------------------------------------------------------

constexpr const char* kLauncherVariables[] = {"OMPI_COMM_WORLD_RANK",
                                              "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                                              "PMIX_NAMESPACE",
                                              "PMI_RANK",
                                              "PMI_SIZE",
                                              "MPI_LOCALNRANKS",
                                              "SLURM_PROCID",
                                              "SLURM_STEP_NUM_TASKS",
                                              "SLURM_STEP_NUM_NODES",
                                              "SLURM_JOB_ID",
                                              "SLURM_STEP_ID"};

class Launcher : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kLauncherVariables) unsetenv(name);
  }
};

TEST_F(Launcher, OpenMpi) {
  setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
  setenv("PMIX_NAMESPACE", "job-1", 1);
  const auto found = read_launcher();
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.ranks_here, 4);
  EXPECT_EQ(found.job_key, "job-1");
  EXPECT_TRUE(found.starts_mpi);
}

TEST_F(Launcher, ABatchScriptIsNoRankOfItsJob) {
  setenv("SLURM_JOB_ID", "5", 1);
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "4", 1);
  EXPECT_EQ(read_launcher().size, 0);
  unsetenv("SLURM_NTASKS");
}

TEST_F(Launcher, RanksOfOneHostFindEachOtherByTheJob) {
  const std::string job = std::to_string(getpid());
  setenv("SLURM_JOB_ID", job.c_str(), 1);
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  setenv("SLURM_STEP_NUM_NODES", "1", 1);
  setenv("SLURM_PROCID", "1", 1);
  child_rank other{fork_rank({}, all_of)};
  setenv("SLURM_PROCID", "0", 1);
  auto made = open_group({});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->library(), "local sockets");
  EXPECT_EQ(all_of(**made), "0,,b");
}

TEST_F(Launcher, SeveralHostsWithoutMpiNeedARendezvous) {
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  setenv("SLURM_STEP_NUM_NODES", "2", 1);
  setenv("SLURM_PROCID", "0", 1);
  auto made = open_group({});
  EXPECT_EQ(made.code(), ENOSYS);
  EXPECT_TRUE(has(made.error().message, "--rendezvous"));
}

}  // namespace
}  // namespace pl::bandwidth
