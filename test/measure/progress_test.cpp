// SPDX-License-Identifier: Apache-2.0
#include "measure/progress.hpp"

#include <gtest/gtest.h>

namespace pl {
namespace {

TEST(progress_line, no_estimate_before_the_first_step_is_done) {
  EXPECT_EQ(progress_text("copylat", 0, 4, "write 1 B", 5'000'000'000), "copylat  0/4  write 1 B");
}

TEST(progress_line, estimates_from_the_steps_done) {
  EXPECT_EQ(progress_text("copylat", 1, 4, "x", 2'000'000'000), "copylat  1/4  x  about 6 s left");
  EXPECT_EQ(progress_text("copylat", 3, 4, "x", 300'000'000), "copylat  3/4  x  about 1 s left");
  EXPECT_EQ(progress_text("copylat", 4, 4, "done", 1), "copylat  4/4  done");
}

TEST(progress_line, silent_without_a_terminal) {
  testing::internal::CaptureStderr();
  {
    progress line("t", 2);
    line.start_step(1, "step");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace pl
