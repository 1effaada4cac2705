// SPDX-License-Identifier: Apache-2.0
// The helper thread of sleeping proxy threads, and what becomes of contexts for which threads are missing.
#include "triggered/event_wakeup.hpp"

#include "test/support/scarce_threads.hpp"
#include "test/triggered/stream_job.hpp"
#include "triggered/stuck_release.hpp"

namespace pl::triggered {
namespace {

// In a process of its own: this one forks.
int in_a_child(const std::function<int(messaging::fork_bootstrap&)>& body) {
  return messaging::fork_ranks(1, [&](int, messaging::fork_bootstrap& sockets) {
    const test::current_device device(0);
    return body(sockets);
  });
}

TEST(event_wakeup, without_a_thread_nothing_is_armed_and_the_next_time_tries_again) {
  EXPECT_EQ(in_a_child([](messaging::fork_bootstrap&) {
              auto gpu = copy::find_context(cuda(), 0, nullptr);
              CHECK_OK(gpu);
              auto target = thread_wakeup::make();
              cu::stream_t stream = nullptr;
              CHECK(cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) == 0);
              {
                event_wakeup wakeup(*gpu);
                std::optional<test::scarce_threads> none(std::in_place);
                CHECK(wakeup.arm(stream, target).code() == EAGAIN);
                none.reset();
                CHECK(!target->wait(10ms));
                CHECK_OK(wakeup.arm(stream, target));
                CHECK(target->wait(kTimeout));
              }
              CHECK(cuda().cuStreamDestroy_v2(stream) == 0);
              return 0;
            }),
            0);
}

TEST(stuck_release, without_a_thread_is_refused) {
  EXPECT_EQ(in_a_child([](messaging::fork_bootstrap&) {
              auto gpu = copy::find_context(cuda(), 0, nullptr);
              CHECK_OK(gpu);
              std::optional<test::scarce_threads> none(std::in_place);
              CHECK(stuck_release::make(*gpu).code() == EAGAIN);
              none.reset();
              CHECK_OK(stuck_release::make(*gpu));
              return 0;
            }),
            0);
}

// The k-th thread is missing, for k = 0, 1, 2 ...
TEST(context, without_its_threads_is_refused_and_opens_later) {
  for (int left = 0, is_open = 0; is_open == 0; ++left) {
    ASSERT_LT(left, 20);
    is_open = in_a_child([left](messaging::fork_bootstrap& sockets) {
      auto group = sockets.take(0);
      std::optional<test::scarce_threads> few(std::in_place, left);
      auto first = context::open(cuda(), *group, {});
      few.reset();
      if (first) return 1;  // that were enough
      CHECK(first.code() == EAGAIN);
      CHECK(context::open(cuda(), *group, {}).ok());
      return 0;
    });
  }
}

}  // namespace
}  // namespace pl::triggered
