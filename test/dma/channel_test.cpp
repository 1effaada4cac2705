// SPDX-License-Identifier: Apache-2.0
// DMA channels against an interpreter of what they write (fake_engine.hpp).
#include "dma/channel.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "test/dma/channel_fixture.hpp"
#include "test/support/scarce_threads.hpp"

namespace {

using namespace pl;
using test::fake_engine;

using test::kTimeoutNs;
using setting = test::channel_setting;

void expect_done(dma::channel& queue, const result<dma::sequence>& number) {
  ASSERT_TRUE(number) << number.error().message;
  const status done = queue.wait(*number, kTimeoutNs);
  EXPECT_TRUE(done) << done.error().message;
}

TEST(dma_channel, MovesBytesBothWays) {
  fake_engine io;
  setting rig(io);
  auto queue = rig.open();
  std::mt19937_64 random(1);
  for (const std::size_t size : {1u, 3u, 64u, 4096u, 65537u}) {
    const std::size_t source_offset = random() % 5000, middle = random() % 5000,
                      target_offset = (2u << 20) + random() % 5000;
    for (std::size_t i = 0; i < size; ++i) rig.host[source_offset + i] = static_cast<std::byte>(random());
    rig.host[target_offset + size] = std::byte{0x77};
    ASSERT_TRUE(queue->copy(rig.device_at(middle), rig.host_at(source_offset), size));
    expect_done(*queue, queue->copy(rig.host_at(target_offset), rig.device_at(middle), size));
    EXPECT_EQ(std::memcmp(rig.host + source_offset, rig.host + target_offset, size), 0) << size;
    EXPECT_EQ(rig.host[target_offset + size], std::byte{0x77});
  }
  EXPECT_EQ(io.protocol_errors(), 0);
}

// The engine writes pipelined copies late: what depends on an operation must wait for it, also when the CPU does not.
TEST(dma_channel, EachOperationSeesWhatTheOnesBeforeItWrote) {
  fake_engine io;
  setting rig(io);
  auto queue = rig.open();
  auto* words = reinterpret_cast<std::uint32_t*>(rig.host);
  for (std::uint32_t round = 1; round < 100; ++round) {
    ASSERT_TRUE(queue->fill(rig.device_at(0), round, 4096));
    ASSERT_TRUE(queue->copy(rig.device_at(8192), rig.device_at(0), 4096));
    expect_done(*queue, queue->copy(rig.host_at(0), rig.device_at(8192), 4096));
    ASSERT_EQ(words[0], round);
    ASSERT_EQ(words[1023], round);
  }
}

// The interpreter refuses a channel that it cannot play: one that does not answer would be a GPU that hangs.
TEST(dma_channel, IsRefusedWhereNothingWouldPlayIt) {
  fake_engine io;
  setting rig(io);
  {
    const pl::test::scarce_threads none;
    EXPECT_FALSE(dma::channel::open(rig.space, {}));
  }
  auto queue = rig.open();
  ASSERT_NE(queue, nullptr);
  expect_done(*queue, queue->fill(rig.device_at(0), 7, 4096));
}

TEST(dma_channel, RowsAndLists) {
  fake_engine io;
  setting rig(io);
  auto queue = rig.open();
  for (std::size_t i = 0; i < (1u << 20); ++i) rig.host[i] = static_cast<std::byte>(i * 7 >> 2);
  expect_done(*queue, queue->copy_rows(rig.device_at(0), 1024, rig.host_at(0), 512, 300, 100));
  expect_done(*queue, queue->copy(rig.host_at(2u << 20), rig.device_at(0), 100 * 1024));
  for (std::size_t row = 0; row < 100; ++row)
    ASSERT_EQ(std::memcmp(rig.host + (2u << 20) + row * 1024, rig.host + row * 512, 300), 0) << row;

  std::mt19937_64 random(3);
  std::vector<dma::block> blocks;
  for (std::uint32_t i = 0; i < 20'000; ++i)  // more than one submission holds
    blocks.push_back(
        {rig.device_at(i * 40u), rig.host_at(i * 40u), static_cast<std::uint32_t>(i % 3 == 0 ? 40 : 1 + random() % 40)});
  std::shuffle(blocks.begin(), blocks.end(), random);
  expect_done(*queue, queue->copy_blocks(blocks));
  expect_done(*queue, queue->copy(rig.host_at(2u << 20), rig.device_at(0), 800'000));
  for (const auto& one : blocks) {
    const std::size_t offset = one.source - rig.host_at(0);
    ASSERT_EQ(std::memcmp(rig.host + (2u << 20) + offset, rig.host + offset, one.size_bytes), 0);
  }
  const auto none = queue->copy_blocks({});
  ASSERT_TRUE(none);
  EXPECT_TRUE(queue->is_done(*none));
}

// Many times around the ring and around the room for commands, from several threads.
TEST(dma_channel, GoesRoundItsRings) {
  fake_engine io;
  setting rig(io);
  auto queue = rig.open({2, dma::ordering::waits, 16});
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint32_t round = 1; round <= 1000; ++round) {
        const auto number = queue->fill(rig.host_at(thread * 4096u), round, 8);
        ASSERT_TRUE(number) << number.error().message;
        if (round % 50 != 0) continue;
        ASSERT_TRUE(queue->wait(*number, kTimeoutNs));
        ASSERT_EQ(*reinterpret_cast<std::uint32_t*>(rig.host + thread * 4096u), round);
      }
    });
  for (auto& one : threads) one.join();
  EXPECT_EQ(io.protocol_errors(), 0);
}

// Two channels add to one word of the GPU: nothing is lost.
TEST(dma_channel, AdditionsOfTwoChannelsAreAllThere) {
  fake_engine io;
  setting rig(io);
  auto first = rig.open(), second = rig.open();
  expect_done(*first, first->fill(rig.device_at(0), 0, 4));
  constexpr std::uint32_t kRounds = 50;
  result<dma::sequence> last[2] = {dma::sequence{0}, dma::sequence{0}};
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    last[0] = first->add(rig.device_at(0), 3);
    last[1] = second->add(rig.device_at(0), 1000);
  }
  expect_done(*first, last[0]);
  expect_done(*second, last[1]);
  expect_done(*first, first->copy(rig.host_at(0), rig.device_at(0), 4));
  EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(rig.host), kRounds * 1003);
}

