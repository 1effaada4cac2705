// SPDX-License-Identifier: Apache-2.0
// Floods: a process that takes nothing is sent far more than it may hold. The sender waits, both sides' memory stays
// bounded, and all arrives, in order.
#include <fstream>

#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsInstrumented = true;
#else
constexpr bool kIsInstrumented = false;
#endif

// What a flood may cost (docs/messaging-transports.md): each request at its sender, and each byte of credit at its receiver,
// whose bookkeeping for a message of 8 bytes is more than the 72 bytes that it costs its sender.
constexpr std::size_t kMaxOfRequest = 640, kMaxPerByteOfCredit = 12;
constexpr std::size_t kOther = 16u << 20;  // what the processes allocate anyhow

struct shape {
  int peers, count;    // messages of each
  std::size_t credit;  // of each
  std::uint64_t let_in() const { return static_cast<std::uint64_t>(peers) * (credit / (64 + sizeof(std::uint64_t))); }
};

std::size_t resident_bytes() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A connection has a cost of its own, which is no flood's: over verbs UCX's receive queues take 58 MB with the first.
status connect(const rank_context& ctx) { return ctx.messenger->barrier(kTimeout); }

// Sends numbers from a buffer that is not written again, all before the first is waited for.
int flood(const rank_context& ctx, const shape& pattern) {
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(pattern.count));
  std::vector<request> all(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
  CHECK_OK(connect(ctx));
  const auto before = resident_bytes();
  for (std::size_t i = 0; i < numbers.size(); ++i)
    all[i] =
        ctx.messenger->isend(0, {reinterpret_cast<std::uint64_t>(&numbers[i]), sizeof numbers[i], memory_kind::host}, 7);
  CHECK(ctx.messenger->counts().waiting_sends > 0);
  CHECK(kIsInstrumented || resident_bytes() - before < kMaxOfRequest * numbers.size() + kOther);
  CHECK_OK(ctx.group->barrier());  // all is sent, as far as a sender can
  for (auto& each : all) CHECK_OK(each.wait(kTimeout));
  return 0;
}

int take_nothing(const rank_context& ctx, const shape& pattern) {
  CHECK_OK(connect(ctx));
  const auto before = resident_bytes();
  CHECK_OK(ctx.group->barrier());
  const auto held = [&] { return ctx.messenger->counts().unexpected_bytes / sizeof(std::uint64_t); };
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (held() < pattern.let_in() && std::chrono::steady_clock::now() < deadline) ctx.messenger->progress();
  for (int i = 0; i < 1000; ++i) ctx.messenger->progress();
  CHECK(held() == pattern.let_in());
  CHECK(kIsInstrumented ||
        resident_bytes() - before < static_cast<std::size_t>(pattern.peers) * pattern.credit * kMaxPerByteOfCredit + kOther);
  return 0;
}

// Takes what the peers sent, one from each in turn.
int drain(const rank_context& ctx, const shape& pattern) {
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(pattern.count); ++i) {
    for (int source_rank = 1; source_rank <= pattern.peers; ++source_rank) {
      std::uint64_t number = ~0ull;
      CHECK_OK(ctx.messenger->recv(source_rank, {reinterpret_cast<std::uint64_t>(&number), sizeof number, memory_kind::host},
                                   7, kWholeTag, kTimeout));
      CHECK(number == i);
    }
  }
  CHECK(ctx.messenger->counts().unexpected_bytes == 0 && ctx.messenger->counts().operations == 0);
  return 0;
}

int failures_of(shape pattern, messenger_options options) {
  options.unexpected_bytes = pattern.credit;
  return run_job(pattern.peers + 1, gpus::none, options, [&](const rank_context& ctx) {
    int line = ctx.rank == 0 ? take_nothing(ctx, pattern) : flood(ctx, pattern);
    if (line == 0 && ctx.rank == 0) line = drain(ctx, pattern);
    return line != 0 ? line : ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
  });
}

TEST(flood, of_a_million_messages) {
  EXPECT_EQ(failures_of({1, kIsInstrumented ? 100'000 : 1'000'000, 4u << 20}, test_options()), 0);
}

TEST(flood, from_several_peers) { EXPECT_EQ(failures_of({3, 20'000, 1u << 20}, test_options()), 0); }

TEST(flood, over_the_network) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(failures_of({2, 20'000, 1u << 20}, options), 0);
}

}  // namespace
}  // namespace pl::messaging
