// SPDX-License-Identifier: Apache-2.0
// Kernels that put into windows of another host (test/messaging/two_hosts.hpp), on the simulated GPU: every byte while
// packets are delayed and lost, the order of what a ring carries, a target that is killed, a window that ends, a wire that
// is cut.
#include <csignal>

#include "base/clock.hpp"
#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "remote_put_kernels_image.hpp"
#include "test/messaging/job.hpp"
#include "test/messaging/two_hosts.hpp"
#include "test/support/sim_fixture.hpp"
#include "triggered/messenger_window.hpp"

namespace pl::triggered {
namespace {

using messaging::kTimeout;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 256 << 10;
constexpr std::size_t kWordsBytes = 4096;
constexpr std::uint64_t kLongTimeoutNs = 20'000'000'000;

const cu::driver_table& cuda() { return test::simulated_cuda(); }

// One rank: windows of GPU memory for the other one, and a ring that a thread carries out.
struct put_rank {
  int rank = 0;
  messaging::bootstrap* group = nullptr;
  test::device_buffer mine{kBytes}, received{kBytes}, words{kWordsBytes}, answers{kWordsBytes};
  std::unique_ptr<messaging::messenger> messages;
  messaging::window received_window, words_window;
  std::unique_ptr<device::session> rings;
  peerlane_device_window mine_local{}, received_local{}, words_local{}, theirs{}, their_words{};
  cu::stream_t stream = nullptr;
  cu::module_t module = nullptr;

  int open(messaging::bootstrap& bootstrap, std::uint64_t timeout_ns = kLongTimeoutNs) {
    group = &bootstrap;
    rank = bootstrap.rank();
    for (auto* each : {&mine, &received, &words, &answers})
      CHECK(cuda().cuMemsetD8_v2(each->pointer(), 0, kWordsBytes) == 0);
    auto options = messaging::test_options();
    options.progress_thread = true;  // the target's part of puts, while its kernels wait
    auto opened = messaging::messenger::open(&cuda(), bootstrap, options);
    CHECK_OK(opened);
    messages = *std::move(opened);
    device::session_options wanted;
    wanted.device_ordinal = rank % 2;
    wanted.backend = device::ring_backend::proxy;
    wanted.ring.segments = 64;
    wanted.ring.timeout_ns = timeout_ns;
    auto made = device::session::open(cuda(), wanted);
    CHECK_OK(made);
    rings = *std::move(made);
    auto loaded = cu::load_kernels(cuda(), kernels::remote_put_kernels());
    CHECK_OK(loaded);
    module = *loaded;
    CHECK(cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) == 0);
    return meet();
  }
  int add(std::uint64_t address, std::size_t bytes, peerlane_device_window& out) {
    auto made = rings->add_window(address, bytes);
    CHECK_OK(made);
    out = *made;
    return 0;
  }
  int expose(const test::device_buffer& memory, std::size_t bytes, messaging::window& own, peerlane_device_window& out) {
    auto exposed = messages->expose(messaging::device_buffer(memory.pointer(), bytes));
    CHECK_OK(exposed);
    own = *std::move(exposed);
    const auto keys = group->all_gather(std::as_bytes(std::span(&own.key(), 1)));
    CHECK_OK(keys);
    messaging::window::key_t key;
    std::memcpy(&key, (*keys)[static_cast<std::size_t>(1 - rank)].data(), sizeof key);
    auto reached = reach_window(*messages, key);
    CHECK_OK(reached);
    auto made = rings->add_remote(*std::move(reached));
    CHECK_OK(made);
    CHECK(made->address == 0 && made->is_outside == PEERLANE_DEVICE_ON_REMOTE && made->size_bytes == bytes);
    out = *made;
    return 0;
  }
  int meet() {
    if (const int line = add(mine.pointer(), kBytes, mine_local)) return line;
    if (const int line = add(received.pointer(), kBytes, received_local)) return line;
    if (const int line = add(words.pointer(), kWordsBytes, words_local)) return line;
    if (const int line = expose(received, kBytes, received_window, theirs)) return line;
    if (const int line = expose(words, kWordsBytes, words_window, their_words)) return line;
    CHECK_OK(group->barrier());
    return 0;
  }
  const peerlane_device_ring& ring() const { return rings->ring(0).handle(); }

