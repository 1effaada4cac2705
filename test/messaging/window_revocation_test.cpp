// SPDX-License-Identifier: Apache-2.0
// Memory that a process takes back while a transport uses it: a window that ends under puts and gets, sends and puts whose
// time-out ran out, peers that are stopped meanwhile.
#include <csignal>
#include <fstream>
#include <thread>

#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kLarge = 192u << 20;  // moves for longer than a look at everything
constexpr unsigned char kAfter = 0xee;      // what its owner writes once the memory is its own again

struct revocation_way {
  const char* name;
  bool use_cma = true;
  messenger_options::path_t path = messenger_options::path_t::automatic;
  bool is_device = false;
  bool use_ipc = true;
  bool by_rendezvous = false;
};
constexpr revocation_way kRevocationWays[] = {
    {"pull"},
    {"ring", false},
    {"network", true, messenger_options::path_t::network},
    {"rendezvous", true, messenger_options::path_t::network, false, true, true},
    {"ipc", true, messenger_options::path_t::automatic, true},
    {"dma", true, messenger_options::path_t::automatic, true},
    {"device_ring", true, messenger_options::path_t::automatic, true, false},
    {"device_network", true, messenger_options::path_t::network, true},
};

class revoke : public testing::TestWithParam<revocation_way> {
 protected:
  static int run(const std::function<int(const rank_context&)>& body) {
    auto options = test_options();
    options.use_cma = GetParam().use_cma;
    options.use_ipc = GetParam().use_ipc;
    options.use_channels = std::string_view(GetParam().name) == "dma";
    options.path = GetParam().path;
    if (GetParam().by_rendezvous) options.rendezvous = messenger_options::rendezvous_t::always;
    return run_job(2, GetParam().is_device ? gpus::one_each : gpus::none, options, body);
  }
  // The peer reads and writes by itself: this process has no operation of it, and a word tells that it begins.
  static bool is_direct() {
    const std::string_view name = GetParam().name;
    return name == "pull" || name == "dma";
  }
  static std::size_t bytes() { return GetParam().is_device ? kLarge / 8 : kLarge; }
};
INSTANTIATE_TEST_SUITE_P(every_way, revoke, testing::ValuesIn(kRevocationWays),
                         [](const auto& values) { return std::string(values.param.name); });

result<window::key_t> key_of_0(const rank_context& ctx, const window& mine) {
  auto all = ctx.group->all_gather(std::as_bytes(std::span(&mine.key(), 1)));
  if (!all) return std::move(all).error();
  window::key_t out;
  std::memcpy(&out, (*all)[0].data(), sizeof out);
  return out;
}

bool is_only(const std::vector<unsigned char>& bytes, unsigned char value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char each) { return each == value; });
}

// What another rank tells by the bootstrap, while this one answers for its windows.
void answer_until_met(const rank_context& ctx) {
  std::atomic<bool> is_met{false};
  std::thread other([&] { static_cast<void>(ctx.group->barrier()), is_met = true; });
  while (!is_met) ctx.messenger->progress();
  other.join();
}

TEST_P(revoke, a_window_that_ends_is_written_no_more) {
#if defined(__SANITIZE_THREAD__)
  if (GetParam().is_device)
    GTEST_SKIP() << "it looks at memory on purpose while the simulated GPU writes it, which is a race to see";
#endif
  EXPECT_EQ(run([](const rank_context& ctx) {
              piece data(GetParam().is_device, bytes());
              data.set(std::vector<unsigned char>(bytes(), static_cast<unsigned char>(ctx.rank + 1)));
              auto mine = ctx.messenger->expose(data.all());
              CHECK_OK(mine);
              auto key = key_of_0(ctx, *mine);
              CHECK_OK(key);
              if (ctx.rank == 1) {
                auto put = ctx.messenger->put(*key, 0, data.all());
                const auto done = put.wait(kTimeout);
                // A GPU's copy that has begun is waited for: it may have been all of the put.
                const bool is_right = done.code() == ECANCELED || (GetParam().is_device && done.ok());
                if (!is_right) std::fprintf(stderr, "the put ended with %d\n", done.code());
                CHECK(is_right);
                answer_until_met(ctx);
                return 0;
              }
              while (data.get(1)[0] == 1) ctx.messenger->progress();  // it has begun
              CHECK_OK(mine->close(kTimeout));  // UCX cannot call off what it moves by itself: its end is waited for
              data.set(std::vector<unsigned char>(bytes(), kAfter));
              answer_until_met(ctx);
              CHECK(is_only(data.get(bytes()), kAfter));
              return 0;
            }),
            0);
}

