// SPDX-License-Identifier: Apache-2.0
// doctor: gathers the facts of this machine for diagnosis.cpp and prints its findings. Exit code 0: no blocker, 1: there is
// one.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "arch/cpu_features.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "copy/channel_source.hpp"
#include "map/backend.hpp"
#include "measure/machine.hpp"
#include "rm/rm_client.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/nvml.hpp"
#include "tools/common/pci_facts.hpp"
#include "tools/common/report.hpp"
#include "tools/common/terminal.hpp"
#include "tools/machine/diagnosis.hpp"

namespace pl::tools {
namespace {

device_node inspect_node(const std::string& path) {
  struct stat facts {};
  return {path, stat(path.c_str(), &facts) == 0, access(path.c_str(), R_OK | W_OK) == 0};
}

std::vector<device_node> nvidia_nodes() {
  std::vector<device_node> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    const bool numbered =
        name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (name == "nvidiactl" || numbered) out.push_back(inspect_node(entry.path()));
  }
  return out;
}

bool in_container() {
  return access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0 ||
         access("/run/systemd/container", F_OK) == 0;
}

void gather_gpu(doctor_facts& facts) {
  const auto cuda = cu::driver();
  if (!cuda || !cu::initialize(**cuda)) return;
  cu::device_t device = 0;
  std::size_t memory_bytes = 0;
  if ((*cuda)->cuDeviceGet(&device, 0) != 0) return;
  (*cuda)->cuDeviceTotalMem_v2(&memory_bytes, device);
  facts.memory_bytes = memory_bytes;
  const std::string bus_id = pci_bus_id(**cuda, 0);
  if (const auto bytes = bar1_size_bytes(bus_id)) facts.bar1_bytes = *bytes;
  const auto nvml = nvml_device::open(bus_id, nullptr);
  if (!nvml) return;
  if (const auto use = nvml->bar1()) facts.bar1_bytes = use->total_bytes;
  facts.mig_enabled = nvml->mig_enabled().value_or(false);
}

void gather_driver(doctor_facts& facts) {
  const auto kernel = read_kernel_driver();
  facts.kernel_driver_loaded = access("/proc/driver/nvidia/version", R_OK) == 0;
  facts.kernel_driver_version = kernel.version;
  switch (rm::abi_of(kernel.version)) {
    case rm::abi_knowledge::measured:
      facts.driver_abi = doctor_facts::abi::measured;
      break;
    case rm::abi_knowledge::read:
      facts.driver_abi = doctor_facts::abi::read;
      break;
    case rm::abi_knowledge::unknown:
      facts.driver_abi = doctor_facts::abi::unknown;
      break;
  }
  facts.rm_forced = env_read("PEERLANE_RM_FORCE").integer != 0;
  facts.nvidia_nodes = nvidia_nodes();
  facts.gdrdrv = inspect_node("/dev/gdrdrv");
  facts.module = read_gdrdrv_facts("/");
}

// Without a CUDA context, which would take a quarter of a second and memory of the GPU.
status try_channel() {
  const auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  if (auto ready = cu::initialize(**cuda); !ready) return ready;
  const auto source = copy::channel_source::open(**cuda, 0);
  if (!source) return source.error();
  dma::channel_options options;
  options.engine = source->engines.front();
  const auto opened = dma::channel::open(source->addresses, options);
  return opened ? status() : opened.error();
}

doctor_facts gather() {
  doctor_facts facts;
  facts.in_container = in_container();
  const auto cpu = arch::detect_cpu_features();
#if !defined(__x86_64__)
  facts.x86 = false;
#endif
  facts.has_movdir64b = cpu.movdir64b;
  facts.has_avx512 = cpu.avx512;
  facts.has_avx2 = cpu.avx2;
  facts.simulated = env_read("PEERLANE_GPU").text == "sim";
  facts.device_rings = env_read("PEERLANE_DEVICE_RINGS").text;
  gather_driver(facts);
  if (facts.simulated) {
    must(choose_gpu());
  } else {
    const real_gpu_probe probe = probe_real_gpu();
    facts.libcuda_opens = probe.library_opens;
    facts.gpu_answers = probe.usable;
    (probe.library_opens ? facts.gpu_problem : facts.libcuda_problem) = probe.reason;
    if (probe.usable) gather_gpu(facts);
  }
  if (facts.simulated || facts.gpu_answers) {
    const status tried = try_channel();
    facts.channels = {"dma", tried.ok(), tried ? "" : tried.error().message};
    if (const auto cuda = cu::driver(); cuda) facts.has_stream_writes = (*cuda)->cuStreamWriteValue32_v2 != nullptr;
  }
  for (const auto& one : probe_backends()) facts.backends.push_back({one.name, one.usable, one.reason});
  return facts;
}

const char* severity_word(severity level) {
  switch (level) {
    case severity::ok:
      return "ok";
    case severity::note:
      return "note";
    case severity::blocker:
      return "BLOCKER";
  }
  return "";
}

colour shade(severity level) {
  return level == severity::ok ? colour::good : level == severity::note ? colour::warning : colour::bad;
}

}  // namespace

int run_doctor(const invocation& call) {
  common_options options;
  command_parser parser(
      call,
      "Finds what prevents fast access to GPU memory on this machine, and names the fix for each finding. Exit code 0: "
      "the GPU that PEERLANE_GPU selects is usable, 1: it is not");
  parser.common(options, false);
  if (const auto code = parser.parse()) return *code;
  report out(call, options, "doctor");
  const doctor_facts facts = gather();
  print_header_if_simulated();
  const auto findings = diagnose(facts);
  for (const auto& one : findings) {
    std::printf("%s %-14s %s\n", paint(shade(one.level), format("%-8s", severity_word(one.level))).c_str(),
                one.subject.c_str(), one.message.c_str());
    if (!one.fix.empty()) std::printf("%-8s %-14s -> %s\n", "", "", one.fix.c_str());
    out.file().add_row(
        {{"level", severity_word(one.level)}, {"subject", one.subject}, {"what", one.message}, {"fix", one.fix}});
  }
  const bool ready = is_ready(findings);
  const auto shade = !ready ? colour::bad : facts.simulated ? colour::warning : colour::good;
  std::printf("\n%s\n", paint(shade, verdict(facts, findings)).c_str());
  out.file().set_pass(ready);
  machine_facts machine = describe_host();
  machine.simulated = facts.simulated;
  out.file().set_machine(machine);
  out.write();
  return ready ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