  // One thread. What it answers, up to three words.
  template <class... Args>
  std::vector<long long> run(const char* name, Args... args) {
    cu::function_t function = nullptr;
    std::uint64_t answer_to = answers.pointer();
    void* parameters[] = {&args..., &answer_to};
    std::vector<long long> out(3, -1);
    if (cuda().cuModuleGetFunction(&function, module, name) == 0 &&
        cuda().cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) == 0 &&
        cuda().cuStreamSynchronize(stream) == 0)
      static_cast<void>(cuda().cuMemcpyDtoH_v2(out.data(), answers.pointer(), out.size() * sizeof out[0]));
    return out;
  }
  int close() {
    CHECK_OK(group->barrier());
    rings.reset();
    received_window = {};
    words_window = {};
    CHECK_OK(group->barrier());
    messages.reset();
    CHECK(cuda().cuStreamDestroy_v2(stream) == 0);
    return 0;
  }
};

class remote_puts : public testing::Test {
 protected:
  // Why there are none, or "".
  std::string join(const messaging::wire& between) { return both_.make(between); }
  int run(const std::function<int(messaging::bootstrap&)>& body, int killed = -1) {
    return messaging::fork_ranks(
        2,
        [&](int rank, messaging::fork_bootstrap& sockets) {
          if (!both_.enter(rank)) return __LINE__;
          auto group = sockets.take(rank);
          test::current_device device(rank % 2);
          return body(*group);
        },
        killed);
  }
  messaging::two_hosts both_;
};

TEST_F(remote_puts, every_byte_is_right_while_packets_are_lost) {
  if (const auto reason = join({11, 50, 300, 0.003}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group)) return line;
              const auto wrong =
                  self.run("exchange_pieces", self.ring(), self.mine_local, self.theirs, self.words_local, self.their_words,
                           self.received_local, static_cast<unsigned>(self.rank), 60u, std::uint64_t{20261128});
              CHECK(wrong[0] == 0);
              return self.close();
            }),
            0);
}

TEST_F(remote_puts, gets_bring_what_the_other_host_has) {
  if (const auto reason = join({12, 20, 100, 0.001}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group)) return line;
              test::set_device_bytes(self.received.pointer(), test::random_bytes(kBytes, static_cast<unsigned>(self.rank)));
              CHECK_OK(group.barrier());
              CHECK(self.run("get_pieces", self.ring(), self.mine_local, self.theirs, std::uint64_t{5})[0] == 0);
              CHECK(test::device_bytes(self.mine.pointer(), kBytes) ==
                    test::random_bytes(kBytes, static_cast<unsigned>(1 - self.rank)));
              return self.close();
            }),
            0);
}

// Each step reads what the one before has written, at the other host and back.
TEST_F(remote_puts, fences_and_ordered_transfers_wait_for_what_is_before_them) {
  if (const auto reason = join({13, 100, 500, 0}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group)) return line;
              constexpr std::size_t kPiece = 20'000;
              constexpr unsigned kSteps = 8;
              for (const unsigned fences : {1u, 0u}) {
                const auto bytes = test::random_bytes(kPiece, 40 + 2 * fences + static_cast<unsigned>(self.rank));
                test::set_device_bytes(self.mine.pointer(), bytes);
                CHECK_OK(group.barrier());
                CHECK(self.run("go_round", self.ring(), self.mine_local, self.theirs, std::uint64_t{kPiece}, kSteps,
                               fences)[0] == 0);
                for (std::size_t step = 1; step <= kSteps; ++step)
                  CHECK(test::device_bytes(self.mine.pointer() + step * kPiece, kPiece) == bytes);
                CHECK_OK(group.barrier());
              }
              return self.close();
            }),
            0);
}

