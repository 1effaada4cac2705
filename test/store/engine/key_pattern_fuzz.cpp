// SPDX-License-Identifier: Apache-2.0
// Regular expressions as clients may send them: each is refused, or compiled and held against keys in bounded time. From a
// seeded generator in the test suite, or from libFuzzer (preset fuzz), where -timeout is the bound:
//   store_pattern_fuzz -max_total_time=600 -timeout=10
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>

#include "store/engine/key_pattern.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store {
namespace {

// The error, empty if none.
std::string replay(const std::string& text, int& taken) {
  const pattern one(text);
  if (!one.good())
    return one.good().code() == EINVAL && !one.matches("a") ? "" : "refused with another error, or it matches all the same";
  ++taken;
  (void)one.matches("");
  (void)one.matches(std::string(300, 'a'));
  (void)one.matches(std::string("ab\0(1]-", 7) + text);
  return {};
}

std::string some_pattern(std::uint32_t seed) {
  std::mt19937 random(seed);
  static constexpr const char* kParts[] = {"a",           "b",   ".",    "*",      "+",     "?",        "{3}",     "{2,}",
                                           "{1,4}",       "(",   ")",    "|",      "[a-f]", "[^]x]",    "^",       "$",
                                           "[[:digit:]]", "\\.", "{,5}", "[[.-.]", "{100}", "[[=a=]b]", "(a|b)*a", "\\w"};
  std::string out;
  for (auto many = random() % 20; many > 0; --many) out += kParts[random() % std::size(kParts)];
  for (auto open = std::count(out.begin(), out.end(), '(') - std::count(out.begin(), out.end(), ')'); open > 0; --open)
    out += ')';
  return out;
}

}  // namespace
}  // namespace pl::store

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  int taken = 0;
  return store::replay(std::string(reinterpret_cast<const char*>(input.data()), input.size()), taken);
}
std::string good_input(std::uint32_t seed) { return store::some_pattern(seed); }
}  // namespace pl::fuzz

#else

namespace pl::store {
namespace {

TEST(store_pattern, WhatWouldFillMemoryOrTheStackIsRefused) {
  std::string nested(900, '(');
  nested += "a" + std::string(900, ')');
  std::string plusses = "a";
  for (int i = 0; i < 20; ++i) plusses = "(" + plusses + ")+";
  for (const std::string& bad :
       {std::string(".*{10,}{10,}{10,}{10,}{10,}"), std::string("(a{1,255}){1,255}{1,20}"), std::string("a{32767}"),
        std::string("((a{30}){30}){30}"), std::string("([[:alpha:])]a{30}){30}{30}"), std::string("(a)\\1"), plusses,
        std::string("x+++++++++++++++++++++"), nested, std::string(2000, 'a'), std::string("a\0b", 3),
        std::string("a{99999"), std::string("(((((a{,9}){,9}){,9}){,9}){,9})"), std::string("b?{,5}{,5}+"),
        std::string("(a*)*"), std::string("(a|b*){3}"), std::string("(^)*"), std::string("(()){2}"),
        std::string("((a?)(b?)|c)+")}) {
    const pattern one(bad);
    EXPECT_EQ(one.good().code(), EINVAL) << bad;
    EXPECT_FALSE(one.matches("a")) << bad;
  }
}

TEST(store_pattern, WhatPeopleWriteIsTaken) {
  const auto matches = [](const char* text, std::string_view key) {
    const pattern one(text);
    EXPECT_TRUE(one.good()) << text << ": " << one.good().error().message;
    return one.matches(key);
  };
  EXPECT_TRUE(matches("", "anything"));
  EXPECT_TRUE(matches("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "00112233-4455-6677-8899-aabbccddeeff"));
  EXPECT_TRUE(matches("^layer[0-9]+/(weights|bias)\\.bin$", "layer12/bias.bin"));
  EXPECT_FALSE(matches("^layer[0-9]+/(weights|bias)\\.bin$", "layer/bias.bin"));
  EXPECT_TRUE(matches("[](+]{2}[[:space:]]", "](\t"));
  EXPECT_TRUE(matches("^.{1,255}$", "k"));
  EXPECT_TRUE(matches("^((a?)b|c){2}(d*|e)$", "abcddd"));
  EXPECT_TRUE(matches("a[^b]c", std::string_view("a\0c", 3)));
}

TEST(key_pattern, ABeginningOfLettersNamesTheKeys) {
  EXPECT_EQ(literal_prefix_of("^run7/"), "run7/");
  EXPECT_EQ(literal_prefix_of("^run7/.*x$"), "run7/");
  EXPECT_EQ(literal_prefix_of("^run7*"), "run");
  EXPECT_EQ(literal_prefix_of("^run7?"), "run");
  EXPECT_EQ(literal_prefix_of("^run7{0,3}"), "run");
  EXPECT_EQ(literal_prefix_of("^run7+"), "run7");
  EXPECT_EQ(literal_prefix_of("^(run)7"), "");
  EXPECT_EQ(literal_prefix_of("^run|walk"), "");
  EXPECT_EQ(literal_prefix_of("run"), "");
  EXPECT_EQ(literal_prefix_of(""), "");
  EXPECT_EQ(literal_prefix_of("^"), "");
  EXPECT_EQ(literal_prefix_of("^a[|]"), "");  // a set, which is not looked into
}

// Whatever the pattern: a key in which it is found begins as literal_prefix_of() says.
TEST(key_pattern, NoKeyThatMatchesBeginsOtherwise) {
  std::mt19937 random(7);
  int tried = 0;
  for (std::uint32_t seed = 1; seed <= 4000; ++seed) {
    const std::string text = "^" + std::string(1 + random() % 3, 'a') + some_pattern(seed);
    const pattern one(text);
    if (!one.good()) continue;
    const std::string prefix = literal_prefix_of(text);
    for (int i = 0; i < 30; ++i) {
      std::string key;
      for (auto many = random() % 6; many > 0; --many) key += "ab.1"[random() % 4];
      if (!one.matches(key)) continue;
      ++tried;
      EXPECT_TRUE(key.starts_with(prefix)) << text << ", " << key;
    }
  }
  EXPECT_GT(tried, 100);
}

TEST(store_pattern_fuzz, SeededPatternsEndSoon) {
  int taken = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint32_t seed = 1; seed <= 4000; ++seed) ASSERT_EQ(replay(some_pattern(seed), taken), "") << seed;
  EXPECT_GT(taken, 600) << "patterns must get through, or nothing was tried";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace pl::store

#endif
