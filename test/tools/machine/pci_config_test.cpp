// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/machine/pci_tree.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

TEST(pci_config, what_is_put_in_is_read_out) {
  const auto bytes = make_config({0x5936u, 0x001du, true});
  const auto control = parse_pcie_control(bytes);
  ASSERT_TRUE(control);
  EXPECT_EQ(control->max_read_request_bytes, 4096u);
  EXPECT_TRUE(control->is_relaxed_ordering_enabled);
  const auto acs = parse_acs(bytes);
  ASSERT_TRUE(acs);
  EXPECT_TRUE(acs->is_present);
  EXPECT_TRUE(acs->redirects());
  EXPECT_EQ(extract_facts(bytes).acs_bits, 0x1du);
}

TEST(pci_config, source_validation_alone_does_not_redirect) {
  EXPECT_FALSE(parse_acs(make_config({{}, 0x11u, true}))->redirects());
}

TEST(pci_config, short_or_looping_text_is_not_known) {
  EXPECT_FALSE(parse_pcie_control(std::vector<std::uint8_t>(64)));
  EXPECT_FALSE(parse_acs(std::vector<std::uint8_t>(256)));
  std::vector<std::uint8_t> looping(4096);
  looping[0x06] = 0x10, looping[0x34] = 0x40, looping[0x40] = 0x05, looping[0x41] = 0x40;
  looping[0x100] = 0x01, looping[0x102] = 0x01, looping[0x103] = 0x10;
  EXPECT_FALSE(parse_pcie_control(looping));
  EXPECT_FALSE(parse_acs(looping)->is_present);
}

TEST(pci_tree, addresses_and_speeds) {
  EXPECT_EQ(sysfs_address("00000000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(sysfs_address("0009:01:00.0"), "0009:01:00.0");
  EXPECT_EQ(sysfs_address("00010000:01:00.0"), "10000:01:00.0");
  EXPECT_TRUE(is_pci_address("10000:e1:00.0"));
  EXPECT_FALSE(is_pci_address("pci0000:00"));
  EXPECT_FALSE(is_pci_address("../x"));
  EXPECT_EQ(parse_link_speed("32.0 GT/s PCIe"), 32);
  EXPECT_EQ(parse_link_speed("8 GT/s"), 8);
  EXPECT_EQ(parse_link_speed("Unknown"), 0);
}

TEST(sysfs_text, numbers_in_names_sort_as_numbers) {
  EXPECT_TRUE(natural_less("mlx5_2", "mlx5_10"));
  EXPECT_FALSE(natural_less("mlx5_10", "mlx5_2"));
  EXPECT_TRUE(natural_less("mlx5_1", "mlx5_bond_0"));
  EXPECT_FALSE(natural_less("eth0", "eth0"));
}

}  // namespace
}  // namespace pl::tools::topo
