// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/command_line.hpp"

#include <gtest/gtest.h>

namespace pl::p2p {
namespace {

settings parse(std::vector<std::string> arguments, const std::string& program = "peerlane p2p") {
  const auto parsed = parse_command({program, program != "peerlane p2p", std::move(arguments), {"x"}});
  EXPECT_FALSE(parsed.exit_code.has_value());
  return parsed.asked;
}

std::string refusal(std::vector<std::string> arguments) {
  try {
    parse_command({"peerlane p2p", false, std::move(arguments), {"x"}});
  } catch (const tools::tool_failure& failure) { return failure.what(); }
  return "";
}

TEST(CommandLine, OsuOptions) {
  const auto asked = parse(
      {"-m", "8:1K", "-i", "7", "-x", "2", "-W", "16", "-b", "multiple", "-c", "-u", "3", "-d", "cuda", "D", "H"}, "osu_bw");
  EXPECT_EQ(asked.kind, benchmark::bandwidth);
  EXPECT_EQ(asked.min_bytes, 8u);
  EXPECT_EQ(asked.max_bytes, 1024u);
  EXPECT_EQ(asked.iterations, 7);
  EXPECT_EQ(asked.warm_up, 2);
  EXPECT_EQ(asked.window, 16);
  EXPECT_TRUE(asked.multiple_buffers);
  EXPECT_TRUE(asked.validate);
  EXPECT_EQ(asked.validation_warm_up, 3);
  EXPECT_EQ(asked.source, memory_kind::device);
  EXPECT_EQ(asked.destination, memory_kind::host);
  EXPECT_TRUE(asked.names_accelerator);
}

TEST(CommandLine, Defaults) {
  const auto asked = parse({"latency"});
  EXPECT_EQ(asked.max_bytes, kMaxMessageBytes);
  EXPECT_FALSE(asked.needs_gpu());
  EXPECT_FALSE(asked.names_accelerator);
  EXPECT_EQ(asked.arms, std::vector<arm>{arm::ours});
  EXPECT_EQ(parse({"latency", "-m", "64"}).max_bytes, 64u);
  EXPECT_EQ(parse({"latency", "-m", "64:"}).min_bytes, 64u);
  EXPECT_TRUE(parse({"bw", "-d", "cuda"}).names_accelerator);  // and both on the host, as OSU has it
  EXPECT_TRUE(parse({"bw", "MD", "H"}).multiple_buffers);
}

TEST(CommandLine, Lists) {
  const auto asked = parse({"latency", "--via", "ours,ucx,mpi", "--pct", "50,99.9", "--gpus", "1,0"});
  EXPECT_EQ(asked.arms, (std::vector<arm>{arm::ours, arm::ucx, arm::mpi}));
  EXPECT_EQ(asked.percentiles, (std::vector<double>{50, 99.9}));
  EXPECT_EQ(asked.gpus, (std::vector<int>{1, 0}));
}

TEST(CommandLine, Refusals) {
  EXPECT_NE(refusal({"latency", "D"}).find("both sides"), std::string::npos);
  EXPECT_NE(refusal({"latency", "D", "X"}).find("\"X\""), std::string::npos);
  EXPECT_NE(refusal({"latency", "--via", "nvshmem"}).find("is not one of"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--via", "nccl"}).find("does not support host memory"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--via", "nccl", "D", "H"}).find("does not support host memory"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--via", "nccl", "-m", "0:8", "D", "D"}).find("-m 1:"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--via", "ucx,ucx"}).find("twice"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--pct", "0"}).find("percentage"), std::string::npos);
  EXPECT_NE(refusal({"latency", "--pct", "5x"}).find("percentage"), std::string::npos);
  EXPECT_NE(refusal({"latency", "-m", "8:4"}).find("above"), std::string::npos);
  EXPECT_NE(refusal({"bw", "-m", "0:4"}).find("1 byte"), std::string::npos);
  EXPECT_NE(refusal({"bw", "-V", "1"}).find("mbw_mr"), std::string::npos);
  EXPECT_NE(refusal({"bw", "--cold", "--rotate", "2"}).find("--rotate"), std::string::npos);
  EXPECT_NE(refusal({"bw", "--osu-format", "6"}).find("7.5"), std::string::npos);
  EXPECT_NE(refusal({"bw", "--listen", "1", "--peer", "h:1"}).find("other"), std::string::npos);
}

TEST(CommandLine, MemoryLimitShortensTheSweep) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse({"bw", "-b", "multiple", "-M", "1M", "-W", "8"}).max_bytes, (1u << 20) / 16);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("-M"), std::string::npos);
}

}  // namespace
}  // namespace pl::p2p
