// SPDX-License-Identifier: Apache-2.0
// A process that holds the GPU engine hot and copies in threads may end at any moment, in any manner: it never hangs and
// never crashes.
#include <chrono>
#include <csignal>
#include <string>

#include "test/e2e/process.hpp"

namespace pl::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kLives = 3;
#else
constexpr int kLives = 12;
#endif
constexpr auto kTimeout = std::chrono::seconds(20);
constexpr int kHung = 2000;

class EngineExit : public testing::TestWithParam<const char*> {
 protected:
  // A life that ends by itself or, with `kill_after_us`, by the signal. Its exit status as exit_of says it, or kHung.
  static int live(const std::string& ending, unsigned after_us, bool kills) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    std::fflush(nullptr);
    const std::string after = std::to_string(after_us);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execl(PL_ENGINE_LIFE_PROGRAM, PL_ENGINE_LIFE_PROGRAM, ending.c_str(), after.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
    char ready[6] = {};
    EXPECT_EQ(read(ends[0], ready, 6), 6) << "it did not start";
    if (kills) {
      usleep(after_us);
      kill(child, SIGKILL);
    }
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        close(ends[0]);
        return kHung;
      }
      usleep(500);
    }
    close(ends[0]);
    return WIFSIGNALED(status) ? kKilled + WTERMSIG(status) : WEXITSTATUS(status);
  }
};

TEST_P(EngineExit, AtAnyMoment) {
  const std::string ending = GetParam();
  const bool kills = ending == "forever";
  std::uint64_t state = 77;
  for (int i = 0; i < kLives; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto after_us = static_cast<unsigned>((state >> 33) % 12'000);
    ASSERT_EQ(live(ending, after_us, kills), kills ? kKilled + SIGKILL : 0) << "life " << i << ", " << after_us << " us";
  }
}
INSTANTIATE_TEST_SUITE_P(ends, EngineExit, testing::Values("main", "exit", "_exit", "forever", "fork"),
                         [](const auto& now) { return std::string(now.param[0] == '_' ? "at_once" : now.param); });

}  // namespace
}  // namespace pl::test
