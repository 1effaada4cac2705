// SPDX-License-Identifier: Apache-2.0
// The collectives' public interface, C and C++, from the shared library that users load.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>

#include "test/api/messaging/job.hpp"

namespace peerlane::test {
namespace {

int every_collective(communicator& job) {
  const int rank = job.rank(), size = job.size();
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<int> mine{10 * rank, 10 * rank + 1}, all(2 * ranks), wanted(2 * ranks);
  for (int i = 0; i < size; ++i)
    wanted[2 * static_cast<std::size_t>(i)] = 10 * i, wanted[2 * static_cast<std::size_t>(i) + 1] = 10 * i + 1;
  CHECK(job.all_gather(std::span(std::as_const(mine)), std::span(all), patience));
  CHECK(all == wanted);
  all.assign(2 * ranks, -1);
  CHECK(job.gather(std::span(std::as_const(mine)), std::span(all), 1, patience));
  CHECK(rank != 1 || all == wanted);
  std::array<int, 2> part{};
  CHECK(job.scatter(std::span(std::as_const(wanted)), std::span(part), 0, patience));
  CHECK(part[0] == 10 * rank && part[1] == 10 * rank + 1);
  int word = rank == size - 1 ? 77 : 0;
  CHECK(job.broadcast(std::span(&word, 1), size - 1, patience));
  CHECK(word == 77);
  const double given = rank + 0.5;
  double sum = 0;
  CHECK(job.all_reduce(std::span(&given, 1), std::span(&sum, 1), PEERLANE_FLOAT64, PEERLANE_SUM, patience));
  CHECK(sum == size * (size - 1) / 2 + 0.5 * size);
  double most = 0;
  CHECK(job.reduce(std::span(&given, 1), std::span(&most, 1), PEERLANE_FLOAT64, PEERLANE_MAXIMUM, 0, patience));
  CHECK(rank != 0 || most == size - 0.5);
  std::vector<std::uint64_t> sums(ranks, static_cast<std::uint64_t>(rank));
  const std::vector<std::size_t> counts(ranks, 1);
  std::uint64_t own = 0;
  CHECK(job.reduce_scatter(std::span(std::as_const(sums)), std::span(&own, 1), counts, PEERLANE_UINT64, PEERLANE_SUM,
                           patience));
  CHECK(own == static_cast<std::uint64_t>(size * (size - 1) / 2));
  std::vector<int> sent(ranks), received(ranks);
  for (int i = 0; i < size; ++i) sent[static_cast<std::size_t>(i)] = 100 * rank + i;
  CHECK(job.all_to_all(std::span(std::as_const(sent)), std::span(received), patience));
  for (int i = 0; i < size; ++i) CHECK(received[static_cast<std::size_t>(i)] == 100 * i + rank);
  const std::vector<std::size_t> lengths(ranks, sizeof(int));
  std::vector<std::size_t> offsets(ranks);
  for (std::size_t i = 0; i < ranks; ++i) offsets[i] = sizeof(int) * (ranks - 1 - i);
  CHECK(job.all_to_allv(std::span(std::as_const(sent)), {lengths, offsets}, std::span(received), {lengths, offsets},
                        patience));
  for (int i = 0; i < size; ++i)  // the block for rank r lies at ranks - 1 - r on both sides
    CHECK(received[ranks - 1 - static_cast<std::size_t>(i)] == 100 * i + size - 1 - rank);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(collectives_api, every_collective) { EXPECT_EQ(run_job(3, every_collective), 0); }

// Two collectives, a message and a function under way together, ended by one wait.
int operations_together(communicator& job) {
  const int rank = job.rank(), next = 1 - rank;
  int given = rank + 1, sum = 0, got = 0;
  op_info ended_info{};
  ended_info.error = -1;
  auto reduced = job.iall_reduce(std::span(&given, 1), std::span(&sum, 1), PEERLANE_INT32, PEERLANE_SUM);
  CHECK(reduced);
  CHECK(peerlane_op_then(
            &reduced->get(), [](void* context, const op_info* info) { *static_cast<op_info*>(context) = *info; },
            &ended_info) == 0);
  auto received = job.irecv(next, std::span(&got, 1), 5);
  auto sent = job.isend(next, std::span(&given, 1), 5);
  auto met = job.ibarrier();
  CHECK(received && sent && met);
  CHECK(peerlane_op_cancel(&met->get()) == EBUSY || peerlane_op_cancel(&met->get()) == 0);
  peerlane_op_t ops[4] = {reduced->give_up(), received->give_up(), sent->give_up(), met->give_up()};
  CHECK(peerlane_wait_all(ops, 4, patience.count(), nullptr) == 0);
  CHECK(sum == 3 && got == next + 1);
  CHECK(ended_info.error == 0 && ended_info.size_bytes == sizeof sum && ended_info.source == -1);
  return 0;
}
TEST(collectives_api, operations_together) { EXPECT_EQ(run_job(2, operations_together), 0); }

// A wait for a message alone carries the collectives on, too: rank 1 only answers when its all_to_all has ended at rank 0.
int messages_advance_collectives(communicator& job) {
  std::vector<unsigned char> data(2'000'000, static_cast<unsigned char>(job.rank())), other(data.size());
  auto begun = job.iall_to_all(std::span(std::as_const(data)), std::span(other));
  CHECK(begun);
  int word = 0;
  if (job.rank() == 0) {
    CHECK(begun->wait(patience));
    CHECK(job.send(1, std::span(&word, 1), 3, patience));
  } else {
    auto received = job.irecv(0, std::span(&word, 1), 3);
    CHECK(received && received->wait(patience));
    CHECK(begun->wait(patience));
  }
  CHECK(other[0] == 0 && other[other.size() - 1] == 1);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(collectives_api, messages_advance_collectives) { EXPECT_EQ(run_job(2, messages_advance_collectives), 0); }

int refused(communicator& job) {
  peerlane_op_t op = PEERLANE_OP_INIT;
  int words[4] = {};
  const auto data = peerlane_host_buffer(words, sizeof words);
  CHECK(peerlane_comm_iall_reduce(job.get(), data, data, PEERLANE_FLOAT8_E5M2 + 1, PEERLANE_SUM, &op) == EINVAL);
  CHECK(peerlane_comm_iall_reduce(job.get(), data, data, PEERLANE_INT32, PEERLANE_MAXIMUM + 1, &op) == EINVAL);
  CHECK(peerlane_comm_iall_reduce(job.get(), data, data, PEERLANE_INT32, PEERLANE_SUM, nullptr) == EINVAL);
  CHECK(peerlane_comm_ireduce_scatter(job.get(), data, data, nullptr, PEERLANE_INT32, PEERLANE_SUM, &op) == EINVAL);
  CHECK(peerlane_comm_ibroadcast(job.get(), data, 2, &op) == EINVAL);
  CHECK(peerlane_comm_ibroadcast(nullptr, data, 0, &op) == EINVAL);
  auto odd = data;
  odd.memory = 9;
  CHECK(peerlane_comm_ibroadcast(job.get(), odd, 0, &op) == EINVAL);
  CHECK(peerlane_op_is_empty(&op));
  const auto table = job.algorithms();
  CHECK(table && table->find("all_reduce") != std::string::npos);
  // A released one stops collectives at both, until both restore them.
  if (job.rank() == 0) {
    auto begun = job.ibarrier();
    CHECK(begun && begun->wait(std::chrono::milliseconds(1)).code() == ETIMEDOUT);
    begun->release();
    CHECK(job.ibarrier().code() == ECANCELED);
    CHECK(job.send(1, std::span(words, 1), 4, patience));
  } else {
    CHECK(job.recv(0, std::span(words, 1), 4, whole_tag, patience));
    int code = 0;
    for (int i = 0; i < 3 && code == 0; ++i) {
      auto begun = job.ibarrier();
      code = begun ? begun->wait(patience).code() : begun.code();
    }
    CHECK(code == ECANCELED);
  }
  CHECK(job.restore_collectives(patience));
  return every_collective(job);
}
TEST(collectives_api, refused_and_restored) { EXPECT_EQ(run_job(2, refused), 0); }

void count_end(void* count, const peerlane_op_info*) { ++*static_cast<std::atomic<int>*>(count); }

// One thread ends collectives that have a function, while others look for functions to call.
int functions_beside_other_threads(communicator& job) {
  constexpr int kRounds = 1500;
  std::atomic<int> called{0};
  std::atomic<bool> has_stopped{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      int moved = 0;
      while (!has_stopped) peerlane_comm_progress(job.get(), &moved);
    });
  }
  int code = 0;
  for (int round = 0; round < kRounds && code == 0; ++round) {
    peerlane_op_t op = PEERLANE_OP_INIT;
    code = peerlane_comm_ibarrier(job.get(), &op);
    if (code == 0) code = peerlane_op_then(&op, count_end, &called);
    if (code == 0) code = peerlane_op_wait(&op, patience.count(), nullptr);
  }
  has_stopped = true;
  for (auto& other : others) other.join();
  CHECK(code == 0);
  CHECK(called == kRounds);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(collectives_api, functions_beside_other_threads) { EXPECT_EQ(run_job(2, functions_beside_other_threads), 0); }

// Who calls the function is in a call on the communicator.
int functions_cannot_close(communicator& job) {
  struct attempt {
    peerlane_comm_t handle;
    int code = 0;
  };
  const auto close = [](void* context, const peerlane_op_info*) {
    auto& one = *static_cast<attempt*>(context);
    one.code = peerlane_comm_close(one.handle);
  };
  std::array<attempt, 3> attempts;
  for (auto& each : attempts) each.handle = job.get();
  std::array<peerlane_op_t, 3> ops{};
  const auto nothing = peerlane_host_buffer(nullptr, 0);
  CHECK(peerlane_comm_irecv(job.get(), 0, nothing, 1, PEERLANE_WHOLE_TAG, &ops[0]) == 0);
  CHECK(peerlane_op_then(&ops[0], close, &attempts[0]) == 0 && attempts[0].code == 0);
  CHECK(peerlane_comm_isend(job.get(), 0, nothing, 1, &ops[1]) == 0);
  CHECK(peerlane_op_then(&ops[1], close, &attempts[1]) == 0);
  CHECK(peerlane_comm_ibarrier(job.get(), &ops[2]) == 0);
  CHECK(peerlane_op_then(&ops[2], close, &attempts[2]) == 0);
  CHECK(peerlane_wait_all(ops.data(), ops.size(), patience.count(), nullptr) == 0);
  for (const auto& each : attempts) CHECK(each.code == EDEADLK);
  return 0;
}
TEST(collectives_api, functions_cannot_close) { EXPECT_EQ(run_job(1, functions_cannot_close), 0); }

// Who is told of the end by a function is told of the communicator's, too.
int close_calls_functions(communicator& job) {
  std::atomic<int> called{0};
  const bool has_one = job.rank() == 0;
  if (has_one) {
    peerlane_op_t op = PEERLANE_OP_INIT;
    CHECK(peerlane_comm_ibarrier(job.get(), &op) == 0);
    CHECK(peerlane_op_then(
              &op,
              [](void* count, const peerlane_op_info* info) {
                if (info->error == ECANCELED) ++*static_cast<std::atomic<int>*>(count);
              },
              &called) == 0);
    CHECK(called == 0);
  }
  CHECK(job.barrier(patience));
  { const communicator closed = std::move(job); }
  CHECK(called == (has_one ? 1 : 0));
  return 0;
}
TEST(collectives_api, close_calls_the_functions_of_collectives) { EXPECT_EQ(run_job(2, close_calls_functions), 0); }

}  // namespace
}  // namespace peerlane::test
