// SPDX-License-Identifier: Apache-2.0
// info: the GPUs and libraries found. Fails only without any GPU, real or simulated.
#include "tools/machine/info.hpp"

#include <cstdio>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "map/backend.hpp"
#include "measure/text_table.hpp"
#include "os/topology.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/nvml.hpp"
#include "tools/common/pci_facts.hpp"
#include "tools/common/report.hpp"

namespace pl::tools {
namespace {

using nlohmann::json;
using align = text_table::align;

std::string link_text(const pcie_link& link) {
  return format("gen %u x%u now, gen %u x%u at most", link.generation_now, link.width_now, link.generation_max,
                link.width_max);
}

std::string gib_text(std::uint64_t bytes) { return format("%.1f GiB", static_cast<double>(bytes) / 1073741824.0); }

// One GPU's row: text for the table, numbers for the result file.
json describe_device(const cu::driver_table& cuda, int ordinal, const topology& machine) {
  cu::device_t device = 0;
  std::size_t memory_bytes = 0;
  char name[256] = "unknown";
  int major = 0, minor = 0;
  cuda.cuDeviceGet(&device, ordinal);
  cuda.cuDeviceGetName(name, sizeof name, device);
  cuda.cuDeviceTotalMem_v2(&memory_bytes, device);
  cuda.cuDeviceGetAttribute(&major, cu::device_attribute::compute_capability_major, device);
  cuda.cuDeviceGetAttribute(&minor, cu::device_attribute::compute_capability_minor, device);
  const std::string bus_id = pci_bus_id(cuda, ordinal);
  const auto near = machine.near_pci_device(bus_id);
  json row{{"kind", "gpu"},
           {"ordinal", ordinal},
           {"name", name},
           {"bus_id", bus_id},
           {"memory_bytes", memory_bytes},
           {"compute_capability", format("%d.%d", major, minor)},
           {"near_cpus_known", near.known},
           {"near_cpus", format_cpu_list(near.cpus)},
           {"numa_node", near.numa_node},
           {"locality_remark", near.remark}};
  if (const auto bar1 = cuda.is_simulated ? std::nullopt : bar1_size_bytes(bus_id)) row["bar1_bytes"] = *bar1;
  std::string why_no_nvml = "simulated";
  const auto nvml = cuda.is_simulated ? std::nullopt : nvml_device::open(bus_id, &why_no_nvml);
  if (!nvml) {
    row["nvml"] = why_no_nvml;
    return row;
  }
  row["nvml"] = "ok";
  if (const auto use = nvml->bar1()) row["bar1_bytes"] = use->total_bytes, row["bar1_used_bytes"] = use->used_bytes;
  if (const auto link = nvml->link()) row["pcie_link"] = link_text(*link);
  if (const auto clocks = nvml->clocks()) row["sm_clock_mhz"] = clocks->sm_mhz, row["memory_clock_mhz"] = clocks->memory_mhz;
  if (const auto mig = nvml->mig_enabled()) row["mig_enabled"] = *mig;
  return row;
}

void print_device(const json& row) {
  std::printf("GPU %d: %s\n", row["ordinal"].get<int>(), row["name"].get<std::string>().c_str());
  const auto line = [](const char* label, const std::string& text) { std::printf("  %-14s %s\n", label, text.c_str()); };
  line("PCI bus id", row["bus_id"]);
  line("memory", format("%s, compute capability %s", gib_text(row["memory_bytes"]).c_str(),
                        row["compute_capability"].get<std::string>().c_str()));
  if (!row.contains("bar1_bytes")) line("BAR1", "unknown: sysfs and NVML do not show this device");
  else if (row.contains("bar1_used_bytes"))
    line("BAR1", format("%s, %s in use", gib_text(row["bar1_bytes"]).c_str(), format_size(row["bar1_used_bytes"]).c_str()));
  else line("BAR1", gib_text(row["bar1_bytes"]));
  line("PCIe link",
       row.contains("pcie_link") ? row["pcie_link"].get<std::string>() : "unknown: " + row["nvml"].get<std::string>());
  const int node = row["numa_node"];
  const std::string remark = row["locality_remark"];
  line("near CPUs",
       format("%s%s, NUMA node %s", row["near_cpus_known"].get<bool>() ? "" : "unknown; usable: ",
              row["near_cpus"].get<std::string>().c_str(), node < 0 ? "unknown" : std::to_string(node).c_str()));
  if (!remark.empty()) line("", remark);
  if (row.contains("mig_enabled")) line("MIG", row["mig_enabled"].get<bool>() ? "on" : "off");
}

}  // namespace

void print_machine(const gpu_session& gpu, result_file& results) {
  const auto& cuda = gpu.cuda();
  const auto machine = must(topology::load());
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda, gpu.ordinal());
  std::printf("peerlane      %s (%s)\n", facts.peerlane_version.c_str(), facts.git_revision.c_str());
  std::printf("host          %s, %s\n", facts.kernel.c_str(), facts.cpu_model.c_str());
  std::printf("CPUs          %s usable, %d NUMA node%s\n", format_cpu_list(machine.allowed_cpus()).c_str(),
              machine.numa_node_count(), machine.numa_node_count() == 1 ? "" : "s");
  std::printf("driver        %s (%s), CUDA %d.%d\n", facts.driver_version.c_str(), facts.driver_flavor.c_str(),
              facts.cuda_version / 1000, facts.cuda_version % 1000 / 10);
  std::printf("CPU copies    writes %s, reads %s\n", arch::write_isa_name(), arch::read_isa_name());
  if (gpu.simulated() && !why_not_real().empty()) std::printf("no real GPU   %s\n", why_not_real().c_str());
  std::printf("\n");
  for (int ordinal = 0; ordinal < facts.gpu_count; ++ordinal) {
    json row = describe_device(cuda, ordinal, machine);
    print_device(row);
    results.add_row(std::move(row));
  }
  text_table table({{"mapping backend", align::left}, {"usable", align::left}, {"why not", align::left}});
  for (const auto& one : probe_backends()) {
    table.add_row({one.name, one.usable ? "yes" : "no", one.reason});
    results.add_row({{"kind", "backend"}, {"name", one.name}, {"usable", one.usable}, {"reason", one.reason}});
  }
  std::printf("\n%s", table.render().c_str());
}

int run_info(const invocation& call) {
  common_options options;
  command_parser parser(
      call, "Shows GPUs, BAR1, links, driver, near CPUs, and whether each mapping backend is usable, with the reason");
  parser.common(options);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "info");
  const gpu_session gpu(options.gpu, false);
  out.describe(&gpu, nullptr, format_cpu_list(cpus_of_this_thread()));
  print_machine(gpu, out.file());
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
