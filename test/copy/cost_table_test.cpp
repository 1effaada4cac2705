// SPDX-License-Identifier: Apache-2.0
#include "copy/cost_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string>

namespace pl::copy {
namespace {

// Tables are handed on by value, also in threads with stacks of 256 KiB: the 36 KiB of decisions are not part of them.
static_assert(sizeof(cost_table) <= 64);

constexpr direction kDirections[] = {direction::to_device, direction::to_host, direction::on_device};
constexpr other_side kAllSides[] = {other_side::pinned, other_side::pageable, other_side::same_gpu, other_side::peer_gpu};
const std::string kHeader = "peerlane-calibration/1\n";

cost_table parsed(const std::string& curves) {
  auto table = cost_table::parse(kHeader + curves);
  EXPECT_TRUE(table) << table.error().message;
  return table ? *table : cost_table({});
}

TEST(CostTable, CellsCoverAllSizesWithoutGapsOrOverlaps) {
  for (std::size_t cell = 16; cell + 1 < cost_table::kCells; ++cell) {
    const auto begin = cost_table::smallest_of(cell);
    const auto next = cost_table::smallest_of(cell + 1);
    ASSERT_LT(begin, next) << cell;
    EXPECT_EQ(cost_table::cell_of(begin), cell);
    EXPECT_EQ(cost_table::cell_of(next - 1), cell);
    EXPECT_EQ(cost_table::cell_of(cost_table::middle_of(cell)), cell);
    if (cell % 2 == 0) EXPECT_EQ(next - begin, 1u) << "a round size has a cell of its own";
    else EXPECT_LT(next - begin, begin / 4 + 1) << "four steps an octave";
  }
  std::size_t last = 0;
  for (std::uint64_t bytes = 0; bytes < 100'000; ++bytes) {
    const auto cell = cost_table::cell_of(bytes);
    ASSERT_TRUE(bytes == 0 || cell > last || (cell == last && cell % 2 == 1)) << bytes;
    ASSERT_LE(cell, last + 2) << bytes;
    ASSERT_GE(bytes, cost_table::smallest_of(cell));
    last = cell;
  }
  for (unsigned bits = 0; bits < 40; ++bits) {
    const std::uint64_t power = std::uint64_t{1} << bits;
    EXPECT_EQ(cost_table::middle_of(cost_table::cell_of(power)), power) << "decided for itself";
  }
  EXPECT_EQ(cost_table::cell_of(UINT64_MAX), cost_table::kCells - 1);
}

// The cheapest by hand, at the size that stands for a cell.
choice cheapest_of(const cost_table& table, direction way, other_side side, executor present, std::uint64_t bytes) {
  choice best;
  double best_ns = table.cost(way, side, best, bytes);
  for (const auto& curve : table.curves()) {
    if (curve.way != way || curve.side != side || (!is_available(curve.option.kind, present))) continue;
    const double ns = table.cost(way, side, curve.option, bytes) * caution(curve.option);
    if (ns < best_ns) best_ns = ns, best = curve.option;
  }
  return best;
}

TEST(CostTable, EveryDecisionIsTheCheapestThatIsAllowed) {
  const auto& table = cost_table::built_in();
  for (const auto way : kDirections)
    for (const auto side : kAllSides)
      for (const executor present : {executor::none, executor::kernel, executor::channel, executor::both})
        for (std::size_t cell = 2; cell + 1 < cost_table::kCells; ++cell) {
          const auto low = cost_table::smallest_of(cell);
          const auto next = cost_table::smallest_of(cell + 1);
          if (low == next) continue;  // no size is in it
          const auto expected = cheapest_of(table, way, side, present, cost_table::middle_of(cell));
          for (const auto bytes : {low, low + (next - low) / 2, next - 1}) {
            const auto picked = table.pick(way, side, present, bytes);
            ASSERT_EQ(picked, expected) << name_of(way) << " " << name_of(side) << " " << bytes;
            ASSERT_TRUE(is_available(picked.kind, present)) << bytes;
            const auto limits = limits_of(way, picked);
            ASSERT_TRUE(bytes >= limits.least && bytes <= limits.most) << to_text(picked) << " of " << bytes;
          }
        }
  EXPECT_EQ(table.pick(direction::to_device, other_side::pageable, executor::none, 0).kind, method::cpu_store);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pinned, executor::kernel, UINT64_MAX).kind, method::copy_engine);
}

