// SPDX-License-Identifier: Apache-2.0
// What `peerlane blocks` calls verified is only as good as this: lists of which a block or a byte is missing, misplaced or
// too many must be found; and every contender moves all of a list.
#include "tools/blocks/block_arena.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tools/blocks/block_mover.hpp"
#include "tools/blocks/blocks_command.hpp"

namespace pl::tools {
namespace {

using copy::direction;

constexpr direction kWays[] = {direction::to_host, direction::to_device};

struct fixture {
  // The tools look for the simulated GPU beside their program, where this one is not.
  bool loaded = dlopen(PL_SIM_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr;
  gpu_session gpu{0, false};
  block_arena arena{gpu, 1u << 20, 32u << 10, 42};

  void copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) const {
    gpu.check(gpu.cuda().cuMemcpyAsync(destination, source, bytes, nullptr), "cuMemcpyAsync");
    gpu.synchronize();
  }
  void copy_all(const block_list& list) const {
    for (std::size_t i = 0; i < list.count(); ++i) copy(list.destination(i), list.source(i), list.block_bytes);
  }
  std::string complaint_of(const block_list& list, const std::function<void()>& run) {
    try {
      arena.verify(list, "test", run);
      return "";
    } catch (const tool_failure& reason) { return reason.what(); }
  }
};

TEST(block_arena, places_are_scattered_and_each_is_used_once) {
  fixture f;
  const block_list list = f.arena.make_list(direction::to_host, 512, 1000);
  for (auto slots : {list.device_slots, list.host_slots}) {
    EXPECT_FALSE(std::is_sorted(slots.begin(), slots.end()));
    std::sort(slots.begin(), slots.end());
    EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end());
    EXPECT_GE(slots.front(), 0);
    EXPECT_LT(static_cast<std::uint64_t>(slots.back()), list.slots);
  }
  EXPECT_GT(list.slots, list.count());  // some are there to stay untouched
  EXPECT_TRUE(check(list.transfer()));
}

TEST(block_arena, right_lists_pass_and_wrong_ones_are_found) {
  fixture f;
  for (const auto way : kWays) {
    f.arena.begin(way);
    const block_list list = f.arena.make_list(way, 4096, 50);
    EXPECT_EQ(f.complaint_of(list, [&] { f.copy_all(list); }), "");
    EXPECT_NE(f.complaint_of(list, [] {}), "");
    EXPECT_NE(f.complaint_of(list,
                             [&] {  // a byte too few
                               for (std::size_t i = 0; i < list.count(); ++i)
                                 f.copy(list.destination(i), list.source(i), list.block_bytes - (i == 17 ? 1 : 0));
                             }),
              "");
    EXPECT_NE(f.complaint_of(list,
                             [&] {  // two blocks in each other's place
                               f.copy_all(list);
                               f.copy(list.destination(3), list.source(4), list.block_bytes);
                               f.copy(list.destination(4), list.source(3), list.block_bytes);
                             }),
              "");
    EXPECT_NE(f.complaint_of(list,
                             [&] {  // a block that nobody asked for
                               f.copy_all(list);
                               const auto& used = list.to_host() ? list.host_slots : list.device_slots;
                               std::int32_t free = 0;
                               while (std::find(used.begin(), used.end(), free) != used.end()) ++free;
                               const std::uint64_t base = list.to_host() ? list.host_base : list.device_base;
                               f.copy(base + static_cast<std::uint64_t>(free) * list.block_bytes, list.source(0),
                                      list.block_bytes);
                             }),
              "");
  }
}

// Sizes that fill a part of a warp's work, exactly one, and several with a rest.
TEST(block_mover, every_contender_moves_the_whole_list) {
  fixture f;
  mover_set movers(f.gpu);
  for (const auto way : kWays) {
    f.arena.begin(way);
    for (const std::uint64_t size : {16u, 512u, 528u, 4096u, 4112u, 20000u})
      for (const auto& name : movers.names()) {
        const block_list list = f.arena.make_list(way, size, 21);
        const auto mover = movers.make(name);
        ASSERT_NE(mover, nullptr) << name << ": " << movers.why_not;
        mover->take(list);
        EXPECT_EQ(f.complaint_of(list, [&] { mover->move(); }), "") << name;
      }
  }
}

// One that fails at its first move, or later while it is timed, is noted; the others and the points behind go on.
TEST(block_sweep, a_contender_that_fails_ends_nothing_else) {
  fixture f;
  mover_set movers(f.gpu);
  const auto fail = reinterpret_cast<void (*)(const char*, int, int)>(dlsym(RTLD_DEFAULT, "peerlaneSimFail"));
  ASSERT_NE(fail, nullptr);
  blocks_options options;
  options.directions = {direction::to_host};
  options.sizes = {512};
  options.counts = {16, 32};
  options.methods = {kOurs, kGatherAll};
  options.memory_bytes = 1u << 20;
  options.time_ms = 1;
  options.samples = 5;
  options.seed = 1;
  for (const int launch : {1, 15}) {
    result_file results("blocks", {});
    fail("cuLaunchKernel", launch, cu::error_code::launch_out_of_resources);
    EXPECT_FALSE(run_block_sweep(movers, options, {}, results)) << launch;
    std::size_t failed = 0, ours = 0, gathered = 0;
    const auto all = results.to_json();
    for (const auto& row : all["rows"]) {
      if (row["kind"] == "blocks_failed") {
        ++failed;
        EXPECT_EQ(row["method"], kGatherAll);
        EXPECT_EQ(row["count"], 16);
        EXPECT_NE(row["reason"].get<std::string>().find("OUT_OF_RESOURCES"), std::string::npos) << row;
      }
      if (row["kind"] != "blocks") continue;
      ++(row["method"] == kOurs ? ours : gathered);
    }
    EXPECT_EQ(failed, 1u);
    EXPECT_EQ(ours, 2u);
    EXPECT_EQ(gathered, launch == 1 ? 1u : 2u) << "what was timed before counts";
  }
  result_file results("blocks", {});
  EXPECT_TRUE(run_block_sweep(movers, options, {}, results));
}

}  // namespace
}  // namespace pl::tools
