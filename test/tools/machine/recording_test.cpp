// SPDX-License-Identifier: Apache-2.0
#include "test/tools/machine/laid_out_machine.hpp"

namespace pl::tools::topo {
namespace {

std::string everything_told(const machine& all) {
  std::string out = render(relate_all(all));
  const auto advice = advise(all);
  for (const auto& line : explain(all, advice)) out += line + "\n";
  for (const auto& one : check(all, advice, 8)) out += one.subject + ": " + one.message + "\n";
  return out;
}

TEST(recording, of_a_laid_out_machine_is_that_machine) {
  for (const char* name :
       {"dgx_h100", "dgx_a100", "two_socket_one_hca", "epyc_workstation", "cloud_vm", "laptop", "grace_hopper"}) {
    const auto& first = machine_named(name);
    const laid_out_machine second(write_recording(first.all));
    EXPECT_EQ(everything_told(first.all), everything_told(second.all)) << name;
  }
}

TEST(recording, has_no_hardware_addresses) {
  EXPECT_EQ(without_hardware_address("enx0c42a1b2c3d4", "net0"), "net0");
  EXPECT_EQ(without_hardware_address("ibx0c42a10300b2c3d4", "rdma0"), "rdma0");
  EXPECT_EQ(without_hardware_address("mlx5_0", "rdma0"), "mlx5_0");
  EXPECT_EQ(without_hardware_address("enp24s0f0np0", "net0"), "enp24s0f0np0");
}

TEST(recording, keeps_no_words_of_a_kernel_release) {
  laid_out_machine one(text_of(machine_file("laptop")));
  one.all.host.kernel = "6.5.0-somebodys-machine";
  const auto text = write_recording(one.all);
  EXPECT_NE(text.find("osrelease = 6.5.0\n"), std::string::npos) << text;
}

TEST(recording, refuses_what_leads_out_of_the_folder_or_makes_no_sense) {
  const laid_out_machine target(std::string(kRecordingHeader) + "\n");
  const auto refused = [&](const std::string& line) {
    return !expand_recording(std::string(kRecordingHeader) + "\n" + line + "\n", target.folder());
  };
  EXPECT_TRUE(refused("file ../outside = 1"));
  EXPECT_TRUE(refused("file /outside = 1"));
  EXPECT_TRUE(refused("device ../../0000:01:00.0 | class=0"));
  EXPECT_TRUE(refused("device pci0000:00/0000:01:00.0 | ../../outside=1"));
  EXPECT_TRUE(refused("device pci0000:00/nonsense | class=0"));
  EXPECT_TRUE(refused("device pci0000:00/0000:01:00.0 | @nothing"));
  EXPECT_TRUE(refused("device pci0000:00/0000:02:00.0 | iommu_group=../../../x"));
  EXPECT_TRUE(refused("words"));
  EXPECT_FALSE(expand_recording("something else\n", target.folder()));
}

// A device whose folder is reached by another device's link lies less deep than its name.
TEST(recording, links_beside_links_stay_in_the_folder) {
  const laid_out_machine target(std::string(kRecordingHeader) + "\n");
  const std::filesystem::path outside = std::filesystem::path(target.folder()) / "bus/pci/devices/0000:00:09.0";
  const std::string inside = target.folder() + "/inside";
  std::filesystem::create_directories(outside);
  std::filesystem::create_directory(inside);
  (void)expand_recording(std::string(kRecordingHeader) +
                             "\ndevice 0000:00:02.0 | class=0\n"
                             "device 0000:00:03.0 | physfn=0000:00:02.0\n"
                             "device 0000:00:03.0/physfn/0000:00:04.0 | physfn=0000:00:09.0\n"
                             "file devices/0000:00:03.0/physfn/0000:00:04.0/physfn/secret = 1\n",
                         inside);
  EXPECT_TRUE(std::filesystem::is_empty(outside));
}

}  // namespace
}  // namespace pl::tools::topo
