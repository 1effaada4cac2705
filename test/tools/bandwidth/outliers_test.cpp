// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/outliers.hpp"

#include <gtest/gtest.h>

namespace pl::bandwidth {
namespace {

using kind = outlier::kind;

// Peers: the diagonal is not measured.
value_grid peers(std::size_t count, double value) {
  value_grid out;
  out.is_same_devices = true;
  out.values.assign(count, std::vector<std::optional<double>>(count, value));
  for (std::size_t i = 0; i < count; ++i) {
    out.values[i][i].reset();
    out.rows.push_back("GPU " + std::to_string(i));
  }
  out.columns = out.rows;
  return out;
}

value_grid row_of(std::vector<double> values) {
  value_grid out;
  out.rows = {"CPU"};
  out.values.emplace_back(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i) out.columns.push_back("GPU " + std::to_string(i));
  return out;
}

TEST(Outliers, NoneAmongEquals) {
  EXPECT_TRUE(find_outliers(peers(8, 390)).empty());
  EXPECT_TRUE(find_outliers(row_of({55.1, 55.3, 54.9, 52.0})).empty());
  EXPECT_TRUE(find_outliers({}).empty());
}

TEST(Outliers, TwoValuesDoNotSayWhichIsRight) { EXPECT_TRUE(find_outliers(row_of({55, 14})).empty()); }

TEST(Outliers, OneSlowGpuAtTheHost) {
  const auto found = find_outliers(row_of({57.0, 56.8, 14.2, 57.1}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::device);
  EXPECT_EQ(found[0].column, 2u);
  EXPECT_EQ(found[0].text, "GPU 2: 14.2 where 56.9 is usual here, 75 % less");
}

TEST(Outliers, HigherLatencyIsWorse) {
  auto grid = row_of({700, 710, 1900, 690});
  grid.higher_is_better = false;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].column, 2u);
}

// Half of the values of four GPUs' matrix concern any one of them.
TEST(Outliers, OneBadGpuOfFour) {
  auto grid = peers(4, 390);
  for (std::size_t i : {0u, 1u, 3u}) grid.values[2][i] = grid.values[i][2] = 200;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::device);
  EXPECT_EQ(found[0].row, 2u);
  EXPECT_EQ(found[0].text.substr(0, 29), "GPU 2, in both directions: 20");
}

TEST(Outliers, OneBadSender) {
  auto grid = peers(8, 390);
  for (std::size_t i = 0; i < 8; ++i)
    if (i != 5) grid.values[5][i] = 300;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::row);
  EXPECT_EQ(found[0].text.substr(0, 22), "everything from GPU 5:");
}

TEST(Outliers, OneBadReceiver) {
  auto grid = peers(8, 390);
  for (std::size_t i = 0; i < 8; ++i)
    if (i != 5) grid.values[i][5] = 300;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::column);
}

TEST(Outliers, OneBadLinkInBothDirectionsAndInOne) {
  auto grid = peers(8, 390);
  grid.values[1][6] = grid.values[6][1] = 250;
  grid.values[3][4] = 240;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].type, kind::pair);
  EXPECT_EQ(found[0].text.substr(0, 51), "the link between GPU 1 and GPU 6, in both direction");
  EXPECT_EQ(found[1].type, kind::cell);
  EXPECT_EQ(found[1].text.substr(0, 32), "the path from GPU 3 to GPU 4: 24");
}

TEST(Outliers, ASocketAtTheHost) {
  auto grid = row_of({55, 55, 55, 55, 28, 27, 28, 28});
  grid.row_sockets = {0};
  grid.column_sockets = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::sockets);
  EXPECT_EQ(found[0].text.substr(0, 35), "the link from socket 0 to socket 1:");
}

TEST(Outliers, OneDirectionBetweenSockets) {
  auto grid = peers(8, 50);
  grid.row_sockets = grid.column_sockets = {0, 0, 0, 0, 1, 1, 1, 1};
  for (std::size_t row = 4; row < 8; ++row)
    for (std::size_t column = 0; column < 4; ++column) grid.values[row][column] = 20;
  const auto found = find_outliers(grid);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].type, kind::sockets);
  EXPECT_EQ(found[0].row, 4u);
}

// Noise of a few per cent is no finding, whatever its deviation.
TEST(Outliers, SmallDifferencesAreNone) {
  auto grid = peers(4, 390);
  grid.values[0][1] = 380;
  EXPECT_TRUE(find_outliers(grid).empty());
}

}  // namespace
}  // namespace pl::bandwidth
