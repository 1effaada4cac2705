// SPDX-License-Identifier: Apache-2.0
// Many threads on shared sessions and shared memory (run under ThreadSanitizer by the tsan preset), and long lives.
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "test/conformance/backends.hpp"

namespace pl::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCycles = 2'000;
constexpr int kMaxRounds = 60;
#else
constexpr int kCycles = 100'000;
constexpr int kMaxRounds = 400;
#endif
const int kRounds = on_module() ? 60 : kMaxRounds;  // an emulated CPU is slow

class threads : public backend_test {};

TEST_P(threads, PinMapCopyUnpinOnOneSession) {
  session* s = open();
  const device_buffer buffer(4 << 20);
  std::atomic<int> wrong{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 4; ++t) {
    workers.emplace_back([&, t] {
      const current_device context;
      const std::uint64_t mine = buffer.pointer() + t * 65536;
      for (int round = 0; round < kRounds; ++round) {
        auto pinned = pin_region(s, exactly(mine, 4096));
        if (!pinned || !map_region_exactly(s, *pinned)) {
          ++wrong;
          continue;
        }
        const auto bytes = random_bytes(64, t * 1000 + static_cast<unsigned>(round));
        std::vector<unsigned char> seen(64);
        char* data = (*pinned)->data.load();
        wrong += region_write(*pinned, data, bytes.data(), 64, true) != 0;
        wrong += region_read(*pinned, seen.data(), data, 64) != 0;
        wrong += seen != bytes;
        wrong += !unpin_region(s, *pinned);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_TRUE(close_session(s));
}

TEST_P(threads, OneHandleCopiedByMany) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  region* r = map_exactly(s, buffer.pointer(), 65536);
  ASSERT_NE(r, nullptr);
  std::atomic<int> wrong{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 4; ++t)
    workers.emplace_back([&, t] {
      char* mine = r->data.load() + t * 8192;
      for (int round = 0; round < kRounds; ++round) {
        const auto bytes = random_bytes(1000, t + static_cast<unsigned>(round) * 7);
        std::vector<unsigned char> seen(1000);
        wrong += region_write(r, mine, bytes.data(), 1000, round % 2 == 0) != 0;
        wrong += region_flush(r) != 0;
        wrong += region_read(r, seen.data(), mine, 1000) != 0;
        wrong += seen != bytes;
      }
    });
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_TRUE(close_session(s));
}

TEST_P(threads, OneUnpinOfManyWins) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  for (int round = 0; round < kRounds / 4; ++round) {
    region* r = map_exactly(s, buffer.pointer(), 4096);
    ASSERT_NE(r, nullptr);
    std::atomic<int> won{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < 3; ++t) workers.emplace_back([&] { won += unpin_region(s, r).ok(); });
    for (auto& worker : workers) worker.join();
    ASSERT_EQ(won.load(), 1);
  }
  EXPECT_TRUE(close_session(s));
}

TEST_P(threads, SessionsComeAndGoAtTheSameTime) {
  const device_buffer buffer(1 << 20);
  std::atomic<int> wrong{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 4; ++t)
    workers.emplace_back([&] {
      const current_device context;
      for (int round = 0; round < kRounds / 4; ++round) {
        auto own = open_session({io_.get(), &simulated_cuda()}, GetParam().backend);
        if (!own) {
          ++wrong;
          continue;
        }
        auto pinned = pin_region(*own, exactly(buffer.pointer(), 4096));
        wrong += !pinned || !map_region_exactly(*own, *pinned);
        wrong += !close_session(*own);  // with everything still mapped
      }
    });
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(threads, CloseWaitsForCallsAndRefusesNewOnes) {
  const device_buffer buffer(1 << 20);
  for (int round = 0; round < kRounds / 10; ++round) {
    session* s = open();
    std::atomic<bool> stop{false};
    std::atomic<int> odd{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < 2; ++t)
      workers.emplace_back([&] {
        const current_device context;
        while (!stop.load()) {
          auto pinned = pin_region(s, exactly(buffer.pointer(), 4096));
          if (!pinned) {
            odd += pinned.code() != EINVAL;  // closed: nothing else may be wrong
            break;
          }
        }
      });
    std::this_thread::yield();
    EXPECT_TRUE(close_session(s));
    stop.store(true);
    for (auto& worker : workers) worker.join();
    EXPECT_EQ(odd.load(), 0);
  }
}

long resident_kib() {
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  const int got = std::fscanf(statm, "%ld %ld", &total, &resident);
  std::fclose(statm);
  return got == 2 ? resident * 4 : -1;
}

TEST_P(threads, ManyCyclesKeepMemoryFlat) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  region* warm = map_exactly(s, buffer.pointer(), 4096);
  ASSERT_NE(warm, nullptr);
  const auto cycle = [&] {
    auto pinned = pin_region(s, exactly(buffer.pointer(), 4096));
    ASSERT_TRUE(pinned && map_region_exactly(s, *pinned) && unpin_region(s, *pinned));
  };
  for (int i = 0; i < 6000; ++i) cycle();  // fill the quarantine of released handles
  const long before = resident_kib();
  for (int i = 0; i < kCycles; ++i) cycle();
#ifdef __SANITIZE_ADDRESS__
  constexpr long kAllowedKib = kCycles * 4;  // AddressSanitizer keeps what is freed for a while
#else
  constexpr long kAllowedKib = 2048;
#endif
  EXPECT_LT(resident_kib() - before, kAllowedKib) << "KiB grown over " << kCycles << " pins";
  EXPECT_TRUE(close_session(s));
}

INSTANTIATE_TEST_SUITE_P(backends, threads, testing::ValuesIn(all_backends()), label_of);

}  // namespace
}  // namespace pl::test