// With a seed the engine's semaphore words overtake bytes; a word that is a transfer of its own does not.
TEST(dma_channel, SettledOperationsAreThereWhenTheirWordIsSeen) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    fake_engine::options troubles;
    troubles.seed = seed;
    fake_engine io(troubles);
    setting rig(io);
    auto queue = rig.open({2, dma::ordering::none_settled, 64});
    auto* words = reinterpret_cast<std::uint32_t*>(rig.host);
    for (std::uint32_t round = 1; round < 200; ++round) {
      expect_done(*queue, queue->fill(rig.device_at(0), round, 8192));
      expect_done(*queue, queue->copy(rig.host_at(0), rig.device_at(0), 8192));
      ASSERT_TRUE(words[0] == round && words[1000] == round && words[2047] == round) << seed;
      std::vector<dma::block> blocks;
      for (std::uint64_t i = 0; i < 100; ++i) blocks.push_back({rig.host_at(65536 + i * 64), rig.device_at(i * 64), 64});
      expect_done(*queue, queue->copy_blocks(blocks));
      for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(words[16384 + i * 16], round) << seed << ' ' << i;
      expect_done(*queue, queue->flush());
    }
    EXPECT_EQ(io.protocol_errors(), 0);
  }
}

TEST(dma_channel, AcquireHoldsAndReleaseTells) {
  fake_engine io;
  setting rig(io);
  auto queue = rig.open();
  auto* words = reinterpret_cast<std::uint32_t*>(rig.host);
  ASSERT_TRUE(queue->acquire(rig.host_at(0), 5));
  ASSERT_TRUE(queue->fill(rig.host_at(4096), 0xabcd, 4));
  const auto last = queue->release(rig.host_at(64), 17);
  ASSERT_TRUE(last);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(queue->is_done(*last));
  EXPECT_EQ(__atomic_load_n(&words[1024], __ATOMIC_RELAXED), 0u);
  EXPECT_EQ(queue->wait(*last, 1'000'000).code(), ETIMEDOUT);
  __atomic_store_n(&words[0], 5, __ATOMIC_RELEASE);
  expect_done(*queue, last);
  EXPECT_EQ(words[1024], 0xabcdu);
  EXPECT_EQ(words[16], 17u);
}

