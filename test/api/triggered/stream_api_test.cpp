// SPDX-License-Identifier: Apache-2.0
// The public interface of stream-triggered communication in C++, from the shared library that users load.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cstring>
#include <peerlane/stream.hpp>

#include "test/api/messaging/job.hpp"
#include "test/api/triggered/driver.h"

namespace peerlane::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWords = 512;

struct scene {
  stream_context& job;
  void* on;
};

// Two ranks, a GPU and a stream each; the body's failures.
int run_streams(const std::function<int(const scene&)>& body) {
  return fork_ranks(2, [&](int rank, const std::string& where) {
    void *context = nullptr, *on = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuStreamCreate(&on, 1) == 0);
    auto link = messenger::options();
    link.rendezvous = where.c_str();
    link.rank = rank;
    link.size = 2;
    auto options = stream_context::options();
    options.link = &link;
    auto job = stream_context::open(&options);
    CHECK(job);
    if (const int line = body({*job, on})) return line;
    CHECK(job->barrier());
    CHECK(cuStreamDestroy_v2(on) == 0);
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
  device_words in, out;
  stream_window mine;
  remote_window theirs;
  stream_channel to;
  int open(const scene& at, const peerlane_channel_options* options = nullptr) {
    auto exposed = at.job.expose(in.span());
    CHECK(exposed);
    mine = *std::move(exposed);
    const auto keys = at.job.all_gather(mine.key());
    CHECK(keys);
    auto imported = at.job.import((*keys)[static_cast<std::size_t>(1 - at.job.rank())]);
    CHECK(imported);
    theirs = *std::move(imported);
    auto channel = at.job.connect(1 - at.job.rank(), 1, options);
    CHECK(channel && channel->ready(patience));
    to = *std::move(channel);
    return 0;
  }
};

int ping_pong(const scene& at) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  const bool is_first = at.job.rank() == 0;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const std::size_t some = 1 + round * 40;
    ends.out.set(some - 1, round * 2 + (is_first ? 0 : 1));
    if (!is_first) CHECK(*ends.to.wait_signal(at.on) == round);
    const auto sent = ends.to.put_signal(at.on, ends.theirs, 0, ends.out.span().first(some));
    CHECK(sent && *sent == round);
    if (is_first) CHECK(ends.to.wait_signal(at.on, round));
    CHECK(cuStreamSynchronize(at.on) == 0);
    CHECK(ends.in.get(some - 1) == round * 2 + (is_first ? 1 : 0));
    CHECK(at.job.barrier());
  }
  const auto now = ends.to.state();
  CHECK(now && now->error == 0 && now->puts == 10 && now->waits == 10 && now->executor == PEERLANE_EXECUTOR_PEER);
  CHECK(at.job.barrier());
  return 0;
}
TEST(stream_api, ping_pong) { EXPECT_EQ(run_streams(ping_pong), 0); }

int hold_back(const scene& at) {
  auto options = stream_context::channel_options();
  options.depth = 1;
  options.most_queued = 2;
  two_ends ends;
  if (const int line = ends.open(at, &options)) return line;
  if (at.job.rank() == 0) {
    for (int i = 0; i < 2; ++i) CHECK(ends.to.signal(at.on));
    CHECK(ends.to.host_wait(1, 0ms).code() == ETIMEDOUT);
    auto third = ends.to.signal(at.on);
    while (third.code() == EAGAIN) third = ends.to.signal(at.on);  // until the first has left; the second may not
    CHECK(third && *third == 3);
    const auto fourth = ends.to.signal(at.on);
    CHECK(fourth.code() == EAGAIN && fourth.error().message.find("2 operations") != std::string::npos);
    while (ends.to.diag()->find("before put 2 until the peer releases put 1") == std::string::npos) sched_yield();
    CHECK(at.job.barrier());
    CHECK(cuStreamSynchronize(at.on) == 0);
    CHECK(ends.to.state()->sent == 3);
  } else {
    CHECK(at.job.barrier());
    for (std::uint64_t i = 1; i <= 3; ++i) {
      CHECK(ends.to.wait_signal(at.on));
      CHECK(ends.to.release(at.on, i));
      CHECK(cuStreamSynchronize(at.on) == 0);
    }
  }
  CHECK(at.job.barrier());
  return 0;
}
TEST(stream_api, depth_and_most_queued_hold_back_without_blocking) { EXPECT_EQ(run_streams(hold_back), 0); }

