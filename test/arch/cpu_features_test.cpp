// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu_features.hpp"

#include <gtest/gtest.h>

namespace pl::arch {
namespace {

constexpr std::uint64_t kXcr0Everything = 0xe7;

// A CPU and an operating system with everything.
x86_cpuid full() {
  return {.max_leaf = 0x1f,
          .leaf1_ecx = (1u << 19) | (1u << 27) | (1u << 28),
          .leaf1_edx = 1u << 26,
          .leaf7_ebx = (1u << 5) | (1u << 16) | (1u << 30),
          .leaf7_ecx = 1u << 28,
          .xcr0 = kXcr0Everything};
}

TEST(CpuFeatures, AllPresent) {
  const cpu_features features = decode_x86(full());
  EXPECT_EQ(features,
            (cpu_features{.sse2 = true, .sse41 = true, .avx2 = true, .avx512 = true, .movdir64b = true, .neon = false}));
}

// Each state component is needed, not any of them: GDRCopy's test passes when one bit is set.
TEST(CpuFeatures, EveryXcr0BitCounts) {
  for (std::uint64_t xcr0 = 0; xcr0 < 256; ++xcr0) {
    x86_cpuid cpuid = full();
    cpuid.xcr0 = xcr0;
    const cpu_features features = decode_x86(cpuid);
    EXPECT_EQ(features.avx2, (xcr0 & 0x06) == 0x06) << xcr0;
    EXPECT_EQ(features.avx512, (xcr0 & 0xe6) == 0xe6) << xcr0;
    EXPECT_TRUE(features.sse41);
    EXPECT_TRUE(features.movdir64b);
  }
}

TEST(CpuFeatures, EachBitOfCpuidDecidesItsOwnFeature) {
  const auto features_without = [](auto change) {
    x86_cpuid cpuid = full();
    change(cpuid);
    return decode_x86(cpuid);
  };
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf1_ecx &= ~(1u << 19); }).sse41);
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf1_ecx &= ~(1u << 27); }).avx2) << "OSXSAVE";
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf1_ecx &= ~(1u << 28); }).avx2) << "AVX";
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf7_ebx &= ~(1u << 5); }).avx512) << "AVX-512 without AVX2";
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf7_ebx &= ~(1u << 16); }).avx512) << "F";
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf7_ebx &= ~(1u << 30); }).avx512) << "BW";
  EXPECT_TRUE(features_without([](x86_cpuid& c) { c.leaf7_ebx &= ~(1u << 30); }).avx2);
  EXPECT_FALSE(features_without([](x86_cpuid& c) { c.leaf7_ecx = 0; }).movdir64b);
  EXPECT_TRUE(features_without([](x86_cpuid& c) { c.leaf7_ecx = 0; }).avx512);
}

TEST(CpuFeatures, OldCpusHaveNoLeaf7) {
  x86_cpuid cpuid = full();
  cpuid.max_leaf = 6;
  EXPECT_EQ(decode_x86(cpuid), (cpu_features{.sse2 = true, .sse41 = true}));
  cpuid.max_leaf = 0;
  EXPECT_EQ(decode_x86(cpuid), cpu_features{});
}

TEST(CpuFeatures, ArmTellsByHwcap) {
  EXPECT_TRUE(decode_arm64(1ul << 1).neon);
  EXPECT_FALSE(decode_arm64(~(1ul << 1)).neon);
}

TEST(CpuFeatures, DetectionIsRepeatable) { EXPECT_EQ(detect_cpu_features(), detect_cpu_features()); }

#if defined(__x86_64__)
TEST(CpuFeatures, AgreesWithTheCompilersDetection) {
  const cpu_features features = detect_cpu_features();
  EXPECT_TRUE(features.sse2);
  EXPECT_EQ(features.sse41, __builtin_cpu_supports("sse4.1") != 0);
  EXPECT_EQ(features.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(features.avx512, __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0);
}
#endif

}  // namespace
}  // namespace pl::arch
