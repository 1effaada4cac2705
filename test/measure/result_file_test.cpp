// SPDX-License-Identifier: Apache-2.0
#include "measure/result_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace pl {
namespace {

using nlohmann::json;

result_file small_result() {
  result_file out("copylat", {"peerlane", "copylat", "-s", "64K"});
  auto facts = describe_host();
  facts.simulated = true;
  out.set_machine(facts);
  out.set_parameter("size_bytes", 65536);
  out.set_unit("bandwidth", "MiB/s");
  return out;
}

TEST(result_file, carries_what_the_schema_promises) {
  auto out = small_result();
  out.add_row({{"series", "w1"}, {"size_bytes", 1}});
  const json all = out.to_json();
  EXPECT_EQ(all["schema"], "peerlane-result/1");
  EXPECT_EQ(all["tool"], "copylat");
  EXPECT_EQ(all["command_line"].size(), 4u);
  EXPECT_EQ(all["simulated"], true);
  EXPECT_EQ(all["passed"], true);
  EXPECT_EQ(all["parameters"]["size_bytes"], 65536);
  EXPECT_EQ(all["units"]["bandwidth"], "MiB/s");
  EXPECT_EQ(all["rows"].size(), 1u);
  for (const char* key : {"git_revision", "utc_date", "cpu_model", "kernel", "gpu_name", "backend", "mapping_type"})
    EXPECT_TRUE(all["machine"].contains(key)) << key;
}

TEST(result_file, few_samples_are_kept_whole) {
  auto out = small_result();
  out.add_samples("w1", std::vector<double>{3, 1, 2});
  const json series = out.to_json()["samples"][0];
  EXPECT_EQ(series["samples_ns"], (json{3.0, 1.0, 2.0}));
  EXPECT_EQ(series["thinned"], false);
}

TEST(result_file, many_samples_are_thinned_evenly_and_said_so) {
  auto out = small_result();
  std::vector<double> many(kMaxSamplesPerSeries * 3);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i);
  out.add_samples("w1", many);
  const json series = out.to_json()["samples"][0];
  EXPECT_EQ(series["thinned"], true);
  EXPECT_EQ(series["samples_taken"], many.size());
  EXPECT_EQ(series["samples_kept"], kMaxSamplesPerSeries);
  EXPECT_EQ(series["samples_ns"].size(), kMaxSamplesPerSeries);
  EXPECT_EQ(series["samples_ns"][1], 3.0);
}

TEST(result_file, writes_whole_files_and_reads_back) {
  const std::string path = (std::filesystem::temp_directory_path() / ("pl_result_" + std::to_string(getpid()))).string();
  ASSERT_TRUE(small_result().write(path));
  std::ifstream file(path);
  EXPECT_EQ(json::parse(file)["tool"], "copylat");
  std::filesystem::remove(path);
}

TEST(result_file, unwritable_path_is_an_error_that_names_it) {
  const auto wrote = small_result().write("/nonexistent/folder/x.json");
  ASSERT_FALSE(wrote);
  EXPECT_EQ(wrote.code(), ENOENT);
  EXPECT_NE(wrote.error().message.find("/nonexistent/folder/x.json"), std::string::npos);
}

TEST(result_file, text_that_is_not_utf8_does_not_throw) {
  const result_file out("info", {"peer\xFFlane"});
  const std::string path = (std::filesystem::temp_directory_path() / ("pl_utf8_" + std::to_string(getpid()))).string();
  ASSERT_TRUE(out.write(path));
  std::ifstream file(path);
  EXPECT_EQ(json::parse(file)["command_line"][0], "peer\xEF\xBF\xBDlane");
  std::filesystem::remove(path);
}

TEST(latency_fields, are_the_order_statistics) {
  const json fields = latency_fields(std::vector<double>{5, 1, 3});
  EXPECT_EQ(fields["latency_ns_p50"], 3.0);
  EXPECT_EQ(fields["latency_ns_min"], 1.0);
  EXPECT_EQ(fields["latency_ns_max"], 5.0);
  EXPECT_EQ(fields["sample_count"], 3);
}

}  // namespace
}  // namespace pl
