// SPDX-License-Identifier: Apache-2.0
#include "copy/mapping_cache.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "test/copy/mapping_cache_fixture.hpp"

namespace pl::copy {
namespace {

using test::comes_true;
using test::find;
using test::kMiB;
using test::small_windows;
using test::two_slots;
using test::without_sweep;

int threads_named_like_the_sweep() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    count += name == "pl-mapcache" ? 1 : 0;
  }
  return count;
}

class MappingCache : public test::mapping_cache_test {};
INSTANTIATE_TEST_SUITE_P(backends, MappingCache, testing::ValuesIn(test::kMappingBackends), test::backend_name);

TEST_P(MappingCache, AHitIsTheSameAddressAndShowsTheMemory) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer buffer(64 << 10);
  test::set_device_bytes(buffer.pointer(), std::vector<unsigned char>(buffer.bytes(), 0xEE));
  const char* first = nullptr;
  {
    auto hold = find(cache, buffer.pointer() + 100, 1000);
    ASSERT_TRUE(hold) << hold.error().message;
    EXPECT_EQ(hold->type, arch::mapping_type::wc);
    first = hold->data;
    std::memset(hold->data, 0x11, 1000);
  }
  auto seen = test::device_bytes(buffer.pointer(), 1200);
  EXPECT_TRUE(std::all_of(seen.begin() + 100, seen.begin() + 1100, [](auto b) { return b == 0x11; }));
  EXPECT_TRUE(std::all_of(seen.begin(), seen.begin() + 100, [](auto b) { return b == 0xEE; }));
  EXPECT_TRUE(std::all_of(seen.begin() + 1100, seen.end(), [](auto b) { return b == 0xEE; }));
  auto again = find(cache, buffer.pointer() + 200, 1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data, first + 100);
  test::set_device_bytes(buffer.pointer() + 200, {0x77});
  EXPECT_EQ(*again->data, 0x77);
  EXPECT_EQ(cache.counts().hits, 1u);
  EXPECT_EQ(cache.counts().misses, 1u);
  EXPECT_EQ(cache.counts().entries, 1u);
}

TEST_P(MappingCache, AHoldMoves) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer buffer(4096);
  auto found = find(cache, buffer.pointer(), 8);
  ASSERT_TRUE(found);
  mapping_cache::hold moved = *std::move(found);
  mapping_cache::hold target;
  target = std::move(moved);
  EXPECT_EQ(moved.data, nullptr);  // NOLINT(bugprone-use-after-move): what is left is defined
  cache.trim(true);
  EXPECT_GT(cache.counts().mapped_bytes, 0u);
  target = {};
  EXPECT_EQ(cache.trim(true), 0u);
}

TEST_P(MappingCache, RefusesWhatLeavesTheAllocationTheObjectOrTheWindow) {
  mapping_cache cache(small_windows(backend(), 16 * kMiB));
  const test::device_buffer buffer(3000);
  EXPECT_EQ(find(cache, buffer.pointer(), 0).code(), EINVAL);
  EXPECT_EQ(find(cache, buffer.pointer(), 3001).code(), EINVAL);
  EXPECT_EQ(find(cache, buffer.pointer() + 2999, 2).code(), EINVAL);
  EXPECT_EQ(find(cache, buffer.pointer() + 2999, ~std::size_t{0}).code(), EINVAL);
  EXPECT_TRUE(find(cache, buffer.pointer() + 2999, 1));
  const test::device_buffer large(8 * kMiB);
  EXPECT_TRUE(find(cache, large.pointer(), kMiB));
  EXPECT_EQ(find(cache, large.pointer(), kMiB + 1).code(), ERANGE);
  const test::vmm_buffer pieces({2 * kMiB, 2 * kMiB});
  EXPECT_EQ(find(cache, pieces.pointer() + 2 * kMiB - 1, 2).code(), ERANGE);
  EXPECT_TRUE(find(cache, pieces.pointer() + 2 * kMiB - 1, 1));
}

