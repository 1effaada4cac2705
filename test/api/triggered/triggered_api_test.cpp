// SPDX-License-Identifier: Apache-2.0
// The public interface of stream-triggered communication in C++, from the shared library that users load.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstring>
#include <peerlane/triggered.hpp>
#include <thread>

#include "test/api/messaging/job.hpp"
#include "test/api/triggered/driver.h"

namespace peerlane::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWords = 512;

struct rank_session {
  triggered::context& job;
  void* stream;
};

// Two ranks, a GPU and a stream each; the body's failures.
int run_streams(const std::function<int(const rank_session&)>& body) {
  return fork_ranks(2, [&](int rank, const std::string& rendezvous) {
    void *context = nullptr, *stream = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuStreamCreate(&stream, 1) == 0);
    auto comm = communicator::options();
    comm.rendezvous = rendezvous.c_str();
    comm.rank = rank;
    comm.size = 2;
    auto options = triggered::context::options();
    options.comm = &comm;
    auto job = triggered::context::open(&options);
    CHECK(job);
    if (const int line = body({*job, stream})) return line;
    CHECK(job->barrier());
    CHECK(cuStreamDestroy_v2(stream) == 0);
    return 0;
  });
}

struct device_words {
  device_words() {
    unsigned long long pointer = 0;
    if (cuMemAlloc_v2(&pointer, kWords * 8) != 0 || cuMemsetD8_v2(pointer, 0, kWords * 8) != 0) std::abort();
    address = pointer;
  }
  std::span<std::uint64_t> span() const { return {reinterpret_cast<std::uint64_t*>(address), kWords}; }
  buffer first(std::size_t words) const { return device_buffer(span().first(words)); }
  std::uint64_t get(std::size_t index) const {
    std::uint64_t value = 0;
    if (cuMemcpyDtoH_v2(&value, address + 8 * index, 8) != 0) std::abort();
    return value;
  }
  void set(std::size_t index, std::uint64_t value) const {
    if (cuMemcpyHtoD_v2(address + 8 * index, &value, 8) != 0) std::abort();
  }
  std::uint64_t address = 0;
};

// What a rank needs for talking to the other; its memory stays until the process ends, since the peer may have it open.
struct two_ends {
  device_words receive_buffer, send_buffer;
  triggered::window mine;
  triggered::remote_window theirs;
  triggered::channel peer_channel;
  int open(const rank_session& session, const peerlane_channel_options* options = nullptr) {
    auto exposed = session.job.expose(device_buffer(receive_buffer.span()));
    CHECK(exposed);
    mine = *std::move(exposed);
    const auto keys = session.job.all_gather(mine.key());
    CHECK(keys);
    auto imported = session.job.import((*keys)[static_cast<std::size_t>(1 - session.job.rank())]);
    CHECK(imported);
    theirs = *std::move(imported);
    auto channel = session.job.connect(1 - session.job.rank(), 1, options);
    CHECK(channel && channel->ready(patience));
    peer_channel = *std::move(channel);
    return 0;
  }
};

int ping_pong(const rank_session& session) {
  two_ends ends;
  if (const int line = ends.open(session)) return line;
  const bool is_first = session.job.rank() == 0;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const std::size_t some = 1 + round * 40;
    ends.send_buffer.set(some - 1, round * 2 + (is_first ? 0 : 1));
    if (!is_first) CHECK(*ends.peer_channel.wait_signal(session.stream) == round);
    const auto sent = ends.peer_channel.put_signal(session.stream, ends.theirs, 0, ends.send_buffer.first(some));
    CHECK(sent && *sent == round);
    if (is_first) CHECK(ends.peer_channel.wait_signal(session.stream, round));
    CHECK(cuStreamSynchronize(session.stream) == 0);
    CHECK(ends.receive_buffer.get(some - 1) == round * 2 + (is_first ? 1 : 0));
    CHECK(session.job.barrier());
  }
  const auto now = ends.peer_channel.state();
  CHECK(now && now->error == 0 && now->puts == 10 && now->waits == 10 && now->executor == PEERLANE_EXECUTOR_PEER);
  CHECK(session.job.barrier());
  return 0;
}
TEST(triggered_api, ping_pong) { EXPECT_EQ(run_streams(ping_pong), 0); }