TEST_P(revoke, a_get_from_a_window_that_ends_brings_all_or_an_error) {
  EXPECT_EQ(run([](const rank_context& ctx) {
              piece data(GetParam().is_device, bytes());
              data.set(std::vector<unsigned char>(bytes(), static_cast<unsigned char>(ctx.rank + 1)));
              auto mine = ctx.messenger->expose(data.all());
              CHECK_OK(mine);
              auto key = key_of_0(ctx, *mine);
              CHECK_OK(key);
              const auto before = ctx.messenger->counts().operations;
              if (ctx.rank == 1) {
                if (is_direct()) CHECK_OK(ctx.messenger->send(0, {}, 1, kTimeout));
                auto got = ctx.messenger->get(*key, 0, data.all());
                const auto done = got.wait(kTimeout);
                const bool has_failed =
                    done.code() == ECANCELED || done.code() == EIO || (is_direct() && done.code() == EINVAL);
                CHECK(done.ok() ? is_only(data.get(bytes()), 1) : has_failed);
                answer_until_met(ctx);
                return 0;
              }
              if (is_direct()) CHECK_OK(ctx.messenger->recv(1, {}, 1, kWholeTag, kTimeout));
              else
                while (ctx.messenger->counts().operations == before) ctx.messenger->progress();
              CHECK_OK(mine->close(kTimeout));
              data.set(std::vector<unsigned char>(bytes(), kAfter));
              answer_until_met(ctx);
              return 0;
            }),
            0);
}

char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto behind_name = text.rfind(") ");
  return behind_name == std::string::npos ? '?' : text[behind_name + 2];
}