TEST_P(MappingCache, EveryRequestOfHalfAWindowFitsAndNeighboursShare) {
  mapping_cache cache(small_windows(backend(), 64 * kMiB));
  const test::device_buffer buffer(8 * kMiB);
  for (std::size_t offset = 0; offset + kMiB <= buffer.bytes(); offset += 128 << 10) {
    auto hold = find(cache, buffer.pointer() + offset, kMiB);
    ASSERT_TRUE(hold) << hold.error().message;
    const auto tag = test::random_bytes(64, offset + 1);
    std::memcpy(hold->data, tag.data(), 64);
    std::memcpy(hold->data + kMiB - 64, tag.data(), 64);
    EXPECT_EQ(test::device_bytes(buffer.pointer() + offset, 64), tag);
    EXPECT_EQ(test::device_bytes(buffer.pointer() + offset + kMiB - 64, 64), tag);
  }
  EXPECT_LE(cache.counts().entries, 9u) << "five windows and four between them";
  EXPECT_LE(cache.counts().mapped_bytes, 16 * kMiB);
}

TEST_P(MappingCache, TheLeastRecentlyUsedGoesFirstAndHeldOnesStay) {
  mapping_cache cache(small_windows(backend(), 6 * kMiB));
  const test::device_buffer buffer(10 * kMiB);
  const std::uint64_t a = align_down(buffer.pointer() + 2 * kMiB - 1, 2 * kMiB);  // four windows that are whole
  const std::uint64_t b = a + 2 * kMiB, c = b + 2 * kMiB, d = c + 2 * kMiB;
  for (const auto each : {a, b, c}) ASSERT_TRUE(find(cache, each, 8));
  ASSERT_TRUE(find(cache, a, 8));  // b is the oldest now
  ASSERT_TRUE(find(cache, d, 8));
  EXPECT_EQ(cache.counts().evictions, 1u);
  const auto is_hit = [&](std::uint64_t asked) {
    const auto before = cache.counts().hits;
    EXPECT_TRUE(find(cache, asked, 8));
    return cache.counts().hits == before + 1;
  };
  EXPECT_TRUE(is_hit(a));
  EXPECT_TRUE(is_hit(c));
  EXPECT_TRUE(is_hit(d));
  auto held_a = find(cache, a, 8);
  EXPECT_FALSE(is_hit(b));  // takes the place of c, the oldest that is not held
  EXPECT_FALSE(is_hit(c));
  EXPECT_TRUE(is_hit(a));
  EXPECT_LE(cache.counts().mapped_bytes, 6 * kMiB);
  auto held_b = find(cache, b, 8), held_c = find(cache, c, 8);
  ASSERT_TRUE(held_b && held_c);
  EXPECT_EQ(find(cache, d, 8).code(), EBUSY);
  EXPECT_TRUE(is_hit(a) && is_hit(b) && is_hit(c)) << "dropping what is held gives nothing back";
  held_b->end();
  EXPECT_TRUE(find(cache, d, 8));
}

TEST_P(MappingCache, NeverMapsMoreEntriesThanDescriptorsAllow) {
  mapping_cache cache(without_sweep(backend()));
  std::vector<std::unique_ptr<test::device_buffer>> many;
  for (int i = 0; i < 600; ++i) {
    many.push_back(std::make_unique<test::device_buffer>(4096));
    ASSERT_TRUE(find(cache, many.back()->pointer(), 8));
  }
  EXPECT_EQ(cache.counts().entries, 512u);
  EXPECT_EQ(cache.counts().evictions, 88u);
  EXPECT_EQ(cache.trim(true), 0u);
  EXPECT_EQ(cache.counts().entries, 0u);
}

