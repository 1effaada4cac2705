// SPDX-License-Identifier: Apache-2.0
// Puts, gets and atomics that need nothing of their target: it is stopped, gone, or another program meanwhile. Windows of
// GPU memory: gpu_window_test.cpp.
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "test/messaging/stopped_target.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kDirectWindow = 4u << 20;
constexpr std::uint64_t kWord = kDirectWindow - 64;

bool is_zero(const std::byte* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte each) { return each == std::byte{0}; });
}

int reach_a_stopped_target(const rank_context& ctx, bool is_device) {
  auto allocated = ctx.messenger->allocate(kDirectWindow);
  CHECK_OK(allocated);
  CHECK(is_zero(allocated->data(), kDirectWindow));
  std::vector<std::byte> plain(kDirectWindow);
  auto exposed = ctx.messenger->expose(host_buffer(plain.data(), plain.size()));
  CHECK_OK(exposed);
  const int line = with_stopped_rank_0(ctx, {allocated->key(), exposed->key(), getpid()}, [&](const invitation& given) {
    for (const auto& key : {given.allocated, given.exposed})
      if (const int failed = put_and_get(ctx, key, kDirectWindow, is_device)) return failed;
    const auto counted = ctx.messenger->counts().one_sided;
    std::uint64_t before = 1;
    for (std::uint64_t i = 0; i < 3; ++i) {
      auto added = ctx.messenger->atomic(given.allocated, kWord, atomic_op::add, 5, 0, &before);
      CHECK(added.has_ended());
      CHECK_OK(added.outcome());
      CHECK(before == 5 * i);
    }
    CHECK_OK(ctx.messenger->atomic(given.allocated, kWord, atomic_op::compare_swap, 77, 15, &before).outcome());
    CHECK(before == 15);
    CHECK(ctx.messenger->counts().one_sided - counted == 4);
    return 0;
  });
  if (line != 0) return line;
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  if (ctx.rank == 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, allocated->data() + kWord, sizeof word);
    CHECK(word == 77);
    CHECK(std::memcmp(allocated->data() + 4, plain.data() + 4, kWord - 4) == 0);
    CHECK(!is_zero(plain.data() + 80'000, 1000));
  }
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  return 0;
}

TEST(direct_window, a_stopped_target_is_read_and_written) {
  EXPECT_EQ(
      run_job(2, gpus::none, test_options(), [](const rank_context& ctx) { return reach_a_stopped_target(ctx, false); }), 0);
}

TEST(direct_window, a_stopped_target_is_read_and_written_from_gpu_memory) {
  EXPECT_EQ(
      run_job(2, gpus::one_each, test_options(), [](const rank_context& ctx) { return reach_a_stopped_target(ctx, true); }),
      0);
}

TEST(direct_window, an_ended_window_of_a_stopped_target_is_refused) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      auto allocated = ctx.messenger->allocate(kDirectWindow);
                      CHECK_OK(allocated);
                      std::vector<std::byte> plain(kDirectWindow);
                      auto exposed = ctx.messenger->expose(host_buffer(plain.data(), plain.size()));
                      CHECK_OK(exposed);
                      const invitation mine{allocated->key(), exposed->key(), getpid()};
                      auto given = of_rank_0(ctx, mine);
                      CHECK_OK(given);
                      const std::uint64_t value = 9;
                      if (ctx.rank == 1)  // one of the two has been used before it ends
                        CHECK_OK(ctx.messenger->put(given->allocated, 0, host_buffer(&value, 8)).outcome());
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      CHECK_OK(allocated->close());
                      CHECK(allocated->data() == nullptr);
                      CHECK_OK(exposed->close());
                      const int line = with_stopped_rank_0(ctx, mine, [&](const invitation& stopped) {
                        for (const auto& key : {stopped.allocated, stopped.exposed}) {
                          CHECK(ctx.messenger->put(key, 0, host_buffer(&value, 8)).outcome().code() == EINVAL);
                          CHECK(ctx.messenger->get(key, 0, host_buffer(&value, 8)).outcome().code() == EINVAL);
                          CHECK(ctx.messenger->atomic(key, 0, atomic_op::add, 1).outcome().code() == EINVAL);
                        }
                        return 0;
                      });
                      if (line != 0) return line;
                      CHECK(is_zero(plain.data(), plain.size()));
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

TEST(direct_window, atomics_of_processes_and_of_the_owners_threads_count_every_one) {
  constexpr int kEach = 20'000;
  EXPECT_EQ(run_job(3, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      auto allocated = ctx.messenger->allocate(4096);
                      CHECK_OK(allocated);
                      auto given = of_rank_0(ctx, {allocated->key(), {}, getpid()});
                      CHECK_OK(given);
                      if (ctx.rank == 0) {
                        std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(allocated->data() + 8));
                        for (int i = 0; i < kEach; ++i) word.fetch_add(1);
                      } else {
                        for (int i = 0; i < kEach; ++i)
                          CHECK_OK(ctx.messenger->atomic(given->allocated, 8, atomic_op::add, 1).outcome());
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      std::uint64_t sum = 0;
                      CHECK_OK(ctx.messenger->get(given->allocated, 8, host_buffer(&sum, 8)).wait(kTimeout));
                      CHECK(sum == 3 * kEach);
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// The process number stays, and its memory is another program's.
TEST(direct_window, a_target_that_became_another_program_is_not_written) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      std::vector<std::byte> plain(kDirectWindow);
                      auto exposed = ctx.messenger->expose(host_buffer(plain.data(), plain.size()));
                      CHECK_OK(exposed);
                      auto given = of_rank_0(ctx, {{}, exposed->key(), getpid()});
                      CHECK_OK(given);
                      if (ctx.rank == 0) return execl("/bin/sleep", "sleep", "3", nullptr), __LINE__;
                      const auto comm = "/proc/" + std::to_string(given->pid) + "/comm";
                      const auto program = [&] {
                        std::string text;
                        std::ifstream(comm) >> text;
                        return text;
                      };
                      for (int i = 0; i < 10'000 && program() != "sleep"; ++i) usleep(1000);
                      CHECK(program() == "sleep");
                      const std::uint64_t value = 9;
                      CHECK(ctx.messenger->put(given->exposed, 0, host_buffer(&value, 8)).outcome().code() == ECONNRESET);
                      CHECK(ctx.messenger->get(given->exposed, 0, host_buffer(&value, 8)).outcome().code() == ECONNRESET);
                      return 0;
                    }),
            0);
}

// The owner may use the memory again as soon as the window has ended, even if a peer was writing to it.
#if defined(__SANITIZE_THREAD__)
constexpr int kEndingRounds = 40;  // 200 took 20 s of CPU time, of the minute that a job has
#else
constexpr int kEndingRounds = 200;
#endif

TEST(direct_window, nothing_is_written_behind_the_end_of_a_window) {
  EXPECT_EQ(
      run_job(2, gpus::none, test_options(),
              [](const rank_context& ctx) {
                std::vector<std::byte> plain(kDirectWindow);
                for (int round = 0; round < kEndingRounds; ++round) {
                  std::fill(plain.begin(), plain.end(), std::byte{0});
                  auto exposed = ctx.messenger->expose(host_buffer(plain.data(), plain.size()));
                  CHECK_OK(exposed);
                  auto given = of_rank_0(ctx, {{}, exposed->key(), getpid()});
                  CHECK_OK(given);
                  if (ctx.rank == 0) {
                    while (std::atomic_ref(reinterpret_cast<std::uint64_t&>(plain[0])).load() == 0)
                      ctx.messenger->progress();
                    CHECK_OK(exposed->close());
                    std::fill(plain.begin(), plain.end(), std::byte{0});
                    usleep(200);
                    CHECK(is_zero(plain.data(), plain.size()));
                  } else {
                    const std::vector<std::byte> ones(kDirectWindow, std::byte{1});
                    int code = 0;
                    while (code == 0)
                      code = ctx.messenger->put(given->exposed, 0, host_buffer(ones.data(), ones.size())).outcome().code();
                    CHECK(code == EINVAL || code == ECANCELED);
                  }
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                }
                return 0;
              }),
      0);
}

// A key comes from the peer's program, which may have it wrong: the window's own length counts.
TEST(direct_window, a_key_that_says_more_than_there_is_reaches_nothing_more) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      std::vector<std::byte> plain(2 * kDirectWindow);
                      auto exposed = ctx.messenger->expose(host_buffer(plain.data(), kDirectWindow));
                      CHECK_OK(exposed);
                      auto allocated = ctx.messenger->allocate(kDirectWindow);
                      CHECK_OK(allocated);
                      auto given = of_rank_0(ctx, {allocated->key(), exposed->key(), getpid()});
                      CHECK_OK(given);
                      if (ctx.rank == 1) {
                        std::vector<std::byte> ones(8, std::byte{1});
                        for (auto key : {given->exposed, given->allocated}) {
                          key.bytes = std::uint64_t{1} << 62;
                          for (const std::uint64_t offset :
                               {kDirectWindow - 4, kDirectWindow, kDirectWindow + 4096, std::size_t{1} << 61}) {
                            const auto eight = host_buffer(ones.data(), ones.size());
                            CHECK(ctx.messenger->put(key, offset, eight).wait(kTimeout).code() == EINVAL);
                            CHECK(ctx.messenger->get(key, offset, eight).wait(kTimeout).code() == EINVAL);
                          }
                        }
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      CHECK(is_zero(plain.data(), plain.size()));
                      return 0;
                    }),
            0);
}

TEST(direct_window, a_window_that_ended_frees_its_memory_at_the_peers_too) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      const auto mapped = [] {
                        std::ifstream file("/proc/self/maps");
                        int count = 0;
                        for (std::string line; std::getline(file, line);)
                          count += line.find("peerlane-window ") != std::string::npos ? 1 : 0;
                        return count;
                      };
                      for (int round = 0; round < 40; ++round) {
                        auto allocated = ctx.messenger->allocate(kDirectWindow);
                        CHECK_OK(allocated);
                        auto given = of_rank_0(ctx, {allocated->key(), {}, getpid()});
                        CHECK_OK(given);
                        const std::uint64_t value = 9;
                        if (ctx.rank == 1)
                          CHECK_OK(ctx.messenger->put(given->allocated, 0, host_buffer(&value, 8)).outcome());
                        CHECK_OK(ctx.messenger->barrier(kTimeout));
                        CHECK_OK(allocated->close());
                        CHECK_OK(ctx.messenger->barrier(kTimeout));
                      }
                      CHECK(mapped() <= 1);  // at most the last one, until the next is opened
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
