// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/diagnosis.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace pl::tools {
namespace {

// A healthy H100 without any module.
doctor_facts healthy() {
  doctor_facts facts;
  facts.libcuda_opens = facts.gpu_answers = facts.kernel_driver_loaded = true;
  facts.kernel_driver_version = "580.95.05";
  facts.driver_abi = doctor_facts::abi::measured;
  facts.nvidia_nodes = {{"/dev/nvidiactl", true, true}, {"/dev/nvidia0", true, true}};
  facts.gdrdrv = {"/dev/gdrdrv", false, false};
  facts.bar1_bytes = 128ull << 30;
  facts.memory_bytes = 80ull << 30;
  facts.has_movdir64b = facts.has_avx512 = facts.has_avx2 = true;
  facts.backends = {{"gdrdrv", false, "no node"}, {"dmabuf", false, "old"}, {"rm", true, ""}};
  return facts;
}

const finding* about(const std::vector<finding>& all, const std::string& subject) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.subject == subject; });
  return found == all.end() ? nullptr : &*found;
}

void expect_blocked(const doctor_facts& facts, const std::string& subject, const std::string& fix_part) {
  const auto all = diagnose(facts);
  EXPECT_FALSE(is_ready(all));
  const finding* one = about(all, subject);
  ASSERT_NE(one, nullptr) << subject;
  EXPECT_EQ(one->level, severity::blocker);
  EXPECT_NE(one->fix.find(fix_part), std::string::npos) << one->fix;
}

void expect_noted(const doctor_facts& facts, const std::string& subject, const std::string& fix_part) {
  const auto all = diagnose(facts);
  EXPECT_TRUE(is_ready(all));
  const finding* one = about(all, subject);
  ASSERT_NE(one, nullptr) << subject;
  EXPECT_EQ(one->level, severity::note);
  EXPECT_NE(one->fix.find(fix_part), std::string::npos) << one->fix;
}

TEST(diagnosis, healthy_machine_is_ready) {
  const auto all = diagnose(healthy());
  EXPECT_TRUE(is_ready(all));
  for (const auto& one : all) EXPECT_NE(one.level, severity::blocker) << one.message;
}

TEST(diagnosis, the_verdict_calls_only_a_real_gpu_ready) {
  auto facts = healthy();
  EXPECT_EQ(verdict(facts, diagnose(facts)).rfind("ready: ", 0), 0u);
  facts.simulated = true;
  const auto simulated = verdict(facts, diagnose(facts));
  EXPECT_EQ(simulated.rfind("this is the simulated GPU", 0), 0u) << simulated;
  for (const char* words : {"libcuda.so.1", "/dev/nvidia*", "PEERLANE_GPU=real"})
    EXPECT_NE(simulated.find(words), std::string::npos) << words;
  facts.backends.clear();
  EXPECT_EQ(verdict(facts, diagnose(facts)).rfind("not ready: ", 0), 0u);
}

TEST(diagnosis, no_libcuda) {
  auto facts = healthy();
  facts.libcuda_opens = facts.gpu_answers = false;
  expect_blocked(facts, "libcuda", "libcuda1");
  facts.in_container = true;
  expect_blocked(facts, "libcuda", "NVIDIA_DRIVER_CAPABILITIES");
}

TEST(diagnosis, library_without_a_gpu) {
  auto facts = healthy();
  facts.gpu_answers = false;
  facts.gpu_problem = "cuInit failed: CUDA_ERROR_NO_DEVICE (100)";
  expect_blocked(facts, "GPU", "CUDA_VISIBLE_DEVICES");
}

TEST(diagnosis, no_device_nodes) {
  auto facts = healthy();
  facts.nvidia_nodes.clear();
  expect_blocked(facts, "device nodes", "nvidia-modprobe");
  facts.in_container = true;
  expect_blocked(facts, "device nodes", "--gpus all");
  facts.in_container = facts.kernel_driver_loaded = false;
  expect_blocked(facts, "device nodes", "modprobe nvidia");
}

