// SPDX-License-Identifier: Apache-2.0
// Copies that are known to be complete by their bytes, with an engine whose writes arrive in any order and behind their
// words.
#include "dma/arrival_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "arch/arrival.hpp"
#include "test/dma/channel_fixture.hpp"

namespace {

using namespace pl;
using test::fake_engine;
using test::kTimeoutNs;

// Random bytes in the host's and the GPU's memory of a setting.
std::vector<std::byte> put_random(test::channel_setting& rig, dma::channel& queue, std::size_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(bytes);
  for (auto& one : data) one = static_cast<std::byte>(random());
  std::memcpy(rig.host, data.data(), bytes);
  EXPECT_TRUE(queue.wait(*queue.copy(rig.device_at(0), rig.host_at(0), bytes), kTimeoutNs));
  return data;
}

TEST(arrival, LinesAreTakenWhole) {
  constexpr std::uint64_t kSentinel = 0x1234'5678'9abc'def1;
  constexpr std::size_t kLines = 9, kWords = kLines * 8;
  alignas(64) std::uint64_t memory[kWords];
  std::uint64_t out[kWords];
  arch::put_sentinel(memory, sizeof memory, kSentinel);
  EXPECT_EQ(arch::take_arrived(out, memory, sizeof memory, kSentinel), 0u);
  for (std::size_t missing = 0; missing < kWords; ++missing) {
    for (std::size_t i = 0; i < kWords; ++i) memory[i] = i == missing ? kSentinel : i;
    std::fill(std::begin(out), std::end(out), 77);
    const std::size_t whole = missing / 8 * 64;
    ASSERT_EQ(arch::take_arrived(out, memory, sizeof memory, kSentinel), whole) << missing;
    for (std::size_t i = 0; i < kWords; ++i) {
      ASSERT_EQ(out[i], i < whole / 8 ? i : 77) << missing;
      ASSERT_EQ(memory[i], i < whole / 8 || i == missing ? kSentinel : i) << missing;
    }
  }
}

TEST(arrival, PartsOfALineLookAtTheirWordsAlone) {
  constexpr std::uint64_t kSentinel = 0x1234'5678'9abc'def1;
  alignas(64) std::uint64_t line[8];
  unsigned char out[64];
  arch::put_sentinel(line, sizeof line, kSentinel);
  line[2] = 5;
  EXPECT_TRUE(arch::take_part_of_line(out, line, 17, 24, kSentinel));
  EXPECT_EQ(line[2], kSentinel);
  line[2] = 5;
  EXPECT_FALSE(arch::take_part_of_line(out, line, 17, 25, kSentinel)) << "the next word is wanted too";
  EXPECT_EQ(line[2], 5u);
}

TEST(arrival_buffer, BringsEveryByteWhateverTheOrder) {
  for (const std::uint64_t seed : {0u, 1u, 2u, 3u}) {
    fake_engine::options troubles;
    troubles.seed = seed;
    fake_engine io(troubles);
    test::channel_setting rig(io);
    const auto queue = rig.open();
    const auto data = put_random(rig, *queue, 1u << 20);
    auto buffer = dma::arrival_buffer::open(rig.space);
    ASSERT_TRUE(buffer) << buffer.error().message;
    std::mt19937_64 random(seed);
    for (int round = 0; round < 200; ++round) {
      const std::size_t most = round % 8 == 0 ? 600'000 : round % 3 == 0 ? 20'000 : 5000;
      const std::size_t bytes = 1 + random() % most, offset = random() % ((1u << 20) - bytes);
      std::vector<std::byte> out(bytes + 2, std::byte{0x5a});
      const status done = (*buffer)->read(*queue, rig.device_at(offset), out.data() + 1, bytes, kTimeoutNs);
      ASSERT_TRUE(done) << done.error().message;
      ASSERT_EQ(std::memcmp(out.data() + 1, data.data() + offset, bytes), 0) << seed << ' ' << offset << ' ' << bytes;
      ASSERT_TRUE(out.front() == std::byte{0x5a} && out.back() == std::byte{0x5a});
    }
    EXPECT_EQ(io.protocol_errors(), 0);
  }
}

// The kernel's copies can be interrupted within a word; those of an engine are not.
TEST(arrival_buffer, ItsWordsAreWrittenWholeByTheSimulatedEngine) {
  fake_engine io;
  test::channel_setting rig(io);
  const auto queue = rig.open();
  constexpr std::size_t kBytes = 1u << 20;
  auto* const pages =
      static_cast<std::uint64_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  auto bound = rig.space->bind_host(pages, kBytes);
  ASSERT_TRUE(bound) << bound.error().message;
  auto* const words = reinterpret_cast<std::uint64_t*>(rig.host);
  for (std::size_t i = 0; i < kBytes / sizeof *words; ++i) words[i] = i * 0x0101'0101'0101'0101;
  ASSERT_TRUE(queue->wait(*queue->copy(rig.device_at(0), rig.host_at(0), kBytes), kTimeoutNs));
  ASSERT_TRUE(queue->wait(*queue->copy(bound->address(), rig.device_at(0), kBytes), kTimeoutNs));
  EXPECT_EQ(std::memcmp(pages, words, kBytes), 0);
  munmap(pages, kBytes);  // pinned pages stay
  EXPECT_TRUE(queue->wait(*queue->copy(bound->address(), rig.device_at(0), kBytes), kTimeoutNs));
  EXPECT_TRUE(queue->wait(*queue->copy(rig.device_at(0), bound->address(), kBytes), kTimeoutNs));
}

// What lay in the buffer before comes back as data: among it the sentinel itself.
TEST(arrival_buffer, DataThatIsTheSentinelArrivesToo) {
  fake_engine io;
  test::channel_setting rig(io);
  const auto queue = rig.open();
  auto buffer = dma::arrival_buffer::open(rig.space);
  ASSERT_TRUE(buffer);
  const std::uint64_t sentinel = (*buffer)->sentinel_for_tests();
  auto* const words = reinterpret_cast<std::uint64_t*>(rig.host);
  for (const std::size_t place : {0u, 7u, 100u, 511u}) {
    for (std::size_t i = 0; i < 512; ++i) words[i] = i == place ? sentinel : i;
    ASSERT_TRUE(queue->wait(*queue->copy(rig.device_at(0), rig.host_at(0), 4096), kTimeoutNs));
    std::uint64_t out[512] = {};
    ASSERT_TRUE((*buffer)->read(*queue, rig.device_at(0), out, sizeof out, kTimeoutNs));
    EXPECT_EQ(std::memcmp(out, words, sizeof out), 0) << place;
  }
}

TEST(arrival_buffer, AFaultEndsTheReadAndNotTheBuffer) {
  fake_engine io;
  test::channel_setting rig(io);
  const auto queue = rig.open();
  const auto data = put_random(rig, *queue, 4096);
  auto buffer = dma::arrival_buffer::open(rig.space);
  ASSERT_TRUE(buffer);
  std::vector<std::byte> out(4096);
  const status failed = (*buffer)->read(*queue, 0x7f00'0000'0000, out.data(), out.size(), kTimeoutNs);
  EXPECT_EQ(failed.code(), EIO) << failed.error().message;
  const auto next = rig.open();
  ASSERT_TRUE((*buffer)->read(*next, rig.device_at(0), out.data(), out.size(), kTimeoutNs));
  EXPECT_EQ(out, data);
}

TEST(arrival_buffer, AnEngineThatDoesNotAnswerIsGivenUp) {
  fake_engine io;
  test::channel_setting rig(io);
  const auto queue = rig.open();
  auto buffer = dma::arrival_buffer::open(rig.space);
  ASSERT_TRUE(buffer);
  std::memset(rig.host, 0, 64);
  ASSERT_TRUE(queue->acquire(rig.host_at(0), 1)) << "nobody releases it";
  std::byte out[64];
  const status failed = (*buffer)->read(*queue, rig.device_at(0), out, sizeof out, 30'000'000);
  EXPECT_EQ(failed.code(), ETIMEDOUT);
}

// The memory of long reads is made at the first one. Where there is none, nothing has begun, and short reads go on.
TEST(arrival_buffer, LongReadsWithoutMemoryAreAnError) {
  constexpr std::size_t kLong = 100'000;
  int calls_before = -1;
  for (const bool fails : {false, true}) {
    fake_engine::options troubles;
    if (fails) troubles.failing_call = calls_before;
    fake_engine io(troubles);
    test::channel_setting rig(io);
    const auto queue = rig.open();
    const auto data = put_random(rig, *queue, kLong);
    auto buffer = dma::arrival_buffer::open(rig.space);
    ASSERT_TRUE(buffer) << buffer.error().message;
    calls_before = io.calls();
    std::vector<std::byte> out(kLong);
    EXPECT_EQ((*buffer)->read(*queue, rig.device_at(0), out.data(), kLong, kTimeoutNs).ok(), !fails);
    EXPECT_EQ(out, fails ? std::vector<std::byte>(kLong) : data);
    EXPECT_FALSE(queue->fault());
    ASSERT_TRUE((*buffer)->read(*queue, rig.device_at(0), out.data(), 4096, kTimeoutNs));
    EXPECT_TRUE(std::equal(out.begin(), out.begin() + 4096, data.begin()));
    EXPECT_TRUE((*buffer)->read(*queue, rig.device_at(0), out.data(), kLong, kTimeoutNs)) << "another try";
    EXPECT_EQ(out, data);
  }
}

TEST(arrival_buffer, MemoryThatCannotBePinnedIsAnError) {
  fake_engine::options none;
  none.pins_nothing = true;
  fake_engine other(none);
  auto client = rm::client::open(other);
  ASSERT_TRUE(client);
  auto space = dma::address_space::open(**client, **(*client)->find_gpu({0, 6, 0}), "580.159.04");
  ASSERT_TRUE(space);
  EXPECT_FALSE(dma::arrival_buffer::open(*space));
  EXPECT_EQ(other.live_maps(), 0);
}

}  // namespace
