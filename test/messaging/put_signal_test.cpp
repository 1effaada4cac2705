// SPDX-License-Identifier: Apache-2.0
// Puts that change a word once their bytes are there: every kind of window for either, directly and by messages.
#include "test/messaging/stopped_target.hpp"

namespace pl::messaging {
namespace {

enum class window_of { allocated, host, device };
constexpr const char* kNames[] = {"allocated", "host", "device"};
constexpr std::size_t kSignalWindow = 3u << 20;

struct pair_of_windows {
  window_of bytes, word;
  bool is_network = false;
};

// A window of rank 0; the others have none.
class target_window {
 public:
  status open(const rank_context& ctx, window_of kind, std::size_t bytes) {
    if (ctx.rank != 0) return {};
    bytes_ = bytes;
    if (kind != window_of::allocated) {
      memory_.emplace(kind == window_of::device, bytes);
      memory_->set(std::vector<unsigned char>(bytes));
    }
    auto made = kind == window_of::allocated ? ctx.messenger->allocate(bytes) : ctx.messenger->expose(memory_->all());
    if (!made) return made.error();
    window_ = *std::move(made);
    return {};
  }
  const window::key_t& key() const { return window_.key(); }
  window& get() { return window_; }
  std::vector<unsigned char> bytes() const {
    if (memory_) return memory_->get(bytes_);
    const auto* const data = reinterpret_cast<const unsigned char*>(window_.data());
    return {data, data + bytes_};
  }