// The peer's process number; and the peer is stopped, until `wake` at the latest, so that a wait that does not end fails
// instead of hanging.
class stopped_peer {
 public:
  stopped_peer(pid_t peer, std::chrono::milliseconds wake) : peer_(peer) {
    while (state_of(peer_) != 'T') usleep(1000);
    waker_ = std::thread([this, wake] {
      for (auto slept = 0ms; slept < wake && !is_awake_; slept += 10ms) usleep(10'000);
      kill(peer_, SIGCONT);
    });
  }
  ~stopped_peer() { wake(); }
  void wake() {
    is_awake_ = true;
    if (waker_.joinable()) waker_.join();
  }

 private:
  pid_t peer_;
  std::atomic<bool> is_awake_{false};
  std::thread waker_;
};

result<pid_t> pid_of_1(const rank_context& ctx) {
  const pid_t mine = getpid();
  auto all = ctx.group->all_gather(std::as_bytes(std::span(&mine, 1)));
  if (!all) return std::move(all).error();
  pid_t out = 0;
  std::memcpy(&out, (*all)[1].data(), sizeof out);
  return out;
}

std::chrono::milliseconds time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

constexpr auto kBound = 2500ms;  // generous for a loaded machine: some 0.7 s, 1.7 over a network
constexpr auto kWake = 8000ms;

// Sends and puts to a process that is stopped end with their time-outs, and what it finds when it goes on is not taken for
// the message.
TEST_P(revoke, a_time_out_holds_where_the_peer_is_stopped) {
  constexpr std::size_t kBytes = 4 << 20;
  EXPECT_EQ(run([](const rank_context& ctx) {
              const bool is_device = GetParam().is_device;
              piece data(is_device, kBytes), second(is_device, kBytes);
              data.set(std::vector<unsigned char>(kBytes, static_cast<unsigned char>(ctx.rank + 1)));
              auto mine = ctx.messenger->expose(second.all());
              CHECK_OK(mine);
              auto key = ctx.messenger->expose(second.all())->key();
              key = {1 - ctx.rank, mine->key().id, kBytes};  // both windows are the first of their process
              auto peer = pid_of_1(ctx);
              CHECK_OK(peer);
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              if (ctx.rank == 1) {
                auto received = ctx.messenger->irecv(0, data.all(), 1);
                raise(SIGSTOP);
                const auto done = received.wait(kTimeout);
                CHECK(done.ok() ? is_only(data.get(kBytes), 1) : true);
                const auto last = ctx.messenger->recv(0, data.part(0, 8), 2, kWholeTag, kTimeout);
                CHECK(last.ok() || GetParam().path == messenger_options::path_t::network);
                return 0;
              }
              stopped_peer other(*peer, kWake);
              int code = 0;
              const auto sending = time_of([&] { code = ctx.messenger->send(1, data.all(), 1, 500ms).code(); });
              data.set(std::vector<unsigned char>(kBytes, kAfter));
              CHECK(code == ETIMEDOUT);
              if (sending >= 900ms) std::fprintf(stderr, "the send took %lld ms\n", (long long)sending.count());
              CHECK(sending < kBound);
              const auto putting = time_of([&] {
                auto put = ctx.messenger->put(key, 0, data.all());
                static_cast<void>(put.wait(100ms));
              });
              if (putting >= 500ms) std::fprintf(stderr, "the put took %lld ms\n", (long long)putting.count());
              CHECK(putting < kBound);
              other.wake();
              const auto last = ctx.messenger->send(1, second.part(0, 8), 2, kTimeout);
              CHECK(last.ok() || GetParam().path == messenger_options::path_t::network);
              return 0;
            }),
            0);
}

// Many messages to a process that is stopped are given up: the first waits for its answer, those behind it do not.
TEST_P(revoke, of_many_messages_to_a_stopped_peer_one_waits_for_it) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::uint64_t kMessages = 25;
  EXPECT_EQ(run([](const rank_context& ctx) {
              piece data(GetParam().is_device, kBytes);
              auto peer = pid_of_1(ctx);
              CHECK_OK(peer);
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              if (ctx.rank == 1) return raise(SIGSTOP), 0;
              stopped_peer other(*peer, kWake);
              std::vector<int> codes;
              const auto took = time_of([&] {
                for (std::uint64_t tag = 0; tag < kMessages; ++tag)
                  codes.push_back(ctx.messenger->send(1, data.all(), tag, 1ms).code());
              });
              CHECK(codes[0] == ETIMEDOUT);
              CHECK(std::count(codes.begin(), codes.end(), 0) == 0);
              if (took >= kBound) std::fprintf(stderr, "they took %lld ms\n", (long long)took.count());
              CHECK(took < kBound);
              return 0;
            }),
            0);
}

// A receiver that reads the memory of a message by itself learns that the sender has given it up, and stops in the middle
// instead of reading on in memory that is the sender's own again.
TEST(revoke_read, stops_where_the_sender_takes_its_memory_back) {
  constexpr std::size_t kBytes = 64u << 20;  // some 128 rounds of progress
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      piece data(false, kBytes);
                      data.set(std::vector<unsigned char>(kBytes, static_cast<unsigned char>(ctx.rank + 1)));
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0) {
                        CHECK(ctx.messenger->send(1, data.all(), 1, 300ms).code() == ETIMEDOUT);
                        CHECK_OK(ctx.group->barrier());
                        answer_until_met(ctx);
                        return 0;
                      }
                      auto received = ctx.messenger->irecv(0, data.all(), 1);
                      while (data.get(1)[0] == 2) ctx.messenger->progress();  // it has begun, and stands still from here
                      CHECK_OK(ctx.group->barrier());
                      CHECK(received.wait(kTimeout).code() == ECANCELED);
                      CHECK(data.get(kBytes).back() == 2);
                      answer_until_met(ctx);
                      return 0;
                    }),
            0);
}

