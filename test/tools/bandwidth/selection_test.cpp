// SPDX-License-Identifier: Apache-2.0
// Command lines, what they select, and exit codes.
#include "tools/bandwidth/selection.hpp"

#include <gtest/gtest.h>

#include "test/tools/bandwidth/outcome_builder.hpp"

namespace pl::bandwidth {
namespace {

bandwidth_options parsed(std::vector<std::string> arguments, bool drop_in = false) {
  tools::invocation call;
  call.program = drop_in ? "nvbandwidth" : "peerlane bandwidth";
  call.drop_in = drop_in;
  call.arguments = std::move(arguments);
  bandwidth_options options;
  EXPECT_FALSE(parse_options(call, options).has_value());
  return options;
}

int refused(std::vector<std::string> arguments) {
  tools::invocation call;
  call.program = "peerlane bandwidth";
  call.arguments = std::move(arguments);
  bandwidth_options options;
  return parse_options(call, options).value_or(-1);
}

TEST(BufferSize, ABareNumberIsMebibytes) {
  EXPECT_EQ(parse_buffer_size("64"), 64u << 20);
  EXPECT_EQ(parse_buffer_size("64K"), 65536u);
  EXPECT_EQ(parse_buffer_size("1G"), 1u << 30);
  EXPECT_EQ(parse_buffer_size("4B"), 4u);
  for (const char* wrong : {"", "0", "-1", "3B", "x", "64Q", "0K", "99999999999", "B"})
    EXPECT_FALSE(parse_buffer_size(wrong)) << wrong;
}

TEST(Sweep, PowersOfTwoToTheEnd) {
  EXPECT_EQ(parse_sweep("4:32"), (std::vector<std::uint64_t>{4, 8, 16, 32}));
  EXPECT_EQ(parse_sweep("1K:3K"), (std::vector<std::uint64_t>{1024, 2048, 3072}));
  for (const char* wrong : {"", "4", "4:", ":4", "8:4", "2:8", "a:b"}) EXPECT_TRUE(parse_sweep(wrong).empty()) << wrong;
}

TEST(Options, TheOriginalsDefaultsUnderItsName) {
  const auto options = parsed({}, true);
  EXPECT_EQ(options.test.bytes, 512u << 20);
  EXPECT_EQ(options.test.settings.samples, 3u);
  EXPECT_EQ(options.test.settings.copies, 16u);
  EXPECT_TRUE(options.compat && options.exit_as_original && options.test.settings.balance);
  EXPECT_FALSE(options.test.judge || options.test.original_mistakes);
}

TEST(Options, OurDefaults) {
  const auto options = parsed({});
  EXPECT_EQ(options.test.settings.samples, 5u);
  EXPECT_TRUE(options.test.judge);
  EXPECT_FALSE(options.compat || options.exit_as_original);
}

TEST(Options, TheOriginalsLettersAndBeginningsOfNames) {
  const auto options = parsed({"-b", "64", "-t", "0", "host_to_device_memcpy_sm", "-t", "3", "-v", "-s", "-d", "-i", "7",
                               "-m", "-j", "--loopCount", "4", "--perfFormatter"},
                              true);
  EXPECT_EQ(options.testcases, (std::vector<std::string>{"0", "host_to_device_memcpy_sm", "3"}));
  EXPECT_TRUE(options.verbose && options.test.disable_affinity && options.test.use_mean && options.json_to_stdout);
  EXPECT_TRUE(options.perf_formatter && !options.test.settings.verify);
  EXPECT_EQ(options.test.settings.samples, 7u);
  EXPECT_EQ(options.test.settings.copies, 4u);
  EXPECT_EQ(options.test.settings.min_sample_ns, 0u);
  EXPECT_EQ(parsed({"--buffer", "2", "--useM"}, true).test.bytes, 2u << 20);
  EXPECT_TRUE(parsed({"--json"}, true).json_to_stdout);
  EXPECT_EQ(parsed({"--json", "out.json"}, true).json_path, "out.json");
}

TEST(Options, CompatBugsImplyCompatAndTheOriginalsArithmetic) {
  const auto options = parsed({"--compat-bugs"});
  EXPECT_TRUE(options.compat && options.test.original_mistakes && options.test.settings.whole_microseconds);
  EXPECT_FALSE(options.test.settings.balance);
  EXPECT_EQ(options.test.settings.min_sample_ns, 0u);
}

TEST(Options, JudgingUnderTheOriginalsNameIsAskedForByItsOptions) {
  EXPECT_TRUE(parsed({"--threshold", "10"}, true).test.judge);
  EXPECT_FALSE(parsed({"--threshold", "10"}, true).exit_as_original);
  EXPECT_DOUBLE_EQ(parsed({"--threshold", "10"}).test.limits.good, 0.9);
  EXPECT_DOUBLE_EQ(parsed({"--threshold", "10", "--baseline", "x"}).test.limits.good, thresholds{}.good);
}

TEST(Options, RefusedOnes) {
  EXPECT_EQ(refused({"-b", "0"}), 1);
  EXPECT_EQ(refused({"-t", "0", "-p", "host"}), 1);
  EXPECT_EQ(refused({"--size-sweep", "8:4"}), 1);
  EXPECT_EQ(refused({"--host-memory", "fast"}), 1);
  EXPECT_EQ(refused({"--threshold", "x"}), 1);
  EXPECT_EQ(refused({"--no-such-option"}), 1);
  EXPECT_EQ(refused({"-i", "0"}), 1);
  EXPECT_EQ(refused({"-h"}), 0);
}

std::vector<int> indices(const std::vector<selected>& selection) {
  std::vector<int> out;
  for (const selected& one : selection) out.push_back(one.test != nullptr ? one.test->index : -1);
  return out;
}

TEST(Selection, InTheOrderAskedForWithDuplicates) {
  const auto selection = *select_testcases(parsed({"-t", "5", "0", "5", "nonsense"}), 1);
  EXPECT_EQ(indices(selection), (std::vector<int>{5, 0, 5, -1}));
  EXPECT_EQ(selection[3].asked, "nonsense");
}

TEST(Selection, PrefixesInTheTablesOrder) {
  EXPECT_EQ(indices(*select_testcases(parsed({"-p", "one_to", "all_to_one"}), 1)),
            (std::vector<int>{12, 13, 14, 15, 28, 29, 30, 31}));
  EXPECT_FALSE(select_testcases(parsed({"-p", "nonsense"}), 1));
}

TEST(Selection, APrefixUnderTheOriginalsNameMeansTheOriginalsTestcases) {
  EXPECT_EQ(indices(*select_testcases(parsed({"-p", "host_to_device"}, true), 1)), (std::vector<int>{0, 2, 16, 18}));
  EXPECT_EQ(indices(*select_testcases(parsed({"-p", "host_to_device", "--compat"}), 1)), (std::vector<int>{0, 2, 16, 18}));
  EXPECT_EQ(indices(*select_testcases(parsed({"-p", "host_to_device"}), 1)),
            (std::vector<int>{0, 2, 16, 18, 57, 59, 70, 72, 73, 74, 75}));
  EXPECT_FALSE(select_testcases(parsed({"-p", "bar_"}, true), 1));
  EXPECT_EQ(indices(*select_testcases(parsed({"-t", "host_to_device_bar"}, true), 1)), (std::vector<int>{57}));
}

TEST(Selection, Defaults) {
  EXPECT_EQ(select_testcases(parsed({}, true), 1)->size(), 44u);
  EXPECT_EQ(select_testcases(parsed({}), 1)->size(), all_testcases().size() - 13);
  EXPECT_EQ(select_testcases(parsed({}), 4)->size(), 13u);
  const auto lines = *select_testcases(parsed({"--transfer", "H -> G0", "--transfer", "G0 -> H"}), 1);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[1].is_transfer);
  EXPECT_EQ(lines[1].asked, "G0 -> H");
}

test_outcome in_state(test_state state) { return outcome_in(0, "x", state, ""); }

TEST(ExitCode, TheMostSevereOfSeveral) {
  const auto code = [](std::vector<test_outcome> outcomes, bool interrupted = false) {
    return exit_code_of(outcomes, interrupted, nullptr);
  };
  EXPECT_EQ(code({in_state(test_state::passed), in_state(test_state::waived)}), 0);
  EXPECT_EQ(code({in_state(test_state::waived), in_state(test_state::waived)}), 5);
  EXPECT_EQ(code({in_state(test_state::slow), in_state(test_state::waived)}), 3);
  EXPECT_EQ(code({in_state(test_state::slow), in_state(test_state::interrupted)}, true), 4);
  EXPECT_EQ(code({in_state(test_state::error), in_state(test_state::slow)}, true), 2);
  EXPECT_EQ(code({in_state(test_state::unsteady), in_state(test_state::waived)}), 6);
  EXPECT_EQ(code({in_state(test_state::unsteady), in_state(test_state::slow)}), 3);
  EXPECT_EQ(code({in_state(test_state::unsteady), in_state(test_state::interrupted)}, true), 4);
  EXPECT_EQ(code(outcomes_of_two_gpus()), 2);
}

TEST(ExitCode, AVariedCellIsNoSlowOne) {
  auto outcome = outcome_with(0, "x", {matrix_with("", "t", {{40}})});
  outcome.matrices[0].cells[0][0].judged = verdict{verdict_level::suspicious, 0.7, "varied", true};
  conclude(outcome, false);
  EXPECT_EQ(outcome.state, test_state::unsteady);
  EXPECT_EQ(exit_code_of({{outcome}}, false, nullptr), 6);
  outcome.matrices[0].cells[0][0].judged->is_varied = false;
  conclude(outcome, false);
  EXPECT_EQ(outcome.state, test_state::slow);
  EXPECT_EQ(exit_code_of({{outcome}}, false, nullptr), 3);
}

TEST(ExitCode, TheOriginalKnowsOnlyFailure) {
  EXPECT_EQ(original_exit_code({{in_state(test_state::waived)}}, false), 0);
  EXPECT_EQ(original_exit_code({{outcome_in(kUnknownTestcase, "x", test_state::error, "")}}, false), 0);
  EXPECT_EQ(original_exit_code({{in_state(test_state::slow)}}, false), 0);
  EXPECT_EQ(original_exit_code(outcomes_of_two_gpus(), false), 1);
}

}  // namespace
}  // namespace pl::bandwidth
