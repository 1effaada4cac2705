// SPDX-License-Identifier: Apache-2.0
// What a return waits for, and what it must not wait for: a machine that stands still, a progress thread that sleeps, and
// messages that are never received.
#include <sys/mman.h>

#include <atomic>
#include <deque>

#include "test/collectives/elastic_job.hpp"

namespace pl::collectives {
namespace {

using messaging::host_buffer;
using messaging::kWholeTag;

constexpr int kRanks = 3;

// What the processes of a job and their launcher know of each other.
struct job_state {
  std::array<std::atomic<pid_t>, kRanks> processes{};
  std::array<std::atomic<std::uint32_t>, kRanks> incarnations{};
  std::atomic<int> survivors_waiting{0}, pauses{0};
};

class return_waits : public testing::Test {
 protected:
  return_waits()
      : state_(new (mmap(nullptr, sizeof(job_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) job_state) {
  }
  ~return_waits() override { munmap(state_, sizeof(job_state)); }

  // Once all of its processes have stopped, they stand still for so long.
  void let_pause(elastic_job& job, std::chrono::milliseconds pause) {
    job.begins = [this](int rank, std::uint32_t process) { note_start(rank, process); };
    job.stopped = [this, pause](int, pid_t) {
      if (++stopped_ < kRanks) return;
      stopped_ = 0;
      usleep(static_cast<useconds_t>(std::chrono::microseconds(pause).count()));
      ++state_->pauses;
      for (const auto& each : state_->processes) kill(each, SIGCONT);
    };
  }
  void note_start(int rank, std::uint32_t process) const {
    state_->processes[static_cast<std::size_t>(rank)] = getpid();
    state_->incarnations[static_cast<std::size_t>(rank)] = process;
  }
  // Of the machine, as far as this job sees it.
  void pause_all(int own_rank) const {
    for (int rank = 0; rank < kRanks; ++rank)
      if (rank != own_rank) kill(state_->processes[static_cast<std::size_t>(rank)], SIGSTOP);
    raise(SIGSTOP);
  }
  // What the survivors of the last rank do.
  int survive(const elastic_rank& me, std::chrono::milliseconds limit) const {
    CHECK(until_a_loss(me).code() == ECONNRESET);
    ++state_->survivors_waiting;
    CHECK_OK(me.all->restore(limit));
    return all_reduce_once(me);
  }
  static int return_once(const elastic_rank& me) {
    CHECK_OK(me.all->restore(kSoon));
    return all_reduce_once(me);
  }
  static bool comes_back(int rank, std::uint32_t process) { return rank == 2 && process == 1; }

  job_state* const state_;
  int stopped_ = 0;
};

// A virtual machine that is moved, or saved and begun again, stands still for seconds, and its clock runs on. What came to
// nothing meanwhile is not counted against any rank.
TEST_F(return_waits, a_pause_of_the_machine_does_not_count_against_the_survivors) {
  elastic_job job(kRanks);
  let_pause(job, 11s);
  job.begins = [&](int rank, std::uint32_t process) {
    note_start(rank, process);
    if (process == 1 || !becomes_true([&] { return state_->survivors_waiting == 2; })) return;
    usleep(50'000);
    pause_all(rank);
  };
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) return return_once(me);
                  if (const int line = all_reduce_once(me)) return line;
                  return me.rank == 2 ? die_after_talks(me, 1) : survive(me, 10s);
                },
                comes_back),
            0);
  EXPECT_EQ(state_->pauses, 1);
}

// The limit of its open, and rank 0's patience with the others, pass in the pause.
TEST_F(return_waits, a_pause_of_the_machine_does_not_count_against_the_returning_rank) {
  elastic_job job(kRanks);
  job.open_timeout_s = 8;
  let_pause(job, 12s);
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) return return_once(me);
                  if (const int line = all_reduce_once(me)) return line;
                  if (me.rank == 2) return die_after_talks(me, 1);
                  if (me.rank == 0) return survive(me, kSoon);
                  CHECK(until_a_loss(me).code() == ECONNRESET);
                  // The new process waits for the consent of this rank, which takes part but does not give it yet.
                  CHECK(becomes_true([&] { return me.messages->progress(), state_->incarnations[2] == 2; }));
                  const auto end = std::chrono::steady_clock::now() + 300ms;
                  while (std::chrono::steady_clock::now() < end) me.messages->progress();
                  pause_all(me.rank);
                  CHECK_OK(me.all->restore(kSoon));
                  return all_reduce_once(me);
                },
                comes_back),
            0);
  EXPECT_EQ(state_->pauses, 1);
}