TEST_P(MappingCache, MemoryReallocatedAtTheSameAddressIsMappedAgain) {
  mapping_cache cache(without_sweep(backend()));
  std::uint64_t pointer = 0;
  int reused = 0;
  for (int round = 0; round < 20; ++round) {
    const test::device_buffer buffer(2 * kMiB);
    reused += buffer.pointer() == pointer ? 1 : 0;
    pointer = buffer.pointer();
    auto hold = find(cache, pointer, 64);
    ASSERT_TRUE(hold);
    const auto tag = test::random_bytes(64, static_cast<std::uint64_t>(round) + 1);
    std::memcpy(hold->data, tag.data(), tag.size());
    ASSERT_EQ(test::device_bytes(pointer, 64), tag) << "round " << round;
  }
  EXPECT_GT(reused, 10) << "this allocator proves nothing";
  EXPECT_EQ(cache.counts().hits, 0u);
  EXPECT_EQ(cache.counts().stale, 19u) << "each miss drops what is gone";
}

TEST_P(MappingCache, TheSameMemoryAtAnotherPlaceIsAnother) {
  mapping_cache cache(small_windows(backend(), 16 * kMiB));
  const two_slots slots;
  const std::uint64_t middle = slots.base + 2 * kMiB;
  const auto is_right = [&](const char* text) {
    auto hold = find(cache, middle, 8);
    if (!hold) return false;
    std::memcpy(hold->data, text, 8);
    return std::memcmp(test::device_bytes(middle, 8).data(), text, 8) == 0;
  };
  slots.map(0, slots.base, 4 * kMiB);  // the middle is the memory's third MiB
  EXPECT_TRUE(is_right("third..."));
  slots.unmap(slots.base, 4 * kMiB);
  slots.map(0, middle, 4 * kMiB);  // and now its first
  EXPECT_TRUE(is_right("first..."));
  slots.unmap(middle, 4 * kMiB);
  slots.map(1, slots.base, 4 * kMiB);
  EXPECT_TRUE(is_right("other..."));
  slots.unmap(slots.base, 4 * kMiB);
  slots.map(0, slots.base, 4 * kMiB);
  EXPECT_TRUE(is_right("again..."));
  EXPECT_EQ(std::memcmp(test::device_bytes(slots.base, 8).data(), "first...", 8), 0);
  slots.unmap(slots.base, 4 * kMiB);
  slots.map(0, middle, 2 * kMiB);  // half of it
  EXPECT_TRUE(is_right("half...."));
  slots.unmap(middle, 2 * kMiB);
  EXPECT_EQ(cache.counts().hits, 0u);
}

TEST_P(MappingCache, APlaceInASharedBlockStaysServedOverFreeAndAlloc) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer keeps_the_block(4096);
  std::uint64_t pointer = 0;
  {
    const test::device_buffer small(8192);
    pointer = small.pointer();
    ASSERT_TRUE(find(cache, pointer, 8));
  }
  const test::device_buffer again(8192);
  ASSERT_EQ(again.pointer(), pointer);
  auto hold = find(cache, pointer, 8);
  ASSERT_TRUE(hold);
  EXPECT_EQ(cache.counts().hits, 1u);
  std::memcpy(hold->data, "the same", 8);
  EXPECT_EQ(std::memcmp(test::device_bytes(pointer, 8).data(), "the same", 8), 0);
}

TEST_P(MappingCache, TheSweepGivesFreedMemoryBackAndLeavesTheRest) {
  auto wanted = without_sweep(backend());
  wanted.sweep_ms = 1;
  mapping_cache cache(wanted);
  const test::device_buffer stays(2 * kMiB);
  test::device_buffer goes(4 * kMiB);
  ASSERT_TRUE(find(cache, stays.pointer(), 8));
  const auto stays_bytes = cache.counts().mapped_bytes;
  ASSERT_TRUE(find(cache, goes.pointer(), 8));
  EXPECT_GT(cache.counts().mapped_bytes, stays_bytes);
  EXPECT_TRUE(comes_true([] { return threads_named_like_the_sweep() == 1; }));
  goes.free_now();
  EXPECT_TRUE(comes_true([&] { return cache.counts().mapped_bytes == stays_bytes; }));
  EXPECT_EQ(cache.counts().stale, 1u);
  ASSERT_TRUE(find(cache, stays.pointer(), 8));
  EXPECT_EQ(cache.counts().hits, 1u);
}

