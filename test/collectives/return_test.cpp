// SPDX-License-Identifier: Apache-2.0
// Ranks of an elastic job leave, by close, by kill -9, stopped or in the middle of coming back, and come back as new
// processes: the others go on meanwhile, and nothing of the old process is mistaken for the new one's.
#include "test/collectives/elastic_ways.hpp"

namespace pl::collectives {
namespace {

INSTANTIATE_TEST_SUITE_P(every_way, returns, testing::ValuesIn(kWays),
                         [](const auto& values) { return std::string(values.param.name); });

// The last rank is killed at any moment and comes back, repeatedly. The others do not grow.
TEST_P(returns, many_times_after_kill_9_without_growth) {
  const std::uint32_t cycles = GetParam().has_two_hosts ? 10 : kMany;
  auto job = make(3);
  EXPECT_EQ(
      job.run(
          [&](const elastic_rank& me) {
            const bool is_mortal = me.rank == 2;
            CHECK(!is_mortal || me.messages->incarnation(2) == me.process);
            if (me.process > 1) {
              CHECK(me.messages->barrier(kSoon).code() == ECONNRESET);  // the others are at other barriers
              CHECK(wait(me.all->barrier()).code() == ECONNRESET);
              CHECK_OK(me.all->restore(kSoon));
            }
            holdings early;
            for (auto process = me.process;; ++process) {
              if (const int line = talk(me, has_gpu(), process)) return line;
              if (process == 6) early = holdings::now();
              if (process > cycles) break;
              if (is_mortal) {
                if (const int line = await_talks(me, process)) return line;
                // Something is under way in both directions, and something lies here that nobody has received.
                static piece late(has_gpu(), 400000);
                for (int peer = 0; peer < 2; ++peer)
                  CHECK(me.messages->isend(peer, late.part(0, 100), 777).wait(kSoon).ok());
                static std::vector<request> left;
                for (int peer = 0; peer < 2; ++peer) left.push_back(me.messages->isend(peer, late.all(), 778));
                return raise(SIGKILL);
              }
              piece wanted(has_gpu(), 400000);
              auto to_it = me.messages->isend(2, wanted.all(), 779);
              CHECK(until_a_loss(me).code() == ECONNRESET);
              CHECK(to_it.wait(kSoon).code() == ECONNRESET);
              CHECK_OK(me.all->restore(kSoon));
              CHECK(me.messages->incarnation(2) == process + 1);
              messaging::message_info info;
              CHECK(!me.messages->probe(kAnySource, 777, kWholeTag, info) && !me.messages->probe(2, 778, kWholeTag, info));
            }
            const auto late = holdings::now();
            if (is_mortal) return 0;
            // GPU memory that talk() allocates anew fills caches of 32 allocations each, also where nobody is lost.
            CHECK(late.descriptors <= early.descriptors + (has_gpu() ? 160 : 2));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
            CHECK(late.mappings <= early.mappings + (has_gpu() ? 60 : 12));
            CHECK(late.resident_kib <= early.resident_kib + (has_gpu() ? 16384 : 2048));
#endif
            CHECK(me.messages->counts().unexpected_bytes == 0);
            return 0;
          },
          [&](int rank, std::uint32_t process) { return rank == 2 && process <= cycles; }),
      0);
}

TEST_P(returns, after_closing_in_order) {
  auto job = make(2);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) CHECK_OK(me.all->restore(kSoon));
                  for (auto process = me.process;; ++process) {
                    if (const int line = talk(me, has_gpu(), process)) return line;
                    if (process == 4) return 0;
                    if (me.rank == 1) return kComeBack;  // its messenger closes behind this
                    auto failed = me.messages->await_failure(), back = me.messages->await_return();
                    CHECK_OK(failed.wait(kSoon));
                    CHECK(failed.info().source == 1 && failed.info().tag == std::uint64_t(messaging::failure_kind::closed));
                    CHECK_OK(back.wait(kSoon));
                    CHECK(back.info().source == 1 && back.info().tag == process + 1);
                    CHECK_OK(me.all->restore(kSoon));
                  }
                },
                [](int rank, std::uint32_t process) { return rank == 1 && process < 4; }),
            0);
}