// Rank 1 comes later than the limits of rank 0, at each step of their agreement. Another thread reads the state meanwhile.
int ready_continues(const rank_session& session, uint32_t executor) {
  auto options = triggered::context::channel_options();
  options.executor = executor;
  auto channel = session.job.connect(1 - session.job.rank(), 1, &options);
  CHECK(channel);
  std::atomic<bool> is_ready{false};
  std::thread reader([&] {
    while (!is_ready) static_cast<void>(session.job.diag()), static_cast<void>(channel->diag()), sched_yield();
  });
  CHECK(session.job.barrier());
  const auto begin = std::chrono::steady_clock::now();
  if (session.job.rank() == 1) std::this_thread::sleep_for(100ms);
  auto done = channel->ready(0ms);
  while (done.code() == ETIMEDOUT && std::chrono::steady_clock::now() < begin + patience) done = channel->ready(0ms);
  is_ready = true;
  reader.join();
  CHECK(done);
  CHECK(channel->signal(session.stream) && channel->wait_signal(session.stream));
  CHECK(cuStreamSynchronize(session.stream) == 0);
  CHECK(channel->state()->executor == executor && channel->state()->error == 0);
  return 0;
}
TEST(triggered_api, ready_continues_after_its_limit) {
  for (const uint32_t executor : {PEERLANE_EXECUTOR_PEER, PEERLANE_EXECUTOR_PROXY, PEERLANE_EXECUTOR_DMA})
    EXPECT_EQ(run_streams([=](const rank_session& session) { return ready_continues(session, executor); }), 0) << executor;
}