int cancel(const scene& at) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  CHECK(ends.to.wait_signal(at.on));
  CHECK(at.job.barrier());
  CHECK(cuStreamQuery(at.on) != 0);
  CHECK(at.job.barrier());
  if (at.job.rank() == 0) {
    CHECK(ends.to.cancel(-1).code() == EINVAL);
    CHECK(ends.to.cancel());
  }
  CHECK(cuStreamSynchronize(at.on) == 0);
  CHECK(ends.to.state()->error == (at.job.rank() == 0 ? ECANCELED : EPIPE));
  CHECK(ends.to.signal(at.on).code() == ends.to.state()->error);
  CHECK(at.job.diag()->find("channel 1 to rank") != std::string::npos);
  CHECK(at.job.barrier());
  return 0;
}
TEST(stream_api, cancel_lets_both_ends_go) { EXPECT_EQ(run_streams(cancel), 0); }

int time_out(const scene& at) {
  auto options = stream_context::channel_options();
  options.wait_timeout_ms = at.job.rank() == 0 ? 30 : -1;
  two_ends ends;
  if (const int line = ends.open(at, &options)) return line;
  CHECK(ends.to.wait_signal(at.on));
  CHECK(cuStreamSynchronize(at.on) == 0);
  CHECK(ends.to.state()->error == (at.job.rank() == 0 ? ETIMEDOUT : EPIPE));
  CHECK(at.job.barrier());
  return 0;
}
TEST(stream_api, a_wait_ends_after_the_time_in_the_options) { EXPECT_EQ(run_streams(time_out), 0); }

int batches(const scene& at) {
  device_words words;
  auto waiting = at.job.batch(at.on);
  CHECK(waiting && waiting->wait64(words.address, 3) && waiting->wait32(words.address + 8, 0x10, PEERLANE_ANY_BIT));
  CHECK(waiting->write64(words.address + 16, 7) && waiting->submit());
  CHECK(waiting->submit().code() == EINVAL);  // it has ended
  CHECK(waiting->get() == 0);
  CHECK(cuStreamQuery(at.on) != 0);
  void* other = nullptr;
  CHECK(cuStreamCreate(&other, 1) == 0);
  auto writing = at.job.batch(other);
  CHECK(writing && writing->write32(words.address + 8, 0x30) && writing->flush() && writing->write64(words.address, 4));
  CHECK(words.get(0) == 0);  // nothing before it is submitted
  CHECK(writing->submit());
  CHECK(cuStreamSynchronize(at.on) == 0 && words.get(2) == 7);
  const std::array<peerlane_op, 7> wrong{{{9, 0, words.address, 0},
                                          {PEERLANE_OP_WRITE64, 0, 0, 0},
                                          {PEERLANE_OP_WRITE64, 0, words.address + 4, 0},
                                          {PEERLANE_OP_WRITE32, 0, words.address + 2, 0},
                                          {PEERLANE_OP_WRITE64, 1, words.address, 0},
                                          {PEERLANE_OP_WAIT64, 4, words.address, 0},
                                          {PEERLANE_OP_WRITE32, 0, words.address, 1ull << 32}}};
  auto mixed = at.job.batch(at.on);
  for (const auto& each : wrong) {
    const std::array<peerlane_op, 2> two{{{PEERLANE_OP_WRITE64, 0, words.address + 24, 1}, each}};
    CHECK(mixed->add(two).code() == EINVAL);
  }
  CHECK(mixed->submit() && cuStreamSynchronize(at.on) == 0 && words.get(3) == 0);  // none of either pair was added
  std::vector<peerlane_op> many;
  for (std::size_t i = 0; i < kWords; ++i) many.push_back({PEERLANE_OP_WRITE64, 0, words.address + 8 * i, i + 1});
  auto longer = at.job.batch(at.on);
  CHECK(longer->add(many) && longer->submit() && cuStreamSynchronize(at.on) == 0);
  for (std::size_t i = 0; i < kWords; ++i) CHECK(words.get(i) == i + 1);
  CHECK(cuStreamDestroy_v2(other) == 0);
  return 0;
}
TEST(stream_api, batches_of_stream_memory_operations) { EXPECT_EQ(run_streams(batches), 0); }