TEST(dma_channel, AWrongAddressEndsOneChannelAlone) {
  fake_engine io;
  setting rig(io);
  auto broken = rig.open(), sound = rig.open();
  const auto number = broken->copy(rig.device_at(0), 0x7f00'0000'0000, 64);
  ASSERT_TRUE(number);
  const status ended = broken->wait(*number, kTimeoutNs);
  EXPECT_EQ(ended.code(), EIO);
  EXPECT_NE(ended.error().message.find("Xid 31"), std::string::npos) << ended.error().message;
  EXPECT_EQ(broken->copy(rig.device_at(0), rig.host_at(0), 64).code(), EIO) << "nothing is queued behind a fault";
  expect_done(*sound, sound->fill(rig.device_at(0), 1, 64));
  broken.reset();
  expect_done(*rig.open(), result<dma::sequence>(1));
}

TEST(dma_channel, LeavesNothingBehind) {
  fake_engine io;
  {
    setting rig(io);
    const int objects = io.live_objects(), maps = io.live_maps();
    rig.open();
    const int with_doorbell = io.live_objects();
    for (int i = 0; i < 10; ++i) expect_done(*rig.open(), result<dma::sequence>(1));
    EXPECT_EQ(io.live_objects(), with_doorbell);
    EXPECT_LE(with_doorbell, objects + 1);
    EXPECT_EQ(io.live_maps(), maps);
  }
  EXPECT_EQ(io.live_objects(), 0);
  EXPECT_EQ(io.live_maps(), 0);
  EXPECT_EQ(io.protocol_errors(), 0);
}

// Whichever call fails: an error, and nothing is left.
TEST(dma_channel, EachCallMayFail) {
  bool has_passed = false;
  for (int call = 0; call < 60 && !has_passed; ++call) {
    fake_engine::options options;
    options.failing_call = call;
    fake_engine io(options);
    {
      auto client = rm::client::open(io);
      if (!client) continue;
      auto gpu = (*client)->find_gpu({0, 6, 0});
      if (!gpu) continue;
      auto space = dma::address_space::open(**client, **gpu, "580.159.04");
      if (!space) {
        EXPECT_FALSE(space.error().message.empty());
        continue;
      }
      auto queue = dma::channel::open(*space, {});
      has_passed = queue.ok() && io.calls() <= call;
      EXPECT_TRUE(queue || !queue.error().message.empty());
    }
    EXPECT_EQ(io.live_objects(), 0) << "call " << call;
    EXPECT_TRUE(!has_passed || io.live_maps() == 0);
  }
  EXPECT_TRUE(has_passed);
}

TEST(dma_channel, AnUnknownDriverIsNotTouched) {
  fake_engine io;
  auto client = rm::client::open(io);
  ASSERT_TRUE(client);
  auto gpu = (*client)->find_gpu({0, 6, 0});
  ASSERT_TRUE(gpu);
  const int calls = io.calls();
  const auto space = dma::address_space::open(**client, **gpu, "600.10");
  ASSERT_FALSE(space);
  EXPECT_EQ(space.code(), ENOTSUP);
  EXPECT_NE(space.error().message.find("600.10"), std::string::npos);
  EXPECT_EQ(io.calls(), calls);
}

