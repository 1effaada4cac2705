// SPDX-License-Identifier: Apache-2.0
// Rejoin attempts that must be rejected without effect on the job: unauthenticated processes, a second process of a living
// rank, rank 0, a return without consent; and what remains of a process that was replaced.
#include "test/collectives/elastic_job.hpp"

namespace pl::collectives {
namespace {

using messaging::bootstrap_options;
using messaging::host_buffer;
using messaging::kAnySource;
using messaging::kWholeTag;
using messaging::window;

bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "no \"%s\" in: %s\n", part, text.c_str());
  return false;
}

// What a further process hears that opens with these options, and its errno value in front.
std::string try_to_open(const bootstrap_options& options, const std::string& secret_file = "") {
  int pair[2];
  if (pipe(pair) != 0) return "pipe";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (!secret_file.empty()) setenv("PEERLANE_LINK_SECRET_FILE", secret_file.c_str(), 1);
    auto group = messaging::open_bootstrap(options);
    auto messages = group ? messaging::messenger::open(nullptr, **group) : group.error();
    const std::string said = messages ? "opened" : std::to_string(messages.code()) + ": " + messages.error().message;
    _exit(write(pair[1], said.data(), said.size()) < 0 ? 1 : 0);
  }
  close(pair[1]);
  std::string said(4096, '\0');
  const auto bytes = read(pair[0], said.data(), said.size());
  close(pair[0]);
  waitpid(child, nullptr, 0);
  return said.substr(0, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
}

const auto kNobody = [](int, std::uint32_t) { return false; };

TEST(return_refusals, a_second_process_of_a_living_rank_is_rejected) {
  elastic_job job(2);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (const int line = all_reduce_once(me)) return line;
                  std::string said;
                  if (me.rank == 1) said = try_to_open(job.meeting_of(1));
                  // Rank 0 looks at visitors in its calls only.
                  std::uint8_t done = 1;
                  if (me.rank == 1) CHECK_OK(me.messages->send(0, host_buffer(&done, 1), 1, kSoon));
                  else CHECK_OK(me.messages->recv(1, host_buffer(&done, 1), 1, kWholeTag, kSoon));
                  CHECK(me.rank == 0 || (has(said, "rank 1 is alive") && has(said, "two processes cannot be one rank")));
                  return all_reduce_once(me);
                },
                kNobody),
            0);
}

TEST(return_refusals, invalid_ranks_and_sizes_are_rejected) {
  elastic_job job(2);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  std::uint8_t done = 1;
                  if (me.rank == 0) {
                    CHECK_OK(me.messages->recv(1, host_buffer(&done, 1), 1, kWholeTag, kSoon));
                    return all_reduce_once(me);
                  }
                  auto options = job.meeting_of(1);
                  options.size = 3;
                  CHECK(has(try_to_open(options), "one of 3 ranks, and the job has 2"));
                  options.rank = 2;
                  CHECK(has(try_to_open(options), "one of 3 ranks"));
                  options = job.meeting_of(1);
                  options.is_elastic = false;
                  CHECK(has(try_to_open(options), "rank 1 is alive"));
                  CHECK_OK(me.messages->send(0, host_buffer(&done, 1), 1, kSoon));
                  return all_reduce_once(me);
                },
                kNobody),
            0);
}

// Unauthenticated attempts while the rank is away do not prevent its return.
TEST(return_refusals, a_process_with_another_secret_does_not_become_the_rank) {
  const auto right = secret_file("right", "the secret of this job of the tests");
  const auto wrong = secret_file("wrong", "another secret, of some other job");
  setenv("PEERLANE_LINK_SECRET_FILE", right.c_str(), 1);
  elastic_job job(2);
  int deaths = 0;
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) CHECK_OK(me.all->restore(kSoon));
                  if (const int line = all_reduce_once(me)) return line;
                  if (me.process > 1) return 0;
                  if (me.rank == 1) return die_after_talks(me, 1);
                  CHECK(wait(me.all->barrier()).code() == ECONNRESET);
                  CHECK_OK(me.all->restore(kSoon));
                  return all_reduce_once(me);
                },
                [&](int, std::uint32_t) {
                  if (++deaths > 1) return false;
                  const auto said = try_to_open(job.meeting_of(1), wrong);
                  EXPECT_TRUE(has(said, "secret")) << said;
                  return true;
                }),
            0);
  unsetenv("PEERLANE_LINK_SECRET_FILE");
  unlink(right.c_str());
  unlink(wrong.c_str());
  EXPECT_EQ(deaths, 1);
}

