// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/host_facts.hpp"

#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <sstream>

#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

namespace fs = std::filesystem;

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build": the first word of dotted digits.
std::string version_in(const std::string& text) {
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  return "";
}

bool process_vm_readv_works() {
  char source = 1, destination = 0;
  const iovec local{&destination, 1}, remote{&source, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

}  // namespace

bool has_dmabuf(const host_facts& host) {
  int major = 0, minor = 0;
  if (std::sscanf(host.kernel.c_str(), "%d.%d", &major, &minor) != 2) return false;
  return host.is_driver_open && (major > 5 || (major == 5 && minor >= 12));
}

std::optional<std::uint64_t> parse_memlock(const std::string& limits_text) {
  constexpr const char* kName = "Max locked memory";
  const auto found = limits_text.find(kName);
  if (found == std::string::npos) return std::nullopt;
  std::istringstream words(limits_text.substr(found + std::string(kName).size()));
  std::string soft;
  words >> soft;
  if (soft == "unlimited") return std::numeric_limits<std::uint64_t>::max();
  const auto bytes = leading_integer(soft);
  if (!bytes || *bytes < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*bytes);
}

void read_host_files(const std::string& proc_root, const std::string& sysfs_root, host_facts& out) {
  const fs::path proc(proc_root), sysfs(sysfs_root);
  out.kernel = read_text(proc / "sys/kernel/osrelease").value_or("");
  const std::string driver = read_text(proc / "driver/nvidia/version").value_or("");
  out.driver_version = version_in(driver);
  out.is_driver_open = driver.find("Open Kernel Module") != std::string::npos;
  out.has_peermem = fs::exists(sysfs / "module/nvidia_peermem") || fs::exists(sysfs / "module/nv_peer_mem");
  out.memlock_bytes = parse_memlock(read_text(proc / "self/limits").value_or(""));
  if (const auto scope = read_integer(proc / "sys/kernel/yama/ptrace_scope")) out.ptrace_scope = static_cast<int>(*scope);
}

host_facts read_live_host() {
  host_facts out;
  read_host_files("/proc", "/sys", out);
  if (!out.ptrace_scope) out.ptrace_scope = 0;
  out.is_virtual_machine = read_text("/proc/cpuinfo").value_or("").find(" hypervisor") != std::string::npos;
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) out.shm_bytes = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
  out.cma_works = process_vm_readv_works();
  return out;
}

}  // namespace pl::tools::topo