// CUDA's copies and messages take turns in one ring: each reads what the other has written. Copies are late, and short puts
// read their source at once.
TEST_F(remote_puts, local_and_remote_transfers_of_a_ring_wait_for_each_other) {
  setenv("PEERLANE_SIM_SEED", "9", 1);
  setenv("PEERLANE_SIM_DELAY", "200", 1);
  if (const auto reason = join({14, 50, 200, 0}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(
      run([](messaging::bootstrap& group) {
        put_rank self;
        if (const int line = self.open(group)) return line;
        constexpr std::size_t kPiece = 3000;
        constexpr unsigned kSteps = 30;
        const test::device_buffer between(2 * kPiece);
        peerlane_device_window relay{};
        if (const int line = self.add(between.pointer(), 2 * kPiece, relay)) return line;
        const auto bytes = test::random_bytes(kPiece, 60 + static_cast<unsigned>(self.rank));
        test::set_device_bytes(self.mine.pointer(), bytes);
        CHECK_OK(group.barrier());
        CHECK(self.run("relay", self.ring(), self.mine_local, relay, self.theirs, std::uint64_t{kPiece}, kSteps)[0] == 0);
        for (std::size_t step = 1; step <= kSteps; ++step)
          CHECK(test::device_bytes(self.mine.pointer() + step * kPiece, kPiece) == bytes);
        return self.close();
      }),
      0);
  unsetenv("PEERLANE_SIM_SEED");
  unsetenv("PEERLANE_SIM_DELAY");
}

TEST_F(remote_puts, misuse_is_refused_and_the_ring_goes_on) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group)) return line;
              const auto codes = self.run("post_wrong", self.ring(), self.mine_local, self.theirs);
              CHECK(codes[0] == PEERLANE_DEVICE_ERANGE && codes[1] == PEERLANE_DEVICE_EINVAL &&
                    codes[2] == PEERLANE_DEVICE_EINVAL);
              auto of_an_engine = self.ring();
              of_an_engine.by_proxy = 0;  // as a copy engine's: refused before it takes a ticket
              CHECK(self.run("put_until_error", of_an_engine, self.mine_local, self.theirs, std::uint64_t{8})[0] ==
                    PEERLANE_DEVICE_EINVAL);
              CHECK(!reach_window(*self.messages, {7, 1, 64}) && !reach_window(*self.messages, {0, 1, 0}));
              CHECK(self.run("get_pieces", self.ring(), self.mine_local, self.theirs, std::uint64_t{6})[0] == 0);
              return self.close();
            }),
            0);
}

// What a kernel gets when the target does not take its puts any more, and how long that may take.
int is_told(put_rank& self, long long wanted, std::uint64_t within_ns) {
  const auto answers = self.run("put_until_error", self.ring(), self.mine_local, self.theirs, std::uint64_t{kBytes});
  CHECK(answers[0] == wanted);
  CHECK(static_cast<std::uint64_t>(answers[1]) < within_ns);
  return 0;
}

TEST_F(remote_puts, a_killed_target_ends_the_ring) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run(
                [](messaging::bootstrap& group) {
                  put_rank self;
                  if (const int line = self.open(group)) return line;
                  if (self.rank == 1) {
                    std::this_thread::sleep_for(100ms);
                    raise(SIGKILL);
                  }
                  if (const int line = is_told(self, PEERLANE_DEVICE_ECONNRESET, kLongTimeoutNs)) return line;
                  const auto now = self.rings->ring(0).read();
                  CHECK(now.reason && now.reason->code == ECONNRESET &&
                        now.reason->message.find("a put that a kernel has posted to rank 1: ") != std::string::npos);
                  CHECK(self.run("put_until_error", self.ring(), self.mine_local, self.theirs, std::uint64_t{8})[0] ==
                        PEERLANE_DEVICE_ECONNRESET);
                  self.rings.reset();
                  return 0;
                },
                1),
            0);
}

TEST_F(remote_puts, a_window_that_has_ended_ends_the_ring) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group)) return line;
              if (self.rank == 1) self.received_window = {};
              CHECK_OK(group.barrier());
              if (self.rank == 0) {
                if (const int line = is_told(self, PEERLANE_DEVICE_EIO, kLongTimeoutNs)) return line;
                const auto reason = self.rings->ring(0).read().reason;
                CHECK(reason &&
                      reason->message == "a put that a kernel has posted to rank 1: the window has ended, or is another's");
              }
              return self.close();
            }),
            0);
}

// Nobody says that the wire is cut: the kernel's own time ends its wait, and the close takes the memory back.
TEST_F(remote_puts, a_cut_wire_ends_waits_after_their_time) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([&](messaging::bootstrap& group) {
              put_rank self;
              if (const int line = self.open(group, 500'000'000)) return line;
              if (self.rank == 0) {
                both_.cut();
                const auto begin_ns = monotonic_ns();
                const auto answers =
                    self.run("put_until_error", self.ring(), self.mine_local, self.theirs, std::uint64_t{kBytes});
                CHECK(answers[0] == PEERLANE_DEVICE_ETIMEDOUT || answers[0] == PEERLANE_DEVICE_ECONNRESET);
                self.rings.reset();
                CHECK(monotonic_ns() - begin_ns < 10'000'000'000);
              }
              CHECK_OK(group.barrier());
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace pl::triggered
