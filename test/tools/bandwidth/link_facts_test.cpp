// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/link_facts.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace pl::bandwidth {
namespace {

namespace fs = std::filesystem;

// A GPU at x16 below a switch whose uplink is x8:
// root port 00:01.0 -- switch upstream port 15:00.0 -- downstream port 16:00.0 -- GPU 17:00.0
class fake_sysfs {
 public:
  fake_sysfs() {
    std::string name = (fs::temp_directory_path() / "link_facts_XXXXXX").string();
    root_ = mkdtemp(name.data());
    fs::create_directories(root_ / "bus/pci/devices");
    fs::create_directories(gpu());
    fs::create_directory_symlink(gpu(), root_ / "bus/pci/devices/0000:17:00.0");
    link(root_port(), "16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16");
    link(root_port() / "0000:15:00.0", "16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16");
    link(gpu().parent_path(), "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16");
    link(gpu(), "2.5 GT/s PCIe", "16", "32.0 GT/s PCIe", "16");
  }
  ~fake_sysfs() { fs::remove_all(root_); }
  fake_sysfs(const fake_sysfs&) = delete;
  fake_sysfs& operator=(const fake_sysfs&) = delete;

  std::string root() const { return root_.string(); }
  fs::path root_port() const { return root_ / "devices/pci0000:00/0000:00:01.0"; }
  fs::path gpu() const { return root_port() / "0000:15:00.0/0000:16:00.0/0000:17:00.0"; }

  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

