// SPDX-License-Identifier: Apache-2.0
// Executor M origin_end end to end, with its completion queues: two GPUs, and an adapter of software between them.
#include "triggered/mlx5_executor.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "test/support/sim_fixture.hpp"
#include "test/triggered/mlx5_model.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBytes = 64 << 10;
constexpr std::uint32_t kBlocks = 16;

bool wait_for(const std::function<bool()>& is_there) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (std::chrono::steady_clock::now() < end) {
    if (is_there()) return true;
    std::this_thread::yield();
  }
  return false;
}

// The words of one end, in its GPU's memory.
enum word_place : std::size_t { kSignal = 0, kAck = 64, kSent = 192, kGate = 256, kWordBytes = 4096 };

// One GPU of a channel, with its stream, and a stream for releases.
struct channel_end {
  explicit channel_end(int ordinal) : device(ordinal), gpu(*copy::find_context(cuda(), ordinal, nullptr)) {
    test::set_device_bytes(words.pointer(), std::vector<unsigned char>(kWordBytes, 0));
    test::set_device_bytes(window.pointer(), std::vector<unsigned char>(kBytes, 0));
    for (auto* each : {&stream, &release_stream})
      if (cuda().cuStreamCreate(each, cu::stream_flag::non_blocking) != 0) abort();
  }
  ~channel_end() {
    for (auto* each : {stream, release_stream}) {
      static_cast<void>(cuda().cuStreamSynchronize(each));
      static_cast<void>(cuda().cuStreamDestroy_v2(each));
    }
  }
  std::uint64_t word(std::size_t place) const {
    const auto bytes = test::device_bytes(words.pointer() + place, 8);
    std::uint64_t out = 0;
    std::memcpy(&out, bytes.data(), 8);
    return out;
  }
  void set_word(std::size_t place, unsigned char value) const {
    test::set_device_bytes(words.pointer() + place, std::vector<unsigned char>{value, 0, 0, 0, 0, 0, 0, 0});
  }

  const test::current_device device;
  copy::gpu_context gpu;
  test::device_buffer source{kBytes}, window{kBytes}, words{kWordBytes};
  cu::stream_t stream = nullptr, release_stream = nullptr;
  std::unique_ptr<executor> unit;
  mlx5_parts parts;
};

struct shape_of_test {
  std::uint32_t blocks = kBlocks, entries = kBlocks, entry_bytes = 64;
  std::uint64_t max_write_bytes = mlx5_queue::kMaxBytes;
};

// Keys of end i: 10 i + 1 its source, + 2 its window, + 3 its words. Queue pairs: 0x4710 + i for puts, 0x5710 + i for
// releases.
class two_gpus {
 public:
  explicit two_gpus(const shape_of_test& wanted = {}) {
    for (unsigned i = 0; i < 2; ++i) {
      adapter.add_memory(10 * i + 1, ends[i].source.pointer(), kBytes, mlx5_model::local);
      adapter.add_memory(10 * i + 2, ends[i].window.pointer(), kBytes, mlx5_model::remote_write);
      adapter.add_memory(10 * i + 3, ends[i].words.pointer(), kWordBytes, mlx5_model::remote_write);
    }
    for (unsigned i = 0; i < 2; ++i) {
      auto& own = ends[i];
      auto& peer = ends[1 - i];
      const unsigned other = 10 * (1 - i);
      auto& parts = own.parts;
      parts.gpu = &own.gpu;
      parts.puts = adapter.add_pair({0x4710 + i, wanted.blocks, wanted.entries, wanted.entry_bytes});
      parts.releases = adapter.add_pair({0x5710 + i, wanted.blocks, wanted.entries, wanted.entry_bytes});
      parts.signal = {peer.words.pointer() + kSignal, other + 3};
      parts.ack = {peer.words.pointer() + kAck, other + 3};
      parts.our_ack = own.words.pointer() + kAck;
      parts.sent = own.words.pointer() + kSent;
      parts.remote = [&peer, other](const remote_window& target, std::uint64_t offset) {
        return mlx5_memory{peer.window.pointer() + offset, target.id == 1 ? other + 2 : target.id};
      };
      parts.local = [i](cu::device_ptr origin, std::size_t) { return mlx5_memory{origin, 10 * i + 1}; };
      parts.max_write_bytes = wanted.max_write_bytes;
      auto made = make_mlx5_executor(parts);
      if (!made) abort();
      own.unit = std::move(*made);
    }
  }
  ~two_gpus() { EXPECT_EQ(adapter.fault(), ""); }