TEST(diagnosis, nodes_that_may_not_be_opened) {
  auto facts = healthy();
  facts.nvidia_nodes[1].accessible = false;
  expect_blocked(facts, "permissions", "chmod 0666");
  EXPECT_NE(about(diagnose(facts), "permissions")->message.find("/dev/nvidia0"), std::string::npos);
}

TEST(diagnosis, kernel_driver_absent_or_old) {
  auto facts = healthy();
  facts.kernel_driver_loaded = false;
  expect_blocked(facts, "kernel driver", "modprobe nvidia");
  facts = healthy();
  facts.kernel_driver_version = "470.82.01";
  expect_blocked(facts, "kernel driver", "525");
}

TEST(diagnosis, unknown_driver_abi) {
  auto facts = healthy();
  facts.kernel_driver_version = "999.10";
  facts.driver_abi = doctor_facts::abi::unknown;
  expect_noted(facts, "driver ABI", "PEERLANE_RM_FORCE=1");
  facts.rm_forced = true;
  expect_noted(facts, "driver ABI", "");
}

TEST(diagnosis, mig_and_small_bar1) {
  auto facts = healthy();
  facts.mig_enabled = true;
  expect_noted(facts, "MIG", "-mig 0");
  facts = healthy();
  facts.bar1_bytes = 256ull << 20;
  expect_noted(facts, "BAR1", "Resizable BAR");
  facts.bar1_bytes = 64ull << 30;
  expect_noted(facts, "BAR1", "");
}

TEST(diagnosis, plain_cpu) {
  auto facts = healthy();
  facts.has_movdir64b = false;
  EXPECT_EQ(about(diagnose(facts), "CPU")->level, severity::ok);
  facts.has_avx512 = false;
  expect_noted(facts, "CPU", "nothing to fix");
}

TEST(diagnosis, gdrdrv_absent) {
  auto facts = healthy();
  facts.module.kernel_release = "6.1.0-56";
  expect_noted(facts, "gdrdrv", "");
  EXPECT_EQ(about(diagnose(facts), "gdrdrv")->fix, "") << "it is optional";
  facts.module.needs_signature = facts.module.is_secure_boot = true;
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("Secure Boot is on"), std::string::npos);
  facts.in_container = true;
  expect_noted(facts, "gdrdrv", "NVIDIA_GDRCOPY=enabled");
}

TEST(diagnosis, gdrdrv_built_for_another_kernel_or_not_loaded) {
  auto facts = healthy();
  facts.module.kernel_release = "6.1.0-56";
  facts.module.built_for = {"6.1.0-50", "6.1.0-55"};
  expect_noted(facts, "gdrdrv", "dkms autoinstall -k 6.1.0-56");
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("6.1.0-50, 6.1.0-55"), std::string::npos);
  facts.module.built_for.emplace_back("6.1.0-56");
  expect_noted(facts, "gdrdrv", "modprobe gdrdrv");
  facts.module.needs_signature = true;
  expect_noted(facts, "gdrdrv", "mokutil --import");
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("signed modules only"), std::string::npos);
}

TEST(diagnosis, gdrdrv_loaded_without_a_node) {
  auto facts = healthy();
  facts.module.is_loaded = true;
  expect_noted(facts, "gdrdrv", "mknod -m 666");
  facts.in_container = true;
  expect_noted(facts, "gdrdrv", "--device /dev/gdrdrv");
}

TEST(diagnosis, gdrdrv_closed_stale_or_of_another_version) {
  auto facts = healthy();
  facts.gdrdrv = {"/dev/gdrdrv", true, false};
  expect_noted(facts, "gdrdrv", "chmod 0666 /dev/gdrdrv");
  facts.gdrdrv.accessible = true;
  expect_noted(facts, "gdrdrv", "remove the stale node");
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("left-over"), std::string::npos);
  facts.module.is_loaded = true;
  facts.module.version = "1.3";
  facts.backends[0].reason = "gdrdrv 1.3 is too old: 2.0 or newer is needed";
  expect_noted(facts, "gdrdrv", "gdrdrv 2.0");
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("version 1.3"), std::string::npos);
}

