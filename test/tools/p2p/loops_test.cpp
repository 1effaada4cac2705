// SPDX-License-Identifier: Apache-2.0
// What the loops send, how often, with which tags and bytes; and that wrong data is found.
#include "tools/p2p/loops.hpp"

#include <gtest/gtest.h>

#include <set>

#include "test/tools/p2p/memory_transport.hpp"
#include "tools/p2p/pattern.hpp"

namespace pl::p2p {
namespace {

using test::bytes;
using test::memory_transport;
using test::memory_world;
using test::message;

using loop = loop_outcome (*)(transport&, buffer_pool&, const loop_plan&);

struct finished {
  std::vector<loop_outcome> outcomes;
  int wrong_lengths = 0;
  int consumed = 0;
};

finished run(memory_world& world, loop body, const loop_plan& plan, std::size_t rotation = 1, bool cold = false) {
  finished out;
  std::mutex mutex;
  out.outcomes = test::on_ranks<loop_outcome>(world.size, [&](int rank) {
    memory_transport mine(world, rank);
    test::host_buffers source;
    const std::size_t slots = plan.multiple_buffers ? static_cast<std::size_t>(plan.window) : 1;
    buffer_pool pool(source, {memory_kind::host, std::max(plan.size_bytes, kAnswerBytes), slots, rotation, cold});
    auto outcome = body(mine, pool, plan);
    const std::lock_guard lock(mutex);
    out.wrong_lengths += mine.wrong_lengths;
    out.consumed += source.consumed;
    return outcome;
  });
  return out;
}

loop_plan plan_of(std::size_t size_bytes, int iterations, int warm_up) {
  loop_plan plan;
  plan.size_bytes = size_bytes;
  plan.iterations = iterations;
  plan.warm_up = warm_up;
  return plan;
}

bytes pattern(std::size_t size_bytes, std::uint64_t iteration) {
  bytes out(size_bytes);
  fill_pattern(out, iteration);
  return out;
}

TEST(Pattern, DependsOnPlaceSizeAndIteration) {
  EXPECT_EQ(pattern(3, 0), (bytes{10, 17, 24}));
  EXPECT_EQ(pattern(3, 2), (bytes{12, 19, 26}));
  EXPECT_EQ(pattern_byte(36, 4, 1), static_cast<std::uint8_t>(7 * 37 + 4 + 1));
  auto shifted = pattern(100, 5);
  EXPECT_EQ(count_errors(shifted, 5), 0u);
  EXPECT_EQ(count_errors(shifted, 6), 100u);
  shifted[99] ^= 1;
  EXPECT_EQ(count_errors(shifted, 5), 1u);
}

TEST(LatencyLoop, OneMessageEachWayInEveryIteration) {
  memory_world world(2);
  const auto done = run(world, run_latency, plan_of(16, 5, 2));
  EXPECT_EQ(world.count(0, kPingTag), 7u);
  EXPECT_EQ(world.count(1, kPingTag), 7u);
  EXPECT_EQ(world.sent.size(), 14u);
  EXPECT_EQ(world.barriers, 1);
  EXPECT_EQ(done.wrong_lengths, 0);
  for (const auto& one : done.outcomes) EXPECT_EQ(one.samples_ns.size(), 5u);
  for (std::size_t i = 0; i < world.sent.size(); ++i) {
    EXPECT_EQ(world.sent[i].sender, static_cast<int>(i % 2));  // never both at once
    EXPECT_EQ(world.sent[i].data, bytes(16, 'a'));
  }
}

TEST(LatencyLoop, EmptyMessages) {
  memory_world world(2);
  run(world, run_latency, plan_of(0, 3, 0));
  EXPECT_EQ(world.sent.size(), 6u);
  EXPECT_TRUE(world.sent[0].data.empty());
}

TEST(LatencyLoop, ValidationWarmsUpInsideEachIterationAndMeetsBefore) {
  memory_world world(2);
  auto plan = plan_of(8, 3, 1);
  plan.validate = true;
  plan.validation_warm_up = 2;
  const auto done = run(world, run_latency, plan);
  EXPECT_EQ(world.count(0, kPingTag), 4u * 3);
  EXPECT_EQ(world.barriers, 1 + 4);
  for (const auto& one : done.outcomes) {
    EXPECT_EQ(one.samples_ns.size(), 3u);
    EXPECT_EQ(one.errors, 0);
  }
  std::size_t index = 0;
  for (const auto& one : world.sent) {
    if (one.sender != 0) continue;
    EXPECT_EQ(one.data, pattern(8, index++ / 3));
  }
}

TEST(LatencyLoop, OneWrongByteIsFoundByBothRanks) {
  memory_world world(2);
  int seen = 0;
  std::mutex mutex;
  world.on_the_way = [&](message& one) {
    const std::lock_guard lock(mutex);
    if (one.sender == 0 && ++seen == 4) one.data[7] ^= 0x10;  // the counted exchange of iteration 1
    return true;
  };
  auto plan = plan_of(8, 3, 0);
  plan.validate = true;
  plan.validation_warm_up = 1;
  for (const auto& one : run(world, run_latency, plan).outcomes) EXPECT_EQ(one.errors, 1);
}

TEST(LatencyLoop, DataThatNeverCameIsWrongAtEveryByte) {
  memory_world world(2);
  world.on_the_way = [](message& one) { return one.sender != 1; };
  auto plan = plan_of(32, 2, 0);
  plan.validate = true;
  EXPECT_EQ(run(world, run_latency, plan).outcomes[0].errors, 64);
}

TEST(LatencyLoop, PairsAreHalfTheWorldApartAndTheRestIsIdle) {
  memory_world world(5);
  auto plan = plan_of(4, 2, 1);
  plan.pairs = 2;
  const auto done = run(world, run_latency, plan);
  EXPECT_EQ(world.sent.size(), 4u * 3);
  for (const auto& one : world.sent) EXPECT_EQ(std::abs(one.sender - one.receiver), 2);
  EXPECT_TRUE(done.outcomes[4].samples_ns.empty());
}

TEST(BandwidthLoop, AWindowThenAnAnswer) {
  memory_world world(2);
  auto plan = plan_of(64, 3, 2);
  plan.window = 4;
  const auto done = run(world, run_bandwidth, plan);
  EXPECT_EQ(world.count(0, kWindowTag), 5u * 4);
  EXPECT_EQ(world.count(1, kAnswerTag), 5u);
  EXPECT_EQ(world.sent.size(), 25u);
  EXPECT_EQ(done.wrong_lengths, 0);
  for (const auto& one : world.sent) EXPECT_EQ(one.data.size(), one.tag == kAnswerTag ? kAnswerBytes : 64u);
  EXPECT_EQ(done.outcomes[0].samples_ns.size(), 3u);
  EXPECT_TRUE(done.outcomes[1].samples_ns.empty());
}

TEST(BandwidthLoop, OneBufferOrOneForEachMessage) {
  for (const bool multiple : {false, true}) {
    memory_world world(2);
    auto plan = plan_of(16, 2, 0);
    plan.window = 3;
    plan.multiple_buffers = multiple;
    plan.validate = true;
    EXPECT_EQ(run(world, run_bandwidth, plan).outcomes[1].errors, 0);
    std::set<const void*> places;
    std::size_t index = 0;
    for (const auto& one : world.sent) {
      if (one.tag != kWindowTag) continue;
      places.insert(one.source);
      EXPECT_EQ(one.data, pattern(16, multiple ? index % 3 : index / 3));
      ++index;
    }
    EXPECT_EQ(places.size(), multiple ? 3u : 1u);
  }
}

TEST(BandwidthLoop, AWrongByteInAnyBufferOfTheWindowIsFound) {
  for (int victim = 1; victim <= 3; ++victim) {
    memory_world world(2);
    int seen = 0;
    world.on_the_way = [&](message& one) {
      if (one.tag == kWindowTag && ++seen == victim) one.data[0] ^= 1;
      return true;
    };
    auto plan = plan_of(16, 1, 0);
    plan.window = 3;
    plan.multiple_buffers = true;
    plan.validate = true;
    EXPECT_EQ(run(world, run_bandwidth, plan).outcomes[0].errors, 1) << victim;
  }
}

TEST(BandwidthLoop, BarrierInEachIterationWhereAsked) {
  memory_world world(2);
  auto plan = plan_of(1, 4, 1);
  plan.barrier_each_iteration = true;
  run(world, run_bandwidth, plan);
  EXPECT_EQ(world.barriers, 1 + 5);
}

TEST(BidirectionalLoop, AWindowEachWayOnTagsOfTheirOwn) {
  memory_world world(2);
  auto plan = plan_of(32, 2, 1);
  plan.window = 5;
  plan.validate = true;
  plan.validation_warm_up = 1;
  const auto done = run(world, run_bidirectional, plan);
  EXPECT_EQ(world.count(0, kWindowTag), 3u * 2 * 5);
  EXPECT_EQ(world.count(1, kReverseTag), 3u * 2 * 5);
  EXPECT_EQ(world.sent.size(), 60u);  // no answers
  for (const auto& one : done.outcomes) {
    EXPECT_EQ(one.samples_ns.size(), 2u);
    EXPECT_EQ(one.errors, 0);
  }
}

TEST(Buffers, RotationReturnsAndColdNeverDoes) {
  const auto places_of = [](std::size_t rotation, bool cold) {
    memory_world world(2);
    run(world, run_latency, plan_of(8, 6, 0), rotation, cold);
    std::vector<const void*> places;
    for (const auto& one : world.sent)
      if (one.sender == 0) places.push_back(one.source);
    return places;
  };
  const auto turning = places_of(3, false);
  ASSERT_EQ(turning.size(), 6u);
  EXPECT_EQ(std::set<const void*>(turning.begin(), turning.end()).size(), 3u);
  EXPECT_EQ(turning[0], turning[3]);
  const auto cold = places_of(1, true);
  for (std::size_t i = 1; i < cold.size(); ++i) EXPECT_NE(cold[i - 1], cold[i]);
}

TEST(Consume, EveryReceivedBufferIsReadInEveryExchange) {
  memory_world world(2);
  auto plan = plan_of(24, 3, 1);
  plan.consume = true;
  EXPECT_EQ(run(world, run_latency, plan).consumed, 2 * 4);
  memory_world other(2);
  plan.window = 2;
  plan.multiple_buffers = true;
  EXPECT_EQ(run(other, run_bandwidth, plan).consumed, 2 * 4);
}

}  // namespace
}  // namespace pl::p2p
