// SPDX-License-Identifier: Apache-2.0
#include "test/tools/machine/laid_out_machine.hpp"

namespace pl::tools::topo {
namespace {

std::vector<finding> findings_of(const std::string& text, int ranks = 1) {
  const auto& one = laid_out(text);
  return check(one.all, advise(one.all), ranks);
}

// The machine with every `from` in its text made `to`.
std::string changed(const std::string& name, const std::string& source, const std::string& destination) {
  auto text = text_of(machine_file(name));
  bool has_any = false;
  for (auto found = text.find(source); found != std::string::npos; found = text.find(source, found + destination.size())) {
    text.replace(found, source.size(), destination);
    has_any = true;
  }
  EXPECT_TRUE(has_any) << source;
  return text;
}

TEST(checks, a_healthy_dgx_has_nothing_to_mend) {
  for (const auto& one : findings_of(text_of(machine_file("dgx_h100")), 8)) {
    EXPECT_EQ(one.level, severity::ok) << one.subject << ": " << one.message;
    EXPECT_EQ(one.fix, "");
  }
}

TEST(checks, every_problem_comes_with_its_fix) {
  for (const char* name : {"two_socket_one_hca", "epyc_workstation", "cloud_vm", "laptop", "grace_hopper", "dgx_a100"})
    for (const auto& one : findings_of(text_of(machine_file(name)), 16))
      EXPECT_EQ(one.level == severity::ok, one.fix.empty()) << name << " " << one.subject << ": " << one.message;
}

TEST(checks, acs_that_redirects_below_the_root_is_a_blocker) {
  const auto all = findings_of(changed("dgx_h100", "config.acs=0x0000", "config.acs=0x001d"));
  EXPECT_EQ(finding_text(all, "ACS"),
            "BLOCKER: ACS sends peer-to-peer traffic up to the root complex at 0000:17:00.0, 0000:17:01.0, 0000:3f:00.0, "
            "0000:3f:01.0 and 12 more");
  EXPECT_NE(find_finding(all, "ACS")->fix.find("ECAP_ACS+0x6.w=0000"), std::string::npos);
}

TEST(checks, acs_is_not_known_without_root) {
  const auto all = findings_of(changed("dgx_h100", "config=readable", "config=short"));
  EXPECT_EQ(finding_text(all, "ACS").substr(0, 17), "note: not known a");
}

TEST(checks, iommu_that_translates) {
  const auto all = findings_of(text_of(machine_file("two_socket_one_hca")));
  EXPECT_EQ(finding_text(all, "IOMMU").substr(0, 44), "note: it translates addresses of 0000:17:00.");
  EXPECT_EQ(finding_text(findings_of(changed("two_socket_one_hca", "= DMA-FQ", "= identity")), "IOMMU"),
            "ok: on, but it passes addresses of GPUs and adapters through");
}

TEST(checks, lanes_and_speed) {
  const auto all = findings_of(text_of(machine_file("two_socket_one_hca")));
  EXPECT_EQ(finding_text(all, "link width"),
            "note: fewer lanes than the device has: 0000:31:00.0 16 GT/s x8 of 16 GT/s x16");
  EXPECT_EQ(finding_text(all, "link speed"), "note: slower than the GPU can: 0000:b1:00.0 2.5 GT/s x16 of 16 GT/s x16");
}

TEST(checks, a_slow_switch_above_an_adapter_is_found) {
  auto text = text_of(machine_file("dgx_h100"));
  const std::string line = "device pci0000:15/0000:15:01.0/0000:16:00.0 | @port";
  text.replace(text.find(line), line.size(), line + " | current_link_speed=8.0 GT/s PCIe");
  const laid_out_machine one(text);
  EXPECT_EQ(finding_text(check(one.all, advise(one.all), 8), "link speed"),
            "note: slower than the device can: 0000:16:00.0 8 GT/s x16 of 32 GT/s x16");
  EXPECT_EQ(one.all.tree.narrowest_link(one.all.device_of(one.all.gpus[0])).gt_per_s, 8);
}

TEST(checks, settings_of_adapters) {
  const auto all = findings_of(text_of(machine_file("two_socket_one_hca")));
  EXPECT_EQ(finding_text(all, "MaxReadReq"), "note: small read requests: mlx5_0 (128 bytes), mlx5_1 (128 bytes)");
  EXPECT_EQ(finding_text(all, "ordering"), "note: relaxed ordering is off for mlx5_0, mlx5_1");
}

TEST(checks, ports) {
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("two_socket_one_hca"))), "HCA ports"),
            "note: not active: mlx5_1:1 (1: DOWN)");
  EXPECT_EQ(finding_text(findings_of(changed("cloud_vm", "4: ACTIVE", "2: INIT")), "HCA ports"),
            "BLOCKER: not active: mlx5_0:1 (2: INIT)");
}

TEST(checks, gpudirect_needs_a_module_or_dmabuf) {
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("two_socket_one_hca"))), "GPUDirect RDMA"),
            "BLOCKER: neither nvidia-peermem nor dma-buf: proprietary kernel modules on kernel 4.18.0");
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("cloud_vm"))), "GPUDirect RDMA"),
            "ok: by dma-buf: open kernel modules on kernel 5.15.0");
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("dgx_a100"))), "GPUDirect RDMA"), "ok: nvidia-peermem is loaded");
}

TEST(checks, dmabuf_begins_with_linux_5_12) {
  host_facts host;
  host.is_driver_open = true;
  for (const auto& [kernel, is_there] : {std::pair{"5.11.0", false}, {"5.12.0", true}, {"6.1.0", true}, {"", false}}) {
    host.kernel = kernel;
    EXPECT_EQ(has_dmabuf(host), is_there) << kernel;
  }
}

TEST(checks, bar1_against_memory) {
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("laptop"))), "BAR1"),
            "note: smaller than the GPU's memory: GPU0 256 of 8192 MiB");
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("dgx_h100"))), "BAR1"), "ok: as large as the memory of each GPU");
}

TEST(checks, limits) {
  const auto all = findings_of(text_of(machine_file("two_socket_one_hca")));
  EXPECT_EQ(finding_text(all, "memlock"),
            "BLOCKER: only 64 KiB may be locked: verbs cannot register their queues and buffers");
  EXPECT_EQ(finding_text(all, "/dev/shm").substr(0, 15), "BLOCKER: 64 MiB");
  EXPECT_EQ(finding_text(all, "CMA").substr(0, 44), "note: kernel.yama.ptrace_scope is 1: a proce");
  EXPECT_EQ(finding_text(findings_of(changed("dgx_h100", "cma_works = 1", "cma_works = 0")), "CMA").substr(0, 30),
            "note: process_vm_readv is refu");
  EXPECT_FALSE(parse_memlock("nothing"));
}

TEST(checks, ranks_that_share_gpus) {
  const auto text = text_of(machine_file("laptop"));
  EXPECT_EQ(finding_text(findings_of(text, 1), "sharing"), "absent");
  EXPECT_EQ(finding_text(findings_of(text, 2), "sharing"),
            "note: 2 ranks share 1 GPU: their kernels take turns in time slices");
}

TEST(checks, nodes_that_are_not_told) {
  EXPECT_EQ(finding_text(findings_of(text_of(machine_file("cloud_vm"))), "NUMA").substr(0, 36),
            "note: the machine has 2 NUMA nodes, ");
}

}  // namespace
}  // namespace pl::tools::topo