  status put(unsigned origin_end, std::uint64_t sequence, std::size_t offset, std::size_t bytes, std::uint64_t released = 0,
             std::uint32_t window_id = 1) {
    const remote_window window{window_id, 1, kBytes, 0};
    return ends[origin_end].unit->put(
        ends[origin_end].stream, {ends[origin_end].source.pointer() + offset, bytes, &window, offset, sequence, released});
  }
  // As put(), once there is room.
  bool put_when_room(unsigned origin_end, std::uint64_t sequence, std::size_t offset, std::size_t bytes,
                     std::uint64_t released = 0) {
    status done;
    wait_for([&] { return (done = put(origin_end, sequence, offset, bytes, released)).code() != EAGAIN; });
    return done.ok();
  }
  status wait(unsigned at_end, std::uint64_t sequence) {
    return mem_ops(cuda(), ends[at_end].stream).wait64(ends[at_end].words.pointer() + kSignal, sequence).submit();
  }

  channel_end ends[2]{channel_end{0}, channel_end{1}};
  mlx5_model adapter{ends[0].gpu};
};

// What the network and the GPUs write comes late, and only in the order that they promise.
class mlx5_executor : public testing::TestWithParam<shape_of_test> {
 protected:
  mlx5_executor() { mlx5_model::set_disorder(5, 50); }
  ~mlx5_executor() override { mlx5_model::set_disorder(0, 0); }
};

// Both rings and both completion queues go round many times; each put is compared where it lands, behind its signal.
TEST_P(mlx5_executor, a_ping_pong_moves_every_byte) {
  two_gpus world(GetParam());
  constexpr std::uint64_t kRounds = 100;
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    const std::size_t bytes = i % 7 == 0 ? 0 : i * 37 % 8000 + 1, offset = i * 113 % (kBytes - 8000);
    for (unsigned origin_end = 0; origin_end < 2; ++origin_end) {
      const auto data = test::random_bytes(bytes, i * 2 + origin_end);
      test::set_device_bytes(world.ends[origin_end].source.pointer() + offset, data);
      ASSERT_TRUE(world.put_when_room(origin_end, i, offset, bytes));
      ASSERT_TRUE(world.wait(1 - origin_end, i).ok());
      ASSERT_EQ(cuda().cuStreamSynchronize(world.ends[1 - origin_end].stream), 0);
      ASSERT_EQ(test::device_bytes(world.ends[1 - origin_end].window.pointer() + offset, bytes), data);
    }
  }
  for (const auto& each : world.ends) EXPECT_EQ(each.word(kSent), kRounds);
  EXPECT_EQ(world.adapter.completions(0x4710), kRounds);
}

TEST_P(mlx5_executor, a_burst_with_releases_arrives_in_order) {
  two_gpus world(GetParam());
  const auto all = test::random_bytes(kBytes, 1);
  test::set_device_bytes(world.ends[0].source.pointer(), all);
  constexpr std::uint64_t kPuts = 60, kDepth = 3;
  constexpr std::size_t kEach = kBytes / kPuts / 8 * 8;
  auto& taker = world.ends[1];
  for (std::uint64_t i = 1; i <= kPuts; ++i) {
    ASSERT_TRUE(world.put_when_room(0, i, (i - 1) * kEach, kEach, i > kDepth ? i - kDepth : 0));
    ASSERT_TRUE(mem_ops(cuda(), taker.release_stream).wait64(taker.words.pointer() + kSignal, i).submit().ok());
    status released;
    ASSERT_TRUE(wait_for([&] { return (released = taker.unit->acknowledge(taker.release_stream, i)).code() != EAGAIN; }));
    ASSERT_TRUE(released.ok());
  }
  ASSERT_EQ(cuda().cuStreamSynchronize(world.ends[0].stream), 0);
  ASSERT_EQ(cuda().cuStreamSynchronize(taker.release_stream), 0);
  ASSERT_TRUE(wait_for([&] { return world.ends[0].word(kAck) == kPuts; }));
  const auto received = test::device_bytes(taker.window.pointer(), kPuts * kEach);
  EXPECT_TRUE(std::equal(received.begin(), received.end(), all.begin()));
}

