// SPDX-License-Identifier: Apache-2.0
// The messages' public interface, C and C++, from the shared library that users load.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>

#include "test/api/messaging/job.hpp"

namespace peerlane::test {
namespace {

template <class T>
std::span<T> one(T& value) {
  return {&value, 1};
}

int talk_any_source(communicator& job) {
  const int rank = job.rank();
  if (rank != 0) {
    CHECK(job.send(0, one(rank), 100 + static_cast<std::uint64_t>(rank), patience));
    return job.barrier(patience) ? 0 : __LINE__;
  }
  int seen = 0;
  for (int i = 1; i < job.size(); ++i) {
    int value = -1;
    const auto info = job.recv(any_source, one(value), 100, ~0xfull, patience);
    CHECK(info && info->source == value && info->tag == 100u + static_cast<unsigned>(value) &&
          info->size_bytes == sizeof value);
    seen |= 1 << value;
  }
  CHECK(seen == 0b110);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, any_source_and_masked_tags) { EXPECT_EQ(run_job(3, talk_any_source), 0); }

int truncate(communicator& job) {
  std::array<int, 100> data{};
  std::iota(data.begin(), data.end(), 1000 * job.rank());
  if (job.rank() == 0) {
    for (std::uint64_t tag = 1; tag <= 4; ++tag) CHECK(job.send(1, std::span(std::as_const(data)), tag, patience));
  } else {
    std::array<int, 10> few{};
    op_info reply{};
    CHECK(job.recv(0, std::span(few), 2, whole_tag, patience, &reply).code() == EMSGSIZE);
    CHECK(reply.size_bytes == sizeof data && reply.source == 0 && reply.tag == 2 && reply.error == EMSGSIZE);
    auto waited = job.irecv(0, std::span(few), 3);
    reply = {};
    CHECK(waited && waited->wait(patience, &reply).code() == EMSGSIZE && reply.size_bytes == sizeof data && reply.tag == 3);
    std::uint64_t thrown_bytes = 0;
    try {
      job.recv_or_throw(0, std::span(few), 4, whole_tag, patience);
    } catch (const error& reason) { thrown_bytes = reason.code() == EMSGSIZE ? reason.info().size_bytes : 1; }
    CHECK(thrown_bytes == sizeof data);
    auto received = job.irecv(0, std::span(few), 1);
    CHECK(received);
    op_info info{};
    result<bool> done = false;
    do done = received->test(&info);
    while (done && !*done);
    CHECK(done.code() == EMSGSIZE && info.error == EMSGSIZE && info.size_bytes == sizeof data && received->is_empty());
    CHECK(few[9] == 9);
    CHECK(done.error().message.find("400") != std::string::npos || !done.error().message.empty());
  }
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, a_long_message_is_truncated_and_says_its_length) { EXPECT_EQ(run_job(2, truncate), 0); }

int wait_for_many(communicator& job) {
  constexpr int kMany = 100;  // more than the calls keep on the stack
  const int peer = 1 - job.rank();
  std::vector<int> received(kMany, -1), out(kMany);
  std::iota(out.begin(), out.end(), 0);
  std::vector<operation> requests;
  for (int i = 0; i < kMany; ++i) {
    auto posted = job.irecv(peer, one(received[static_cast<std::size_t>(i)]), static_cast<std::uint64_t>(i));
    CHECK(posted);
    requests.push_back(*std::move(posted));
  }
  for (int i = kMany; i-- > 0;)
    CHECK(job.send(peer, one(std::as_const(out[static_cast<std::size_t>(i)])), static_cast<std::uint64_t>(i), patience));
  op_info info{};
  const auto first = wait_any(requests, patience, &info);
  CHECK(first && *first < requests.size() && requests[*first].is_empty() && info.tag == *first);
  std::vector<op_info> infos(requests.size());
  CHECK(wait_all(requests, patience, infos));
  for (std::size_t i = 0; i < infos.size(); ++i) CHECK(i == *first || infos[i].tag == i);
  CHECK(received == out);
  const auto none = wait_any(requests, patience);
  CHECK(none && *none == requests.size());
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, wait_any_and_wait_all) { EXPECT_EQ(run_job(2, wait_for_many), 0); }

int cancel_and_time_out(communicator& job) {
  int value = 0;
  auto nothing = job.irecv(any_source, one(value), 77);
  CHECK(nothing);
  const auto late = nothing->wait(std::chrono::milliseconds(1));
  CHECK(late.code() == ETIMEDOUT && !nothing->is_empty());
  CHECK(nothing->cancel());
  CHECK(nothing->wait(patience).code() == ECANCELED && nothing->is_empty());
  CHECK(job.recv(any_source, one(value), 77, whole_tag, std::chrono::milliseconds(0)).code() == ETIMEDOUT);
  auto dropped = job.irecv(any_source, one(value), 77);
  CHECK(dropped);
  const auto dead = dropped->get();
  dropped->release();
  CHECK(peerlane_op_cancel(&dead) == EINVAL);
  const auto counts = job.statistics();
  CHECK(counts && counts->operations == 0);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, cancelled_late_and_dropped_requests) { EXPECT_EQ(run_job(1, cancel_and_time_out), 0); }

struct heard {
  int calls = 0, code = -1;
  std::uint64_t size_bytes = 0;
};
void hear(void* context, const op_info* info) {
  auto& heard_end = *static_cast<heard*>(context);
  ++heard_end.calls;
  heard_end.code = info->error;
  heard_end.size_bytes = info->size_bytes;
}

// A function is called once: by a call on the communicator, by the wait itself, at once, at the release, at the close.
int call_functions(communicator& job) {
  int value = 0, sent = 5;
  std::array<heard, 6> heard_end;
  const int self = job.rank();
  const auto receive = [&](std::uint64_t tag) { return job.irecv(self, one(value), tag).value().give_up(); };
  std::array<peerlane_op_t, 6> ops{receive(0), receive(1), receive(2), receive(3), receive(4), receive(5)};
  for (std::size_t i : {0u, 1u, 3u, 4u, 5u}) CHECK(peerlane_op_then(&ops[i], hear, &heard_end[i]) == 0);
  CHECK(peerlane_op_then(&ops[0], hear, &heard_end[0]) == EEXIST);
  CHECK(heard_end[0].calls == 0);
  CHECK(job.send(self, one(std::as_const(sent)), 0, patience));
  while (heard_end[0].calls == 0) CHECK(job.progress());  // another call than one on the operation
  CHECK(heard_end[0].code == 0 && heard_end[0].size_bytes == sizeof sent);
  CHECK(peerlane_op_wait(&ops[0], 0, nullptr) == 0);

  CHECK(job.send(self, one(std::as_const(sent)), 1, patience) && peerlane_op_wait(&ops[1], 20'000, nullptr) == 0);
  CHECK(heard_end[1].calls == 1 && heard_end[1].code == 0);

  CHECK(job.send(self, one(std::as_const(sent)), 2, patience) && job.progress());
  CHECK(peerlane_op_then(&ops[2], hear, &heard_end[2]) == 0);  // it has ended
  CHECK(heard_end[2].calls == 1 && heard_end[2].code == 0 && peerlane_op_wait(&ops[2], 20'000, nullptr) == 0);

  CHECK(peerlane_op_release(&ops[3]) == 0 && heard_end[3].calls == 1 && heard_end[3].code == ECANCELED);
  CHECK(peerlane_op_cancel(&ops[4]) == 0 && peerlane_op_wait(&ops[4], 0, nullptr) == ECANCELED);
  CHECK(heard_end[4].calls == 1 && heard_end[4].code == ECANCELED);
  CHECK(peerlane_comm_close(job.give_up()) == 0 && heard_end[5].calls == 1 && heard_end[5].code == ECANCELED);
  for (const auto& each : heard_end) CHECK(each.calls == 1);
  return 0;
}
TEST(communicator_api, functions_at_the_end_are_called_once) { EXPECT_EQ(run_job(1, call_functions), 0); }

// The loop sleeps on the descriptor, whose readiness says that the operation may have ended.
int sleep_on_the_descriptor(communicator& job) {
  const auto descriptor = job.event_descriptor();
  CHECK(descriptor && *descriptor >= 0);
  CHECK(peerlane_comm_event_descriptor(job.get(), nullptr) == EINVAL);
  for (int round = 0; round < 200; ++round) {
    int value = round;
    const bool sends = job.rank() == round % 2;
    auto moved = sends ? job.isend(1 - job.rank(), one(std::as_const(value)), 3) : job.irecv(1 - job.rank(), one(value), 3);
    CHECK(moved);
    auto op = moved->give_up();
    int done = 0;
    for (;;) {
      CHECK(peerlane_op_test(&op, &done, nullptr) == 0);
      if (done != 0) break;
      const auto armed = job.arm();
      if (armed.code() == EBUSY) continue;
      CHECK(armed);
      pollfd waited{*descriptor, POLLIN, 0};
      CHECK(poll(&waited, 1, 20'000) == 1);
    }
    CHECK(value == round);
  }
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, a_loop_sleeps_on_the_descriptor) { EXPECT_EQ(run_job(2, sleep_on_the_descriptor), 0); }

// A wait for one operation calls the functions of others meanwhile.
int call_within_a_wait(communicator& job) {
  int value = 0, later = 0, sent = 9;
  heard heard_end;
  auto watched = job.irecv(any_source, one(value), 1);
  CHECK(watched && watched->then([&](const op_info& info) { hear(&heard_end, &info); }));
  auto waited = job.irecv(any_source, one(later), 2);
  CHECK(job.send(job.rank(), one(std::as_const(sent)), 1, patience));
  CHECK(waited->wait(std::chrono::milliseconds(50)).code() == ETIMEDOUT && !waited->is_empty());
  CHECK(heard_end.calls == 1 && value == 9);
  CHECK(watched->wait(patience) && heard_end.calls == 1);
  return 0;
}
TEST(communicator_api, a_wait_calls_the_functions_of_others) { EXPECT_EQ(run_job(1, call_within_a_wait), 0); }

// Operations of two communicators, and empty ones, in one wait.
int wait_for_two_owners(communicator& job) {
  auto options = communicator::options();
  options.host_only = 1;
  peerlane_bootstrap alone{nullptr, 0, 1,
                           [](void*, const void* mine, std::size_t size_bytes, void* all) {
                             std::memcpy(all, mine, size_bytes);
                             return 0;
                           },
                           nullptr};
  options.bootstrap = &alone;
  auto other = communicator::open(&options);
  CHECK(other);
  std::array<int, 3> received{};
  int sent = 4;
  std::array<operation, 3> all{job.irecv(job.rank(), one(received[0]), 1).value(), operation(),
                               other->irecv(0, one(received[2]), 1).value()};
  CHECK(wait_any(all, std::chrono::milliseconds(1)).code() == ETIMEDOUT);
  CHECK(other->send(0, one(std::as_const(sent)), 1, patience));
  op_info info{};
  const auto first = wait_any(all, patience, &info);
  CHECK(first && *first == 2 && all[2].is_empty() && received[2] == 4 && info.tag == 1);
  CHECK(wait_all(all, std::chrono::milliseconds(1)).code() == ETIMEDOUT && !all[0].is_empty());
  std::array<int, 2> longer{1, 2};
  all[2] = other->irecv(0, one(received[2]), 1).value();
  CHECK(job.send(job.rank(), std::span(std::as_const(longer)), 1, patience));
  CHECK(other->send(0, one(std::as_const(sent)), 1, patience));
  std::array<op_info, 3> infos{};
  const auto ended = wait_all(all, patience, infos);
  CHECK(ended.code() == EMSGSIZE && infos[0].error == EMSGSIZE && infos[0].size_bytes == sizeof longer);
  CHECK(infos[0].moved_bytes == sizeof(int) && infos[1].source == -1 && infos[2].error == 0);
  CHECK(!ended.error().message.empty());
  for (const auto& each : all) CHECK(each.is_empty());
  return 0;
}
TEST(communicator_api, one_wait_takes_operations_of_several_owners) { EXPECT_EQ(run_job(1, wait_for_two_owners), 0); }

int probe_and_match(communicator& job) {
  std::array<char, 6> text{"hello"};
  if (job.rank() == 0) {
    CHECK(job.send(1, std::span(std::as_const(text)), 9, patience));
    CHECK(job.send(1, std::span(std::as_const(text)), 10, patience));
    return job.barrier(patience) ? 0 : __LINE__;
  }
  op_info info{};
  result<bool> found = false;
  do found = job.probe(0, 9, whole_tag, info);
  while (found && !*found);
  CHECK(found && info.size_bytes == text.size() && info.source == 0 && info.tag == 9);
  auto taken = job.matched_probe(0, 9);
  CHECK(taken && !taken->is_empty() && taken->info().size_bytes == text.size());
  auto gone = job.matched_probe(0, 9);
  CHECK(gone && gone->is_empty());
  std::array<char, 6> received_text{};
  auto received = job.irecv(*std::move(taken), std::span(received_text));
  CHECK(received && received->wait(patience) && received_text == text);
  CHECK(job.irecv(*std::move(taken), std::span(received_text)).code() == EINVAL);
  result<matched_message> dropped = matched_message();
  do dropped = job.matched_probe(0, 10);
  while (dropped && dropped->is_empty());
  CHECK(dropped);
  dropped->reset();
  found = job.probe(any_source, 0, 0, info);
  CHECK(found && !*found);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, probes) { EXPECT_EQ(run_job(2, probe_and_match), 0); }

// Turns at one's own target too: a process that waits for its own answer makes progress itself.
int remote(communicator& job) {
  std::array<std::uint64_t, 1000> memory_of_mine{};
  auto exposed = job.expose(std::span(memory_of_mine));
  CHECK(exposed);
  const auto keys = job.all_gather(exposed->key());
  CHECK(keys && keys->size() == static_cast<std::size_t>(job.size()));
  const auto& of_0 = (*keys)[0];
  CHECK(of_0.rank == 0 && of_0.size_bytes == sizeof memory_of_mine);
  for (int i = 0; i < 10; ++i) CHECK(job.fetch_add(of_0, 0, 1));
  CHECK(job.barrier(patience));
  std::uint64_t sum = 0;
  auto read = job.get(of_0, 0, one(sum));
  CHECK(read && read->wait(patience) && sum == 10u * static_cast<unsigned>(job.size()));
  const auto mine = static_cast<std::uint64_t>(job.rank()) + 5;
  auto put = job.put(of_0, 8 * mine, one(mine));
  CHECK(put && job.flush(0, patience) && put->wait(patience));
  CHECK(job.barrier(patience));
  if (job.rank() == 0) CHECK(memory_of_mine[5] == 5 && memory_of_mine[6] == 6);
  if (job.rank() == 1) {
    const auto swapped = job.swap(of_0, 80, 3);
    CHECK(swapped && *swapped == 0);
    const auto missed = job.compare_swap(of_0, 80, 4, 9);
    CHECK(missed && *missed == 3);
    const auto hit = job.compare_swap(of_0, 80, 3, 9);
    CHECK(hit && *hit == 3);
    const auto last = job.fetch_add(of_0, 80, 0);
    CHECK(last && *last == 9);
    auto outside = job.put(of_0, sizeof memory_of_mine, one(mine));
    CHECK(outside.code() == EINVAL || outside->wait(patience).code() == EINVAL);
  }
  CHECK(job.barrier(patience));
  if (job.rank() == 0) exposed->reset();
  CHECK(job.barrier(patience));
  auto refused = job.get(of_0, 0, one(sum));
  CHECK(refused.code() == EINVAL || refused->wait(patience).code() == EINVAL);
  return job.barrier(patience) ? 0 : __LINE__;
}
char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto behind_name = text.rfind(") ");
  return behind_name == std::string::npos ? '?' : text[behind_name + 2];
}

// A stopped child would outlive a test that fails.
struct wake_at_end {
  pid_t process;
  ~wake_at_end() { kill(process, SIGCONT); }
};

// Rank 0 is stopped while rank 1 works on the memory that it has allocated.
int allocate_and_stop(communicator& job) {
  auto mine = job.allocate(1 << 20);
  CHECK(mine && mine->data() != nullptr);
  const auto keys = job.all_gather(mine->key());
  const auto pids = job.all_gather(getpid());
  CHECK(keys && pids);
  auto* const words = static_cast<std::uint64_t*>(mine->data());
  if (job.rank() == 0) {
    raise(SIGSTOP);
    CHECK(job.barrier(patience) && words[0] == 7 && words[1000] == 42);
  } else {
    const wake_at_end waker{(*pids)[0]};
    while (state_of((*pids)[0]) != 'T') usleep(1000);
    const std::uint64_t value = 42;
    std::uint64_t back = 0;
    auto put = job.put((*keys)[0], 8000, one(value));
    CHECK(put && put->wait(patience));
    auto got = job.get((*keys)[0], 8000, one(back));
    CHECK(got && got->wait(patience) && back == 42);
    const auto before = job.fetch_add((*keys)[0], 0, 7);
    CHECK(before && *before == 0 && job.flush(0, patience));
    CHECK(job.statistics()->one_sided == 3 && state_of((*pids)[0]) == 'T');
    kill((*pids)[0], SIGCONT);
    CHECK(job.barrier(patience));
  }
  CHECK(job.barrier(patience) && mine->release() && mine->data() == nullptr);
  CHECK(job.allocate(0).code() == EINVAL);
  return job.barrier(patience) ? 0 : __LINE__;
}
// Each rank puts to the other and counts there; then a word that is set.
int signal_each_other(communicator& job) {
  auto mine = job.allocate(4096), words = job.allocate(64);
  CHECK(mine && words);
  const auto keys = job.all_gather(mine->key()), word_keys = job.all_gather(words->key());
  CHECK(keys && word_keys);
  const auto other = static_cast<std::size_t>(1 - job.rank());
  auto* const numbers = static_cast<std::uint64_t*>(mine->data());
  for (std::uint64_t round = 1; round <= 100; ++round) {
    const std::uint64_t value = round * 10;
    const peerlane_signal raised{(*word_keys)[other], 8, 1, PEERLANE_SIGNAL_ADD, 0};
    auto put = job.put_signal((*keys)[other], 8 * round, one(value), raised);
    CHECK(put && put->wait(patience));
    const auto seen = job.wait_signal(words->key(), 8, round, patience);
    CHECK(seen && *seen >= round && numbers[round] == value);
  }
  const std::uint64_t last = 1;
  const peerlane_signal set{(*word_keys)[other], 16, 7, PEERLANE_SIGNAL_SET, 0};
  auto put = job.put_signal((*keys)[other], 0, one(last), set);
  CHECK(put && put->wait(patience) && job.wait_signal(words->key(), 16, 7, patience) && numbers[0] == 1);

  const auto refused = [&](peerlane_signal wrong) {
    auto begun = job.put_signal((*keys)[other], 0, one(last), wrong);
    return begun.code() == EINVAL || (begun && begun->wait(patience).code() == EINVAL);
  };
  CHECK(refused({(*word_keys)[other], 4, 1, PEERLANE_SIGNAL_ADD, 0}) &&
        refused({words->key(), 0, 1, PEERLANE_SIGNAL_ADD, 0}));
  CHECK(refused({(*word_keys)[other], 0, 1, 2, 0}) && refused({(*word_keys)[other], 0, 1, PEERLANE_SIGNAL_ADD, 1}));
  CHECK(job.wait_signal(words->key(), 0, 1, std::chrono::milliseconds(1)).code() == ETIMEDOUT);
  CHECK(job.wait_signal((*word_keys)[other], 0, 1, patience).code() == EINVAL);
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, puts_with_signals) { EXPECT_EQ(run_job(2, signal_each_other), 0); }

TEST(communicator_api, allocated_windows_need_nothing_of_their_target) { EXPECT_EQ(run_job(2, allocate_and_stop), 0); }

TEST(communicator_api, put_get_and_atomics) { EXPECT_EQ(run_job(2, remote), 0); }

std::chrono::milliseconds time_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

// Rank 1 is stopped while it gets from a window of rank 0, which wants its memory back.
int end_window_of_stopped_reader(communicator& job) {
  std::vector<unsigned char> data(64 << 20, static_cast<unsigned char>(job.rank() + 1));
  auto mine = job.expose(std::span(data));
  CHECK(mine);
  const auto keys = job.all_gather(mine->key());
  const auto pids = job.all_gather(getpid());
  CHECK(keys && pids && job.barrier(patience));
  if (job.rank() == 1) {
    int code = 0;
    while (code == 0) {  // stopped within one of them
      auto got = job.get((*keys)[0], 0, std::span(data));
      CHECK(got);
      code = got->wait(patience).code();
    }
    CHECK(code == ECANCELED);
    return job.barrier(patience) ? 0 : __LINE__;
  }
  const pid_t peer = (*pids)[1];
  const wake_at_end waker{peer};
  usleep(100'000);
  kill(peer, SIGSTOP);
  while (state_of(peer) != 'T') usleep(1000);
  const auto begin = std::chrono::steady_clock::now();
  const auto late = mine->release();
  CHECK(late.code() == ETIMEDOUT && late.error().message.find("rank 1") != std::string::npos);
  CHECK(time_since(begin) < std::chrono::milliseconds(4000));
  kill(peer, SIGCONT);
  CHECK(mine->release());
  std::fill(data.begin(), data.end(), static_cast<unsigned char>(9));
  return job.barrier(patience) ? 0 : __LINE__;
}
TEST(communicator_api, a_window_of_a_reader_that_is_stopped_tells_it) {
  EXPECT_EQ(run_job(2, end_window_of_stopped_reader), 0);
}

// Much that cannot be cancelled is under way to a stopped process: closing takes no longer for much than for one.
int close_beside_stopped_peer(communicator& job) {
  std::vector<unsigned char> data(1 << 20);
  auto mine = job.expose(std::span(data));
  CHECK(mine);
  const auto keys = job.all_gather(mine->key());
  const auto pids = job.all_gather(getpid());
  CHECK(keys && pids && job.barrier(patience));
  if (job.rank() == 1) {
    raise(SIGSTOP);
    int value = 0;
    CHECK(job.recv(0, one(value), 1, whole_tag, patience).code() == ECONNRESET);
    return 0;
  }
  const pid_t peer = (*pids)[1];
  const wake_at_end waker{peer};
  while (state_of(peer) != 'T') usleep(1000);
  std::vector<operation> all;
  for (int i = 0; i < 200; ++i) {
    auto sent = job.isend(1, std::span(std::as_const(data)), 2);
    auto put = job.put((*keys)[1], 0, std::span(std::as_const(data)));
    CHECK(sent && put);
    all.push_back(*std::move(sent));
    all.push_back(*std::move(put));
  }
  const auto begin = std::chrono::steady_clock::now();
  all.clear();
  mine->reset();
  job.reset();
  const auto took = time_since(begin);
  kill(peer, SIGCONT);
  if (took >= std::chrono::milliseconds(4000)) std::fprintf(stderr, "closing took %lld ms\n", (long long)took.count());
  return took < std::chrono::milliseconds(4000) ? 0 : __LINE__;
}
TEST(communicator_api, closing_beside_a_stopped_process_is_bounded) { EXPECT_EQ(run_job(2, close_beside_stopped_peer), 0); }

int misuse(communicator& job) {
  int value = 0;
  peerlane_op_t op = PEERLANE_OP_INIT;
  const auto handle = job.get();
  const auto words = peerlane_host_buffer(&value, sizeof value);
  CHECK(peerlane_comm_isend(handle, 7, words, 1, &op) == EINVAL && peerlane_op_is_empty(&op));
  CHECK(peerlane_comm_isend(handle, 0, peerlane_host_buffer(nullptr, 8), 1, &op) == EINVAL && peerlane_op_is_empty(&op));
  const auto endless = peerlane_host_buffer(&value, SIZE_MAX);  // leaves the address space
  peerlane_window_t window = 0;
  peerlane_window_key window_key{};
  CHECK(peerlane_comm_isend(handle, 0, endless, 1, &op) == EINVAL && peerlane_op_is_empty(&op));
  CHECK(peerlane_comm_irecv(handle, 0, endless, 1, PEERLANE_WHOLE_TAG, &op) == EINVAL && peerlane_op_is_empty(&op));
  CHECK(peerlane_comm_expose(handle, endless, &window, &window_key) == EINVAL && window == 0);
  auto wrong = words;
  wrong.memory = 3;
  CHECK(peerlane_comm_isend(handle, 0, wrong, 1, &op) == EINVAL);
  CHECK(peerlane_comm_isend(handle, 0, words, 1, nullptr) == EINVAL);
  CHECK(peerlane_comm_irecv(handle, 0, words, 1, PEERLANE_WHOLE_TAG, &op) == 0);
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    peerlane_op_t bad = op;
    bad.number = number;
    if (number == op.number) continue;
    CHECK(peerlane_op_wait(&bad, 0, nullptr) == EINVAL && bad.number == number);
    CHECK(peerlane_op_release(&bad) == EINVAL);
    CHECK(peerlane_op_then(
              &bad, [](void*, const op_info*) {}, nullptr) == EINVAL);
    CHECK(peerlane_comm_release_window(handle, number) == EINVAL &&
          peerlane_comm_release_registered(handle, number) == EINVAL);
  }
  CHECK(peerlane_op_release(&op) == 0 && peerlane_op_is_empty(&op));
  CHECK(peerlane_comm_is_same_node(handle, 3, nullptr) == EINVAL);
  CHECK(peerlane_comm_barrier(nullptr, 0) == EINVAL && peerlane_comm_rank(nullptr) == -1);
  CHECK(peerlane_comm_barrier(reinterpret_cast<peerlane_comm_t>(&value), 0) == EINVAL);
  const pid_t child = fork();
  if (child == 0) _exit(peerlane_comm_barrier(handle, 0) == EACCES && std::strstr(peerlane_last_error(), "fork") ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // Closing takes what is under way with it.
  CHECK(peerlane_comm_irecv(handle, PEERLANE_ANY_SOURCE, words, 1, PEERLANE_WHOLE_TAG, &op) == 0);
  CHECK(peerlane_comm_close(job.give_up()) == 0);
  CHECK(peerlane_op_wait(&op, 0, nullptr) == EINVAL);
  return 0;
}
TEST(communicator_api, misuse_is_an_error_value) { EXPECT_EQ(run_job(1, misuse), 0); }

// The next communicator lies where the closed one did: operations of the closed one stay dead.
int reopen(communicator&) {
  auto options = communicator::options();
  options.host_only = 1;
  const peerlane_bootstrap alone{nullptr, 0, 1,
                                 [](void*, const void* mine, std::size_t size_bytes, void* all) {
                                   std::memcpy(all, mine, size_bytes);
                                   return 0;
                                 },
                                 nullptr};
  options.bootstrap = &alone;
  int value = 0;
  auto first = communicator::open(&options);
  CHECK(first);
  peerlane_op_t old_op = first->irecv(any_source, one(value), 1).value().give_up();
  auto* const place = first->get();
  CHECK(first->close());
  auto second = communicator::open(&options);
  CHECK(second && second->get() == place);
  auto live = second->irecv(any_source, one(value), 1);
  CHECK(live && peerlane_op_release(&old_op) == EINVAL);
  CHECK(live->wait(std::chrono::milliseconds(0)).code() == ETIMEDOUT && live->cancel());
  return 0;
}
TEST(communicator_api, operations_of_a_closed_one_are_dead_in_the_next) { EXPECT_EQ(run_job(1, reopen), 0); }

int dead_peer(communicator& job) {
  int value = 0;
  if (job.rank() == 1) _exit(0);  // without closing
  const auto lost = job.recv(1, one(value), 1, whole_tag, patience);
  CHECK(lost.code() == ECONNRESET && !job.peer_state(1));
  bool has_thrown = false;
  try {
    job.recv_or_throw(1, one(value), 1);
  } catch (const error& reason) { has_thrown = reason.code() == ECONNRESET && *reason.what() != '\0'; }
  CHECK(has_thrown);
  return 0;
}
TEST(communicator_api, a_dead_peer_is_an_error_and_an_exception_where_asked_for) { EXPECT_EQ(run_job(2, dead_peer), 0); }

int hear_of_failures(communicator& job) {
  heard heard_end;
  auto first = job.await_failure(), second = job.await_failure();
  CHECK(first && second && first->then([&](const op_info& info) { heard_end.code = info.source, ++heard_end.calls; }));
  CHECK(job.barrier(patience));
  if (job.rank() == 2) _exit(0);  // without closing
  const auto is_told = [&] {
    for (const auto limit = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < limit;)
      if (!job.progress() || heard_end.calls > 0) return heard_end.calls == 1;
    return false;
  };
  CHECK(is_told() && heard_end.code == 2);
  op_info info{};
  CHECK(first->wait(patience, &info) && info.source == 2 && info.tag == PEERLANE_FAILURE_LOST);
  int value = 0;
  if (job.rank() == 1) return job.recv(0, one(value), 1, whole_tag, patience) ? 0 : __LINE__;
  CHECK(job.send(1, one(std::as_const(value)), 1, patience));
  CHECK(second->wait(patience, &info) && info.source == 1 && info.tag == PEERLANE_FAILURE_CLOSED);
  const peerlane_comm_t handle = job.give_up();
  CHECK(peerlane_comm_await_failure(handle, nullptr) == EINVAL);
  peerlane_op_t last = PEERLANE_OP_INIT;
  CHECK(peerlane_comm_await_failure(handle, &last) == 0);
  CHECK(peerlane_op_wait(&last, 20, &info) == ETIMEDOUT);
  CHECK(peerlane_comm_close(handle) == 0 && peerlane_op_wait(&last, 0, nullptr) == EINVAL);
  return 0;
}
TEST(communicator_api, failures_are_reported_to_waiters) { EXPECT_EQ(run_job(3, hear_of_failures), 0); }

// Four ranks of which two share a CPU policy; what a job may set for itself.
int check_plan(communicator& job) {
  const auto plan = job.plan(1 - job.rank());
  CHECK(plan && plan->find("this thread: CPUs ") == 0 && plan->find("(bunch)") != std::string::npos);
  CHECK(plan->find("up to 2 KiB") != std::string::npos);
  return 0;
}
TEST(communicator_api, options_of_the_job_are_in_its_plan) {
  EXPECT_EQ(run_job(2, check_plan,
                    [](peerlane_comm_options& options) {
                      options.cpus = "bunch";
                      options.eager_limit = 2048;
                      options.host_only = 1;
                    }),
            0);
}

TEST(communicator_api, options_that_do_not_fit) {
  auto options = communicator::options();
  options.size = 2;
  options.rank = 2;
  EXPECT_EQ(communicator::open(&options).code(), EINVAL);
  options.rank = 1;
  const auto nowhere = communicator::open(&options);
  ASSERT_EQ(nowhere.code(), EINVAL);
  EXPECT_NE(nowhere.error().message.find("PEERLANE_LINK_RENDEZVOUS"), std::string::npos) << nowhere.error().message;
  options.struct_bytes = 4;
  EXPECT_EQ(communicator::open(&options).code(), EINVAL);
  options = communicator::options();
  peerlane_bootstrap none{};
  options.bootstrap = &none;
  EXPECT_EQ(communicator::open(&options).code(), EINVAL);
}

int failing_gather(void*, const void*, std::size_t, void*) { return EHOSTUNREACH; }
TEST(communicator_api, a_bootstrap_that_fails_is_told) {
  auto options = communicator::options();
  peerlane_bootstrap bad{nullptr, 0, 2, failing_gather, nullptr};
  options.bootstrap = &bad;
  options.host_only = 1;
  const auto job = communicator::open(&options);
  ASSERT_EQ(job.code(), EHOSTUNREACH);
  EXPECT_NE(job.error().message.find("all_gather"), std::string::npos);
}

}  // namespace
}  // namespace peerlane::test
