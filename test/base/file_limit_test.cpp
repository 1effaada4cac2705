// SPDX-License-Identifier: Apache-2.0
// A limit on the length of files (ulimit -f) is an error of our files, and no signal to the program.
#include "base/file_limit.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pl {
namespace {

// 0, or the line that failed.
int grow_a_file() {
  const rlimit small{4096, 4096};
  if (setrlimit(RLIMIT_FSIZE, &small) != 0) return __LINE__;
  const int file = memfd_create("file-limit-test", MFD_CLOEXEC);
  {
    const file_limit_as_error during_growth;
    if (ftruncate(file, 1 << 20) != -1 || errno != EFBIG) return __LINE__;
  }
  if (errno != EFBIG) return __LINE__;
  sigset_t pending, mask;
  if (sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ) != 0) return __LINE__;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGXFSZ) == 0 ? 0 : __LINE__;
}

TEST(FileLimit, IsAnErrorAndNoSignal) {
  const pid_t child = fork();
  if (child == 0) {
    const int line = grow_a_file();
    std::fprintf(stderr, "line %d\n", line);
    _exit(line == 0 ? 0 : 1);
  }
  int state = -1;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

// What the application holds back is still there for it.
TEST(FileLimit, TheApplicationsOwnSignalStays) {
  sigset_t only, before, pending;
  sigemptyset(&only);
  sigaddset(&only, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &only, &before);
  raise(SIGXFSZ);
  { const file_limit_as_error during_growth; }
  EXPECT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 1);
  const timespec at_once{};
  sigtimedwait(&only, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace pl
