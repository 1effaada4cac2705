// SPDX-License-Identifier: Apache-2.0
#include "tools/common/gpu_choice.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace pl::tools {
namespace {

TEST(program_folder, is_that_of_this_test) {
  const std::string folder = program_folder();
  EXPECT_EQ(folder.front(), '/');
  EXPECT_NE(folder.back(), '/');
  EXPECT_EQ(access((folder + "/tools_test").c_str(), X_OK), 0);
}

TEST(real_gpu_probe, answers_with_a_reason_or_a_gpu_and_leaves_no_library) {
  const auto probe = probe_real_gpu();
  EXPECT_EQ(probe.usable, probe.reason.empty()) << probe.reason;
  EXPECT_TRUE(probe.library_opens || !probe.usable);
}

}  // namespace
}  // namespace pl::tools
