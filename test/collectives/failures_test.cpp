// SPDX-License-Identifier: Apache-2.0
// What goes wrong: refused arguments, counts that differ, ranks that die, time-outs; and that every rank hears of it, and
// all go on after restore().
#include "test/collectives/ranks.hpp"

namespace pl::collectives {
namespace {

using messaging::buffer;
using messaging::host_buffer;

constexpr summation kSum{element::int32, reduction::sum};

// The error of its begin or end; an endless wait is the test's failure (alarm of the job).
int code_of(result<operation> begun) { return begun ? begun->wait(kTimeout).code() : begun.code(); }

int all_reduce_once(const rank_of_job& job) {
  std::int32_t one = 1, sum = 0;
  CHECK_OK(wait(job.all->all_reduce(host_buffer(&one, 4), host_buffer(&sum, 4), kSum)));
  CHECK(sum == job.size);
  return 0;
}

TEST(failures, refused_arguments_begin_nothing) {
  EXPECT_EQ(
      run_ranks(
          2, gpus::none,
          [](const rank_of_job& job) {
            std::vector<unsigned char> data(64);
            const auto part = [&](std::size_t begin, std::size_t bytes) { return host_buffer(data.data() + begin, bytes); };
            const std::size_t counts[] = {1, 1}, lengths[] = {8, 8}, offsets[] = {0, 60}, far[] = {0, ~std::size_t{0}};
            CHECK(job.all->broadcast(part(0, 4), 2).code() == EINVAL);
            CHECK(job.all->broadcast(part(0, 4), -1).code() == EINVAL);
            CHECK(job.all->broadcast({0, 4, messaging::memory_kind::host}, 0).code() == EINVAL);
            CHECK(job.all->gather(part(0, 4), part(8, 12), job.rank).code() == EINVAL);
            CHECK(job.all->scatter(part(0, 4), part(8, 4), job.rank).code() == EINVAL);
            CHECK(job.all->all_gather(part(0, 8), part(4, 16)).code() == EINVAL);
            CHECK(job.all->all_reduce(part(0, 8), part(4, 8), kSum).code() == EINVAL);
            CHECK(job.all->all_reduce(part(0, 6), part(8, 6), kSum).code() == EINVAL);
            CHECK(job.all->all_reduce(part(0, 8), part(8, 4), kSum).code() == EINVAL);
            CHECK(job.all->reduce_scatter(part(0, 8), part(8, 4), {counts, 1}, kSum).code() == EINVAL);
            CHECK(job.all->reduce_scatter(part(0, 8), part(8, 8), counts, kSum).code() == EINVAL);
            // Sums that wrap to what the buffers have.
            constexpr std::size_t kQuarter = std::size_t{1} << 62;
            const std::size_t wraps[] = {kQuarter, 0}, wraps_late[] = {2, ~std::size_t{0}};
            CHECK(job.all->reduce_scatter(part(0, 0), part(8, 0), wraps, kSum).code() == EINVAL);
            CHECK(job.all->reduce_scatter(part(0, 4), part(8, job.rank == 0 ? 8 : 0), wraps_late, kSum).code() == EINVAL);
            const buffer endless{part(0, 4).address, ~std::size_t{0} - 3, messaging::memory_kind::host};
            CHECK(job.all->all_reduce(endless, endless, kSum).code() == EINVAL);
            CHECK(job.all->broadcast(endless, 0).code() == EINVAL);
            CHECK(job.all->all_to_all(part(0, 7), part(8, 7)).code() == EINVAL);
            CHECK(job.all->all_to_all_v(part(0, 64), {lengths, offsets}, part(0, 64), {lengths, offsets}).code() == EINVAL);
            CHECK(job.all->all_to_all_v(part(0, 64), {lengths, far}, part(0, 64), {lengths, far}).code() == EINVAL);
            CHECK(!job.all->has_pending());
            return all_reduce_once(job);
          }),
      0);
}

// Rank 1 gives fewer elements. Both hear of it in this collective or in the next one, and go on after a restore.
TEST(failures, counts_that_differ) {
  for (const bool is_longer : {false, true})
    EXPECT_EQ(run_ranks(2, gpus::none,
                        [&](const rank_of_job& job) {
                          std::vector<std::int32_t> given(100), sums(100);
                          const std::size_t bytes = (job.rank == 1) == is_longer ? 400 : 40;
                          CHECK(code_of(job.all->all_reduce(host_buffer(given.data(), bytes),
                                                            host_buffer(sums.data(), bytes), kSum)) == EMSGSIZE);
                          CHECK(job.all->barrier().code() == EMSGSIZE);
                          CHECK_OK(job.all->restore(kTimeout));
                          return all_reduce_once(job);
                        }),
              0);
}

TEST(failures, counts_that_differ_reach_ranks_that_see_none) {
  EXPECT_EQ(run_ranks(5, gpus::none,
                      [&](const rank_of_job& job) {
                        std::vector<std::byte> data(4000);
                        // Rank 3's is longer: it or its parent sees that. The others hear of it while they wait.
                        const int code = code_of(job.all->broadcast(host_buffer(data.data(), job.rank == 3 ? 4000 : 40), 0));
                        CHECK(code == 0 || code == EMSGSIZE);
                        CHECK(code == EMSGSIZE || code_of(job.all->barrier()) == EMSGSIZE);
                        CHECK_OK(job.all->restore(kTimeout));
                        return all_reduce_once(job);
                      }),
            0);
}

// The last rank dies within one of many collectives: every other one gets an error, also those with no message from it.
class deaths : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(bytes, deaths, testing::Values(8, 40000, 4000000));
TEST_P(deaths, reach_every_rank) {
  for (int kind = 0; kind < 4; ++kind)
    EXPECT_EQ(run_ranks(
                  4, gpus::none,
                  [&](const rank_of_job& job) {
                    std::vector<std::int32_t> given(GetParam()), sums(GetParam());
                    const auto source = host_buffer(given.data(), GetParam()),
                               destination = host_buffer(sums.data(), GetParam());
                    for (int round = 0;; ++round) {
                      auto begun = kind == 0   ? job.all->all_reduce(source, destination, kSum)
                                   : kind == 1 ? job.all->broadcast(source, round % 4)
                                   : kind == 2 ? job.all->all_to_all(source, destination)
                                               : job.all->barrier();
                      if (job.rank == 3 && round == 5) {
                        if (begun) static_cast<void>(begun->test());
                        raise(SIGKILL);
                      }
                      const int code = code_of(std::move(begun));
                      if (code == 0) {
                        CHECK(round < 10);  // some may end without the dead one, but not all
                        continue;
                      }
                      CHECK(code == ECONNRESET);
                      break;
                    }
                    CHECK(job.all->barrier().code() == ECONNRESET);
                    CHECK(job.all->restore(kTimeout).code() == ECONNRESET);
                    // Messages among the others go on.
                    unsigned char word = 0;
                    auto received = job.messages->irecv((job.rank + 2) % 3, host_buffer(&word, 1), 9);
                    CHECK_OK(job.messages->send((job.rank + 1) % 3, host_buffer("y", 1), 9, kTimeout));
                    CHECK_OK(received.wait(kTimeout));
                    return 0;
                  },
                  3),
              0);
}

// A wait that times out leaves the collective under way; a dropped operation stops it everywhere.
TEST(failures, time_outs) {
  EXPECT_EQ(run_ranks(3, gpus::none,
                      [](const rank_of_job& job) {
                        if (job.rank == 2) {  // late, by a message that comes after the others' time-outs
                          unsigned char word = 0;
                          for (int peer = 0; peer < 2; ++peer)
                            CHECK_OK(job.messages->recv(peer, host_buffer(&word, 1), 1, messaging::kWholeTag, kTimeout));
                          CHECK_OK(wait(job.all->barrier()));
                        } else {
                          auto begun = job.all->barrier();
                          CHECK_OK(begun);
                          CHECK(begun->wait(5ms).code() == ETIMEDOUT);
                          CHECK_OK(job.messages->send(2, host_buffer("z", 1), 1, kTimeout));
                          CHECK_OK(begun->wait(std::chrono::milliseconds::max()));  // no clock counts so far
                        }
                        if (const int line = all_reduce_once(job)) return line;
                        // Rank 0 gives a collective up that rank 2 has not begun; rank 1 waits in it.
                        if (job.rank == 0) {
                          auto begun = job.all->barrier();
                          CHECK_OK(begun);
                          CHECK(begun->wait(5ms).code() == ETIMEDOUT);
                          begun = operation();
                          CHECK_OK(job.messages->send(2, host_buffer("z", 1), 2, kTimeout));
                        }
                        if (job.rank == 2) {
                          unsigned char word = 0;
                          CHECK_OK(job.messages->recv(0, host_buffer(&word, 1), 2, messaging::kWholeTag, kTimeout));
                        }
                        if (job.rank != 0) {
                          // All that it needs of the others for this one may have been sent before they stopped.
                          const int code = code_of(job.all->barrier());
                          CHECK(code == ECANCELED || (code == 0 && code_of(job.all->barrier()) == ECANCELED));
                        }
                        CHECK_OK(job.all->restore(kTimeout));
                        for (int i = 0; i < 20; ++i)
                          if (const int line = all_reduce_once(job)) return line;
                        return 0;
                      }),
            0);
}

// A rank that closes after its last collective is no failure of the others, which still work on it.
TEST(failures, leaving_after_the_last_collective) {
  for (int round = 0; round < 10; ++round)
    EXPECT_EQ(run_ranks(4, gpus::none,
                        [](const rank_of_job& job) {
                          std::vector<std::byte> data(300000);
                          const int root = 0;
                          CHECK_OK(wait(job.all->broadcast(host_buffer(data.data(), data.size()), root)));
                          return 0;
                        }),
              0);
}

}  // namespace
}  // namespace pl::collectives
