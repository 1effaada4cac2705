// SPDX-License-Identifier: Apache-2.0
// Threads, two GPUs, every kind of copy at random, each of them checked.
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kNsForEachTest = 1'000'000'000;
constexpr std::size_t kMaxBytes = 100'000;

class PlannerThreads : public planner_fixture {};

// Memory of one thread: random bytes go round from the host over one GPU or two and back.
class random_copier {
 public:
  random_copier(planner& planner, unsigned seed) : planner_(planner), random_(seed) {}

  void go(std::uint64_t until_ns) {
    while (monotonic_ns() < until_ns && !testing::Test::HasFailure()) one_round();
    for (auto* one : {&near_, &far_}) (void)one->get();
    (void)pageable_.get(), (void)pinned_.get();
  }

 private:
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  std::size_t some_size() { return below(10) < 6 ? below(5000) + 1 : below(kMaxBytes / 2) + 1; }

  void move(const transfer& transfer) {
    status done;
    const auto kind = below(5);
    if (kind == 0 && transfer.row_bytes > 3) {
      std::vector<copy::transfer> list;
      for (std::size_t offset = 0, bytes = 0; offset < transfer.row_bytes; offset += bytes) {
        bytes = std::min(transfer.row_bytes - offset, below(transfer.row_bytes) / 3 + 1);
        list.push_back({transfer.way, transfer.dst + offset, transfer.src + offset, bytes});
      }
      done = planner_.copy_list(list);
    } else if (kind == 1) {
      auto begun = planner_.begin(std::span(&transfer, 1), {});
      done = begun ? begun->wait() : status(begun.error());
    } else if (kind == 2 && transfer.row_bytes % 4 == 0) {
      done = planner_.copy({transfer.way, transfer.dst, transfer.src, transfer.row_bytes / 4, 4, transfer.row_bytes / 4,
                            transfer.row_bytes / 4});
    } else {
      done = planner_.copy(transfer);
    }
    ASSERT_TRUE(done) << done.error().message;
  }

  void one_round() {
    const std::size_t bytes = some_size();
    const std::size_t skew = below(70);
    const auto data = test::random_bytes(bytes, below(1u << 30));
    auto& source = below(2) == 0 ? pageable_ : pinned_;
    auto& destination = below(2) == 0 ? pageable_ : pinned_;
    auto& first = below(2) == 0 ? near_ : far_;
    auto& second = below(2) == 0 ? near_ : far_;
    const std::uint64_t second_at = second.address() + kMaxBytes / 2 + 100;  // the two parts of one buffer do not overlap
    std::copy(data.begin(), data.end(), source.data() + skew);
    move({direction::to_device, first.address() + skew, source.address() + skew, bytes});
    std::fill_n(destination.data() + skew, bytes, static_cast<unsigned char>(0));
    if (below(2) == 0) {
      move({direction::on_device, second_at, first.address() + skew, bytes});
      move({direction::to_host, destination.address() + skew, second_at, bytes});
    } else {
      move({direction::to_host, destination.address() + skew, first.address() + skew, bytes});
    }
    ASSERT_EQ(std::memcmp(destination.data() + skew, data.data(), bytes), 0) << bytes;
    if (below(8) == 0) {
      ASSERT_TRUE(planner_.fill(first.address() + skew, 0x77, bytes));
      move({direction::to_host, destination.address() + skew, first.address() + skew, bytes});
      ASSERT_EQ(bytes_t(destination.data() + skew, destination.data() + skew + bytes), bytes_t(bytes, 0x77));
    }
  }

  planner& planner_;
  std::mt19937 random_;
  guarded_device near_{kMaxBytes + 200, 1, 0}, far_{kMaxBytes + 200, 3, 1};
  guarded_host pageable_{kMaxBytes + 200, 1}, pinned_{context_of(0), kMaxBytes + 200, 2};
};

TEST_F(PlannerThreads, MixedCopiesOnTwoGpus) {
  open();
  auto hot = planner_->keep_hot(0);
  auto hot_too = planner_->keep_hot(1);
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const std::uint64_t until_ns = monotonic_ns() + kNsForEachTest;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(static_cast<int>(t % 2));
      random_copier(*planner_, seed + t).go(until_ns);
    });
  for (auto& thread : threads) thread.join();
  const auto counts = planner_->counts();
  for (const auto kind : {method::cpu_store, method::copy_engine})
    EXPECT_GT(counts.copies[static_cast<std::size_t>(kind)], 0u);
  EXPECT_GT(counts.engine.launches, 0u);
}

// Memory that comes and goes beneath the cache, holds that come and go, and trims, while others copy.
TEST_F(PlannerThreads, EverythingComesAndGoes) {
  open();
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  const std::uint64_t until_ns = monotonic_ns() + kNsForEachTest / 2;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    const test::current_device current(0);
    for (unsigned char value = 0; monotonic_ns() < until_ns; ++value) {
      const test::device_buffer memory(300'000);
      bytes_t pattern(300'000, value), back(300'000);
      ASSERT_TRUE(planner_->copy({direction::to_device, memory.pointer(), address_of(pattern.data()), 3000}));
      ASSERT_TRUE(planner_->copy({direction::to_host, address_of(back.data()), memory.pointer(), 3000}));
      ASSERT_EQ(bytes_t(back.begin(), back.begin() + 3000), bytes_t(3000, value));
      ASSERT_TRUE(planner_->copy({direction::to_device, memory.pointer(), address_of(pattern.data()), 300'000}));
      ASSERT_TRUE(planner_->copy({direction::to_host, address_of(back.data()), memory.pointer(), 300'000}));
      ASSERT_EQ(back, pattern);
    }
  });
  threads.emplace_back([&] {
    const test::current_device current(0);
    while (monotonic_ns() < until_ns) {
      auto hot = planner_->keep_hot(0);
      ASSERT_TRUE(hot) << hot.error().message;
      usleep(2000);
      planner_->trim();
      (void)planner_->counts();
    }
  });
  threads.emplace_back([&] {
    const test::current_device current(1);
    random_copier(*planner_, seed).go(until_ns);
  });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace pl::copy