// A rank that is stopped has not failed. Once it is killed it has.
TEST_P(returns, after_a_stop_and_kill_9) {
  auto job = make(2);
  shared_flag has_looked;
  job.stopped = [&](int, pid_t process) {
    has_looked.await();
    kill(process, SIGKILL);
  };
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) CHECK_OK(me.all->restore(kSoon));
                  if (const int line = talk(me, has_gpu(), me.process)) return line;
                  if (me.process > 1) return 0;
                  if (me.rank == 1) {
                    if (const int line = await_talks(me, 1)) return line;
                    return raise(SIGSTOP);
                  }
                  auto failed = me.messages->await_failure();
                  const auto early = failed.wait(100ms);
                  has_looked.set();
                  CHECK(early.code() == ETIMEDOUT);
                  CHECK_OK(failed.wait(kSoon));
                  CHECK_OK(me.all->restore(kSoon));
                  return talk(me, has_gpu(), 2);
                },
                [](int rank, std::uint32_t process) { return rank == 1 && process == 1; }),
            0);
}

// Two are lost and come back at once; each misses the other at first.
TEST_P(returns, two_at_once) {
  auto job = make(4);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) CHECK_OK(me.all->restore(kSoon));
                  for (auto process = me.process;; ++process) {
                    if (const int line = talk(me, has_gpu(), process)) return line;
                    if (process == 4) return 0;
                    if (me.rank >= 2) return die_after_talks(me, process);
                    CHECK(until_a_loss(me).code() == ECONNRESET);
                    // One of them may be missed only once the other one is back: then all come together once more.
                    status done;
                    for (int i = 0; i < 10 && (i == 0 || done.code() == ECONNRESET); ++i) done = me.all->restore(kSoon);
                    CHECK_OK(done);
                  }
                },
                [](int rank, std::uint32_t process) { return rank >= 2 && process < 4; }),
            0);
}

// Without collectives: who waits by await_return() gets the rank back, and messages work at once.
TEST_P(returns, messages_work_without_a_restore) {
  auto job = make(3);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  std::uint64_t got = 0, given = me.process;
                  for (auto process = me.process; process < 5; ++process) {
                    if (me.rank == 2) {
                      for (int peer = 0; peer < 2; ++peer) {
                        CHECK_OK(me.messages->send(peer, host_buffer(&given, sizeof given), 5, kSoon));
                        CHECK_OK(me.messages->recv(peer, host_buffer(&got, sizeof got), 6, kWholeTag, kSoon));
                        CHECK(got == process);
                      }
                      return raise(SIGKILL);
                    }
                    CHECK_OK(me.messages->recv(2, host_buffer(&got, sizeof got), 5, kWholeTag, kSoon));
                    CHECK(got == process);
                    CHECK_OK(me.messages->send(2, host_buffer(&got, sizeof got), 6, kSoon));
                    if (process == 4) return 0;
                    auto failed = me.messages->await_failure();
                    CHECK_OK(failed.wait(kSoon));
                    CHECK(me.messages->isend(2, host_buffer(&got, sizeof got), 6).wait(kSoon).code() == ECONNRESET);
                    auto back = me.messages->await_return();
                    CHECK_OK(back.wait(kSoon));
                    CHECK(back.info().source == 2 && back.info().tag == process + 1);
                    CHECK_OK(me.messages->peer_state(2));
                  }
                  return 0;
                },
                [](int rank, std::uint32_t process) { return rank == 2 && process < 4; }),
            0);
}

// It is killed at some moment of its opening, which leaves the others as they were.
TEST_P(returns, after_dying_while_it_came_back) {
  auto job = make(3);
  const long span_us = GetParam().path == messenger_options::path_t::network || GetParam().has_two_hosts ? 60'000 : 15'000;
  job.begins = [&](int rank, std::uint32_t process) {
    if (rank == 2 && process > 1 && process <= kDeaths) die_in(span_us * process / kDeaths);
  };
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.rank == 2 && me.process > 1 && me.process <= kDeaths) return raise(SIGKILL);  // it was too quick
                  if (me.process == 1) {
                    if (const int line = talk(me, has_gpu(), 1)) return line;
                    if (me.rank == 2) return die_after_talks(me, 1);
                    CHECK(until_a_loss(me).code() == ECONNRESET);
                  }
                  status done;
                  do done = me.all->restore(kSoon);
                  while (done.code() == ECONNRESET);
                  CHECK_OK(done);
                  return talk(me, has_gpu(), 2);
                },
                [](int rank, std::uint32_t process) { return rank == 2 && process <= kDeaths; }),
            0);
}

}  // namespace
}  // namespace pl::collectives
