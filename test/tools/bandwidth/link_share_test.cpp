// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/link_share.hpp"

#include <gtest/gtest.h>

#include "test/tools/bandwidth/machines.hpp"

namespace pl::bandwidth {
namespace {

transfer_path down(int gpu = 0) { return path_of(host_place(), gpu_place(gpu), by_ce(gpu)); }
transfer_path upload(int gpu = 0) { return path_of(gpu_place(gpu), host_place(), by_ce(gpu)); }
transfer_path push(int source, int destination) { return path_of(gpu_place(source), gpu_place(destination), by_ce(source)); }

shared_expectations together(const machine_links& links, const std::vector<transfer_path>& paths) {
  return expect_together(links, paths);
}

const machine_links kTwo = machine_of({h200_facts(), h200_facts()});
double alone(const transfer_path& path, const machine_links& links = kTwo) { return expect(links, path)->value; }

TEST(LinkShare, TransfersWithoutASharedLinkKeepTheirRate) {
  const auto got = together(kTwo, {down(0), down(1), push(0, 1)});
  EXPECT_DOUBLE_EQ(got.each[0]->value, alone(down(0)));
  EXPECT_DOUBLE_EQ(got.each[1]->value, alone(down(1)));
  EXPECT_DOUBLE_EQ(got.each[2]->value, alone(push(0, 1)));
  EXPECT_DOUBLE_EQ(got.total->value, 2 * alone(down()) + alone(push(0, 1)));
  EXPECT_EQ(got.each[0]->limited_by, "PCIe 5.0 x16");
}

TEST(LinkShare, OneLinkIsDividedAmongItsTransfers) {
  const auto got = together(kTwo, {down(0), down(0), down(0), down(1)});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(got.each[static_cast<std::size_t>(i)]->value, alone(down()) / 3, 1e-6);
  EXPECT_NEAR(got.each[3]->value, alone(down()), 1e-6);
  EXPECT_NEAR(got.total->value, 2 * alone(down()), 1e-6);
  EXPECT_EQ(got.each[0]->limited_by, "PCIe 5.0 x16, shared by 3 transfers");
}

TEST(LinkShare, WhatOneCannotUseGoesToTheOthers) {
  const auto engine = path_of(host_place(), gpu_place(0), by_engine(1));  // 12 GB/s at most
  const auto got = together(kTwo, {engine, down(0)});
  EXPECT_NEAR(got.each[0]->value, alone(engine), 1e-6);
  EXPECT_GT(got.each[1]->value, alone(down()) / 2);
  EXPECT_LE(got.total->value, 63.1);
}

TEST(LinkShare, NarrowestWayDecides) {
  auto four = machine_of({h200_facts(), h200_facts(), h200_facts(), h200_facts()});
  // Three push into GPU 3, and GPU 0 pushes to GPU 1 as well: its way out has two users, the way into GPU 3 three.
  const auto got = together(four, {push(0, 3), push(1, 3), push(2, 3), push(0, 1)});
  const double full = alone(push(0, 1), four);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(got.each[static_cast<std::size_t>(i)]->value, full / 3, 1e-6);
  EXPECT_NEAR(got.each[3]->value, full * 2 / 3, 1e-6);
}

TEST(LinkShare, AnUplinkOfTwoGpusCarriesOneLinksRate) {
  auto links = kTwo;
  for (auto& gpu : links.gpus) {
    gpu.uplink_bus_id = "0000:00:01.0";
    gpu.uplink_generation = 5;
    gpu.uplink_width = 16;
  }
  auto got = together(links, {down(0), down(1)});
  EXPECT_NEAR(got.each[0]->value, alone(down()) / 2, 1e-6);
  EXPECT_NEAR(got.total->value, alone(down()), 1e-6);
  links.gpus[0].uplink_width = links.gpus[1].uplink_width = 8;
  got = together(links, {down(0), down(1)});
  EXPECT_NEAR(got.total->value, alone(down()) / 2, 1e-6);
}

TEST(LinkShare, OfPcieBusyBothWaysTheTotalIsExpected) {
  const auto got = together(kTwo, {down(0), upload(0)});
  EXPECT_FALSE(got.each[0]);
  EXPECT_FALSE(got.each[1]);
  auto both = down(0);
  both.opposite_too = both.is_sum_of_both = true;
  EXPECT_NEAR(got.total->value, alone(both), 1e-6);
  const auto nvlink = together(kTwo, {push(0, 1), push(1, 0)});
  EXPECT_LT(nvlink.each[0]->value, alone(push(0, 1)));
  EXPECT_NEAR(nvlink.each[0]->value, alone(push(0, 1)) * 0.985, 1e-6);
}

TEST(LinkShare, BesideTheUnknownNothingIsExpected) {
  const auto narrow = path_of(host_place(), gpu_place(0), by_sm(0, 2));  // too few multiprocessors for the model
  const auto got = together(kTwo, {narrow, down(0), down(1)});
  EXPECT_FALSE(got.each[0]);
  EXPECT_FALSE(got.each[1]);
  EXPECT_TRUE(got.each[2]);
  EXPECT_FALSE(got.total);
  const auto threads =
      together(kTwo, {path_of(host_place(), gpu_place(0), by_bar(1)), path_of(host_place(), gpu_place(0), by_bar(1))});
  EXPECT_FALSE(threads.each[0]);
}

}  // namespace
}  // namespace pl::bandwidth
