// SPDX-License-Identifier: Apache-2.0
// Selection of NUMA nodes: what sysfs says by a machine of two nodes in a folder, what the kernel does by the nodes there
// are.
#include "tools/bandwidth/numa.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace pl::bandwidth {
namespace {

class NumaFixture : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pl_numa_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text << "\n";
  }
  std::string root_;
};

TEST_F(NumaFixture, TwoNodesAndTheDevicesBesideThem) {
  write("/devices/system/node/has_memory", "0-1");
  write("/bus/pci/devices/0000:1b:00.0/numa_node", "0");
  write("/bus/pci/devices/0000:9a:00.0/numa_node", "1");
  write("/bus/pci/devices/0000:9b:00.0/numa_node", "-1");
  EXPECT_EQ(numa::nodes(root_), (std::vector<int>{0, 1}));
  EXPECT_EQ(numa::node_of_pci_device("0000:1B:00.0", root_), 0);
  EXPECT_EQ(numa::node_of_pci_device("0000:9A:00.0", root_), 1);
  EXPECT_EQ(numa::node_of_pci_device("0000:9b:00.0", root_), -1);
  EXPECT_EQ(numa::node_of_pci_device("0000:ff:00.0", root_), -1);
}

TEST_F(NumaFixture, ANodeWithoutMemoryIsNone) {
  write("/devices/system/node/has_memory", "0,2");
  EXPECT_EQ(numa::nodes(root_), (std::vector<int>{0, 2}));
  EXPECT_EQ(numa::nodes(root_ + "/nowhere"), std::vector<int>{0});
}

// Memory that has not been touched yet.
class Pages {
 public:
  Pages() : base_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(base_, kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  void* base() const { return base_; }
  static constexpr std::size_t kBytes = 1 << 20;

 private:
  void* base_;
};

TEST(Numa, BoundMemoryHasThatPolicyAndComesFromThatNode) {
  for (const int node : numa::nodes()) {
    const Pages pages;
    const auto bound = numa::bind(pages.base(), Pages::kBytes, node);
    if (!bound && (bound.code() == EPERM || bound.code() == ENOSYS)) GTEST_SKIP() << bound.error().message;
    ASSERT_TRUE(bound) << bound.error().message;
    EXPECT_EQ(numa::node_of(pages.base()), -1) << "not touched yet";
    int mode = -1;
    std::array<unsigned long, 16> mask{};
    if (syscall(SYS_get_mempolicy, &mode, mask.data(), 8 * sizeof mask, pages.base(), MPOL_F_ADDR) != 0)
      GTEST_SKIP() << "get_mempolicy is not allowed here";
    EXPECT_EQ(mode, MPOL_BIND);
    std::array<unsigned long, 16> wanted{};
    wanted[static_cast<std::size_t>(node) / 64] = 1ul << (node % 64);
    EXPECT_EQ(mask, wanted);
    for (std::size_t offset = 0; offset < Pages::kBytes; offset += 4096) static_cast<char*>(pages.base())[offset] = 1;
    for (std::size_t offset = 0; offset < Pages::kBytes; offset += 4096) {
      const int found = numa::node_of(static_cast<char*>(pages.base()) + offset);
      ASSERT_TRUE(found == node || (offset == 0 && found < 0)) << "page at " << offset << ": node " << found;
      if (found < 0) GTEST_SKIP() << "move_pages is not allowed here";
    }
  }
}

TEST(Numa, ANodeThatIsNotThereIsRefusedWithItsNumber) {
  const Pages pages;
  for (const int node : {numa::nodes().back() + 1, 1023, 1024, -1}) {
    const auto bound = numa::bind(pages.base(), Pages::kBytes, node);
    ASSERT_FALSE(bound) << node;
    EXPECT_NE(bound.error().message.find("node " + std::to_string(node)), std::string::npos) << bound.error().message;
  }
}

}  // namespace
}  // namespace pl::bandwidth
