// SPDX-License-Identifier: Apache-2.0
// A GPU that falls off the bus or is reset by others while DMA channels work: no notifier tells of it and no completion
// comes. Every way to learn of the end gives an error then, and streams that wait for the copies go on.
#include <dlfcn.h>
#include <poll.h>

#include "copy/completion.hpp"
#include "copy/time_limit.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kTimeoutNs = 50'000'000;
constexpr std::size_t kCopyBytes = 3u << 20;

template <class Reached>
bool is_soon(Reached reached) {
  for (int tries = 0; tries < 10'000 && !reached(); ++tries) usleep(1000);
  return reached();
}

class LostGpu : public planner_fixture {
 protected:
  void SetUp() override {
    const auto found = dlsym(cuda_.library, "peerlaneSimLoseGpus");
    ASSERT_NE(found, nullptr);
    lose_ = reinterpret_cast<void (*)(int)>(found);
    open_channels();
    set_timeout_for_tests(kTimeoutNs);
  }
  void TearDown() override {
    lose_(0);
    set_timeout_for_tests(0);
  }
  result<completion> begin(const copy_case& one, const planner::async_options& wanted = {}) {
    const auto transfer = one.to_transfer();
    return planner_->begin(std::span(&transfer, 1), wanted);
  }

  // A copy by a channel that went with the GPU ends with an error; the next one opens a new channel.
  bool is_copied_soon(const copy_case& one) {
    for (int tries = 0; tries < 2; ++tries)
      if (auto begun = begin(one); begun && begun->wait()) return one.is_copied();
    return false;
  }

  void (*lose_)(int) = nullptr;
};

// The copy waits for a stream when the GPU goes, so none of it has begun.
TEST_F(LostGpu, EveryKindOfWaitEndsWithAnError) {
  enum class ending { wait, test, descriptor };
  for (const ending kind : {ending::wait, ending::test, ending::descriptor}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const copy_case one(direction::to_host, other_side::pinned, kCopyBytes, 1, 3);
    const auto before = taken(method::dma_channel);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    ASSERT_EQ(taken(method::dma_channel), before + 1);
    lose_(1);
    held.open();
    status ended;
    if (kind == ending::wait) ended = begun->wait();
    const auto descriptor = kind == ending::descriptor ? begun->descriptor() : result<int>(-1);
    ASSERT_TRUE(descriptor) << descriptor.error().message;
    for (bool is_over = kind == ending::wait; !is_over;) {
      pollfd waiter{*descriptor, POLLIN, 0};
      if (*descriptor >= 0) poll(&waiter, 1, 10'000);
      auto tested = begun->test();
      is_over = !tested || *tested;
      if (!tested) ended = tested.error();
    }
    EXPECT_EQ(ended.code(), ETIMEDOUT) << (ended ? "no error" : ended.error().message);
    lose_(0);
    const copy_case next(direction::to_host, other_side::pinned, kCopyBytes, 1, 5);
    EXPECT_TRUE(is_copied_soon(next));
  }
}

TEST_F(LostGpu, CopiesUnderWayEndWithAnError) {
  for (const bool is_waited_for : {true, false}) {
    const copy_case one(direction::to_host, other_side::pinned, kCopyBytes, 1, 3);
    ASSERT_TRUE(is_copied_soon(one));  // channel and memory are there
    const auto before = taken(method::dma_channel);
    lose_(1);
    std::vector<completion> begun;
    for (int i = 0; i < 3; ++i) {
      auto given = begin(one);
      ASSERT_TRUE(given) << given.error().message;
      begun.push_back(*std::move(given));
    }
    ASSERT_EQ(taken(method::dma_channel), before + 3);
    for (auto& each : begun) {
      status ended;
      if (is_waited_for) ended = each.wait();
      else
        EXPECT_TRUE(is_soon([&] {
          auto tested = each.test();
          if (!tested) ended = tested.error();
          return !tested || *tested;
        }));
      EXPECT_TRUE(ended.code() == ETIMEDOUT || ended.code() == EIO) << (ended ? "no error" : ended.error().message);
    }
    lose_(0);
  }
}

TEST_F(LostGpu, StreamsThatWaitForCopiesGoOn) {
  cu::stream_t later = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&later, cu::stream_flag::non_blocking), 0);
  for (const bool is_behind_a_stream : {true, false}) {
    const copy_case one(direction::to_host, other_side::pinned, kCopyBytes, 1, 3);
    gate held;
    auto begun = begin(one, {is_behind_a_stream, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    if (!is_behind_a_stream) lose_(1);
    ASSERT_TRUE(begun->make_wait(later));
    lose_(1);
    held.open();
    EXPECT_TRUE(is_soon([&] { return cuda_.cuStreamQuery(later) == cu::error_code::success; }));
    (void)begun->wait();
    lose_(0);
  }
  EXPECT_EQ(cuda_.cuStreamDestroy_v2(later), 0);
}

}  // namespace
}  // namespace pl::copy