TEST_P(MappingCache, TheSweepWakesUpAgainAfterItHadNothingToDo) {
  auto wanted = without_sweep(backend());
  wanted.sweep_ms = 1;
  mapping_cache cache(wanted);
  for (int round = 0; round < 5; ++round) {
    test::device_buffer buffer(2 * kMiB);
    ASSERT_TRUE(find(cache, buffer.pointer(), 8));
    buffer.free_now();
    ASSERT_TRUE(comes_true([&] { return cache.counts().mapped_bytes == 0; })) << "round " << round;
    kernel.expect_nothing_mapped();
    std::this_thread::sleep_for(std::chrono::milliseconds(round));  // it sleeps, or is about to
  }
}

TEST_P(MappingCache, AHoldKeepsItsMappingWhenTheMemoryIsFreed) {
  mapping_cache cache(without_sweep(backend()));
  test::device_buffer buffer(2 * kMiB);
  auto hold = find(cache, buffer.pointer(), 4096);
  ASSERT_TRUE(hold);
  const auto bytes = cache.counts().mapped_bytes;
  buffer.free_now();
  EXPECT_EQ(cache.trim(false), bytes);
  EXPECT_EQ(cache.counts().entries, 0u);
  std::memset(hold->data, 1, 4096);  // still memory
  hold->end();
  EXPECT_EQ(cache.counts().mapped_bytes, 0u);
  kernel.expect_nothing_mapped();
}

TEST_P(MappingCache, ADriverThatNamesNoBlocksIsServedForPlainMemoryOnly) {
  static cu::driver_table old = cuda;  // static: the cache wants it to outlive it
  old.cuPointerGetAttributes = [](unsigned count, int* attributes, void** data, cu::device_ptr pointer) -> cu::result_t {
    if (count > 7) return cu::error_code::invalid_value;
    return test::simulated_cuda().cuPointerGetAttributes(count, attributes, data, pointer);
  };
  mapping_cache cache(without_sweep(backend()));
  const auto find_old = [&](std::uint64_t pointer) {
    const auto info = cu::inspect_pointer(old, pointer);
    EXPECT_TRUE(info && info->block_id == 0);
    return cache.find(old, *info, pointer, 64);
  };
  for (int round = 0; round < 5; ++round) {
    const test::device_buffer buffer(2 * kMiB);
    const auto tag = test::random_bytes(64, static_cast<std::uint64_t>(round) + 77);
    auto hold = find_old(buffer.pointer());
    ASSERT_TRUE(hold) << hold.error().message;
    std::memcpy(hold->data, tag.data(), 64);
    EXPECT_EQ(test::device_bytes(buffer.pointer(), 64), tag);
    EXPECT_TRUE(find_old(buffer.pointer()));
  }
  EXPECT_EQ(cache.counts().hits, 5u);
  const test::vmm_buffer reserved({2 * kMiB});
  EXPECT_EQ(find_old(reserved.pointer()).code(), ENOTSUP);
}

