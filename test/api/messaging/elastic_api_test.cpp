// SPDX-License-Identifier: Apache-2.0
// A rank leaves and comes back, by the public headers alone.
#include <gtest/gtest.h>
#include <peerlane/triggered.h>

#include "test/api/messaging/job.hpp"
#include "test/support/reserved_port.hpp"

namespace peerlane::test {
namespace {

struct return_heard {
  int calls = 0, code = -1;
  std::uint64_t size_bytes = 0;
};

// Rank 1 ends in its first process and comes back in its second. All by the public interface.
int be_elastic(int rank, const std::string& rendezvous, std::uint32_t process) {
  auto options = communicator::options();
  options.rendezvous = rendezvous.c_str();
  options.rank = rank;
  options.size = 2;
  options.host_only = 1;
  options.elastic = PEERLANE_YES;
  auto job = communicator::open(&options);
  CHECK(job);
  CHECK(job->incarnation(rank).value() == process);
  CHECK(!job->incarnation(2));
  if (process == 1) {
    CHECK(job->all_gather(rank).value() == (std::vector<int>{0, 1}));
    if (rank == 1) _exit(7);
    auto failed = job->await_failure();
    CHECK(failed && failed->wait(patience));
    return_heard heard_end;
    auto back = job->await_return();
    CHECK(back && back->then([&](const op_info& info) { heard_end.code = info.source, ++heard_end.calls; }));
    op_info info{};
    CHECK(back->wait(patience, &info) && info.source == 1 && info.tag == 2);
    CHECK(heard_end.calls == 1 && heard_end.code == 1);
    CHECK(peerlane_comm_await_return(job->get(), nullptr) == EINVAL);
    CHECK(peerlane_comm_incarnation(job->get(), 1, nullptr) == EINVAL);
  }
  CHECK(job->barrier(patience).code() == ECONNRESET);
  CHECK(job->restore_collectives(patience));
  CHECK(job->all_gather(rank).value() == (std::vector<int>{0, 1}));
  CHECK(job->incarnation(1).value() == 2 && job->barrier(patience));
  return 0;
}

TEST(elastic_api, a_rank_comes_back_as_a_new_process) {
  const std::string rendezvous = "127.0.0.1:" + std::to_string(pl::test::free_port());
  std::fflush(nullptr);
  const auto start = [&](int rank, std::uint32_t process) {
    const pid_t child = fork();
    if (child == 0) alarm(60), _exit(be_elastic(rank, rendezvous, process) == 0 ? 0 : 1);
    return child;
  };
  const auto end_of = [](pid_t child) {
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const pid_t first = start(0, 1), second = start(1, 1);
  EXPECT_EQ(end_of(second), 7);
  EXPECT_EQ(end_of(start(1, 2)), 0);
  EXPECT_EQ(end_of(first), 0);
}

TEST(elastic_api, what_cannot_be_elastic_says_so) {
  auto options = communicator::options();
  options.elastic = PEERLANE_YES;
  options.rendezvous = "file:/tmp/peerlane-no-elastic-job";
  options.size = 2;
  EXPECT_EQ(communicator::open(&options).code(), ENOTSUP);
  const peerlane_bootstrap own{nullptr, 0, 1, [](void*, const void*, size_t, void*) { return 0; }, nullptr};
  options.bootstrap = &own;
  EXPECT_EQ(communicator::open(&options).code(), ENOTSUP);
  options.bootstrap = nullptr;
  auto triggered = peerlane_triggered_options{};
  triggered.struct_bytes = sizeof triggered;
  triggered.comm = &options;
  peerlane_triggered_t context = nullptr;
  const int refused = peerlane_triggered_open(&triggered, &context);
  EXPECT_TRUE(refused == ENOTSUP || refused == ENOSYS) << peerlane_last_error();
  EXPECT_EQ(run_job(1,
                    [](communicator& job) {
                      CHECK(job.await_return().code() == ENOTSUP);
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace peerlane::test