TEST(CostTable, TheBuiltInTableIsSensible) {
  const auto& table = cost_table::built_in();
  EXPECT_EQ(table.pick(direction::to_device, other_side::pinned, executor::kernel, 64), (choice{method::cpu_store, 1}));
  EXPECT_EQ(table.pick(direction::to_host, other_side::pinned, executor::kernel, 8).kind, method::cpu_load);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, 4096).kind, method::engine_low_latency);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::none, 64u << 20).kind, method::bounce);
  EXPECT_EQ(table.pick(direction::on_device, other_side::same_gpu, executor::none, 64u << 20).kind, method::copy_engine);
  for (const auto& curve : table.curves()) {
    const auto all = candidates(curve.way, curve.side);
    EXPECT_NE(std::find(all.begin(), all.end(), curve.option), all.end()) << to_text(curve.option);
  }
}

TEST(CostTable, CurvesMeetTheirPointsAndGoOnBehindThem) {
  const cost_curve curve{
      direction::to_host, other_side::pinned, {method::copy_engine, 1}, {{100, 50}, {200, 70}, {400, 10}}};
  EXPECT_DOUBLE_EQ(curve.cost_at(1), 50);
  EXPECT_DOUBLE_EQ(curve.cost_at(100), 50);
  EXPECT_DOUBLE_EQ(curve.cost_at(150), 60);
  EXPECT_DOUBLE_EQ(curve.cost_at(200), 70);
  EXPECT_DOUBLE_EQ(curve.cost_at(300), 40);
  EXPECT_DOUBLE_EQ(curve.cost_at(400), 10) << "a measured point stands, whatever its neighbour says";
  EXPECT_GT(curve.cost_at(100'000), 0) << "a falling slope is not continued below zero";
  const cost_curve flat{direction::to_host, other_side::pinned, {method::copy_engine, 1}, {{100, 50}}};
  EXPECT_DOUBLE_EQ(flat.cost_at(1), 50);
  EXPECT_DOUBLE_EQ(flat.cost_at(1'000'000), 50);
  const cost_curve rising{direction::to_host, other_side::pinned, {method::copy_engine, 1}, {{100, 50}, {200, 60}}};
  EXPECT_DOUBLE_EQ(rising.cost_at(1200), 160);
}

TEST(CostTable, AWayIsNotTakenBeyondItsLimits) {
  const auto table =
      parsed("curve to_host pageable cpu_load 1 1:1 2:1\ncurve to_host pageable engine_low_latency 1 1:2 2:2\n");
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, (256u << 10) - 1).kind, method::cpu_load);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, (256u << 10) + 1).kind,
            method::copy_engine);
  EXPECT_TRUE(std::isinf(table.cost(direction::to_host, other_side::pageable, {method::cpu_load, 1}, 300u << 10)));
  EXPECT_TRUE(std::isinf(table.cost(direction::to_host, other_side::pageable, {method::bounce, 1}, 300u << 10)));
  const auto wide = parsed("curve to_device pinned cpu_store 4 1:1\n");
  EXPECT_EQ(wide.pick(direction::to_device, other_side::pinned, executor::none, 20479).kind, method::copy_engine);
  EXPECT_EQ(wide.pick(direction::to_device, other_side::pinned, executor::none, 20480), (choice{method::cpu_store, 4}));
}

// What a way can do ends or begins at a size that people use: the byte beside it may go another way, this one must not.
TEST(CostTable, WaysBeginAndEndExactlyAtTheirLimits) {
  std::uint64_t state = 1;
  const auto random_ns = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return 1000 + static_cast<double>(state >> 54);
  };
  for (int round = 0; round < 20; ++round) {
    // Flat costs: between two limits nothing changes, so the cheapest eligible way is known at every size.
    std::vector<cost_curve> curves;
    for (const auto way : kDirections)
      for (const auto side : kAllSides)
        for (const auto& option : candidates(way, side)) curves.push_back({way, side, option, {{1, random_ns()}}});
    const cost_table table(curves);
    for (const auto& curve : curves)
      for (const executor present : {executor::none, executor::kernel, executor::channel, executor::both}) {
        const auto limits = limits_of(curve.way, curve.option);
        for (const auto limit : {limits.least, limits.most}) {
          if (limit == UINT64_MAX) continue;
          ASSERT_EQ(cost_table::middle_of(cost_table::cell_of(limit)), limit) << to_text(curve.option) << ": no round size";
          for (const auto bytes : {limit - 1, limit, limit + 1}) {
            if (bytes == 0) continue;
            ASSERT_EQ(table.pick(curve.way, curve.side, present, bytes),
                      cheapest_of(table, curve.way, curve.side, present, bytes))
                << name_of(curve.way) << " " << name_of(curve.side) << " " << bytes;
          }
        }
      }
  }
}

