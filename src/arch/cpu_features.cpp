// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace pl::arch {
namespace {

constexpr bool bit(std::uint32_t value, unsigned index) { return ((value >> index) & 1u) != 0; }

// State components of XCR0. An instruction set is usable only if *all* of its components are enabled: an OS (or a
// hypervisor) may save the upper halves of YMM but not the ZMM state, and then AVX-512 faults.
constexpr std::uint64_t kXcr0Sse = 1u << 1;
constexpr std::uint64_t kXcr0Avx = 1u << 2;
constexpr std::uint64_t kXcr0Opmask = 1u << 5;
constexpr std::uint64_t kXcr0ZmmHi256 = 1u << 6;
constexpr std::uint64_t kXcr0Hi16Zmm = 1u << 7;
constexpr std::uint64_t kXcr0ForAvx = kXcr0Sse | kXcr0Avx;
constexpr std::uint64_t kXcr0ForAvx512 = kXcr0ForAvx | kXcr0Opmask | kXcr0ZmmHi256 | kXcr0Hi16Zmm;

constexpr unsigned kLeaf1EdxSse2 = 26;
constexpr unsigned kLeaf1EcxSse41 = 19;
constexpr unsigned kLeaf1EcxOsxsave = 27;
constexpr unsigned kLeaf1EcxAvx = 28;
constexpr unsigned kLeaf7EbxAvx2 = 5;
constexpr unsigned kLeaf7EbxAvx512f = 16;
constexpr unsigned kLeaf7EbxAvx512bw = 30;
constexpr unsigned kLeaf7EcxMovdir64b = 28;

#if defined(__x86_64__)
x86_cpuid read_cpuid() {
  x86_cpuid cpuid;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  cpuid.max_leaf = static_cast<std::uint32_t>(__get_cpuid_max(0, nullptr));  // int in clang
  if (cpuid.max_leaf >= 1) {
    __cpuid(1, eax, ebx, ecx, edx);
    cpuid.leaf1_ecx = ecx;
    cpuid.leaf1_edx = edx;
  }
  if (cpuid.max_leaf >= 7) {
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    cpuid.leaf7_ebx = ebx;
    cpuid.leaf7_ecx = ecx;
  }
  if (bit(cpuid.leaf1_ecx, kLeaf1EcxOsxsave)) {
    // By its mnemonic, because the intrinsic would need -mxsave for this file.
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cpuid.xcr0 = (std::uint64_t{high} << 32) | low;
  }
  return cpuid;
}
#endif

}  // namespace

cpu_features decode_x86(const x86_cpuid& cpuid) {
  cpu_features features;
  if (cpuid.max_leaf < 1) return features;
  features.sse2 = bit(cpuid.leaf1_edx, kLeaf1EdxSse2);
  features.sse41 = features.sse2 && bit(cpuid.leaf1_ecx, kLeaf1EcxSse41);
  if (cpuid.max_leaf < 7) return features;
  // MOVDIR64B uses no vector state, so XCR0 does not matter.
  features.movdir64b = bit(cpuid.leaf7_ecx, kLeaf7EcxMovdir64b);
  const bool avx_usable = bit(cpuid.leaf1_ecx, kLeaf1EcxOsxsave) && bit(cpuid.leaf1_ecx, kLeaf1EcxAvx) &&
                          (cpuid.xcr0 & kXcr0ForAvx) == kXcr0ForAvx;
  features.avx2 = avx_usable && bit(cpuid.leaf7_ebx, kLeaf7EbxAvx2);
  // The AVX-512 file is compiled with AVX2 enabled as well, hence the dependency.
  features.avx512 = features.avx2 && bit(cpuid.leaf7_ebx, kLeaf7EbxAvx512f) && bit(cpuid.leaf7_ebx, kLeaf7EbxAvx512bw) &&
                    (cpuid.xcr0 & kXcr0ForAvx512) == kXcr0ForAvx512;
  return features;
}

cpu_features decode_arm64(unsigned long hwcap) {
  constexpr unsigned long kHwcapAsimd = 1ul << 1;
  cpu_features features;
  features.neon = (hwcap & kHwcapAsimd) != 0;
  return features;
}

cpu_features detect_cpu_features() {
#if defined(__x86_64__)
  return decode_x86(read_cpuid());
#elif defined(__aarch64__)
  return decode_arm64(getauxval(AT_HWCAP));
#else
  return {};
#endif
}

}  // namespace pl::arch