TEST(dma_channel, HostMemoryThatCannotBePinnedIsAnError) {
  fake_engine::options options;
  options.pins_nothing = true;
  fake_engine io(options);
  auto client = rm::client::open(io);
  auto gpu = (*client)->find_gpu({0, 6, 0});
  auto space = dma::address_space::open(**client, **gpu, "580.159.04");
  ASSERT_TRUE(space);
  alignas(4096) static std::byte page[4096];
  EXPECT_EQ((*space)->bind_host(page, sizeof page).code(), EFAULT);
  EXPECT_EQ((*space)->bind_host(page + 1, sizeof page).code(), EINVAL);
  EXPECT_EQ((*space)->bind_host(page, 0).code(), EINVAL);
}

TEST(dma_channel, AGpuThatDoesNotAnswerIsAnError) {
  fake_engine::options options;
  options.is_deaf = true;
  fake_engine io(options);
  setting rig(io);
  const auto queue = dma::channel::open(rig.space, {});
  ASSERT_FALSE(queue);
  EXPECT_EQ(queue.code(), EIO);
}

TEST(dma_channel, EnginesOfTheirOwnRunlistComeFirst) {
  fake_engine io;
  setting rig(io);
  EXPECT_EQ(dma::copy_engines(rig.space->objects()), (std::vector<unsigned>{2, 0, 1}));
}

TEST(dma_channel, RingsTakeOneOfTheEnginesThatShareARunlist) {
  using numbers = std::vector<unsigned>;
  const auto order = [](const numbers& independent, const numbers& shared) {
    return dma::engines_for_rings(independent, shared);
  };
  EXPECT_EQ(order({2, 3, 4}, {0, 1}), (numbers{4, 1, 3, 2}));  // an H100
  EXPECT_EQ(order({2}, {0, 1}), (numbers{2, 1}));
  EXPECT_EQ(order({2, 3}, {}), (numbers{3, 2}));
  EXPECT_EQ(order({}, {0, 1}), (numbers{1, 0}));  // nothing else is there
  fake_engine io;
  setting rig(io);
  EXPECT_EQ(dma::engines_for_rings(rig.space->objects()), (numbers{2, 1}));
}

// What the driver tells of modes in which a channel cannot be had; a driver that does not know the questions has none.
TEST(dma_channel, ModesInWhichItCannotBeHadAreRefusedWithTheReason) {
  const auto refusal = [](const fake_engine::options& given) -> failure {
    fake_engine io(given);
    auto client = rm::client::open(io);
    EXPECT_TRUE(client);
    auto gpu = (*client)->find_gpu({0, 6, 0});
    EXPECT_TRUE(gpu);
    const int objects = io.live_objects();
    {
      const auto space = dma::address_space::open(**client, **gpu, given.version);
      EXPECT_EQ(io.protocol_errors(), 0);
      if (!space) {
        EXPECT_EQ(io.live_objects(), objects) << "a refusal leaves nothing";
        return space.error();
      }
    }
    EXPECT_EQ(io.live_objects(), objects);
    return {0, ""};
  };
  for (const char* version : {"535.54.03", "535.98", "545.29.06", "570.172.08", "575.64.05", "580.159.04", "595.45.04"}) {
    SCOPED_TRACE(version);
    fake_engine::options given;
    given.version = version;
    EXPECT_EQ(refusal(given).code, 0);
    for (const std::uint32_t off : {2u, 3u}) {
      given.mig_mode = off;
      EXPECT_EQ(refusal(given).code, 0) << "MIG is off, or will be on after a reset";
    }
    for (const std::uint32_t on : {1u, 4u}) {
      given.mig_mode = on;
      const failure refused = refusal(given);
      EXPECT_EQ(refused.code, ENOTSUP);
      EXPECT_NE(refused.message.find("MIG"), std::string::npos) << refused.message;
    }
    given.mig_mode = 0;
    given.is_confidential = true;
    const failure refused = refusal(given);
    EXPECT_EQ(refused.code, ENOTSUP);
    EXPECT_NE(refused.message.find("confidential"), std::string::npos) << refused.message;
    given.knows_restrictions = false;
    EXPECT_EQ(refusal(given).code, 0);
  }
}

}  // namespace
