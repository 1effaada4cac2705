// SPDX-License-Identifier: Apache-2.0
// What the kernel, its modules and this process's limits allow, as far as it decides about messages between GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pl::tools::topo {

struct host_facts {
  std::string kernel;          // "5.15.0"
  std::string driver_version;  // of NVIDIA's kernel driver; empty: not loaded
  bool is_driver_open = false;
  bool has_peermem = false;  // nvidia-peermem, or nv_peer_mem before it
  bool is_virtual_machine = false;

  // Nothing: not known.
  std::optional<std::uint64_t> memlock_bytes;  // UINT64_MAX: unlimited
  std::optional<std::uint64_t> shm_bytes;
  std::optional<int> ptrace_scope;  // Yama; 0 without Yama
  std::optional<bool> cma_works;    // process_vm_readv is there and no filter refuses it
};

// dma-buf export of GPU memory to verbs: Linux 5.12 and NVIDIA's open kernel modules.
bool has_dmabuf(const host_facts& host);

host_facts read_live_host();

// The parts that are files, from a given /proc and /sys: live and recorded ones alike.
void read_host_files(const std::string& proc_root, const std::string& sysfs_root, host_facts& out);

// "Max locked memory  8388608  8388608  bytes" of /proc/self/limits: the soft limit.
std::optional<std::uint64_t> parse_memlock(const std::string& limits_text);

}  // namespace pl::tools::topo
