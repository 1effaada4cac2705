// SPDX-License-Identifier: Apache-2.0
// The original's output, byte for byte, and as a program reads it that parses the original's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "measure/machine.hpp"
#include "test/tools/bandwidth/outcome_builder.hpp"
#include "tools/bandwidth/compat_json.hpp"
#include "tools/bandwidth/compat_text.hpp"
#include "tools/bandwidth/selection.hpp"

namespace pl::bandwidth {
namespace {

compat_environment two_gpus() {
  compat_environment out;
  out.cuda_version = 13000;
  out.driver_version = "580.95.05";
  out.host = "node1";
  out.devices = {compat_device_name("NVIDIA H100 80GB HBM3", "0000:0a:00.0"),
                 compat_device_name("NVIDIA H100 80GB HBM3", "0001:fe:1f.0")};
  return out;
}

std::string whole_text(const compat_style& style) {
  std::string out = compat_head(two_gpus(), style);
  for (const test_outcome& each : outcomes_of_two_gpus()) out += compat_test(each, style);
  return out + compat_not_found("no_such_test") + compat_not_found("99") + compat_closing();
}

std::string without_revision(std::string text) {
  const std::string revision = std::string("peerlane-") + kGitRevision;
  for (std::size_t offset = 0; (offset = text.find(revision, offset)) != std::string::npos;)
    text.replace(offset, revision.size(), "peerlane-REVISION");
  return text;
}

// A missing file fails with what it would hold; the files are read by people before they are kept.
void expect_golden(const std::string& name, const std::string& text) {
  std::ifstream file(std::string(PL_GOLDEN_DIR) + "/" + name, std::ios::binary);
  std::stringstream golden;
  golden << file.rdbuf();
  ASSERT_TRUE(file) << name << " cannot be read; its content would be:\n" << text;
  EXPECT_EQ(golden.str(), text) << name;
}

TEST(CompatText, Plain) { expect_golden("plain.txt", whole_text({})); }
TEST(CompatText, Verbose) { expect_golden("verbose.txt", whole_text({.verbose = true, .small_buffer = true})); }
TEST(CompatText, PerfFormatter) { expect_golden("perf.txt", whole_text({.perf_formatter = true})); }
TEST(CompatText, OriginalMistakes) {
  expect_golden("original.txt", whole_text({.verbose = true, .original_mistakes = true}));
}

TEST(CompatText, TheVersionLineIsTheOriginalsAndTheNextNamesUs) {
  EXPECT_EQ(without_revision(compat_version_lines("")),
            "nvbandwidth Version: v0.10.0\nBuilt from Git version: peerlane-REVISION\n\n");
  EXPECT_NE(compat_version_lines("Open MPI 4.1").find("\nMPI version: Open MPI 4.1\n"), std::string::npos);
}

TEST(CompatText, ListHasEveryTestcaseByNumber) {
  const std::string text = compat_list(all_testcases());
  EXPECT_EQ(text.find("Index, Name:\n\tDescription\n0, host_to_device_memcpy_ce:\n\t\t"), 0u);
  EXPECT_EQ(text.find("\n\n"), std::string::npos);
  EXPECT_NE(text.find("\n38, device_local_copy:\n\t\t"), std::string::npos);
}

TEST(CompatText, LongRowLabelsWidenTheirColumn) {
  matrix wide = matrix_with("", "Bisect benchmarking, simultaneous write CE BW", {{12.5}, {13.5}});
  wide.rows = {" 0-> 1", " 1-> 0"};
  const auto text = compat_test(outcome_with(47, "multinode_bisect_write_ce", {wide}), {});
  EXPECT_NE(text.find("\n               0\n 0-> 1     12.50\n 1-> 0     13.50\n"), std::string::npos) << text;
}

// How superbench reads it: testcase lines, title lines that say what is measured, rows that begin with a digit, SUM lines.
struct parsed_text {
  std::map<std::string, double> values;
  std::vector<std::string> missing;
};

parsed_text parse_as_superbench(const std::string& text) {
  static const std::regex running(R"(^Running (.+)$)"), title(R"(^(memcpy|memory latency) .*$)"),
      ends(R"((\w{3})\(row\) .* (\w{3})\(column\))"), sum(R"(^SUM (\S+) (\d+\.\d+)$)"),
      not_found(R"(^ERROR: Testcase (\S+) not found!$)");
  parsed_text out;
  std::stringstream lines(text);
  std::string line, test, row_name, column_name, kind;
  std::vector<std::string> header;
  for (std::smatch match; std::getline(lines, line);) {
    if (std::regex_match(line, match, running)) {
      test = match[1].str();
      EXPECT_EQ(test.back(), '.');
      test.pop_back();
    } else if (std::regex_match(line, match, not_found)) {
      out.missing.push_back(match[1]);
    } else if (std::regex_match(line, match, sum)) {
      out.values[match[1].str() + "_sum"] = std::stod(match[2]);
      test.clear();
    } else if (!test.empty() && std::regex_search(line, title)) {
      EXPECT_TRUE(std::regex_search(line, match, ends)) << line;
      row_name = match[1];
      column_name = match[2];
      kind = line.find("bandwidth") != std::string::npos ? "bw" : "lat";
      header.clear();
      std::getline(lines, line);
      std::stringstream names(line);
      for (std::string name; names >> name;) header.push_back(name);
    } else if (!test.empty() && std::regex_search(line, std::regex(R"(^\s*\d)"))) {
      std::stringstream fields(line);
      std::string row, value;
      fields >> row;
      for (std::size_t i = 0; fields >> value; ++i)
        if (value != "N/A")
          out.values[test + "_" + row_name + row + "_" + column_name + header.at(i) + "_" + kind] = std::stod(value);
    }
  }
  return out;
}

TEST(CompatText, ProgramsThatParseTheOriginalFindTheirValues) {
  const auto parsed = parse_as_superbench(compat_version_lines("") + whole_text({}));
  EXPECT_DOUBLE_EQ(parsed.values.at("host_to_device_memcpy_ce_CPU0_GPU0_bw"), 55.63);
  EXPECT_DOUBLE_EQ(parsed.values.at("host_to_device_memcpy_ce_CPU0_GPU1_bw"), 55.12);
  EXPECT_DOUBLE_EQ(parsed.values.at("host_to_device_memcpy_ce_sum"), 110.76);
  EXPECT_DOUBLE_EQ(parsed.values.at("device_to_device_bidirectional_memcpy_read_ce_GPU0_GPU1_bw"), 276.07);
  EXPECT_DOUBLE_EQ(parsed.values.at("device_to_device_bidirectional_memcpy_read_ce_read1_sum"), 551.57);
  EXPECT_DOUBLE_EQ(parsed.values.at("host_device_latency_sm_CPU0_GPU1_lat"), 1301);
  EXPECT_EQ(parsed.values.count("device_to_device_bidirectional_memcpy_read_ce_GPU0_GPU0_bw"), 0u);
  EXPECT_EQ(parsed.values.count("device_to_host_memcpy_ce_CPU0_GPU1_bw"), 0u);  // wrong data has no rate
  EXPECT_EQ(parsed.missing, std::vector<std::string>{"no_such_test"});
}

std::vector<test_outcome> with_unknown() {
  auto out = outcomes_of_two_gpus();
  out.push_back(outcome_in(kUnknownTestcase, "no_such_test", test_state::error, "no such testcase"));
  return out;
}

TEST(CompatJson, Plain) {
  expect_golden("plain.json", without_revision(compat_json(two_gpus(), with_unknown(), {}, "", "")));
}
TEST(CompatJson, Verbose) {
  expect_golden("verbose.json", without_revision(compat_json(two_gpus(), with_unknown(), {.verbose = true},
                                                             "CUDA_ERROR_UNKNOWN", "a warning")));
}

TEST(CompatJson, MeansWhatTheOriginalsMeans) {
  const auto root = nlohmann::json::parse(compat_json(two_gpus(), with_unknown(), {}, "", ""))["nvbandwidth"];
  EXPECT_EQ(root["version"], "v0.10.0");
  EXPECT_EQ(root["GPU Device list"][1], "1: NVIDIA H100 80GB HBM3 (00000001:fe:1f): (node1)");
  const auto& tests = root["testcases"];
  EXPECT_EQ(tests[0]["bandwidth_matrix"], nlohmann::json::parse(R"([["55.6349","55.125"]])"));
  EXPECT_EQ(tests[1]["bandwidth_matrix"].size(), 6u);  // three matrices below each other
  EXPECT_EQ(tests[1]["bandwidth_matrix"][4][0], "N/A");
  EXPECT_DOUBLE_EQ(tests[1]["sum"], 550.57 + 551.75);
  EXPECT_EQ(tests[3]["status"], "Waived");
  EXPECT_EQ(tests[3].size(), 3u);
  EXPECT_NE(tests[3]["waiver_reason"], "");
  EXPECT_TRUE(tests[1].contains("coefficient_of_variation"));
  EXPECT_FALSE(tests[2].contains("coefficient_of_variation"));  // a latency
  EXPECT_EQ(tests[5]["status"], "ERROR");
}

TEST(CompatFigures, MissingCellsAreNoMinimumUnlessTheOriginalIsAskedFor) {
  const matrix pairs = matrix_with("", "", {{kNone, 3}, {5, kNone}});
  EXPECT_DOUBLE_EQ(figures_of(pairs, false).min, 3);
  EXPECT_DOUBLE_EQ(figures_of(pairs, true).min, 0);
  EXPECT_DOUBLE_EQ(figures_of(pairs, false).average, 4);
}

TEST(CompatFigures, VariationIsFromRunToRunNotFromCellToCell) {
  matrix two = matrix_with("", "", {{10, 90}});
  two.cells[0][0].samples = {10, 10, 10};
  two.cells[0][1].samples = {81, 90, 99};  // 0.1
  EXPECT_NEAR(figures_of(two, false).variation, 0.05, 1e-9);
  EXPECT_TRUE(has_variation(two));
  two.unit = "ns";
  EXPECT_FALSE(has_variation(two));
}

}  // namespace
}  // namespace pl::bandwidth
