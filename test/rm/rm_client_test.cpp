// SPDX-License-Identifier: Apache-2.0
// Small parsers of the resource manager layer: PCI addresses as CUDA prints them, and the driver's version from each of the
// three places it can be read.
#include "rm/rm_client.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace pl::rm {
namespace {

TEST(pci_address, WhatCudaPrints) {
  for (const char* text : {"0000:0a:1f.0", "0000:0A:1F.0", "00000000:0A:1F.0", "0000:0a:1f"}) {
    const auto parsed = parse_pci_address(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, (pci_address{0, 0x0a, 0x1f})) << text;
  }
  EXPECT_EQ(*parse_pci_address("1c2f:c1:00.0"), (pci_address{0x1c2f, 0xc1, 0}));
  for (const char* text : {"", "GPU-1234", "0a:00.0", "0000:0a", "zz:0a:00.0", "::"}) {
    const auto parsed = parse_pci_address(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.code(), EINVAL);
    EXPECT_NE(parsed.error().message.find("is not a PCI address"), std::string::npos);
  }
}

// A kernel with these texts; empty means: not there.
class version_sources final : public device_io {
 public:
  std::string rm, sysfs, procfs;
  bool answers = true;
  int opened = 0;

  int open(const char* path, int) override {
    if (rm.empty() || std::strcmp(path, "/dev/nvidiactl") != 0) return errno = ENOENT, -1;
    ++opened;
    return 1000;
  }
  int close(int) override { return --opened, 0; }
  int ioctl(int, unsigned long request, void* argument) override {
    if (!answers || request != ioctl_request(esc_check_version, sizeof(version_params))) return errno = EINVAL, -1;
    auto& params = *static_cast<version_params*>(argument);
    EXPECT_EQ(params.command, static_cast<decltype(params.command)>(kVersionQuery));
    std::memset(params.text, 'x', sizeof params.text);  // no terminator unless the text brings one
    std::memcpy(params.text, rm.c_str(), std::min(rm.size() + 1, sizeof params.text));
    return 0;
  }
  void* mmap(void*, std::size_t, int, int, int, off_t) override { return errno = ENODEV, MAP_FAILED; }
  int munmap(void*, std::size_t) override { return -1; }
  int madvise(void*, std::size_t, int) override { return -1; }
  result<std::string> read_text(const char* path) override {
    const bool is_sysfs = std::strcmp(path, "/sys/module/nvidia/version") == 0;
    const bool is_procfs = std::strcmp(path, "/proc/driver/nvidia/version") == 0;
    const std::string& text = is_sysfs ? sysfs : procfs;
    if ((!is_sysfs && !is_procfs) || text.empty()) return failure{ENOENT, path};
    return text;
  }
};

TEST(driver_version, TheResourceManagerComesFirst) {
  version_sources kernel;
  kernel.rm = "580.159.04";
  kernel.sysfs = "570.1\n";
  EXPECT_EQ(*driver_version(kernel), "580.159.04");
  EXPECT_EQ(kernel.opened, 0) << "closed again";
  kernel.answers = false;
  EXPECT_EQ(*driver_version(kernel), "570.1");
  EXPECT_EQ(kernel.opened, 0);
  kernel.answers = true;
  kernel.rm = "garbage";
  EXPECT_EQ(*driver_version(kernel), "570.1");
}

TEST(driver_version, FromSysfsAndProcfs) {
  version_sources kernel;
  kernel.sysfs = "535.104.05\n";
  kernel.procfs = "NVRM version: 1.2.3";
  EXPECT_EQ(*driver_version(kernel), "535.104.05");
  kernel.sysfs = "\n";
  for (const auto& [text, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs@x)  Thu Jul 24\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "580.159.04"},
           {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"},
           {"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.12", "595.12"}}) {
    kernel.procfs = text;
    const auto version = driver_version(kernel);
    ASSERT_TRUE(version) << text;
    EXPECT_EQ(*version, wanted);
  }
  kernel.procfs = "no version in the first line\nNVRM version: 580.1.1\n";
  EXPECT_FALSE(driver_version(kernel));
  kernel.procfs.clear();
  const auto none = driver_version(kernel);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), ENOENT);
  EXPECT_NE(none.error().message.find("/dev/nvidiactl"), std::string::npos);
}

TEST(driver_version, KnowledgeIsBySeries) {
  EXPECT_EQ(abi_of("580.159.04"), abi_knowledge::measured);
  for (const char* version : {"535.1", "550.54.15", "570.86.10", "595.1.1"})
    EXPECT_EQ(abi_of(version), abi_knowledge::read) << version;
  for (const char* version : {"", "470.1", "530.30.02", "600.1", "58.1", "5800.1", "x580"})
    EXPECT_EQ(abi_of(version), abi_knowledge::unknown) << version;
}

}  // namespace
}  // namespace pl::rm
