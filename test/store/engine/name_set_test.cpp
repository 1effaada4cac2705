// SPDX-License-Identifier: Apache-2.0
// name_set against std::set: the same answers and order, whatever comes and goes.
#include "store/engine/name_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace pl::store {
namespace {

std::vector<std::string> names_from(const name_set& all, std::string_view first, std::size_t limit = SIZE_MAX) {
  std::vector<std::string> out;
  all.visit(first, [&](std::string_view name) {
    if (out.size() == limit) return false;
    out.emplace_back(name);
    return true;
  });
  return out;
}

TEST(NameSet, IsEmptyAtFirst) {
  name_set all;
  EXPECT_TRUE(all.empty());
  EXPECT_FALSE(all.contains(""));
  EXPECT_FALSE(all.erase("a"));
  EXPECT_TRUE(names_from(all, "").empty());
}

TEST(NameSet, NamesOfEveryLength) {
  name_set all;
  std::set<std::string, std::less<>> model;
  for (const std::size_t size : {0u, 1u, 2u, 15u, 16u, 2040u, 2048u, 2050u, 4096u, 65535u})
    for (const char c : {'\0', 'a', '\xff'}) {
      const std::string name(size, c);
      EXPECT_EQ(all.insert(name), model.insert(name).second) << size;
      EXPECT_FALSE(all.insert(name));
    }
  EXPECT_EQ(names_from(all, ""), std::vector<std::string>(model.begin(), model.end()));
  for (const std::string& name : std::vector<std::string>(model.begin(), model.end())) {
    EXPECT_TRUE(all.contains(name));
    EXPECT_TRUE(all.erase(name));
    EXPECT_FALSE(all.contains(name));
  }
  EXPECT_TRUE(all.empty());
}

// A model that is driven by a seed: more names come at first, then more go, then both.
void drive(std::uint64_t seed, std::size_t most_bytes, unsigned alphabet) {
  std::mt19937_64 random(seed);
  name_set all;
  std::set<std::string, std::less<>> model;
  const auto some_name = [&] {
    std::string out(random() % (most_bytes + 1), '\0');
    for (char& c : out) c = static_cast<char>(random() % alphabet);
    return out;
  };
  for (int i = 0; i < 20'000; ++i) {
    const unsigned inserts = i < 8'000 ? 80 : i < 15'000 ? 20 : 50;
    std::string name = some_name();
    if (random() % 2 == 0 && !model.empty()) {
      const auto known = model.lower_bound(name);
      if (known != model.end()) name = *known;
    }
    if (random() % 100 < inserts) ASSERT_EQ(all.insert(name), model.insert(name).second);
    else ASSERT_EQ(all.erase(name), model.erase(name) == 1);
    ASSERT_EQ(all.size(), model.size());
    if (i % 50 != 0) continue;
    const std::string first = some_name();
    std::vector<std::string> wanted;
    for (auto known = model.lower_bound(first); known != model.end() && wanted.size() < 40; ++known)
      wanted.push_back(*known);
    ASSERT_EQ(names_from(all, first, 40), wanted) << "seed " << seed << ", step " << i;
    ASSERT_EQ(all.contains(first), model.contains(first));
  }
  EXPECT_EQ(names_from(all, ""), std::vector<std::string>(model.begin(), model.end()));
}

TEST(NameSet, AnswersAsTheModelDoes) {
  drive(1, 20, 256);
  drive(2, 20, 3);
  drive(3, 400, 256);
  drive(4, 3000, 2);
  drive(5, 2, 256);
}

}  // namespace
}  // namespace pl::store