INSTANTIATE_TEST_SUITE_P(shapes, mlx5_executor,
                         testing::Values(shape_of_test{}, shape_of_test{16, 64, 128}, shape_of_test{8, 8, 128, 1000},
                                         shape_of_test{256, 256, 64, 4096}));

// Counters have 16 bits in requests, records and completions.
TEST(mlx5_executor_alone, counters_go_round) {
  two_gpus world({256, 256});
  constexpr std::uint64_t kSignals = 70'000;
  for (std::uint64_t i = 1; i <= kSignals; ++i) ASSERT_TRUE(world.put_when_room(0, i, 0, 0)) << i;
  ASSERT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == kSignals; }));
  EXPECT_EQ(world.adapter.done(0x4710), kSignals);
}

TEST(mlx5_executor_alone, nothing_leaves_before_the_stream_rings) {
  two_gpus world;
  auto& giver = world.ends[0];
  ASSERT_TRUE(mem_ops(cuda(), giver.stream).wait64(giver.words.pointer() + kGate, 1).submit().ok());
  ASSERT_TRUE(world.put(0, 1, 0, 64).ok());
  // A release of another stream leaves, and takes no put with it.
  ASSERT_TRUE(giver.unit->acknowledge(giver.release_stream, 9).ok());
  ASSERT_TRUE(wait_for([&] { return world.ends[1].word(kAck) == 9; }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(world.adapter.done(0x4710), 0u);
  EXPECT_EQ(world.ends[1].word(kSignal), 0u);
  giver.set_word(kGate, 1);
  ASSERT_EQ(cuda().cuStreamSynchronize(giver.stream), 0);
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
}

TEST(mlx5_executor_alone, a_full_ring_answers_eagain_and_takes_nothing) {
  two_gpus world;
  world.adapter.set_working(false);
  for (std::uint64_t i = 1; i <= kBlocks / 2; ++i) ASSERT_TRUE(world.put(0, i, 0, 8).ok());
  EXPECT_EQ(world.put(0, kBlocks / 2 + 1, 0, 8).code(), EAGAIN);
  EXPECT_EQ(world.put(0, kBlocks / 2 + 1, 0, 0).code(), EAGAIN);
  world.adapter.set_working(true);
  ASSERT_TRUE(world.put_when_room(0, kBlocks / 2 + 1, 0, 8));
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == kBlocks / 2 + 1; }));
}

// The adapter is done, but its completions were not read: the slots are not reused.
TEST(mlx5_executor_alone, places_are_free_when_their_completion_was_read) {
  two_gpus world;
  world.adapter.hold_completions(true);
  for (std::uint64_t i = 1; i <= kBlocks; ++i) ASSERT_TRUE(world.put(0, i, 0, 0).ok());
  ASSERT_TRUE(wait_for([&] { return world.adapter.done(0x4710) == kBlocks; }));
  EXPECT_EQ(world.put(0, kBlocks + 1, 0, 0).code(), EAGAIN);
  world.adapter.hold_completions(false);
  ASSERT_TRUE(world.put_when_room(0, kBlocks + 1, 0, 0));
}

TEST(mlx5_executor_alone, a_put_waits_for_the_release_that_it_needs) {
  two_gpus world;
  ASSERT_TRUE(world.put(0, 1, 0, 8, 1).ok());
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(world.adapter.done(0x4710), 0u);
  ASSERT_TRUE(world.ends[1].unit->acknowledge(world.ends[1].stream, 1).ok());
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
}

// The channel hears of it at its next call, and for ever; no signal says that the bytes were there.
void expect_refusal(two_gpus& world, const char* reason) {
  status after;
  ASSERT_TRUE(wait_for([&] { return (after = world.put(0, 3, 0, 0)).code() == EIO; }));
  EXPECT_NE(after.error().message.find(reason), std::string::npos) << after.error().message;
  EXPECT_NE(after.error().message.find("request 2"), std::string::npos) << after.error().message;
  EXPECT_EQ(world.put(0, 4, 0, 0).code(), EIO);
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
  EXPECT_TRUE(world.ends[0].unit->acknowledge(world.ends[0].stream, 7).ok());  // the other queue pair lives
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kAck) == 7; }));
  EXPECT_EQ(world.ends[1].word(kSignal), 1u);
}

