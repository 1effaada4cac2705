// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/diagnosis.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/text.hpp"

namespace pl::tools {
namespace {

constexpr int kOldestDriverMajor = 525;                  // older resource managers lack calls that the rm backend makes
constexpr std::uint64_t kSmallBar1Bytes = 512ull << 20;  // boards without resizable BAR show 128 or 256 MiB

using findings = std::vector<finding>;

void diagnose_nodes(const doctor_facts& facts, findings& out) {
  const auto is_there = [](const device_node& node) { return node.exists; };
  if (std::none_of(facts.nvidia_nodes.begin(), facts.nvidia_nodes.end(), is_there)) {
    if (facts.in_container)
      add_finding(
          out, severity::blocker, "device nodes", "this container has no /dev/nvidia*",
          "start it with the GPUs: --gpus all (NVIDIA container toolkit), or --device /dev/nvidiactl --device /dev/nvidia0 "
          "--device /dev/nvidia-uvm");
    else
      add_finding(out, severity::blocker, "device nodes", "there is no /dev/nvidia* node",
                  facts.kernel_driver_loaded
                      ? "run nvidia-modprobe -c 0 -u as root, or nvidia-smi once as root: either makes the nodes"
                      : "load the NVIDIA kernel driver (modprobe nvidia)");
    return;
  }
  std::string closed;
  for (const auto& node : facts.nvidia_nodes)
    if (node.exists && !node.accessible) closed += (closed.empty() ? "" : ", ") + node.path;
  if (!closed.empty())
    add_finding(out, severity::blocker, "permissions",
                format("this user may not open %s for reading and writing", closed.c_str()),
                "chmod 0666 on the nodes, or join the group that owns them (ls -l shows it; often video or render)");
  else
    add_finding(out, severity::ok, "device nodes",
                format("%zu NVIDIA device nodes can be opened", facts.nvidia_nodes.size()));
}

void diagnose_driver(const doctor_facts& facts, findings& out) {
  if (!facts.kernel_driver_loaded) {
    add_finding(
        out, severity::blocker, "kernel driver", "the NVIDIA kernel driver is not loaded (no /proc/driver/nvidia/version)",
        facts.in_container ? "load it on the host; a container uses the host's" : "install it, then modprobe nvidia");
    return;
  }
  const auto& text = facts.kernel_driver_version;
  const auto major = parse_integer(text.substr(0, text.find('.'))).value_or(0);  // 0: no number at all, older than any
  const char* version = facts.kernel_driver_version.c_str();
  if (major > 0 && major < kOldestDriverMajor)
    add_finding(out, severity::blocker, "kernel driver", format("driver %s is older than %d", version, kOldestDriverMajor),
                format("install driver %d or newer, or the gdrdrv module", kOldestDriverMajor));
  else if (facts.driver_abi == doctor_facts::abi::unknown && facts.rm_forced)
    add_finding(out, severity::note, "driver ABI",
                format("driver %s is not a release whose ABI is known; PEERLANE_RM_FORCE=1 is set, "
                       "every mapping is verified by a nonce",
                       version));
  else if (facts.driver_abi == doctor_facts::abi::unknown)
    add_finding(out, severity::note, "driver ABI",
                format("driver %s is not a release whose ABI is known to the rm backend", version),
                "set PEERLANE_RM_FORCE=1 to try it with every mapping verified, update Peerlane, or use the gdrdrv module");
  else
    add_finding(
        out, severity::ok, "kernel driver",
        format("driver %s, ABI %s", version,
               facts.driver_abi == doctor_facts::abi::measured ? "measured on hardware" : "read in its published sources"));
}

void diagnose_gpu(const doctor_facts& facts, findings& out) {
  if (!facts.libcuda_opens)
    add_finding(out, severity::blocker, "libcuda",
                format("libcuda.so.1 cannot be opened: %s", facts.libcuda_problem.c_str()),
                facts.in_container
                    ? "run the container with the NVIDIA toolkit and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
                    : "install the driver's user-space library (Debian: libcuda1), the same version as the kernel driver");
  else if (!facts.gpu_answers)
    add_finding(out, severity::blocker, "GPU", format("no GPU answers: %s", facts.gpu_problem.c_str()),
                "compare nvidia-smi; check CUDA_VISIBLE_DEVICES and that kernel driver and libcuda have the same version");
  else add_finding(out, severity::ok, "GPU", "CUDA starts and sees a GPU");
}

void diagnose_bar1(const doctor_facts& facts, findings& out) {
  if (facts.mig_enabled)
    add_finding(out, severity::note, "MIG", "MIG is on: the driver limits peer mappings of GPU instances",
                "if mapping fails, switch it off (nvidia-smi -i N -mig 0, as root) or use the gdrdrv module");
  if (facts.bar1_bytes == 0) return;
  if (facts.bar1_bytes < kSmallBar1Bytes)
    add_finding(
        out, severity::note, "BAR1",
        format("BAR1 is %s: at most that much GPU memory can be mapped at a time", format_size(facts.bar1_bytes).c_str()),
        "enable Resizable BAR / Above 4G Decoding in the firmware, or map smaller pieces");
  else if (facts.memory_bytes != 0 && facts.bar1_bytes < facts.memory_bytes)
    add_finding(out, severity::note, "BAR1",
                format("BAR1 (%s) is smaller than GPU memory: not all of it can be mapped at once",
                       format_size(facts.bar1_bytes).c_str()));
  else add_finding(out, severity::ok, "BAR1", format("BAR1 is %s", format_size(facts.bar1_bytes).c_str()));
}

void diagnose_cpu(const doctor_facts& facts, findings& out) {
  if (!facts.x86 || facts.has_movdir64b)
    return add_finding(out, severity::ok, "CPU",
                       facts.x86 ? "the CPU has MOVDIR64B: 64-byte writes are single bus writes" : "copies use NEON");
  if (facts.has_avx512)
    return add_finding(out, severity::ok, "CPU", "no MOVDIR64B; AVX-512 stores fill write-combining lines whole");
  add_finding(out, severity::note, "CPU",
              format("neither MOVDIR64B nor AVX-512: copies use %s", facts.has_avx2 ? "AVX2" : "SSE"),
              "nothing to fix; small reads and message rates are lower than on newer CPUs");
}

void diagnose_backends(const doctor_facts& facts, findings& out) {
  std::string names, reasons;
  for (const auto& backend : facts.backends) {
    if (backend.usable) names += (names.empty() ? "" : ", ") + backend.name;
    else reasons += (reasons.empty() ? "" : "; ") + backend.name + ": " + backend.reason;
  }
  if (!names.empty()) add_finding(out, severity::ok, "mapping", format("usable mapping backends: %s", names.c_str()));
  else
    add_finding(out, severity::blocker, "mapping", format("no mapping backend is usable (%s)", reasons.c_str()),
                "deal with the findings above; PEERLANE_BACKEND must be auto or name a usable one");
}

void diagnose_channels(const doctor_facts& facts, findings& out) {
  if (facts.channels.name.empty()) return;
  if (facts.channels.usable)
    return add_finding(out, severity::ok, "DMA channels", "copies can use the GPU's copy engines without CUDA");
  add_finding(out, severity::note, "DMA channels", format("none: %s", facts.channels.reason.c_str()),
              "nothing has to be done: copies use the CPU, the copy kernel and CUDA");
}

// Decides as device::session::open does (docs/device.md).
void diagnose_kernel_puts(const doctor_facts& facts, findings& out) {
  constexpr const char* kSubject = "kernel puts";
  if (facts.channels.name.empty()) return;
  const bool wants_proxy = facts.device_rings == "proxy";
  if (facts.channels.usable && !wants_proxy)
    return add_finding(out, severity::ok, kSubject, "transfers that kernels start go by DMA channels: no CPU takes part");
  const std::string reason = wants_proxy ? "PEERLANE_DEVICE_RINGS=proxy asks for it"
                                         : format("there are no DMA channels (%s)", facts.channels.reason.c_str());
  if (facts.device_rings == "dma")
    return add_finding(out, severity::note, kSubject,
                       format("transfers that kernels start are refused: PEERLANE_DEVICE_RINGS=dma, and %s", reason.c_str()),
                       "PEERLANE_DEVICE_RINGS=auto: the CPU proxy executes them if DMA channels are not available");
  if (!facts.has_stream_writes)
    return add_finding(out, severity::note, kSubject,
                       format("transfers that kernels start are not available: the CPU proxy would execute them, since %s, "
                              "and this CUDA driver has no stream memory operations for it",
                              reason.c_str()),
                       "use a newer driver");
  add_finding(out, severity::note, kSubject, format("transfers that kernels start go by the CPU proxy: %s", reason.c_str()),
              facts.channels.usable ? "PEERLANE_DEVICE_RINGS=auto gives them a copy engine"
                                    : "nothing has to be done: the same calls work, but take a thread of the CPU, and GPU "
                                      "memory of other processes is not reached");
}

}  // namespace

std::vector<finding> diagnose(const doctor_facts& facts) {
  findings out;
  if (!facts.simulated) {
    diagnose_driver(facts, out);
    diagnose_nodes(facts, out);
    diagnose_gpu(facts, out);
    diagnose_bar1(facts, out);
    diagnose_gdrdrv(facts, out);
  } else {
    add_finding(out, severity::note, "GPU",
                "the simulated GPU is in use (PEERLANE_GPU=sim): nothing is said about real hardware");
  }
  diagnose_cpu(facts, out);
  diagnose_backends(facts, out);
  diagnose_channels(facts, out);
  diagnose_kernel_puts(facts, out);
  if (!facts.simulated) compare_backends(facts, out);
  return out;
}

bool is_ready(const std::vector<finding>& all) {
  return std::none_of(all.begin(), all.end(), [](const finding& one) { return one.level == severity::blocker; });
}

std::string verdict(const doctor_facts& facts, const std::vector<finding>& all) {
  if (!is_ready(all)) return "not ready: deal with the BLOCKER lines in their order";
  if (!facts.simulated) return "ready: GPU memory can be mapped on this machine";
  return format(
      "this is the simulated GPU: programs run on it, and it says nothing about this machine's hardware\n"
      "a real GPU needs NVIDIA's driver (%d or newer), its libcuda.so.1, and /dev/nvidia* nodes that this user may open; "
      "PEERLANE_GPU=real peerlane doctor checks them",
      kOldestDriverMajor);
}

}  // namespace pl::tools