// Who waits by an event loop or a function makes no progress by itself: the progress thread must learn of the consent.
TEST_F(return_waits, consent_wakes_the_progress_thread) {
  elastic_job job(kRanks);
  job.options.progress_thread = true;
  job.begins = [this](int rank, std::uint32_t process) { note_start(rank, process); };
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) return return_once(me);
                  if (const int line = all_reduce_once(me)) return line;
                  if (me.rank == 2) return die_after_talks(me, 1);
                  if (me.rank == 0) return survive(me, kSoon);
                  auto failed = me.messages->await_failure();
                  CHECK_OK(failed.wait(kSoon));
                  CHECK(becomes_true([&] { return state_->incarnations[2] == 2; }));
                  usleep(500'000);  // it has asked, and the thread sleeps
                  auto back = me.messages->await_return();
                  CHECK(becomes_true([&] { return back.has_ended(); }));
                  CHECK_OK(back.outcome());
                  return return_once(me);
                },
                comes_back),
            0);
}

// A rank that receives nothing has no room for further messages, and takes the others back all the same.
TEST_F(return_waits, unreceived_messages_do_not_prevent_a_return) {
  elastic_job job(kRanks);
  constexpr std::size_t kBytes = 512;
  EXPECT_EQ(job.run(
                [&](const elastic_rank& me) {
                  if (me.process > 1) return return_once(me);
                  if (const int line = all_reduce_once(me)) return line;
                  std::array<std::byte, kBytes> bytes{};
                  std::uint32_t sent = 0;
                  std::deque<request> left;
                  if (me.rank == 0) {
                    // The last of them waits for room.
                    for (; me.messages->counts().waiting_sends == 0 && sent < 100'000; ++sent) {
                      auto one = me.messages->isend(1, host_buffer(bytes.data(), kBytes), 7);
                      if (!one.test()) left.push_back(std::move(one));
                    }
                    CHECK(me.messages->counts().waiting_sends > 0);
                  }
                  if (me.rank == 2) {
                    usleep(200'000);
                    return die_after_talks(me, 1);
                  }
                  auto back = me.messages->await_return();
                  CHECK_OK(back.wait(kSoon));
                  CHECK_OK(me.all->restore(kSoon));
                  if (me.rank == 0) CHECK_OK(me.messages->send(1, host_buffer(&sent, sizeof sent), 8, kSoon));
                  if (me.rank == 1) {
                    std::size_t received = 0;
                    messaging::message_info info;
                    while (!me.messages->probe(0, 8, kWholeTag, info)) {
                      if (!me.messages->probe(0, 7, kWholeTag, info)) continue;
                      CHECK_OK(me.messages->recv(0, host_buffer(bytes.data(), kBytes), 7, kWholeTag, kSoon));
                      ++received;
                    }
                    CHECK_OK(me.messages->recv(0, host_buffer(&sent, sizeof sent), 8, kWholeTag, kSoon));
                    while (me.messages->probe(0, 7, kWholeTag, info)) {
                      CHECK_OK(me.messages->recv(0, host_buffer(bytes.data(), kBytes), 7, kWholeTag, kSoon));
                      ++received;
                    }
                    CHECK(received == sent);
                  }
                  for (auto& each : left) CHECK_OK(each.wait(kSoon));
                  return all_reduce_once(me);
                },
                comes_back),
            0);
}

}  // namespace
}  // namespace pl::collectives