// By the C interface, whose numbers may be given on any thread.
int close_under_host_wait() {
  return fork_ranks(2, [&](int rank, const std::string& rendezvous) {
    void* context = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
    auto comm = communicator::options();
    comm.rendezvous = rendezvous.c_str();
    comm.rank = rank;
    comm.size = 2;
    auto options = triggered::context::options();
    options.comm = &comm;
    peerlane_triggered_t job = nullptr;
    CHECK(peerlane_triggered_open(&options, &job) == 0);
    for (uint32_t id = 1; id <= 20; ++id) {
      peerlane_channel_t channel = 0;
      CHECK(peerlane_channel_connect(job, 1 - rank, id, nullptr, &channel) == 0);
      CHECK(peerlane_channel_ready(job, channel, 30'000) == 0);
      CHECK(peerlane_triggered_all_gather(job, nullptr, 0, nullptr) == 0);
      std::atomic<int> begun{0};
      std::array<int, 3> codes{};
      std::array<std::thread, 3> waiters;
      for (std::size_t i = 0; i < waiters.size(); ++i)
        waiters[i] = std::thread([&, i] {
          ++begun;
          codes[i] = peerlane_channel_host_wait(job, channel, 1, -1);
        });
      while (begun < 3) sched_yield();
      if (id % 2 == 0) std::this_thread::sleep_for(1ms);  // else some come when the channel has ended
      CHECK(peerlane_channel_close(job, channel) == 0);
      for (auto& each : waiters) each.join();
      // EPIPE: the peer was faster.
      for (const int code : codes) CHECK(code == ECANCELED || code == EPIPE || (code == EINVAL && id % 2 != 0));
      CHECK(peerlane_triggered_all_gather(job, nullptr, 0, nullptr) == 0);
    }
    CHECK(peerlane_triggered_close(job) == 0);
    return 0;
  });
}
TEST(triggered_api, a_close_ends_waits_of_other_threads) { EXPECT_EQ(close_under_host_wait(), 0); }

int hold_back(const rank_session& session) {
  auto options = triggered::context::channel_options();
  options.depth = 1;
  options.max_queued = 2;
  two_ends ends;
  if (const int line = ends.open(session, &options)) return line;
  if (session.job.rank() == 0) {
    for (int i = 0; i < 2; ++i) CHECK(ends.peer_channel.signal(session.stream));
    CHECK(ends.peer_channel.host_wait(1, 0ms).code() == ETIMEDOUT);
    auto third = ends.peer_channel.signal(session.stream);
    while (third.code() == EAGAIN)
      third = ends.peer_channel.signal(session.stream);  // until the first has left; the second may not
    CHECK(third && *third == 3);
    const auto fourth = ends.peer_channel.signal(session.stream);
    CHECK(fourth.code() == EAGAIN && fourth.error().message.find("2 operations") != std::string::npos);
    while (ends.peer_channel.diag()->find("before put 2 until the peer releases put 1") == std::string::npos) sched_yield();
    CHECK(session.job.barrier());
    CHECK(cuStreamSynchronize(session.stream) == 0);
    CHECK(ends.peer_channel.state()->sent == 3);
  } else {
    CHECK(session.job.barrier());
    for (std::uint64_t i = 1; i <= 3; ++i) {
      CHECK(ends.peer_channel.wait_signal(session.stream));
      CHECK(ends.peer_channel.release(session.stream, i));
      CHECK(cuStreamSynchronize(session.stream) == 0);
    }
  }
  CHECK(session.job.barrier());
  return 0;
}
TEST(triggered_api, depth_and_max_queued_hold_back_without_blocking) { EXPECT_EQ(run_streams(hold_back), 0); }

int cancel(const rank_session& session) {
  two_ends ends;
  if (const int line = ends.open(session)) return line;
  CHECK(ends.peer_channel.wait_signal(session.stream));
  CHECK(session.job.barrier());
  CHECK(cuStreamQuery(session.stream) != 0);
  CHECK(session.job.barrier());
  if (session.job.rank() == 0) {
    CHECK(ends.peer_channel.cancel(-1).code() == EINVAL);
    CHECK(ends.peer_channel.cancel());
  }
  CHECK(cuStreamSynchronize(session.stream) == 0);
  CHECK(ends.peer_channel.state()->error == (session.job.rank() == 0 ? ECANCELED : EPIPE));
  CHECK(ends.peer_channel.signal(session.stream).code() == ends.peer_channel.state()->error);
  CHECK(session.job.diag()->find("channel 1 to rank") != std::string::npos);
  CHECK(session.job.barrier());
  return 0;
}
TEST(triggered_api, cancel_lets_both_ends_go) { EXPECT_EQ(run_streams(cancel), 0); }

int time_out(const rank_session& session) {
  auto options = triggered::context::channel_options();
  options.wait_timeout_ms = session.job.rank() == 0 ? 30 : -1;
  two_ends ends;
  if (const int line = ends.open(session, &options)) return line;
  CHECK(ends.peer_channel.wait_signal(session.stream));
  CHECK(cuStreamSynchronize(session.stream) == 0);
  CHECK(ends.peer_channel.state()->error == (session.job.rank() == 0 ? ETIMEDOUT : EPIPE));
  CHECK(session.job.barrier());
  return 0;
}
TEST(triggered_api, a_wait_ends_after_the_time_in_the_options) { EXPECT_EQ(run_streams(time_out), 0); }

int batches(const rank_session& session) {
  device_words words;
  auto waiting = session.job.begin_batch(session.stream);
  CHECK(waiting && waiting->wait64(words.address, 3) && waiting->wait32(words.address + 8, 0x10, PEERLANE_ANY_BIT));
  CHECK(waiting->write64(words.address + 16, 7) && waiting->submit());
  CHECK(waiting->submit().code() == EINVAL);  // it has ended
  CHECK(waiting->get() == 0);
  CHECK(cuStreamQuery(session.stream) != 0);
  void* other = nullptr;
  CHECK(cuStreamCreate(&other, 1) == 0);
  auto writing = session.job.begin_batch(other);
  CHECK(writing && writing->write32(words.address + 8, 0x30) && writing->flush() && writing->write64(words.address, 4));
  CHECK(words.get(0) == 0);  // nothing before it is submitted
  CHECK(writing->submit());
  CHECK(cuStreamSynchronize(session.stream) == 0 && words.get(2) == 7);
  const std::array<peerlane_word_op, 7> wrong{{{9, 0, words.address, 0},
                                               {PEERLANE_WORD_WRITE64, 0, 0, 0},
                                               {PEERLANE_WORD_WRITE64, 0, words.address + 4, 0},
                                               {PEERLANE_WORD_WRITE32, 0, words.address + 2, 0},
                                               {PEERLANE_WORD_WRITE64, 1, words.address, 0},
                                               {PEERLANE_WORD_WAIT64, 4, words.address, 0},
                                               {PEERLANE_WORD_WRITE32, 0, words.address, 1ull << 32}}};
  auto mixed = session.job.begin_batch(session.stream);
  for (const auto& each : wrong) {
    const std::array<peerlane_word_op, 2> two{{{PEERLANE_WORD_WRITE64, 0, words.address + 24, 1}, each}};
    CHECK(mixed->add(two).code() == EINVAL);
  }
  CHECK(mixed->submit() && cuStreamSynchronize(session.stream) == 0 && words.get(3) == 0);  // none of either pair was added
  std::vector<peerlane_word_op> many;
  for (std::size_t i = 0; i < kWords; ++i) many.push_back({PEERLANE_WORD_WRITE64, 0, words.address + 8 * i, i + 1});
  auto longer = session.job.begin_batch(session.stream);
  CHECK(longer->add(many) && longer->submit() && cuStreamSynchronize(session.stream) == 0);
  for (std::size_t i = 0; i < kWords; ++i) CHECK(words.get(i) == i + 1);
  CHECK(cuStreamDestroy_v2(other) == 0);
  return 0;
}
TEST(triggered_api, batches_of_stream_memory_operations) { EXPECT_EQ(run_streams(batches), 0); }

int misuse(const rank_session& session) {
  auto* const job = session.job.get();
  auto* const nobody = reinterpret_cast<peerlane_triggered_t>(reinterpret_cast<char*>(job) + 1);
  std::uint64_t number = 77;
  triggered::window_key key{}, other{};
  for (auto* const none : {static_cast<peerlane_triggered_t>(nullptr), nobody}) {
    CHECK(peerlane_channel_connect(none, 0, 1, nullptr, &number) == EINVAL && number == 77);
    CHECK(peerlane_triggered_close(none) == EINVAL && peerlane_triggered_rank(none) == -1 &&
          peerlane_triggered_size(none) == -1);
  }
  CHECK(peerlane_channel_signal(job, 12345, session.stream, &number) == EINVAL && number == 77);
  CHECK(peerlane_channel_connect(job, session.job.rank(), 1, nullptr, &number) == EINVAL && number == 77);
  CHECK(peerlane_channel_connect(job, 2, 1, nullptr, &number) == EINVAL);
  auto options = triggered::context::channel_options();
  options.executor = 4;
  CHECK(peerlane_channel_connect(job, 1 - session.job.rank(), 1, &options, &number) == EINVAL);
  options = triggered::context::channel_options();
  options.max_queued = 1001;
  CHECK(peerlane_channel_connect(job, 1 - session.job.rank(), 1, &options, &number) == EINVAL);
  options.struct_bytes = 1;
  CHECK(peerlane_channel_connect(job, 1 - session.job.rank(), 1, &options, &number) == EINVAL && number == 77);
  CHECK(peerlane_triggered_import(job, &key, &number) == EINVAL && number == 77);
  int host = 0;
  std::memset(&other, 5, sizeof other);
  CHECK(peerlane_triggered_expose(job, peerlane_any_buffer(&host, 4), &number, &other) == EINVAL &&
        peerlane_triggered_expose(job, peerlane_host_buffer(&host, 4), &number, &other) == EINVAL);
  CHECK(number == 77 && other.bytes[0] == 5);
  CHECK(peerlane_triggered_expose(job, peerlane_device_buffer(0, 0), nullptr, &other) == EINVAL);
  CHECK(peerlane_triggered_set_mode(job, 2) == EINVAL && session.job.set_mode(PEERLANE_TRIGGERED_ECONOMY));
  auto wrong = triggered::context::options();
  wrong.has_device = 1;
  wrong.device = -1;
  CHECK(triggered::context::open(&wrong).code() == EINVAL);
  two_ends ends;
  if (const int line = ends.open(session)) return line;
  CHECK(ends.peer_channel.put_signal(session.stream, ends.theirs, kWords * 8 - 7, ends.send_buffer.first(1)).code() ==
        ERANGE);
  CHECK(ends.peer_channel.put_signal(session.stream, triggered::remote_window(), 0, ends.send_buffer.first(1)).code() ==
        EINVAL);
  auto own = session.job.import(ends.mine.key());
  CHECK(own && ends.peer_channel.put_signal(session.stream, *own, 0, ends.send_buffer.first(1)).code() == EINVAL);
  CHECK(ends.peer_channel.state()->puts == 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = peerlane_channel_signal(job, ends.peer_channel.get(), session.stream, &number) == EACCES &&
                         peerlane_triggered_close(job) == EACCES && peerlane_triggered_rank(job) == -1 &&
                         std::strstr(peerlane_last_error(), "fork") != nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(session.job.barrier());
  return 0;
}
TEST(triggered_api, misuse_is_answered_and_changes_nothing) { EXPECT_EQ(run_streams(misuse), 0); }

// Every collective, and the refusals that are the interface's own.
// Numbers from 2^62 on release waits, and compared cyclically they would be smaller than what has arrived.
int impossible_numbers(const rank_session& session, uint32_t executor) {
  auto options = triggered::context::channel_options();
  options.executor = executor;
  two_ends ends;
  if (const int line = ends.open(session, &options)) return line;
  for (const std::uint64_t number : {1ull << 62, 1ull << 63, (1ull << 63) + 5, ~0ull}) {
    CHECK(ends.peer_channel.wait_signal(session.stream, number).code() == EINVAL);
    CHECK(ends.peer_channel.arrived(number).code() == EINVAL);
    CHECK(ends.peer_channel.host_wait(number, 0ms).code() == EINVAL);
    CHECK(ends.peer_channel.release(session.stream, number).code() == EINVAL);
  }
  CHECK(cuStreamSynchronize(session.stream) == 0 && ends.peer_channel.state()->error == 0);
  return 0;
}
TEST(triggered_api, numbers_that_no_put_has_are_refused) {
  for (const uint32_t executor : {PEERLANE_EXECUTOR_PEER, PEERLANE_EXECUTOR_PROXY, PEERLANE_EXECUTOR_DMA})
    EXPECT_EQ(run_streams([=](const rank_session& session) { return impossible_numbers(session, executor); }), 0);
}

// A smaller number than before, or the same one, takes nothing back.
int release_less(const rank_session& session, uint32_t executor) {
  auto options = triggered::context::channel_options();
  options.executor = executor;
  options.depth = 1;
  options.wait_timeout_ms = 2000;
  two_ends ends;
  if (const int line = ends.open(session, &options)) return line;
  if (session.job.rank() == 1)
    for (const std::uint64_t number : {5, 5, 3, 0}) CHECK(ends.peer_channel.release(session.stream, number));
  CHECK(cuStreamSynchronize(session.stream) == 0 && session.job.barrier());
  if (session.job.rank() == 0)
    for (int i = 0; i < 6; ++i) CHECK(ends.peer_channel.signal(session.stream));
  CHECK(cuStreamSynchronize(session.stream) == 0 && session.job.barrier() && ends.peer_channel.state()->error == 0);
  return 0;
}
TEST(triggered_api, a_smaller_release_takes_nothing_back) {
  for (const uint32_t executor : {PEERLANE_EXECUTOR_PEER, PEERLANE_EXECUTOR_PROXY, PEERLANE_EXECUTOR_DMA})
    EXPECT_EQ(run_streams([=](const rank_session& session) { return release_less(session, executor); }), 0) << executor;
}

// A kernel that reads what is not this GPU's memory ends the CUDA context.
int unknown_sources(const rank_session& session) {
  two_ends ends;
  if (const int line = ends.open(session)) return line;
  auto& end = ends.peer_channel;
  std::uint64_t host[kWords] = {};
  const auto* const device = reinterpret_cast<const void*>(ends.send_buffer.address);
  const auto put = [&](const void* source, std::size_t bytes) {
    return peerlane_channel_put_signal(session.job.get(), end.get(), session.stream, ends.theirs.get(), 0,
                                       peerlane_any_buffer(source, bytes), nullptr);
  };
  CHECK(put(host, 8) == EINVAL && put(nullptr, 8) == EINVAL);
  CHECK(put(static_cast<const char*>(device) + 8, kWords * 8) == EINVAL);
  CHECK(put(device, kWords * 8) == 0 && put(host, 0) == 0 && end.wait_signal(session.stream, 2));
  CHECK(cuStreamSynchronize(session.stream) == 0 && end.state()->error == 0);
  return 0;
}
TEST(triggered_api, the_driver_is_asked_about_sources_of_unknown_kind) { EXPECT_EQ(run_streams(unknown_sources), 0); }

int collectives(const rank_session& session) {
  auto options = triggered::context::collectives_options();
  options.blocks = 4;
  options.chunk_size_bytes = 4096;
  auto all = session.job.open_collectives(&options);
  CHECK(all);
  const device_words values, result;
  const auto rank = static_cast<std::uint64_t>(session.job.rank());
  for (std::size_t i = 0; i < kWords; ++i) values.set(i, 1000 * rank + i);
  const auto whole = values.first(kWords), half = values.first(kWords / 2);
  CHECK(all->all_reduce(session.stream, whole, result.first(kWords), PEERLANE_UINT64, PEERLANE_SUM));
  CHECK(cuStreamSynchronize(session.stream) == 0 && result.get(7) == 1014);
  CHECK(all->reduce_scatter(session.stream, whole, result.first(kWords / 2), PEERLANE_UINT64, PEERLANE_MAXIMUM));
  CHECK(cuStreamSynchronize(session.stream) == 0 && result.get(3) == 1003 + rank * kWords / 2);
  CHECK(all->all_gather(session.stream, half, result.first(kWords)));
  CHECK(cuStreamSynchronize(session.stream) == 0 && result.get(5) == 5 && result.get(kWords / 2 + 5) == 1005);
  CHECK(all->all_to_all(session.stream, whole, result.first(kWords)));
  CHECK(cuStreamSynchronize(session.stream) == 0);
  CHECK(result.get(2) == 2 + rank * kWords / 2 && result.get(kWords / 2 + 2) == 1002 + rank * kWords / 2);
  CHECK(all->barrier(session.stream));
  std::uint64_t host[4] = {};
  CHECK(all->all_reduce(session.stream, std::span(host), whole, PEERLANE_UINT64, PEERLANE_SUM).code() == EINVAL);
  CHECK(all->all_reduce(session.stream, half, whole, PEERLANE_UINT64, PEERLANE_SUM).code() == EINVAL);
  CHECK(all->all_gather(session.stream, whole, whole).code() == EINVAL);
  CHECK(all->all_reduce(session.stream, whole, whole, static_cast<peerlane_element>(15), PEERLANE_SUM).code() == EINVAL);
  CHECK(all->state());
  CHECK(cuStreamSynchronize(session.stream) == 0);
  CHECK(all->close());
  CHECK(all->state().code() == EINVAL);
  options.blocks = 1000;
  CHECK(session.job.open_collectives(&options).code() == EINVAL);
  return 0;
}
TEST(triggered_api, collectives_on_streams) { EXPECT_EQ(run_streams(collectives), 0); }

// A rank whose options are refused tells the others, which would wait for it otherwise.
int refuse_at_one_rank(const rank_session& session) {
  auto options = triggered::context::collectives_options();
  if (session.job.rank() == 1) options.reserved = 1;
  CHECK(session.job.open_collectives(&options).code() == EINVAL);
  auto all = session.job.open_collectives();
  CHECK(all && all->barrier(session.stream) && cuStreamSynchronize(session.stream) == 0 && all->close());
  return 0;
}
TEST(triggered_api, collectives_that_one_rank_refuses) { EXPECT_EQ(run_streams(refuse_at_one_rank), 0); }

// The ranks meet in a folder, which does not show that a rank is gone.
int close_without_peer(int rank, const std::string& rendezvous) {
  void *cuda_context = nullptr, *stream = nullptr;
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&cuda_context, rank) == 0 && cuCtxSetCurrent(cuda_context) == 0);
  CHECK(cuStreamCreate(&stream, 1) == 0);
  auto comm = communicator::options();
  comm.rendezvous = rendezvous.c_str();
  comm.rank = rank;
  comm.size = 2;
  comm.open_timeout_ms = 24 * 3600 * 1000;
  auto options = triggered::context::options();
  options.comm = &comm;
  auto job = triggered::context::open(&options);
  CHECK(job);
  auto all = job->open_collectives();
  CHECK(all);
  if (rank == 1) _exit(0);
  while (all->state()) sched_yield();
  CHECK(all->state().code() == ECONNRESET && all->close().code() == ECONNRESET);
  return 0;
}
TEST(triggered_api, closing_collectives_of_a_rank_that_is_gone) { EXPECT_EQ(fork_ranks(2, close_without_peer), 0); }

// Without a limit, whatever waits for the device before its streams are released would wait for ever.
int close_in_waits(int rank, const std::string& rendezvous) {
  void *cuda_context = nullptr, *waiting = nullptr, *reducing = nullptr;
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&cuda_context, rank) == 0 && cuCtxSetCurrent(cuda_context) == 0);
  CHECK(cuStreamCreate(&waiting, 1) == 0 && cuStreamCreate(&reducing, 1) == 0);
  auto comm = communicator::options();
  comm.rendezvous = rendezvous.c_str();
  comm.rank = rank;
  comm.size = 2;
  auto options = triggered::context::options();
  options.comm = &comm;
  options.wait_timeout_ms = -1;
  auto job = triggered::context::open(&options);
  CHECK(job);
  auto peer_channel = job->connect(1 - rank, 1);
  CHECK(peer_channel && peer_channel->ready(patience));
  auto all = job->open_collectives();
  CHECK(all);
  CHECK(peer_channel->wait_signal(waiting));
  if (rank == 0) CHECK(all->barrier(reducing));
  CHECK(job->barrier());
  CHECK(job->close());
  CHECK(cuStreamSynchronize(waiting) == 0 && cuStreamSynchronize(reducing) == 0);
  CHECK(cuStreamDestroy_v2(waiting) == 0 && cuStreamDestroy_v2(reducing) == 0);
  return 0;
}
TEST(triggered_api, closing_a_context_releases_its_streams) { EXPECT_EQ(fork_ranks(2, close_in_waits), 0); }

}  // namespace
}  // namespace peerlane::test
