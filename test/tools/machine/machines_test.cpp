// SPDX-License-Identifier: Apache-2.0
// The whole matrix of every recorded machine type.
#include <functional>

#include "test/tools/machine/laid_out_machine.hpp"

namespace pl::tools::topo {
namespace {

// "GPU0 X PHB\nGPU1 PHB X\n"
std::string cells(const machine& all) {
  const auto matrix = relate_all(all);
  std::string out;
  for (std::size_t row = 0; row < matrix.endpoints.size(); ++row) {
    out += matrix.endpoints[row].label;
    for (const auto& cell : matrix.cells[row]) out += " " + to_string(cell);
    out += "\n";
  }
  return out;
}

using rule = std::function<std::string(std::size_t, std::size_t)>;
std::string expected(std::size_t gpus, std::size_t adapters, const rule& wording) {
  std::string out;
  const auto label = [gpus](std::size_t i) {
    return i < gpus ? "GPU" + std::to_string(i) : "NIC" + std::to_string(i - gpus);
  };
  for (std::size_t row = 0; row < gpus + adapters; ++row) {
    out += label(row);
    for (std::size_t column = 0; column < gpus + adapters; ++column)
      out += " " + (row == column ? "X" : wording(row, column));
    out += "\n";
  }
  return out;
}

TEST(machines, dgx_h100) {
  const auto& one = machine_named("dgx_h100");
  // Adapter by number -> the GPU whose switch it shares; -1: a dual-port storage adapter of socket 0, -2 of socket 1.
  constexpr int kPartner[] = {0, -1, -1, 1, 2, 3, 4, -2, -2, 5, 6, 7};
  const auto partner = [&](std::size_t i) { return i < 8 ? static_cast<int>(i) : kPartner[i - 8]; };
  const auto socket = [&](std::size_t i) { return partner(i) < 0 ? -1 - partner(i) : partner(i) / 4; };
  EXPECT_EQ(cells(one.all), expected(8, 12, [&](std::size_t a, std::size_t b) -> std::string {
              if (a < 8 && b < 8) return "NV18";
              if (partner(a) == partner(b)) return "PIX";
              return socket(a) == socket(b) ? "NODE" : "SYS";
            }));
}

TEST(machines, dgx_a100) {
  const auto& one = machine_named("dgx_a100");
  const auto quarter = [](std::size_t i) { return i % 8 / 2; };
  EXPECT_EQ(cells(one.all), expected(8, 8, [&](std::size_t a, std::size_t b) -> std::string {
              if (a < 8 && b < 8) return "NV12";
              return quarter(a) == quarter(b) ? "PXB" : "SYS";
            }));
  EXPECT_EQ(one.all.device_of(one.all.gpus[0]).local_cpus, "48-63,176-191");
  EXPECT_EQ(one.all.device_of(one.all.gpus[2]).numa_node, 1);
}

TEST(machines, two_sockets_with_one_adapter) {
  EXPECT_EQ(cells(machine_named("two_socket_one_hca").all),
            "GPU0 X NODE SYS SYS PHB PHB\n"
            "GPU1 NODE X SYS SYS NODE NODE\n"
            "GPU2 SYS SYS X NODE SYS SYS\n"
            "GPU3 SYS SYS NODE X SYS SYS\n"
            "NIC0 PHB NODE SYS SYS X PIX\n"
            "NIC1 PHB NODE SYS SYS PIX X\n");
}

TEST(machines, epyc_workstation) {
  EXPECT_EQ(cells(machine_named("epyc_workstation").all),
            "GPU0 X NODE NODE NODE NODE\n"
            "GPU1 NODE X NODE NODE NODE\n"
            "GPU2 NODE NODE X PHB NODE\n"
            "GPU3 NODE NODE PHB X NODE\n"
            "NET0 NODE NODE NODE NODE X\n");
}

TEST(machines, cloud_with_a_flat_bus) {
  EXPECT_EQ(cells(machine_named("cloud_vm").all),
            "GPU0 X NV18 NV18 NV18 PHB PHB\n"
            "GPU1 NV18 X NV18 NV18 PHB PHB\n"
            "GPU2 NV18 NV18 X NV18 PHB PHB\n"
            "GPU3 NV18 NV18 NV18 X PHB PHB\n"
            "NIC0 PHB PHB PHB PHB X PHB\n"
            "NET0 PHB PHB PHB PHB PHB X\n");
}

TEST(machines, laptop) { EXPECT_EQ(cells(machine_named("laptop").all), "GPU0 X PHB\nNET0 PHB X\n"); }

TEST(machines, grace_hopper) {
  EXPECT_EQ(cells(machine_named("grace_hopper").all), "GPU0 X NODE NODE\nNIC0 NODE X NODE\nNIC1 NODE NODE X\n");
}

TEST(machines, text_has_the_columns_and_the_legend_of_nvidia_smi) {
  const auto& one = machine_named("laptop");
  const auto text = render(relate_all(one.all));
  EXPECT_TRUE(text.starts_with("\tGPU0\tNET0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-15\tN/A\n")) << text;
  EXPECT_NE(text.find("  PIX  = Connection traversing at most a single PCIe bridge\n"), std::string::npos);
}

TEST(machines, direct_links_count_only_those_to_the_other_gpu) {
  gpu a{"0000:06:00.0", {{nvlink_bundle::end::gpu, "0000:07:00.0", 2}, {nvlink_bundle::end::gpu, "0000:0a:00.0", 1}}, 0};
  gpu b{"0000:07:00.0", {{nvlink_bundle::end::gpu, "0000:06:00.0", 2}}, 0};
  gpu c{"0000:85:00.0", {{nvlink_bundle::end::gpu, "0000:0a:00.0", 4}}, 0};
  EXPECT_EQ(nvlinks_between(a, b), 2u);
  EXPECT_EQ(nvlinks_between(a, c), 0u);
}

TEST(machines, a_machine_without_anything) {
  const laid_out_machine one(std::string(kRecordingHeader) + "\n");
  EXPECT_EQ(cells(one.all), "");
  EXPECT_TRUE(advise(one.all).empty());
  EXPECT_TRUE(ready_lines(one.all, {}, 4).empty());
  check(one.all, {}, 0);
}

}  // namespace
}  // namespace pl::tools::topo
