// SPDX-License-Identifier: Apache-2.0
// Whole runs: exit codes, and that nothing falls over on a machine without a GPU.
#include "test/tools/machine/laid_out_machine.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {
namespace {

using topo::machine_file;

int run(std::vector<std::string> arguments) {
  testing::internal::CaptureStdout();
  const int code = run_topo({"peerlane topo", false, arguments, {"peerlane", "topo"}});
  testing::internal::GetCapturedStdout();
  return code;
}

TEST(topo_command, a_blocker_counts_under_strict_only) {
  EXPECT_EQ(run({"--sysfs", machine_file("two_socket_one_hca")}), kExitOk);
  EXPECT_EQ(run({"--sysfs", machine_file("two_socket_one_hca"), "--strict"}), kExitFailed);
  EXPECT_EQ(run({"--sysfs", machine_file("dgx_h100"), "--strict"}), kExitOk);
}

TEST(topo_command, runs_on_this_machine) { EXPECT_EQ(run({}), kExitOk); }

TEST(topo_command, a_folder_and_its_recording) {
  const auto& one = topo::machine_named("laptop");
  const std::string copy = one.folder() + "/copy.txt";
  EXPECT_EQ(run({"--sysfs", one.folder(), "--record", copy}), kExitOk);
  EXPECT_EQ(run({"--sysfs", copy, "-m"}), kExitOk);
}

TEST(topo_command, refuses_what_is_no_machine) {
  EXPECT_THROW(run_topo({"peerlane topo", false, {"--sysfs", "/nonexistent"}, {}}), tool_failure);
  EXPECT_THROW(run_topo({"peerlane topo", false, {"--sysfs", "/proc/version"}, {}}), tool_failure);
}

}  // namespace
}  // namespace pl::tools
