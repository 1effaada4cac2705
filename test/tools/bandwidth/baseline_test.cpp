// SPDX-License-Identifier: Apache-2.0
// Rows of results, and a run against an earlier one.
#include "tools/bandwidth/baseline.hpp"

#include <gtest/gtest.h>

#include "test/tools/bandwidth/outcome_builder.hpp"
#include "tools/bandwidth/native_text.hpp"
#include "tools/bandwidth/result_rows.hpp"

namespace pl::bandwidth {
namespace {

test_outcome host_test(std::vector<double> samples, const char* unit = "GB/s") {
  auto out = outcome_with(0, "host_to_device_memcpy_ce", {matrix_with("", "title", {{1}})});
  cell& one = out.matrices[0].cells[0][0];
  one.samples = std::move(samples);
  one.value = describe(one.samples).median;
  out.matrices[0].unit = unit;
  return out;
}

baseline baseline_of(const test_outcome& earlier, double threshold = 5) {
  result_file file("bandwidth", {"peerlane"});
  add_rows(file, earlier, nullptr);
  const auto out = baseline::parse(file.text(), threshold);
  EXPECT_TRUE(out) << (out ? "" : out.error().message);
  return *out;
}

std::optional<baseline_finding> compared(const test_outcome& before, const test_outcome& now) {
  return baseline_of(before).compare(now.key, now.matrices[0], 0, 0);
}

TEST(Baseline, SlowBeyondThresholdAndConfidence) {
  const auto found = compared(host_test({50, 50.1, 49.9}), host_test({40, 40.1, 39.9}));
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->before, 50);
  EXPECT_DOUBLE_EQ(found->ratio, 0.8);
  EXPECT_TRUE(found->significant && found->slow && !found->fast);
}

TEST(Baseline, ADifferenceWithinTheThresholdIsTheSame) {
  const auto found = compared(host_test({50, 50.1, 49.9}), host_test({49, 49.1, 48.9}));
  EXPECT_TRUE(found->significant);
  EXPECT_STREQ(found->verdict(), "same");
}

TEST(Baseline, ADifferenceWithinTheNoiseIsTheSame) {
  const auto found = compared(host_test({50, 60, 40}), host_test({45, 30, 55}));
  EXPECT_FALSE(found->significant);
  EXPECT_STREQ(found->verdict(), "same");
}

TEST(Baseline, LowerLatenciesAreBetter) {
  EXPECT_STREQ(compared(host_test({500, 501, 499}, "ns"), host_test({700, 701, 699}, "ns"))->verdict(), "slow");
  EXPECT_STREQ(compared(host_test({700, 701, 699}, "ns"), host_test({500, 501, 499}, "ns"))->verdict(), "fast");
}

TEST(Baseline, OtherSizesAndCellsAreNotCompared) {
  test_outcome now = host_test({50, 50, 50});
  now.matrices[0].cells[0][0].path.bytes = 4096;
  EXPECT_FALSE(compared(host_test({50, 50, 50}), now));
  EXPECT_EQ(baseline_of(outcomes_of_two_gpus()[1]).size(), 6u);  // N/A cells are no figures
}

TEST(Baseline, OtherFilesAreRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"schema":"peerlane-result/1","tool":"copylat","rows":[]})",
        R"({"schema":"peerlane-result/1","tool":"bandwidth","rows":[{"kind":"cell","state":"measured","series":"x"}]})",
        R"({"schema":1,"tool":"bandwidth","rows":[]})", R"({"schema":"peerlane-result/1","tool":[],"rows":[]})",
        R"({"schema":"peerlane-result/1","tool":"bandwidth","rows":[1]})",
        R"({"schema":"peerlane-result/1","tool":"bandwidth","rows":[],"machine":null})",
        R"({"schema":"peerlane-result/1","tool":"bandwidth","rows":[],"machine":{"gpu_name":1}})",
        R"({"schema":"peerlane-result/1","tool":"bandwidth","rows":[],"simulated":"no"})"})
    EXPECT_FALSE(baseline::parse(text, 5)) << text;
  EXPECT_EQ(baseline::load("/nonexistent/file.json", 5).error().code, ENOENT);
}

TEST(Rows, MissingFiguresAreNullAndWrongDataIsSaid) {
  const auto outcomes = outcomes_of_two_gpus();
  const auto none = cell_row("k", 6, outcomes[1].matrices[0], 0, 0, nullptr);
  EXPECT_TRUE(none["median"].is_null());
  EXPECT_EQ(none["state"], "not_applicable");
  const auto wrong = cell_row("k", 1, outcomes[4].matrices[0], 0, 1, nullptr);
  EXPECT_EQ(wrong["state"], "mismatch");
  EXPECT_EQ(wrong["mismatched_bytes"], 8);
  EXPECT_EQ(wrong["first_mismatch"], 4096);
}

TEST(Rows, CsvHasALineForEachCellAndQuotesWhatNeedsIt) {
  auto outcomes = outcomes_of_two_gpus();
  outcomes[3].reason = "none, \"really\"";
  const std::string text = csv_text(outcomes, nullptr);
  // Header, 2 + 1, 3 x 4, 2, waived, 2.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 3 + 12 + 2 + 1 + 2);
  EXPECT_NE(text.find("\"none, \"\"really\"\"\""), std::string::npos);
  const std::size_t columns =
      static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<long>(text.find('\n')), ','));
  const std::size_t waived = text.find("all_to_one_write_ce");
  const std::string line = text.substr(waived, text.find('\n', waived) - waived);
  EXPECT_EQ(static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')), columns + 1);  // one in the quotes
}

TEST(NativeText, SaysWhatIsWrongAndWhere) {
  const auto outcomes = outcomes_of_two_gpus();
  const std::string text = native_text(outcomes[4], nullptr);
  EXPECT_NE(text.find("failed"), std::string::npos) << text;
  EXPECT_NE(text.find("WRONG DATA"), std::string::npos) << text;
  EXPECT_NE(text.find("CPU 0, GPU 1: 8 of 65536 bytes"), std::string::npos) << text;
  EXPECT_NE(native_text(outcomes[3], nullptr).find("waived\n  no peer access"), std::string::npos);
  EXPECT_NE(native_text(outcomes[2], nullptr).find("p99"), std::string::npos);
  EXPECT_NE(native_closing(outcomes, nullptr).find("5 testcases: 3 passed, 1 waived, 1 failed"), std::string::npos);
}

TEST(Conclude, InterruptedTestcasesKeepWhatTheyHave) {
  auto one = outcome_with(0, "k", {matrix_with("", "t", {{5, kNone}})});
  conclude(one, true);
  EXPECT_EQ(one.state, test_state::interrupted);
  auto nothing = outcome_with(0, "k", {matrix_with("", "t", {{kNone, kNone}})});
  conclude(nothing, false);
  EXPECT_EQ(nothing.state, test_state::waived);
  EXPECT_EQ(nothing.reason, "no peer access");
}

}  // namespace
}  // namespace pl::bandwidth
