// SPDX-License-Identifier: Apache-2.0
// Every copy implementation this CPU can run, at every alignment and size (copy_checker.hpp says how).
#include "arch/copy_routines.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "test/arch/copy_checker.hpp"

namespace pl::arch {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr check::effort kEffort{.size_step = 61, .host_step = 9};
constexpr std::size_t kTornRounds = 20'000;
#else
constexpr check::effort kEffort{};
constexpr std::size_t kTornRounds = 300'000;
#endif

class CopyRoutines : public testing::TestWithParam<copy_ops> {};

TEST_P(CopyRoutines, WriteIsExactAtEveryAlignmentAndSize) { EXPECT_EQ(check::check_writes(GetParam(), kEffort), ""); }
TEST_P(CopyRoutines, ReadIsExactAtEveryAlignmentAndSize) { EXPECT_EQ(check::check_reads(GetParam(), kEffort), ""); }
TEST_P(CopyRoutines, FillLaysThePatternOverAddresses) { EXPECT_EQ(check::check_fills(GetParam(), kEffort), ""); }
TEST_P(CopyRoutines, StaysInsideThePages) { EXPECT_EQ(check::check_page_edges(GetParam(), kEffort), ""); }
TEST_P(CopyRoutines, AlignedWordsAreNeverTorn) { EXPECT_EQ(check::check_untorn_words(GetParam(), kTornRounds), ""); }

// What copy_ops_for(cached) consists of is not in the list of instruction sets, but keeps the same promises.
std::vector<copy_ops> everything() {
  const auto supported = supported_copy_ops();
  std::vector<copy_ops> all(supported.begin(), supported.end());
  all.push_back({"cached", cached::write, cached::read, cached::fill});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CopyRoutines, testing::ValuesIn(everything()),
                         [](const auto& entry) { return std::string(entry.param.name); });

// The checker itself must notice: routines with one deliberate mistake each.
template <int Mistake>
void wrong_write(void* device, const void* host, std::size_t bytes) {
  if (Mistake == 0 && bytes > 100) bytes -= 1;  // forgets the last byte
  if (Mistake == 1 && bytes == 65) bytes += 1;  // one byte too many
  std::memcpy(device, host, bytes);
  if (Mistake == 2 && bytes > 128) std::memcpy(static_cast<char*>(device) + 64, host, 1);  // a byte from elsewhere
}

template <int Mistake>
std::string verdict() {
  return check::check_writes({"wrong", wrong_write<Mistake>, cached::read, cached::fill},
                             {.size_step = 100, .host_step = 32});
}

TEST(CopyChecker, NoticesMistakes) {
  EXPECT_NE(verdict<0>(), "");
  EXPECT_NE(verdict<1>(), "");
  EXPECT_NE(verdict<2>(), "");
  EXPECT_EQ(verdict<3>(), "");
}

}  // namespace
}  // namespace pl::arch