TEST_P(MappingCache, ThreadsFindTrimAndFreeAtOnce) {
  auto wanted = small_windows(backend(), 16 * kMiB);
  wanted.sweep_ms = 1;
  mapping_cache cache(wanted);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  const test::device_buffer shared(8 * kMiB);
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(0);
      for (std::uint64_t i = 0; i < 150; ++i) {
        const test::device_buffer own((i % 3 + 1) * kMiB);
        auto hold = find(cache, own.pointer() + 8, 8);
        if (hold) {
          const auto tag = test::random_bytes(8, i * 3 + static_cast<std::uint64_t>(t));
          std::memcpy(hold->data, tag.data(), 8);
          if (test::device_bytes(own.pointer() + 8, 8) != tag) ++wrong;
        } else if (hold.code() != EBUSY) {
          ++wrong;
        }
        auto common = find(cache, shared.pointer() + i * 50000, 64);
        if (!common && common.code() != EBUSY) ++wrong;
        if (i % 32 == 0) cache.trim(i % 64 == 0);
      }
    });
  for (auto& each : threads) each.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(cache.trim(true), 0u);
}

template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_P(MappingCache, AForkedChildIsKeptOutAndHarmsNothing) {
  auto wanted = without_sweep(backend());
  wanted.sweep_ms = 1;
  auto cache = std::make_unique<mapping_cache>(wanted);
  const test::device_buffer buffer(2 * kMiB);
  const auto info = cu::inspect_pointer(cuda, buffer.pointer());
  ASSERT_TRUE(info);
  auto hold = find(*cache, buffer.pointer(), 64);
  ASSERT_TRUE(hold);
  EXPECT_EQ(in_child([&] { return cache->find(cuda, *info, buffer.pointer(), 64).code(); }), EACCES);
  EXPECT_EQ(in_child([&] {
              hold->end();
              if (cache->trim(true) != 0 || cache->counts().entries != 0) return 1;
              cache.reset();
              return 0;
            }),
            0);
  std::memcpy(hold->data, "parent's", 8);
  EXPECT_EQ(std::memcmp(test::device_bytes(buffer.pointer(), 8).data(), "parent's", 8), 0);
  EXPECT_TRUE(find(*cache, buffer.pointer(), 64));
  hold->end();
}

TEST_P(MappingCache, TheSweepTakesNoSignals) {
  auto wanted = without_sweep(backend());
  wanted.sweep_ms = 1;
  static std::atomic<pthread_t> taker;
  taker = pthread_t{};
  const auto before = std::signal(SIGUSR1, [](int) { taker = pthread_self(); });
  {
    mapping_cache cache(wanted);
    const test::device_buffer buffer(2 * kMiB);
    ASSERT_TRUE(find(cache, buffer.pointer(), 8));
    EXPECT_TRUE(comes_true([] { return threads_named_like_the_sweep() == 1; }));
    kill(getpid(), SIGUSR1);
    EXPECT_TRUE(comes_true([] { return taker.load() != pthread_t{}; }));
  }
  std::signal(SIGUSR1, before);
  // The destructor has joined it, but /proc may show it a moment longer.
  EXPECT_TRUE(comes_true([] { return threads_named_like_the_sweep() == 0; }));
}

// Not asserted on (CONTRIBUTING.md): the cache's own part of a copy, without the driver's question.
TEST(MappingCacheAlone, CostOfAHit) {
  const test::current_device context(0);
  test::mapping_kernel kernel("dmabuf");
  mapping_cache cache(without_sweep("dmabuf"));
  const test::device_buffer buffer(2 * kMiB);
  const auto& cuda = test::simulated_cuda();
  const auto info = cu::inspect_pointer(cuda, buffer.pointer());
  ASSERT_TRUE(info && find(cache, buffer.pointer(), 8));
  constexpr int kRounds = 200000;
  std::uint64_t best = ~std::uint64_t{0};
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::uint64_t start = monotonic_ns();
    for (int i = 0; i < kRounds; ++i)
      if (!cache.find(cuda, *info, buffer.pointer() + static_cast<unsigned>(i % 1000), 8)) std::abort();
    best = std::min(best, monotonic_ns() - start);
  }
  std::printf("a hit with its release: %.1f ns\n", static_cast<double>(best) / kRounds);
  EXPECT_GE(cache.counts().hits, 5u * kRounds);
}

}  // namespace
}  // namespace pl::copy
