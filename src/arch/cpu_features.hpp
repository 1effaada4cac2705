// SPDX-License-Identifier: Apache-2.0
// Which instructions the copies may use: what the CPU has *and* the operating system saves. Path grade: setup. The
// decoding is a pure function, so that tests can emulate any CPU.
#pragma once

#include <cstdint>

namespace pl::arch {

struct cpu_features {
  bool sse2 = false;
  bool sse41 = false;
  bool avx2 = false;
  bool avx512 = false;  // F and BW: 64-byte registers and byte masks
  bool movdir64b = false;
  bool neon = false;

  bool operator==(const cpu_features&) const = default;
};

// The registers that decide, as CPUID and XGETBV return them. A leaf above max_leaf must be 0.
struct x86_cpuid {
  std::uint32_t max_leaf = 0;
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf1_edx = 0;
  std::uint32_t leaf7_ebx = 0;  // subleaf 0
  std::uint32_t leaf7_ecx = 0;
  std::uint64_t xcr0 = 0;  // 0 if the OS has not enabled XGETBV (leaf 1 ECX.OSXSAVE)
};

cpu_features decode_x86(const x86_cpuid& cpuid);

// From AT_HWCAP.
cpu_features decode_arm64(unsigned long hwcap);

// Queries this CPU. Costs several CPUID, which trap to the hypervisor in a guest (tens of microseconds): call once.
cpu_features detect_cpu_features();

}  // namespace pl::arch