int misuse(const scene& at) {
  auto* const job = at.job.get();
  auto* const nobody = reinterpret_cast<peerlane_stream_t>(reinterpret_cast<char*>(job) + 1);
  std::uint64_t number = 77;
  stream_key key{}, other{};
  for (auto* const none : {static_cast<peerlane_stream_t>(nullptr), nobody}) {
    CHECK(peerlane_channel_connect(none, 0, 1, nullptr, &number) == EINVAL && number == 77);
    CHECK(peerlane_stream_close(none) == EINVAL && peerlane_stream_rank(none) == -1 && peerlane_stream_size(none) == -1);
  }
  CHECK(peerlane_channel_signal(job, 12345, at.on, &number) == EINVAL && number == 77);
  CHECK(peerlane_channel_connect(job, at.job.rank(), 1, nullptr, &number) == EINVAL && number == 77);
  CHECK(peerlane_channel_connect(job, 2, 1, nullptr, &number) == EINVAL);
  auto options = stream_context::channel_options();
  options.executor = 3;
  CHECK(peerlane_channel_connect(job, 1 - at.job.rank(), 1, &options, &number) == EINVAL);
  options = stream_context::channel_options();
  options.most_queued = 1001;
  CHECK(peerlane_channel_connect(job, 1 - at.job.rank(), 1, &options, &number) == EINVAL);
  options.struct_bytes = 1;
  CHECK(peerlane_channel_connect(job, 1 - at.job.rank(), 1, &options, &number) == EINVAL && number == 77);
  CHECK(peerlane_stream_import(job, &key, &number) == EINVAL && number == 77);
  int host = 0;
  std::memset(&other, 5, sizeof other);
  CHECK(peerlane_stream_expose(job, reinterpret_cast<std::uintptr_t>(&host), 4, &number, &other) == EINVAL);
  CHECK(number == 77 && other.bytes[0] == 5);
  CHECK(peerlane_stream_expose(job, 0, 0, nullptr, &other) == EINVAL);
  CHECK(peerlane_stream_set_mode(job, 2) == EINVAL && at.job.set_mode(PEERLANE_STREAM_ECONOMY));
  auto wrong = stream_context::options();
  wrong.has_device = 1;
  wrong.device = -1;
  CHECK(stream_context::open(&wrong).code() == EINVAL);
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  CHECK(ends.to.put_signal(at.on, ends.theirs, kWords * 8 - 7, ends.out.address, 8).code() == ERANGE);
  CHECK(ends.to.put_signal(at.on, remote_window(), 0, ends.out.address, 8).code() == EINVAL);
  auto own = at.job.import(ends.mine.key());
  CHECK(own && ends.to.put_signal(at.on, *own, 0, ends.out.address, 8).code() == EINVAL);
  CHECK(ends.to.state()->puts == 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = peerlane_channel_signal(job, ends.to.get(), at.on, &number) == EACCES &&
                         peerlane_stream_close(job) == EACCES && peerlane_stream_rank(job) == -1 &&
                         std::strstr(peerlane_last_error(), "fork") != nullptr;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(at.job.barrier());
  return 0;
}
TEST(stream_api, misuse_is_answered_and_changes_nothing) { EXPECT_EQ(run_streams(misuse), 0); }

}  // namespace
}  // namespace peerlane::test
