// SPDX-License-Identifier: Apache-2.0
// Threads of the library's own take none of the application's signals.
#include "os/blocked_signals.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>

#include "test/support/scarce_threads.hpp"

namespace pl {
namespace {

sigset_t mask_of_this_thread() {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return now;
}

bool has_every_signal(const sigset_t& mask) {
  for (int number = 1; number < NSIG; ++number) {
    const bool can_be_blocked = number != SIGKILL && number != SIGSTOP && (number < 32 || number >= SIGRTMIN);
    if (can_be_blocked && sigismember(&mask, number) == 0) return false;
  }
  return true;
}

TEST(BlockedSignals, AStartedThreadHasThemAndItsMakerDoesNot) {
  sigset_t seen;
  sigemptyset(&seen);
  start_thread([&] { seen = mask_of_this_thread(); }).join();
  EXPECT_TRUE(has_every_signal(seen));
  EXPECT_EQ(sigismember(&seen, SIGUSR1), 1);
  const sigset_t own = mask_of_this_thread();
  EXPECT_EQ(sigismember(&own, SIGUSR1), 0);
}

// In a process of its own: no memory for another thread's stack.
TEST(BlockedSignals, TheMakersMaskComesBackWhereNoThreadCanBeStarted) {
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] {}).join();
    pthread_attr_t wanted;
    pthread_attr_init(&wanted);
    pthread_attr_setstacksize(&wanted, std::size_t{1} << 46);
    pthread_setattr_default_np(&wanted);
    try {
      start_thread([] {}).detach();
    } catch (const std::system_error&) {
      const sigset_t own = mask_of_this_thread();
      _exit(sigismember(&own, SIGUSR1) == 0 ? 0 : 2);
    }
    _exit(1);
  }
  int state = 0;
  waitpid(child, &state, 0);
  EXPECT_TRUE(WIFEXITED(state)) << state;
  EXPECT_EQ(WEXITSTATUS(state), 0) << "1: a thread was started, 2: the signals stayed blocked";
}

TEST(TryStartThread, SaysWhichThreadIsMissingAndWhatToRaise) {
  std::optional<test::scarce_threads> one(std::in_place, 1);
  bool has_run = false;
  auto first = try_start_thread("counts sheep", [&] { has_run = true; });
  const auto second = try_start_thread("counts sheep", [] {});
  one.reset();
  ASSERT_TRUE(first) << first.error().message;
  first->join();
  EXPECT_TRUE(has_run);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.code(), EAGAIN);
  for (const char* needed : {"the thread that counts sheep", "ulimit -u"})
    EXPECT_NE(second.error().message.find(needed), std::string::npos) << second.error().message;
  const sigset_t own = mask_of_this_thread();
  EXPECT_EQ(sigismember(&own, SIGUSR1), 0);
}

}  // namespace
}  // namespace pl
