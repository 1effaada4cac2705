// SPDX-License-Identifier: Apache-2.0
// Copies that a graph makes at each of its launches, beside copies by DMA channel that happen once.
#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kCaptureBytes = 50'000;

class PlannerCapture : public planner_fixture {
 protected:
  void SetUp() override {
    open_channels();
    ASSERT_EQ(cuda_.cuStreamCreate(&stream_, cu::stream_flag::non_blocking), 0);
  }
  void TearDown() override { EXPECT_EQ(cuda_.cuStreamDestroy_v2(stream_), 0); }

  // A graph of what `record` puts into the stream.
  template <class Record>
  cu::graph_exec_t make_graph(Record record) {
    EXPECT_EQ(cuda_.cuStreamBeginCapture_v2(stream_, cu::capture_mode::thread_local_only), 0);
    record();
    cu::graph_t graph = nullptr;
    EXPECT_EQ(cuda_.cuStreamEndCapture(stream_, &graph), 0) << "the capture is not spoilt";
    cu::graph_exec_t made = nullptr;
    EXPECT_EQ(cuda_.cuGraphInstantiateWithFlags(&made, graph, 0), 0);
    EXPECT_EQ(cuda_.cuGraphDestroy(graph), 0);
    return made;
  }
  cu::graph_exec_t make_graph_of(const std::vector<transfer>& list) {
    return make_graph([&] {
      const auto done = planner_->capture(list, stream_);
      EXPECT_TRUE(done) << (done ? "" : done.error().message);
    });
  }
  void launch(cu::graph_exec_t graph) {
    ASSERT_EQ(cuda_.cuGraphLaunch(graph, stream_), 0);
    ASSERT_EQ(cuda_.cuStreamSynchronize(stream_), 0);
  }

  cu::stream_t stream_ = nullptr;
};

TEST_F(PlannerCapture, EachLaunchMakesTheCopiesAnew) {
  guarded_device first(kCaptureBytes, 3), second(kCaptureBytes, 1);
  guarded_host source(context_of(0), kCaptureBytes, 5), target(context_of(0), kCaptureBytes, 7);
  const std::size_t half = kCaptureBytes / 2;
  const auto graph = make_graph_of({{direction::to_device, first.address(), source.address(), kCaptureBytes},
                                    {direction::on_device, second.address(), first.address(), half},
                                    {direction::on_device, second.address() + half, first.address() + half, half, 1},
                                    {direction::to_host, target.address(), second.address(), kCaptureBytes}});
  target.set(bytes_t(kCaptureBytes, 0));
  EXPECT_EQ(target.get(), bytes_t(kCaptureBytes, 0)) << "nothing happens before the launch";
  for (unsigned turn = 0; turn < 200; ++turn) {
    const auto data = test::random_bytes(kCaptureBytes, turn);
    source.set(data);
    launch(graph);
    ASSERT_EQ(target.get(), data) << turn;
  }
  EXPECT_EQ(cuda_.cuGraphExecDestroy(graph), 0);
}

TEST_F(PlannerCapture, RowsAreNodesToo) {
  constexpr std::size_t kRows = 20, kRow = 100, kPitch = 250;
  guarded_device device(kRows * kPitch, 0);
  guarded_host host(context_of(0), kRows * kRow, 3);
  const auto graph = make_graph_of({{direction::to_host, host.address(), device.address(), kRow, kRows, kRow, kPitch}});
  const auto data = test::random_bytes(kRows * kPitch, 1);
  device.set(data);
  launch(graph);
  const auto got = host.get();
  for (std::size_t row = 0; row < kRows; ++row)
    EXPECT_TRUE(std::equal(got.begin() + row * kRow, got.begin() + (row + 1) * kRow, data.begin() + row * kPitch)) << row;
  EXPECT_EQ(cuda_.cuGraphExecDestroy(graph), 0);
}

