// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace pl {
namespace {

// Run by the next test in a process that has no standard error, so the file gets its number.
TEST(Log, DISABLED_WritesIntoNoFile) {
  const int file = memfd_create("another's", MFD_CLOEXEC);
  ASSERT_EQ(file, STDERR_FILENO);
  set_log_level(log_level::debug);
  PL_LOG(error, "%s", "by its level");
  log_line(log_level::error, "%s", "whatever the level");
  struct stat about {};
  ASSERT_EQ(fstat(file, &about), 0);
  EXPECT_EQ(about.st_size, 0);
}

TEST(Log, AProcessWithoutStandardErrorGetsNoLines) {
  const std::string command =
      "/proc/" + std::to_string(getpid()) +
      "/exe --gtest_also_run_disabled_tests --gtest_filter=Log.DISABLED_WritesIntoNoFile >/dev/null 2>&-";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace pl