 private:
  static void link(const fs::path& folder, const char* speed, const char* width, const char* max_speed,
                   const char* max_width) {
    write(folder / "current_link_speed", std::string(speed) + "\n");
    write(folder / "current_link_width", std::string(width) + "\n");
    write(folder / "max_link_speed", std::string(max_speed) + "\n");
    write(folder / "max_link_width", std::string(max_width) + "\n");
  }
  fs::path root_;
};

// Configuration space with the PCI Express capability at 0x60 and, if asked for, ACS at 0x148 behind another one.
std::string config_with(unsigned payload_code, unsigned acs_control) {
  std::string out(4096, '\0');
  out[0x34] = 0x40;
  out[0x40] = 0x01, out[0x41] = 0x60;
  out[0x60] = 0x10;
  out[0x68] = static_cast<char>(payload_code << 5);
  out[0x100] = 0x01, out[0x102] = static_cast<char>(0x81), out[0x103] = 0x14;  // AER, version 1, next 0x148
  out[0x148] = 0x0d, out[0x14a] = 0x01;
  out[0x14e] = static_cast<char>(acs_control);
  return out;
}

TEST(LinkFacts, Generations) {
  EXPECT_EQ(generation_of_speed("2.5 GT/s PCIe"), 1u);
  EXPECT_EQ(generation_of_speed("5.0 GT/s PCIe"), 2u);
  EXPECT_EQ(generation_of_speed("8.0 GT/s PCIe"), 3u);
  EXPECT_EQ(generation_of_speed("16.0 GT/s PCIe"), 4u);
  EXPECT_EQ(generation_of_speed("32.0 GT/s PCIe"), 5u);
  EXPECT_EQ(generation_of_speed("64.0 GT/s PCIe"), 6u);
  EXPECT_EQ(generation_of_speed("8 GT/s"), 3u);  // kernels before 5.10
  EXPECT_EQ(generation_of_speed("Unknown"), 0u);
  EXPECT_EQ(generation_of_speed("7.0 GT/s"), 0u);
  EXPECT_EQ(generation_of_speed(""), 0u);
}

TEST(LinkFacts, PayloadAndAccessControl) {
  EXPECT_EQ(payload_of_config(config_with(0, 0)), 128u);
  EXPECT_EQ(payload_of_config(config_with(1, 0)), 256u);
  EXPECT_EQ(payload_of_config(config_with(2, 0)), 512u);
  EXPECT_EQ(payload_of_config(config_with(7, 0)), 0u);
  EXPECT_EQ(payload_of_config(config_with(1, 0).substr(0, 64)), 0u);  // not root
  EXPECT_TRUE(redirects_peers(config_with(1, 0x04)));
  EXPECT_TRUE(redirects_peers(config_with(1, 0x1d)));
  EXPECT_FALSE(redirects_peers(config_with(1, 0x11)));
  EXPECT_FALSE(redirects_peers(config_with(1, 0x04).substr(0, 64)));
}

TEST(LinkFacts, ACapabilityListThatLoopsEnds) {
  std::string looping(256, '\0');
  looping[0x34] = 0x40, looping[0x40] = 0x01, looping[0x41] = 0x40;
  EXPECT_EQ(payload_of_config(looping), 0u);
}

TEST(LinkFacts, CorrectedErrors) {
  EXPECT_EQ(corrected_errors_of("RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n"), 4u);
  EXPECT_EQ(corrected_errors_of(""), 0u);
}

TEST(LinkFacts, ClimbsToTheNarrowestLink) {
  const fake_sysfs tree;
  gpu_link_facts facts;
  facts.bus_id = "00000000:17:00.0";  // as NVML writes it
  tree.write(tree.gpu() / "numa_node", "1\n");
  tree.write(tree.gpu() / "iommu_group/type", "DMA-FQ\n");
  tree.write(tree.gpu() / "aer_dev_correctable", "RxErr 2\nTOTAL_ERR_COR 2\n");
  tree.write(tree.gpu() / "config", config_with(1, 0));
  tree.write(tree.gpu().parent_path() / "config", config_with(1, 0x1d));
  read_sysfs(facts, tree.root());
  EXPECT_EQ(facts.pcie_generation_now, 1u);
  EXPECT_EQ(facts.pcie_generation_max, 5u);
  EXPECT_EQ(facts.pcie_width_max, 16u);
  EXPECT_EQ(facts.uplink_generation, 4u);
  EXPECT_EQ(facts.uplink_width, 8u);
  EXPECT_EQ(facts.uplink_bus_id, "0000:15:00.0");
  EXPECT_EQ(facts.numa_node, 1);
  EXPECT_TRUE(facts.behind_iommu);
  EXPECT_TRUE(facts.acs_redirect);
  EXPECT_EQ(facts.pcie_corrected, 2u);
  EXPECT_EQ(facts.pcie_payload_bytes, 256u);
}

TEST(LinkFacts, AnUnknownDeviceAndNegativeNodesStayUnknown) {
  const fake_sysfs tree;
  gpu_link_facts facts;
  facts.bus_id = "0000:99:00.0";
  read_sysfs(facts, tree.root());
  EXPECT_EQ(facts.pcie_generation_max, 0u);
  facts.bus_id = "0000:17:00.0";
  tree.write(tree.gpu() / "numa_node", "-1\n");
  tree.write(tree.gpu() / "iommu_group/type", "identity\n");
  read_sysfs(facts, tree.root());
  EXPECT_EQ(facts.numa_node, -1);
  EXPECT_FALSE(facts.behind_iommu);
}

TEST(LinkFacts, NvmlsLinkIsKept) {
  const fake_sysfs tree;
  gpu_link_facts facts;
  facts.bus_id = "0000:17:00.0";
  facts.pcie_generation_max = 4, facts.pcie_width_max = 16;  // of GPU and board together
  read_sysfs(facts, tree.root());
  EXPECT_EQ(facts.pcie_generation_max, 4u);
}

TEST(LinkFacts, CountsNumaNodes) {
  const fake_sysfs tree;
  EXPECT_EQ(count_numa_nodes(tree.root()), 1);
  for (const char* name : {"node0", "node1", "nodes_online"})
    fs::create_directories(fs::path(tree.root()) / "devices/system/node" / name);
  EXPECT_EQ(count_numa_nodes(tree.root()), 2);
}

TEST(LinkFacts, NvlinksToASwitch) {
  using end = tools::nvlink_port::end;
  std::vector<tools::nvlink_port> ports(18, {true, 6, end::network_switch, "00000000:0A:00.0"});
  ports[3].is_active = false;
  gpu_link_facts facts;
  apply_nvlinks(facts, ports, 26562, {});
  EXPECT_EQ(facts.nvlinks_total, 18u);
  EXPECT_EQ(facts.nvlinks_active, 17u);
  EXPECT_EQ(facts.nvlink_mbps_each, 26562u);
  EXPECT_EQ(facts.nvlink_version, 4u);
  EXPECT_TRUE(facts.has_nvswitch);
  EXPECT_TRUE(facts.nvlinks_to_gpu.empty());
}

TEST(LinkFacts, DirectNvlinksWithoutASpeed) {
  using end = tools::nvlink_port::end;
  std::vector<gpu_link_facts> gpus(3);
  gpus[1].bus_id = "0000:1a:00.0";
  gpus[2].bus_id = "0000:1b:00.0";
  std::vector<tools::nvlink_port> ports(6, {true, 2, end::gpu, "00000000:1A:00.0"});
  ports[5].remote_bus_id = "00000000:1B:00.0";
  apply_nvlinks(gpus[0], ports, 0, gpus);
  EXPECT_EQ(gpus[0].nvlinks_to_gpu, (std::map<int, unsigned>{{1, 5}, {2, 1}}));
  EXPECT_EQ(gpus[0].nvlink_mbps_each, 25781u);
  EXPECT_EQ(gpus[0].nvlink_version, 2u);
  EXPECT_FALSE(gpus[0].has_nvswitch);
}

}  // namespace
}  // namespace pl::bandwidth
