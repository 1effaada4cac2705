// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace pl {
namespace {

namespace fs = std::filesystem;

class memory_limit_test : public testing::Test {
 protected:
  memory_limit_test() {
    std::string pattern = (fs::temp_directory_path() / "peerlane-memory-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~memory_limit_test() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text << "\n";
  }
  memory_limit found() const { return usable_memory(root_ + "/self", root_ + "/cgroup"); }
  std::string root_;
};

TEST_F(memory_limit_test, IsTheMachinesWithoutAGroup) {
  EXPECT_EQ(found().source, "the machine's memory");
  EXPECT_GT(found().bytes, 0u);
  write("/self", "0::/a/b");
  write("/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(found().source, "the machine's memory");
}

TEST_F(memory_limit_test, IsThatOfTheNarrowestGroup) {
  write("/self", "3:cpu:/elsewhere\n0::/a/b");
  write("/cgroup/a/b/memory.max", "max");
  write("/cgroup/a/memory.max", "4194304");
  write("/cgroup/memory.max", "8388608");
  EXPECT_EQ(found().bytes, 4194304u);
  EXPECT_EQ(found().source, root_ + "/cgroup/a/memory.max");
  write("/cgroup/a/b/memory.max", "1048576");
  EXPECT_EQ(found().bytes, 1048576u);
  // A container sees its own group as the root.
  write("/self", "0::/");
  EXPECT_EQ(found().bytes, 8388608u);
  EXPECT_EQ(found().source, root_ + "/cgroup/memory.max");
}

TEST_F(memory_limit_test, OfTheFirstVersionToo) {
  write("/self", "9:memory:/a\n3:cpu,cpuacct:/b");
  write("/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(found().source, "the machine's memory");
  write("/cgroup/memory/memory.limit_in_bytes", "2097152");
  EXPECT_EQ(found().bytes, 2097152u);
}

}  // namespace
}  // namespace pl