 private:
  std::size_t bytes_ = 0;
  std::optional<piece> memory_;  // outlives its window
  window window_;
};

class put_signal : public testing::TestWithParam<pair_of_windows> {
 protected:
  static int run(const std::function<int(const rank_context&)>& body) {
    auto options = test_options();
    if (GetParam().is_network) options.path = messenger_options::path_t::network;
    return run_job(2, gpus::shared, options, body);
  }
};

std::vector<pair_of_windows> all_pairs() {
  std::vector<pair_of_windows> out;
  for (const bool is_network : {false, true})
    for (const auto bytes : {window_of::allocated, window_of::host, window_of::device})
      for (const auto word : {window_of::allocated, window_of::host, window_of::device})
        out.push_back({bytes, word, is_network});
  return out;
}
INSTANTIATE_TEST_SUITE_P(every_pair, put_signal, testing::ValuesIn(all_pairs()), [](const auto& values) {
  return std::string(kNames[static_cast<int>(values.param.bytes)]) + "_" + kNames[static_cast<int>(values.param.word)] +
         (values.param.is_network ? "_network" : "");
});

constexpr std::size_t kSignalSizes[] = {0, 8, 4096, 70'001, 1'000'000};

TEST_P(put_signal, shows_the_word_after_the_bytes) {
  EXPECT_EQ(
      run([](const rank_context& ctx) {
        target_window bytes, word;
        CHECK_OK(bytes.open(ctx, GetParam().bytes, kSignalWindow));
        CHECK_OK(word.open(ctx, GetParam().word, 64));
        auto given = of_rank_0(ctx, {bytes.key(), word.key(), getpid()});
        CHECK_OK(given);
        std::size_t offset = 0;
        std::uint64_t rounds = 0;
        for (const bool is_device : {false, true})
          for (const std::size_t size : kSignalSizes) {
            ++rounds;
            const auto expected = test::random_bytes(size, rounds);
            if (ctx.rank == 1) {
              piece source(is_device, size);
              source.set(expected);
              const signal_word raised{given->exposed, 8, 1, signal_kind::add};
              auto put = ctx.messenger->put_signal(given->allocated, offset, source.all(), raised);
              CHECK_OK(put.wait(kTimeout));
            } else {
              auto seen = ctx.messenger->wait_signal(word.key(), 8, rounds, kTimeout);
              CHECK_OK(seen);
              CHECK(*seen == rounds || *seen <= 2 * std::size(kSignalSizes));
              const auto now = bytes.bytes();
              CHECK(std::equal(expected.begin(), expected.end(), now.begin() + static_cast<std::ptrdiff_t>(offset)));
            }
            offset += size;
          }
        if (ctx.rank == 1) {  // not over earlier bytes, at which the target may not have looked yet
          const std::uint64_t value = 5;
          const signal_word raised{given->exposed, 16, 77, signal_kind::set};
          CHECK_OK(ctx.messenger->put_signal(given->allocated, offset, host_buffer(&value, 8), raised).wait(kTimeout));
        } else {
          auto seen = ctx.messenger->wait_signal(word.key(), 16, 77, kTimeout);
          CHECK_OK(seen);
          CHECK(*seen == 77 && bytes.bytes()[offset] == 5);
        }
        if (ctx.rank == 1) {  // the lower half of the word at 24
          const std::uint64_t value = 6;
          const signal_word raised{given->exposed, 24, ~std::uint64_t{0} << 32 | 78, signal_kind::set_32};
          CHECK_OK(ctx.messenger->put_signal(given->allocated, offset + 8, host_buffer(&value, 8), raised).wait(kTimeout));
        } else {
          auto seen = ctx.messenger->wait_signal(word.key(), 24, 78, kTimeout);
          CHECK_OK(seen);
          CHECK(*seen == 78 && bytes.bytes()[offset + 8] == 6);
        }
        CHECK_OK(ctx.messenger->barrier(kTimeout));
        return 0;
      }),
      0);
}

TEST_P(put_signal, is_refused_with_the_bytes_unwritten) {
  EXPECT_EQ(run([](const rank_context& ctx) {
              target_window bytes, word;
              CHECK_OK(bytes.open(ctx, GetParam().bytes, 4096));
              CHECK_OK(word.open(ctx, GetParam().word, 64));
              auto given = of_rank_0(ctx, {bytes.key(), word.key(), getpid()});
              CHECK_OK(given);
              const std::uint64_t value = 5;
              if (ctx.rank == 1) {
                const auto code_of = [&](signal_word raised) {
                  return ctx.messenger->put_signal(given->allocated, 0, host_buffer(&value, 8), raised).outcome().code();
                };
                auto elsewhere = given->exposed;
                elsewhere.rank = 1;
                CHECK(code_of({given->exposed, 4, 1}) == EINVAL);
                CHECK(code_of({given->exposed, 64, 1}) == EINVAL);
                CHECK(code_of({elsewhere, 0, 1}) == EINVAL);
                CHECK(ctx.messenger->wait_signal(given->exposed, 0, 1, 1ms).code() == EINVAL);
              }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              if (ctx.rank == 0) {
                CHECK(bytes.bytes()[0] == 0);
                CHECK(ctx.messenger->wait_signal(word.key(), 64, 1, 1ms).code() == EINVAL);
                CHECK(ctx.messenger->wait_signal(word.key(), 0, 1, 1ms).code() == ETIMEDOUT);
                CHECK_OK(word.get().close());
              }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              if (ctx.rank == 1) {
                const signal_word raised{given->exposed, 0, 1};
                auto late = ctx.messenger->put_signal(given->allocated, 0, host_buffer(&value, 8), raised);
                CHECK(late.wait(kTimeout).code() == EINVAL);
              }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              // A short put and its word are one frame there.
              if (ctx.rank == 0 && GetParam().is_network) CHECK(bytes.bytes()[0] == 0);
              CHECK(ctx.messenger->counts().operations == 0);
              return 0;
            }),
            0);
}

// The word's frame is on its way before the target has refused the put.
TEST_P(put_signal, that_is_refused_raises_nothing) {
  EXPECT_EQ(run([](const rank_context& ctx) {
              target_window bytes, word;
              CHECK_OK(bytes.open(ctx, GetParam().bytes, 128 << 10));
              CHECK_OK(word.open(ctx, GetParam().word, 64));
              auto given = of_rank_0(ctx, {bytes.key(), word.key(), getpid()});
              CHECK_OK(given);
              if (ctx.rank == 0) CHECK_OK(bytes.get().close());
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              const auto sent = test::random_bytes(70'001, 5);
              for (const std::size_t size : {std::size_t{8}, sent.size()})
                for (const auto kind : {signal_kind::add, signal_kind::set, signal_kind::set_32}) {
                  if (ctx.rank == 1) {
                    const signal_word raised{given->exposed, 0, 1, kind};
                    auto put = ctx.messenger->put_signal(given->allocated, 0, host_buffer(sent.data(), size), raised);
                    CHECK(put.wait(kTimeout).code() == EINVAL);
                  }
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  if (ctx.rank == 0) CHECK(ctx.messenger->wait_signal(word.key(), 0, 1, 1ms).code() == ETIMEDOUT);
                }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              CHECK(ctx.messenger->counts().operations == 0);
              return 0;
            }),
            0);
}

// Many under way together, good ones and refused ones: each word is raised by its own put only.
TEST_P(put_signal, of_many_at_once_each_has_its_own_outcome) {
  EXPECT_EQ(
      run([](const rank_context& ctx) {
        constexpr std::size_t kPuts = 48, kPut = 70'001;
        const auto size_of = [](std::size_t i) { return i % 4 < 2 ? std::size_t{512} : kPut; };
        target_window bytes, word, ended;
        CHECK_OK(bytes.open(ctx, GetParam().bytes, kPuts * kPut));
        CHECK_OK(word.open(ctx, GetParam().word, kPuts * 8));
        CHECK_OK(ended.open(ctx, GetParam().bytes, kPut));
        auto given = of_rank_0(ctx, {bytes.key(), word.key(), getpid()});
        CHECK_OK(given);
        auto gone = of_rank_0(ctx, {ended.key(), word.key(), getpid()});
        CHECK_OK(gone);
        if (ctx.rank == 0) CHECK_OK(ended.get().close());
        CHECK_OK(ctx.messenger->barrier(kTimeout));
        const auto sent = test::random_bytes(kPuts * kPut, 11);
        if (ctx.rank == 1) {
          std::vector<request> all;
          for (std::size_t i = 0; i < kPuts; ++i) {
            const bool is_good = i % 3 != 0;
            const signal_word raised{given->exposed, i * 8, i + 1, static_cast<signal_kind>(i % 3 == 2 ? 2 : i % 2)};
            all.push_back(ctx.messenger->put_signal(is_good ? given->allocated : gone->allocated, is_good ? i * kPut : 0,
                                                    host_buffer(sent.data() + i * kPut, size_of(i)), raised));
          }
          for (std::size_t i = 0; i < kPuts; ++i) CHECK(all[i].wait(kTimeout).code() == (i % 3 != 0 ? 0 : EINVAL));
        }
        CHECK_OK(ctx.messenger->barrier(kTimeout));
        if (ctx.rank == 0) {
          const auto now = bytes.bytes(), words = word.bytes();
          for (std::size_t i = 0; i < kPuts; ++i) {
            std::uint64_t value = 0;
            std::memcpy(&value, words.data() + i * 8, 8);
            CHECK(value == (i % 3 != 0 ? i + 1 : 0));
            const auto begin = static_cast<std::ptrdiff_t>(i * kPut);
            CHECK(i % 3 == 0 ||
                  std::equal(now.begin() + begin, now.begin() + begin + static_cast<std::ptrdiff_t>(size_of(i)),
                             sent.begin() + begin));
          }
        }
        CHECK_OK(ctx.messenger->barrier(kTimeout));
        CHECK(ctx.messenger->counts().operations == 0);
        return 0;
      }),
      0);
}

TEST(put_signal, needs_nothing_of_a_stopped_target) {
  EXPECT_EQ(run_job(2, gpus::shared, test_options(),
                    [](const rank_context& ctx) {
                      target_window bytes, word;
                      CHECK_OK(bytes.open(ctx, window_of::device, kSignalWindow));
                      CHECK_OK(word.open(ctx, window_of::allocated, 64));
                      const invitation mine{bytes.key(), word.key(), getpid()};
                      const auto sent = test::random_bytes(70'001, 3);
                      const int line = with_stopped_rank_0(ctx, mine, [&](const invitation& given) {
                        const signal_word counted{given.exposed, 0, 3, signal_kind::add};
                        const signal_word stored{given.allocated, kSignalWindow - 8, 9, signal_kind::set};
                        for (const auto& raised : {counted, stored}) {
                          auto put =
                              ctx.messenger->put_signal(given.allocated, 0, host_buffer(sent.data(), sent.size()), raised);
                          CHECK(put.has_ended());
                          CHECK_OK(put.outcome());
                        }
                        return 0;
                      });
                      if (line != 0) return line;
                      if (ctx.rank == 0) {
                        CHECK_OK(ctx.messenger->wait_signal(word.key(), 0, 3, 0ms));
                        CHECK_OK(ctx.messenger->wait_signal(bytes.key(), kSignalWindow - 8, 9, 0ms));
                        const auto now = bytes.bytes();
                        CHECK(std::equal(sent.begin(), sent.end(), now.begin()));
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

// By messages, to a target that does nothing: the caller takes its memory back, and the word stays as it is.
TEST(put_signal, that_is_given_up_frees_its_memory_and_raises_nothing) {
  auto options = test_options();
  options.use_cma = false;
  EXPECT_EQ(run_job(2, gpus::none, options,
                    [](const rank_context& ctx) {
                      target_window bytes, word;
                      CHECK_OK(bytes.open(ctx, window_of::host, kSignalWindow));
                      CHECK_OK(word.open(ctx, window_of::allocated, 64));
                      const invitation mine{bytes.key(), word.key(), getpid()};
                      const int line = with_stopped_rank_0(ctx, mine, [&](const invitation& given) {
                        std::vector<unsigned char> sent(1'000'000, 1);
                        const signal_word raised{given.exposed, 0, 1};
                        auto put =
                            ctx.messenger->put_signal(given.allocated, 0, host_buffer(sent.data(), sent.size()), raised);
                        CHECK(!put.has_ended());
                        CHECK(put.end_within(50ms).code() == ETIMEDOUT);
                        CHECK(put.has_ended());
                        sent.assign(sent.size(), 2);
                        return 0;
                      });
                      if (line != 0) return line;
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0) {
                        CHECK(ctx.messenger->wait_signal(word.key(), 0, 1, 100ms).code() == ETIMEDOUT);
                        const auto now = bytes.bytes();
                        CHECK(std::none_of(now.begin(), now.end(), [](unsigned char each) { return each == 2; }));
                      }
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      CHECK(ctx.messenger->counts().operations == 0);
                      return 0;
                    }),
            0);
}

TEST(put_signal, to_a_killed_target_ends) {
  auto options = test_options();
  options.use_cma = false;
  EXPECT_EQ(run_job(
                2, gpus::none, options,
                [](const rank_context& ctx) {
                  target_window bytes, word;
                  CHECK_OK(bytes.open(ctx, window_of::host, kSignalWindow));
                  CHECK_OK(word.open(ctx, window_of::allocated, 64));
                  auto given = of_rank_0(ctx, {bytes.key(), word.key(), getpid()});
                  CHECK_OK(given);
                  if (ctx.rank == 0) return usleep(50'000), raise(SIGKILL), __LINE__;
                  const std::vector<unsigned char> sent(1'000'000, 1);
                  const signal_word raised{given->exposed, 0, 1};
                  auto put = ctx.messenger->put_signal(given->allocated, 0, host_buffer(sent.data(), sent.size()), raised);
                  CHECK(put.wait(kTimeout).code() == ECONNRESET);
                  CHECK(ctx.messenger->counts().operations == 1);  // the request itself
                  return 0;
                },
                0),
            0);
}

}  // namespace
}  // namespace pl::messaging