// Two graphs in turns, and between them copies by channel of the same memory, ordered by their ends.
TEST_F(PlannerCapture, GraphsAndChannelsTakeTurns) {
  guarded_device device(kCaptureBytes, 3);
  guarded_host first(context_of(0), kCaptureBytes, 5), second(context_of(0), kCaptureBytes, 7);
  const auto in = make_graph_of({{direction::to_device, device.address(), first.address(), kCaptureBytes}});
  const auto out = make_graph_of({{direction::to_host, second.address(), device.address(), kCaptureBytes}});
  const auto before = taken(method::dma_channel);
  for (unsigned turn = 0; turn < 60; ++turn) {
    const auto data = test::random_bytes(kCaptureBytes, turn);
    first.set(data);
    if (turn % 2 == 0) {  // graph, then the channel behind the graph's stream
      ASSERT_EQ(cuda_.cuGraphLaunch(in, stream_), 0);
      const transfer read{direction::to_host, second.address(), device.address(), kCaptureBytes};
      auto begun = planner_->begin(std::span(&read, 1), {true, stream_});
      ASSERT_TRUE(begun) << begun.error().message;
      ASSERT_TRUE(begun->wait());
    } else {  // the channel, then a graph whose launch waits for it
      const transfer write{direction::to_device, device.address(), first.address(), kCaptureBytes};
      auto begun = planner_->begin(std::span(&write, 1), {});
      ASSERT_TRUE(begun) << begun.error().message;
      ASSERT_TRUE(begun->make_wait(stream_));
      launch(out);
      ASSERT_TRUE(begun->wait());
    }
    ASSERT_EQ(second.get(), data) << turn;
  }
  EXPECT_GT(taken(method::dma_channel), before);
  for (auto* const graph : {in, out}) EXPECT_EQ(cuda_.cuGraphExecDestroy(graph), 0);
}

// A graph that is never launched, and one that goes while a channel waits for the stream that it was launched in.
TEST_F(PlannerCapture, GraphsThatGoLeaveNothingBehind) {
  const copy_case never(direction::to_host, other_side::pinned, kCaptureBytes),
      armed(direction::to_host, other_side::pinned, kCaptureBytes);
  EXPECT_EQ(cuda_.cuGraphExecDestroy(make_graph_of({never.to_transfer()})), 0);

  guarded_device device(kCaptureBytes, 3);
  guarded_host host(context_of(0), kCaptureBytes, 5);
  const auto data = test::random_bytes(kCaptureBytes, 9);
  device.set(data);
  const auto graph = make_graph_of({{direction::to_host, host.address(), device.address(), kCaptureBytes}});
  gate held;
  ASSERT_EQ(cuda_.cuGraphLaunch(graph, held.stream()), 0);
  const auto transfer = armed.to_transfer();
  auto begun = planner_->begin(std::span(&transfer, 1), {true, held.stream()});
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(cuda_.cuGraphExecDestroy(graph), 0);
  EXPECT_TRUE(armed.is_untouched());
  held.open();
  EXPECT_TRUE(begun->wait());
  EXPECT_TRUE(armed.is_copied());
  EXPECT_EQ(host.get(), data) << "a launch outlives its graph";
  EXPECT_TRUE(never.is_untouched());
}

TEST_F(PlannerCapture, WhatAGraphCannotHoldIsRefusedAndTheCaptureStaysWhole) {
  const copy_case pinned(direction::to_host, other_side::pinned, kCaptureBytes),
      pageable(direction::to_host, other_side::pageable, kCaptureBytes);
  const std::vector<transfer> one{pinned.to_transfer()}, two{pinned.to_transfer(), pageable.to_transfer()};
  EXPECT_EQ(planner_->capture(one, stream_).code(), EINVAL) << "no capture";
  auto wrong = one;
  wrong[0].dst = 0;
  std::vector<transfer> wraps = one;
  wraps[0].rows = wraps[0].row_bytes = std::size_t{1} << 32;
  const auto graph = make_graph([&] {
    const auto refused = planner_->capture(two, stream_);
    EXPECT_EQ(refused.code(), ENOTSUP);
    EXPECT_NE(refused.error().message.find("copy 2 of 2"), std::string::npos) << refused.error().message;
    EXPECT_EQ(planner_->capture(wrong, stream_).code(), EINVAL);
    EXPECT_EQ(planner_->capture(wraps, stream_).code(), EINVAL);
    EXPECT_TRUE(planner_->capture({}, stream_));
    EXPECT_TRUE(planner_->capture(one, stream_));
  });
  EXPECT_TRUE(pinned.is_untouched());
  launch(graph);
  EXPECT_TRUE(pinned.is_copied() && pageable.is_untouched());
  EXPECT_EQ(cuda_.cuGraphExecDestroy(graph), 0);
}

}  // namespace
}  // namespace pl::copy