// Where a way that is worse in the middle of what follows is the best at the round size itself.
TEST(CostTable, AtItsLastSizeTheBestWayIsTaken) {
  const auto table = parsed(
      "curve to_host pageable engine_low_latency 1 32768:5400\n"
      "curve to_host pageable engine_bounce 1 1024:3826 32768:6834 65536:9865\n");
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, 32767).kind, method::engine_low_latency);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, 32768).kind, method::engine_low_latency);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pageable, executor::kernel, 32769).kind, method::engine_bounce);
}

TEST(CostTable, TheEngineIsChosenOnlyWhileItIsHot) {
  const auto table = parsed("curve to_host pinned engine_copy 1 1:1\ncurve to_host pinned cpu_load 1 1:5\n");
  EXPECT_EQ(table.pick(direction::to_host, other_side::pinned, executor::kernel, 100).kind, method::engine_copy);
  EXPECT_EQ(table.pick(direction::to_host, other_side::pinned, executor::none, 100).kind, method::cpu_load);
}

TEST(CostTable, SkipsTheDriverQueryWhereItCostsMoreThanItSaves) {
  // Two ways for both kinds of memory, each the best for one, 60 ns apart at 4 KiB and further and further from there on.
  const auto table = parsed(
      "question 100\n"
      "curve to_host pinned cpu_load 1 64:1000 4096:4060 65536:65000\n"
      "curve to_host pinned copy_engine 1 64:4000 65536:4000\n"
      "curve to_host pageable cpu_load 1 64:1000 4096:4000 65536:65000\n"
      "curve to_host pageable copy_engine 1 64:4060 4096:4060 65536:9000\n");
  constexpr auto kWay = direction::to_host;
  EXPECT_EQ(table.query_cost_ns(), 100);
  EXPECT_NE(table.pick(kWay, other_side::pinned, executor::none, 4096),
            table.pick(kWay, other_side::pageable, executor::none, 4096));
  EXPECT_EQ(table.pick_without_query(kWay, executor::none, 4096).width, 1) << "either does";
  EXPECT_EQ(table.pick_without_query(kWay, executor::none, 64), (choice{method::cpu_load, 1})) << "the best for both";
  EXPECT_EQ(table.pick_without_query(kWay, executor::none, 65536), (choice{method::copy_engine, 1}));
  EXPECT_EQ(parsed("question 20\n" + table.text().substr(table.text().find("curve")))
                .pick_without_query(kWay, executor::none, 4096)
                .width,
            0)
      << "a question that is cheaper than the worse way is asked";
  EXPECT_EQ(table.pick_without_query(direction::to_device, executor::none, 64).width, 0) << "no curves";
  EXPECT_FALSE(cost_table::parse(kHeader + "question x\ncurve to_host pinned cpu_load 1 64:1\n"));
}

// A method chosen without a driver query suits both kinds of memory, and costs at most the query more than the best one.
TEST(CostTable, AMethodChosenWithoutAQueryLosesAtMostTheQuerysCost) {
  const auto& table = cost_table::built_in();
  std::size_t without_query = 0;
  for (const auto way : {direction::to_device, direction::to_host})
    for (const executor present : {executor::none, executor::kernel, executor::channel, executor::both})
      for (std::uint64_t bytes = 1; bytes <= 1u << 30; bytes *= 2) {
        const auto option = table.pick_without_query(way, present, bytes);
        if (option.width == 0) continue;
        ++without_query;
        EXPECT_TRUE(is_available(option.kind, present));
        for (const auto side : {other_side::pinned, other_side::pageable}) {
          const auto best = table.pick(way, side, present, bytes);
          EXPECT_LE(table.cost(way, side, option, bytes) * caution(option),
                    table.cost(way, side, best, bytes) * caution(best) + table.query_cost_ns() + 1e-6)
              << name_of(way) << " " << bytes;
        }
      }
  EXPECT_GT(without_query, 40u) << "all short copies by the CPU, at least";
}

TEST(CostTable, TextsComeBackAsTheyWere) {
  const auto text = cost_table::built_in().text();
  auto again = cost_table::parse(text);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->text(), text);
  ASSERT_EQ(again->curves().size(), cost_table::built_in().curves().size());
  // What a fast machine measures rounds to no time at all, which would not be understood.
  const cost_table quick(
      {{direction::to_device, other_side::pinned, {method::cpu_store, 1}, {{1, 0.2}, {2, 0.9}, {3, 1e3}}}});
  auto read_back = cost_table::parse(quick.text());
  ASSERT_TRUE(read_back) << quick.text();
  EXPECT_DOUBLE_EQ(read_back->curves()[0].points[2].ns, 1000);
}