TEST(mlx5_executor_alone, a_window_that_is_gone_is_told) {
  two_gpus world;
  ASSERT_TRUE(world.put(0, 1, 0, 64).ok());
  ASSERT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
  world.adapter.remove_memory(12);
  ASSERT_TRUE(world.put(0, 2, 0, 64).ok());
  expect_refusal(world, "memory of the peer that is not registered for remote writes");
}

TEST(mlx5_executor_alone, a_window_without_the_right_is_told) {
  two_gpus world;
  ASSERT_TRUE(world.put(0, 1, 0, 64).ok());
  ASSERT_TRUE(world.put(0, 2, 0, 64, 0, 11).ok());  // the peer's source, which nobody may write
  expect_refusal(world, "syndrome 0x13");
}

TEST(mlx5_executor_alone, a_source_that_is_gone_is_told) {
  two_gpus world;
  ASSERT_TRUE(world.put(0, 1, 0, 64).ok());
  ASSERT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
  world.adapter.remove_memory(1);
  ASSERT_TRUE(world.put(0, 2, 0, 64).ok());
  expect_refusal(world, "memory of this process that is not registered");
}

TEST(mlx5_executor_alone, bad_parts_are_refused) {
  two_gpus world;
  auto parts = world.ends[0].parts;
  parts.releases = parts.puts;
  EXPECT_EQ(make_mlx5_executor(parts).code(), EINVAL);
  parts = world.ends[0].parts;
  parts.puts = world.adapter.add_pair({0x6000, 32, 16, 64});
  const auto small = make_mlx5_executor(parts);
  ASSERT_EQ(small.code(), EINVAL);
  EXPECT_NE(small.error().message.find("overrun"), std::string::npos);
  parts = world.ends[0].parts;
  parts.max_write_bytes = 0;
  EXPECT_EQ(make_mlx5_executor(parts).code(), EINVAL);
  EXPECT_EQ(world.put(0, 1, 0, 8, 0, 0).code(), EINVAL);  // no key
  mlx5_queue queue(parts.puts.queue);
  EXPECT_EQ(queue.write({0, 1}, 0, {0, 1}).code(), EINVAL);
  EXPECT_EQ(queue.write({0, 1}, mlx5_queue::kMaxBytes + 1, {0, 1}).code(), EINVAL);
  EXPECT_EQ(queue.written(), 0u);
}

TEST(mlx5_executor_alone, a_put_of_more_requests_than_the_ring_holds_is_refused) {
  two_gpus world({8, 8, 64, 1000});
  EXPECT_EQ(world.put(0, 1, 0, 7001).code(), EINVAL);
  ASSERT_TRUE(world.put(0, 1, 0, 7000).ok());
  EXPECT_TRUE(wait_for([&] { return world.ends[1].word(kSignal) == 1; }));
}

int refuse(mlx5dv_obj*, std::uint64_t) { return EOPNOTSUPP; }
int odd_shape(mlx5dv_obj* object, std::uint64_t types) {
  if ((types & MLX5DV_OBJ_QP) != 0) object->qp.out->sq = {nullptr, 24, 64};
  if ((types & MLX5DV_OBJ_CQ) != 0) object->cq.out->cqe_cnt = 16, object->cq.out->cqe_size = 32;
  return 0;
}

TEST(mlx5_executor_alone, queues_of_other_adapters_and_shapes_are_refused) {
  ibv_qp qp{};
  ibv_cq cq{};
  for (const mlx5_inspector ask : {mlx5_inspector{&refuse}, mlx5_inspector{&odd_shape}}) {
    EXPECT_EQ(mlx5_place::inspect(&qp, ask).code(), ENOTSUP);
    EXPECT_EQ(mlx5_completion_place::inspect(&cq, ask).code(), ENOTSUP);
  }
}

}  // namespace
}  // namespace pl::triggered
