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
  std::uint64_t available() const { return available_memory(root_ + "/self", root_ + "/cgroup", root_ + "/meminfo"); }
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

TEST_F(memory_limit_test, WhatIsAvailableCountsThePageCacheAsFree) {
  EXPECT_EQ(available(), UINT64_MAX);
  write("/meminfo", "MemTotal: 100 kB\nMemAvailable:  64 kB\n");
  EXPECT_EQ(available(), 65536u);
  write("/self", "0::/a/b");
  write("/cgroup/a/b/memory.max", "max");
  write("/cgroup/a/b/memory.current", "30000");
  write("/cgroup/a/memory.max", "50000");
  write("/cgroup/a/memory.current", "45000");
  EXPECT_EQ(available(), 5000u);
  write("/cgroup/a/memory.stat", "anon 5000\nfile 40000\ninactive_file 30000\nactive_file 9000\n");
  EXPECT_EQ(available(), 44000u);
  write("/cgroup/a/memory.current", "60000");  // above a limit that was lowered
  EXPECT_EQ(available(), 29000u);
  write("/cgroup/a/memory.stat", "inactive_file 1\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(memory_limit_test, WhatIsAvailableInTheFirstVersion) {
  write("/meminfo", "MemAvailable: 640 kB\n");
  write("/self", "9:memory:/a");
  write("/cgroup/memory/a/memory.limit_in_bytes", "50000");
  write("/cgroup/memory/a/memory.usage_in_bytes", "49000");
  write("/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 20000\ntotal_active_file 3000\n");
  EXPECT_EQ(available(), 24000u);
}

}  // namespace
}  // namespace pl