TEST(diagnosis, gdrdrv_answers) {
  auto facts = healthy();
  facts.gdrdrv = {"/dev/gdrdrv", true, true};
  facts.module.is_loaded = true;
  facts.module.version = "2.6-peerlane";
  facts.backends[0] = {"gdrdrv", true, ""};
  EXPECT_EQ(about(diagnose(facts), "gdrdrv")->level, severity::ok);
  EXPECT_NE(about(diagnose(facts), "gdrdrv")->message.find("2.6-peerlane"), std::string::npos);
  facts.module.is_persistent = true;
  EXPECT_EQ(about(diagnose(facts), "gdrdrv")->level, severity::ok);
  facts.module.is_persistent = false;
  expect_noted(facts, "gdrdrv", "use_persistent_mapping=1");
}

TEST(diagnosis, channels_are_named_where_somebody_tried) {
  auto facts = healthy();
  EXPECT_EQ(about(diagnose(facts), "DMA channels"), nullptr);
  facts.channels = {"dma", true, ""};
  EXPECT_EQ(about(diagnose(facts), "DMA channels")->level, severity::ok);
  facts.channels = {"dma", false, "the layouts of driver 600.1 are unknown to this version"};
  expect_noted(facts, "DMA channels", "nothing has to be done");
  EXPECT_NE(about(diagnose(facts), "DMA channels")->message.find("600.1"), std::string::npos);
}

TEST(diagnosis, who_carries_out_what_kernels_post) {
  auto facts = healthy();
  EXPECT_EQ(about(diagnose(facts), "kernel puts"), nullptr) << "nobody tried";
  facts.channels = {"dma", true, ""};
  EXPECT_EQ(about(diagnose(facts), "kernel puts")->level, severity::ok);
  EXPECT_NE(about(diagnose(facts), "kernel puts")->message.find("by DMA channels"), std::string::npos);
  facts.device_rings = "proxy";
  expect_noted(facts, "kernel puts", "PEERLANE_DEVICE_RINGS=auto");
  EXPECT_NE(about(diagnose(facts), "kernel puts")->message.find("PEERLANE_DEVICE_RINGS=proxy"), std::string::npos);

  facts.device_rings = "auto";
  facts.channels = {"dma", false, "the GPU is in MIG mode"};
  expect_noted(facts, "kernel puts", "other processes is not reached");
  EXPECT_NE(
      about(diagnose(facts), "kernel puts")->message.find("by the CPU proxy: there are no DMA channels (the GPU is in MIG"),
      std::string::npos);
  facts.has_stream_writes = false;
  expect_noted(facts, "kernel puts", "newer driver");
  facts.device_rings = "dma";
  expect_noted(facts, "kernel puts", "PEERLANE_DEVICE_RINGS=auto");
  EXPECT_NE(about(diagnose(facts), "kernel puts")->message.find("refused"), std::string::npos);
}

// One line for the backend in use, one for each before it that is not, and for each behind it that is.
TEST(diagnosis, backends_are_compared) {
  const auto lines_of = [](const doctor_facts& facts) {
    std::vector<std::string> out;
    for (const auto& one : diagnose(facts))
      if (one.subject == "backend") out.push_back(one.message.substr(0, one.message.find(':')));
    return out;
  };
  auto facts = healthy();
  EXPECT_EQ(lines_of(facts), (std::vector<std::string>{"gdrdrv, not usable here", "dmabuf, not usable here", "rm, in use"}));
  facts.backends[0].usable = true;
  EXPECT_EQ(lines_of(facts), (std::vector<std::string>{"gdrdrv, in use", "rm, also usable"}));
}

TEST(diagnosis, no_backend_blocks_and_gives_every_reason) {
  auto facts = healthy();
  facts.backends[2] = {"rm", false, "not today"};
  expect_blocked(facts, "mapping", "PEERLANE_BACKEND");
  const auto text = about(diagnose(facts), "mapping")->message;
  for (const char* part : {"no node", "old", "not today"}) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(diagnosis, simulated_gpu_says_nothing_about_hardware) {
  doctor_facts facts;
  facts.simulated = true;
  facts.backends = {{"dmabuf", true, ""}};
  const auto all = diagnose(facts);
  EXPECT_TRUE(is_ready(all));
  EXPECT_EQ(about(all, "device nodes"), nullptr);
}

}  // namespace
}  // namespace pl::tools
