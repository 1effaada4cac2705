// SPDX-License-Identifier: Apache-2.0
#include "tools/common/options.hpp"

#include <gdrapi.h>
#include <gtest/gtest.h>

namespace pl::tools {
namespace {

struct parsed {
  std::optional<int> code;
  std::uint64_t size = 7;
  std::int64_t count = 3;
  bool flag = false;
  std::string sizes = "8,1K", kind = "wc", folder;
  common_options common;
  std::string output, errors;
};

parsed parse(std::vector<std::string> arguments) {
  parsed out;
  invocation call{.program = "tool", .drop_in = false, .arguments = std::move(arguments), .command_line = {"tool"}};
  command_parser parser(call, "A tool");
  parser.size("-s,--size", out.size, "Size");
  parser.integer("-n,--iters", out.count, 1, 100, "Count");
  parser.flag("-l", out.flag, "Flag");
  parser.text("--sizes", "SIZE,...", out.sizes, "Sizes");
  parser.text("--kind", "wc|uc", out.kind, "Kind [the GPU's]");
  parser.text("--folder", "DIR", out.folder, "Folder");
  parser.mapping(out.common);
  parser.common(out.common);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  out.code = parser.parse();
  out.output = testing::internal::GetCapturedStdout();
  out.errors = testing::internal::GetCapturedStderr();
  return out;
}

TEST(command_line, defaults_stay_without_options) {
  const auto out = parse({});
  EXPECT_FALSE(out.code);
  EXPECT_EQ(out.size, 7u);
  EXPECT_EQ(out.common.cpu, "auto");
  EXPECT_EQ(out.common.alloc, alloc_kind::cu_mem_alloc);
}

TEST(command_line, stock_forms) {
  const auto out = parse({"-s", "0x1000", "-n5", "-l", "-d", "1", "-a", "cuMemCreate", "-M", "wc"});
  ASSERT_FALSE(out.code) << out.errors;
  EXPECT_EQ(out.size, 4096u);
  EXPECT_EQ(out.count, 5);
  EXPECT_TRUE(out.flag);
  EXPECT_EQ(out.common.gpu, 1);
  EXPECT_EQ(out.common.alloc, alloc_kind::cu_mem_create);
  EXPECT_EQ(out.common.map_flag, GDR_MAP_FLAG_REQ_WC_MAPPING);
}

TEST(command_line, our_forms) {
  const auto out = parse({"--size=2M", "--iters", "7", "--gpu", "0", "--cpu", "0-1", "--json", "x.json"});
  ASSERT_FALSE(out.code) << out.errors;
  EXPECT_EQ(out.size, 2u << 20);
  EXPECT_EQ(out.common.cpu, "0-1");
  EXPECT_EQ(out.common.json_path, "x.json");
}

TEST(command_line, bad_values_end_with_1_and_say_what) {
  const std::vector<std::vector<std::string>> bad = {
      {"-s", "12x"}, {"-s", "-4"}, {"-n", "0"}, {"-n", "101"}, {"-n", "x"}, {"-d", "-1"},
      {"-a", "new"}, {"-M", "uc"}, {"-z"},      {"-s"},        {"extra"},   {"--size", "99999999999999999999"}};
  for (const auto& arguments : bad) {
    const auto out = parse(arguments);
    EXPECT_EQ(out.code, kExitFailed) << arguments[0];
    EXPECT_NE(out.errors.find("tool: "), std::string::npos) << out.errors;
    EXPECT_NE(out.errors.find("-h lists the options"), std::string::npos) << out.errors;
    EXPECT_TRUE(out.output.empty());
  }
}

TEST(command_line, help_names_every_default_once) {
  const auto out = parse({"-h"});
  for (const char* text : {"Count [3]", "Sizes [8,1K]", "Kind [the GPU's]", "Folder\n"})
    EXPECT_NE(out.output.find(text), std::string::npos) << text << "\n" << out.output;
}

TEST(command_line, help_goes_to_stdout_and_ends_with_0) {
  const auto out = parse({"-h"});
  EXPECT_EQ(out.code, kExitOk);
  EXPECT_NE(out.output.find("--size"), std::string::npos);
  EXPECT_TRUE(out.errors.empty());
}

}  // namespace
}  // namespace pl::tools