TEST(return_refusals, without_rank_0_messages_work_and_returns_wait) {
  elastic_job job(3);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (const int line = all_reduce_once(me)) return line;
                  auto failed = me.messages->await_failure(), back = me.messages->await_return();
                  if (me.rank == 0) return die_after_talks(me, 1);
                  CHECK_OK(failed.wait(kSoon));
                  CHECK(back.wait(100ms).code() == ETIMEDOUT);
                  const auto waited = me.all->restore(300ms);
                  CHECK(waited.code() == ETIMEDOUT &&
                        has(waited.error().message, "rank 0 (it is gone, and no new process of it answers at its address)"));
                  std::uint8_t sent = 7, got = 0;
                  auto received = me.messages->irecv(3 - me.rank, host_buffer(&got, 1), 1);
                  CHECK_OK(me.messages->send(3 - me.rank, host_buffer(&sent, 1), 1, kSoon));
                  CHECK_OK(received.wait(kSoon));
                  CHECK(got == 7);
                  CHECK_OK(back.cancel());
                  return 0;
                },
                kNobody),
            0);
}

TEST(return_refusals, a_return_without_consent_times_out_and_names_the_ranks) {
  elastic_job job(3);
  job.open_timeout_s = 1;
  shared_flag has_tried;
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) CHECK_OK(me.all->restore(kSoon));
                  if (const int line = all_reduce_once(me)) return line;
                  if (me.process > 1) return 0;
                  if (me.rank == 2) return die_after_talks(me, 1);
                  auto failed = me.messages->await_failure();
                  CHECK_OK(failed.wait(kSoon));
                  // Rank 0 agrees, rank 1 does not.
                  std::uint8_t done = 1;
                  if (me.rank == 0) {
                    auto back = me.messages->await_return();
                    CHECK_OK(me.messages->recv(1, host_buffer(&done, 1), 9, kWholeTag, kSoon));
                    CHECK(!back.test());
                  } else {
                    const auto said = try_to_open(job.meeting_of(2));
                    has_tried.set();
                    CHECK(has(said, "rank 2 was not taken back by rank 1 within 1 s"));
                    CHECK(me.messages->peer_state(2).code() == ECONNRESET);
                    CHECK_OK(me.messages->send(0, host_buffer(&done, 1), 9, kSoon));
                  }
                  CHECK_OK(me.all->restore(kSoon));
                  return all_reduce_once(me);
                },
                [&](int rank, std::uint32_t process) { return rank == 2 && process == 1 && has_tried.await(); }),
            0);
}

TEST(return_refusals, messages_and_windows_of_a_replaced_process_are_dropped) {
  elastic_job job(2);
  EXPECT_EQ(
      job.run(
          [&](const elastic_rank& me) {
            std::vector<unsigned char> large(300000, static_cast<unsigned char>(me.process)), small(64);
            auto shown = me.messages->expose(host_buffer(small.data(), small.size()));
            CHECK_OK(shown);
            const auto own = shown->key();
            if (me.rank == 1) {
              if (me.process == 1) {
                CHECK_OK(me.messages->send(0, host_buffer(&own, sizeof own), 1, kSoon));
                auto first = me.messages->isend(0, host_buffer(small.data(), 8), 2);   // stays unexpected
                auto second = me.messages->isend(0, host_buffer(small.data(), 8), 3);  // taken by a probe
                auto third =
                    me.messages->isend(0, host_buffer(large.data(), large.size()), 4);  // announced, taken by a probe
                auto fourth = me.messages->isend(0, host_buffer(large.data(), large.size()), 5);  // announced
                std::uint8_t seen = 0;
                CHECK_OK(me.messages->recv(0, host_buffer(&seen, 1), 6, kWholeTag, kSoon));
                return raise(SIGKILL);
              }
              CHECK(own.id != 1);
              CHECK_OK(me.messages->send(0, host_buffer(&own, sizeof own), 1, kSoon));
              std::uint8_t seen = 0;
              CHECK_OK(me.messages->recv(0, host_buffer(&seen, 1), 6, kWholeTag, kSoon));
              CHECK(std::vector<unsigned char>(64, 9) == small);
              return 0;
            }
            window::key_t old_key, new_key;
            CHECK_OK(me.messages->recv(1, host_buffer(&old_key, sizeof old_key), 1, kWholeTag, kSoon));
            const auto take = [&](std::uint64_t tag) {
              for (;;)
                if (auto found = me.messages->match(1, tag, kWholeTag); !found.is_empty()) return found;
            };
            auto eager = take(3), announced = take(4);
            messaging::message_info info;
            while (!me.messages->probe(1, 5, kWholeTag, info)) continue;
            auto failed = me.messages->await_failure(), back = me.messages->await_return();
            std::uint8_t seen = 1;
            CHECK_OK(me.messages->send(1, host_buffer(&seen, 1), 6, kSoon));
            CHECK_OK(failed.wait(kSoon));
            CHECK_OK(back.wait(kSoon));
            // Unexpected ones are gone; what was taken is still the user's, as far as its bytes are here.
            CHECK(!me.messages->probe(1, 2, kWholeTag, info) && !me.messages->probe(1, 5, kWholeTag, info));
            std::vector<unsigned char> target(300000);
            CHECK_OK(me.messages->receive(std::move(eager), host_buffer(target.data(), 8)).wait(kSoon));
            CHECK(me.messages->receive(std::move(announced), host_buffer(target.data(), target.size())).wait(kSoon).code() ==
                  ECONNRESET);
            CHECK_OK(me.messages->recv(1, host_buffer(&new_key, sizeof new_key), 1, kWholeTag, kSoon));
            std::vector<unsigned char> nines(64, 9), ones(64, 1);
            CHECK(me.messages->put(old_key, 0, host_buffer(ones.data(), 64)).wait(kSoon).code() == EINVAL);
            CHECK(me.messages->get(old_key, 0, host_buffer(ones.data(), 64)).wait(kSoon).code() == EINVAL);
            CHECK(me.messages->atomic(old_key, 0, messaging::atomic_op::add, 1).wait(kSoon).code() == EINVAL);
            CHECK_OK(me.messages->put(new_key, 0, host_buffer(nines.data(), 64)).wait(kSoon));
            CHECK_OK(me.messages->send(1, host_buffer(&seen, 1), 6, kSoon));
            CHECK(me.messages->counts().unexpected_bytes == 0);
            return 0;
          },
          [](int rank, std::uint32_t process) { return rank == 1 && process == 1; }),
      0);
}