TEST(CostTable, MalformedTextsAreRefusedByLine) {
  EXPECT_EQ(cost_table::parse("").code(), EINVAL);
  EXPECT_EQ(cost_table::parse(kHeader).code(), EINVAL);
  EXPECT_EQ(cost_table::parse("peerlane-calibration/2\ncurve to_host pinned copy_engine 1 1:1\n").code(), EINVAL);
  const char* const wrong[] = {
      "curve",
      "curve to_host pinned copy_engine 1",
      "curve to_moon pinned copy_engine 1 1:1",
      "curve to_host frozen copy_engine 1 1:1",
      "curve to_host pinned teleport 1 1:1",
      "curve to_host pinned copy_engine 0 1:1",
      "curve to_host pinned copy_engine 65 1:1",
      "curve to_host pinned copy_engine x 1:1",
      "curve to_host pinned copy_engine -1 1:1",
      "curve to_host pinned copy_engine 1 1",
      "curve to_host pinned copy_engine 1 1:",
      "curve to_host pinned copy_engine 1 :1",
      "curve to_host pinned copy_engine 1 1:0",
      "curve to_host pinned copy_engine 1 1:-5",
      "curve to_host pinned copy_engine 1 1:nan",
      "curve to_host pinned copy_engine 1 1:inf",
      "curve to_host pinned copy_engine 1 1:1e999",
      "curve to_host pinned copy_engine 1 2:1 2:1",
      "curve to_host pinned copy_engine 1 2:1 1:1",
      "curve to_host pinned copy_engine 1 1:1x",
      "curve to_host pinned copy_engine 1 99999999999999999999999:1",
  };
  for (const char* line : wrong) {
    auto refused = cost_table::parse(kHeader + "# a remark\n\n" + line + "\n");
    EXPECT_EQ(refused.code(), EINVAL) << line;
    if (!refused) { EXPECT_NE(refused.error().message.find("line 4"), std::string::npos) << refused.error().message; }
  }
  EXPECT_TRUE(cost_table::parse(kHeader + "machine x\ncurve to_host pinned copy_engine 1 1:1")) << "no newline at the end";
}

// Whatever the text, parsing ends with a table that answers, or with a reason.
TEST(CostTable, DamagedTextsNeverCrash) {
  const auto whole = cost_table::built_in().text();
  std::uint64_t state = 4711;
  const auto next = [&](std::size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % below;
  };
  for (int round = 0; round < 40; ++round) {
    auto text = whole.substr(0, next(whole.size() + 1));
    for (std::size_t i = 0; i < 3 && !text.empty(); ++i) text[next(text.size())] = static_cast<char>(next(256));
    if (auto table = cost_table::parse(text))
      (void)table->pick(direction::to_host, other_side::pinned, executor::kernel, 100);
    else EXPECT_FALSE(table.error().message.empty());
  }
}

TEST(CostTable, ChoicesHaveTexts) {
  for (std::size_t kind = 0; kind < kMethods; ++kind)
    for (const unsigned width : {1u, 2u, 64u}) {
      const choice one{static_cast<method>(kind), static_cast<std::uint8_t>(width)};
      auto again = parse_choice(to_text(one));
      ASSERT_TRUE(again) << to_text(one);
      EXPECT_EQ(*again, one);
    }
  for (const char* wrong :
       {"", " ", "cpu", "cpu_store 4", "cpu_store x", "cpu_store x0", "cpu_store x65", "cpu_store x4 x4"}) {
    auto refused = parse_choice(wrong);
    EXPECT_EQ(refused.code(), EINVAL) << wrong;
    if (!refused) { EXPECT_NE(refused.error().message.find("engine_bounce"), std::string::npos); }
  }
}

TEST(CostTable, EveryCandidateCanDoSomeSize) {
  for (const auto way : kDirections)
    for (const auto side : kAllSides) {
      if ((way == direction::on_device) != (side == other_side::same_gpu || side == other_side::peer_gpu)) continue;
      for (const auto& option : candidates(way, side)) {
        const auto limits = limits_of(way, option);
        EXPECT_LE(limits.least, limits.most);
        EXPECT_GE(limits.least, 1u);
      }
    }
}

}  // namespace
}  // namespace pl::copy
