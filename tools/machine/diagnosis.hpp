// SPDX-License-Identifier: Apache-2.0
// What keeps a machine from the fast path: facts in, findings out. Pure, so that tests can describe any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/machine/gdrdrv_facts.hpp"

namespace pl::tools {

struct device_node {
  std::string path;
  bool exists = false;
  bool accessible = false;  // read and write, for this user
};

struct backend_state {
  std::string name;
  bool usable = false;
  std::string reason;
};

struct doctor_facts {
  bool simulated = false;  // the question is about the simulated GPU
  bool libcuda_opens = false;
  std::string libcuda_problem;
  bool gpu_answers = false;  // cuInit works and there is a device
  std::string gpu_problem;
  bool in_container = false;
  bool kernel_driver_loaded = false;  // /proc/driver/nvidia/version is there
  std::string kernel_driver_version;  // "580.95.05"
  enum class abi { measured, read, unknown } driver_abi = abi::unknown;
  bool rm_forced = false;                 // PEERLANE_RM_FORCE=1
  std::vector<device_node> nvidia_nodes;  // nvidiactl and nvidia<minor>; empty: none found
  device_node gdrdrv;
  gdrdrv_facts module;
  bool mig_enabled = false;
  std::uint64_t bar1_bytes = 0;    // 0: not known
  std::uint64_t memory_bytes = 0;  // of the same GPU
  bool x86 = true;
  bool has_movdir64b = false, has_avx512 = false, has_avx2 = false;
  std::vector<backend_state> backends;
  // Whether one of our DMA channels could be opened on the first GPU; `name` is empty if that was not tried.
  backend_state channels;
  std::string device_rings = "auto";  // PEERLANE_DEVICE_RINGS
  bool has_stream_writes = true;      // CUDA's stream memory operations, by which the CPU proxy answers kernels
};

enum class severity { ok, note, blocker };

struct finding {
  severity level = severity::ok;
  std::string subject;  // short, stable: "libcuda", "device nodes", ...
  std::string message;  // one sentence
  std::string fix;      // what to do; empty when nothing needs doing
};

inline void add_finding(std::vector<finding>& out, severity level, const char* subject, std::string message,
                        std::string fix = "") {
  out.push_back({level, subject, std::move(message), std::move(fix)});
}

// In the order in which a person should deal with them. No blocker: the machine is ready.
std::vector<finding> diagnose(const doctor_facts& facts);
bool is_ready(const std::vector<finding>& findings);

// The last line: what the findings mean. Only a real GPU is ever called ready.
std::string verdict(const doctor_facts& facts, const std::vector<finding>& findings);

// Parts of diagnose, in diagnosis_gdrdrv.cpp: the kernel module's state and what to do about it; what each backend gives and
// lacks, from the one in use on, and what those before it would have given.
void diagnose_gdrdrv(const doctor_facts& facts, std::vector<finding>& out);
void compare_backends(const doctor_facts& facts, std::vector<finding>& out);

}  // namespace pl::tools