// A GPU whose link is slow has chunks of the ring before it when the window ends: their copies are waited for, and none
// comes later.
TEST(revoke_slow, a_chunk_that_a_gpu_still_copies_is_waited_for) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it looks at memory on purpose while the simulated GPU writes it, which is a race to see";
#endif
  constexpr std::size_t kBytes = 8u << 20;
  auto options = test_options();
  options.use_cma = options.use_ipc = options.use_channels = false;
  EXPECT_EQ(run_job(
                2, gpus::one_each, options,
                [](const rank_context& ctx) {
                  piece data(true, kBytes);
                  data.set(std::vector<unsigned char>(kBytes, static_cast<unsigned char>(ctx.rank + 1)));
                  auto mine = ctx.messenger->expose(data.all());
                  CHECK_OK(mine);
                  auto key = key_of_0(ctx, *mine);
                  CHECK_OK(key);
                  if (ctx.rank == 1) {
                    auto put = ctx.messenger->put(*key, 0, data.all());
                    CHECK(put.wait(kTimeout).code() == ECANCELED);
                    answer_until_met(ctx);
                    return 0;
                  }
                  while (data.get(1)[0] == 1) ctx.messenger->progress();
                  CHECK_OK(mine->close(kTimeout));
                  data.set(std::vector<unsigned char>(kBytes, kAfter));
                  answer_until_met(ctx);
                  CHECK(is_only(data.get(kBytes), kAfter));
                  return 0;
                },
                -1, [](int) { return setenv("PEERLANE_SIM_RATES", "h2d=0.02", 1) == 0; }),
            0);
}

// ---- Barriers

// A message that was sent before a barrier is there behind it: whether the barriers of the two still are the same one.
int barriers_after_a_time_out(const rank_context& ctx) {
  piece word(false, 8);
  const int last = 2;
  if (ctx.rank == last) CHECK_OK(ctx.group->barrier());
  else CHECK(ctx.messenger->barrier(50ms).code() == ETIMEDOUT);
  if (ctx.rank != last) CHECK_OK(ctx.group->barrier());
  CHECK_OK(ctx.messenger->barrier(5s));
  for (unsigned round = 0; round < 5; ++round) {
    if (ctx.rank == static_cast<int>(round % 3)) {
      usleep(20'000);
      for (int peer = 0; peer < 3; ++peer)
        if (peer != ctx.rank) CHECK_OK(ctx.messenger->send(peer, word.all(), round, kTimeout));
    }
    CHECK_OK(ctx.messenger->barrier(5s));
    message_info info;
    if (ctx.rank != static_cast<int>(round % 3)) {
      CHECK(ctx.messenger->probe(static_cast<int>(round % 3), round, kWholeTag, info));
      CHECK_OK(ctx.messenger->recv(static_cast<int>(round % 3), word.all(), round, kWholeTag, kTimeout));
    }
  }
  return 0;
}

TEST(barrier, goes_on_after_a_time_out) { EXPECT_EQ(run_job(3, gpus::none, test_options(), barriers_after_a_time_out), 0); }

TEST(barrier, holds_its_time_out_over_all_its_rounds) {
  EXPECT_EQ(run_job(5, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      if (ctx.rank == 4) return usleep(4'000'000), ctx.messenger->barrier(kTimeout) ? 0 : __LINE__;
                      const auto took = time_of([&] { static_cast<void>(ctx.messenger->barrier(1s)); });
                      CHECK(took < 1900ms);  // of two rounds it would be 2 s
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