// An operation that is cancelled or dropped agrees to nothing; one that is begun later is told of nothing twice.
TEST(return_refusals, a_cancelled_wait_agrees_to_nothing) {
  elastic_job job(2);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (const int line = me.process == 1 ? all_reduce_once(me) : 0) return line;
                  if (me.rank == 1 && me.process == 1) return die_after_talks(me, 1);
                  if (me.rank == 1) {
                    CHECK_OK(me.all->restore(kSoon));
                    return all_reduce_once(me);
                  }
                  auto cancelled = me.messages->await_return();
                  { auto dropped = me.messages->await_return(); }
                  CHECK_OK(cancelled.cancel());
                  CHECK(cancelled.outcome().code() == ECANCELED);
                  auto failed = me.messages->await_failure();
                  CHECK_OK(failed.wait(kSoon));
                  for (int i = 0; i < 300; ++i, usleep(1000)) me.messages->progress();
                  CHECK(me.messages->peer_state(1).code() == ECONNRESET);
                  auto back = me.messages->await_return();
                  CHECK_OK(back.wait(kSoon));
                  CHECK_OK(me.messages->peer_state(1));
                  CHECK(me.messages->await_return().wait(50ms).code() == ETIMEDOUT);
                  CHECK_OK(me.all->restore(kSoon));
                  return all_reduce_once(me);
                },
                [](int rank, std::uint32_t process) { return rank == 1 && process == 1; }),
            0);
}

TEST(return_refusals, an_elastic_job_needs_a_listening_rank_0) {
  bootstrap_options options;
  options.rendezvous = "file:" + testing::TempDir() + "peerlane-elastic-folder";
  options.rank = 0;
  options.size = 2;
  options.is_elastic = true;
  const auto refused = messaging::open_bootstrap(options);
  EXPECT_TRUE(refused.code() == ENOTSUP && has(refused.error().message, "folder"));
  EXPECT_EQ(run_ranks(2, gpus::none,
                      [](const rank_of_job& job) {
                        const auto answer = job.messages->await_return().outcome();
                        CHECK(answer.code() == ENOTSUP && has(answer.error().message, "PEERLANE_LINK_ELASTIC"));
                        CHECK(!job.messages->is_elastic());
                        return 0;
                      }),
            0);
}

TEST(return_refusals, all_ranks_are_elastic_or_none) {
  elastic_job job(2);
  std::string said[2];
  auto options = job.meeting_of(1);
  options.is_elastic = false;
  const pid_t child = fork();
  if (child == 0) _exit(has(try_to_open(job.meeting_of(0)), "give all ranks the same option") ? 0 : 1);
  EXPECT_TRUE(has(try_to_open(options), "give all ranks the same option"));
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace pl::collectives
