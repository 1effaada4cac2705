// SPDX-License-Identifier: Apache-2.0
#include "copy/bounce.hpp"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "test/copy/copy_fixture.hpp"
#include "test/copy/failing_cuda.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kChunk = 64u << 10;

worker_pool::options with_helpers(unsigned count) {
  worker_pool::options made;
  made.helpers = count;
  return made;
}

class Bounce : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = copy_engine::open(context_, 2);
    ASSERT_TRUE(opened);
    engine_ = *std::move(opened);
  }

  // Both ways, between canaries.
  void round_trip(bounce_ring& ring, std::size_t bytes, unsigned width, unsigned seed) {
    guarded_device device(bytes, seed % 61);
    guarded_host host(bytes, seed % 63);
    const auto pattern = test::random_bytes(bytes, seed);
    host.set(pattern);
    auto done = ring.to_device(device.address(), host.data(), bytes, width);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(device.get(), pattern);
    const auto back = test::random_bytes(bytes, seed + 5000);
    device.set(back);
    done = ring.to_host(host.data(), device.address(), bytes, width);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(host.get(), back);
  }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  test::failing_cuda failing_;
  const gpu_context context_ = context_of(0, failing_.table());
  std::unique_ptr<copy_engine> engine_;
};

TEST_F(Bounce, MovesAnySizeWithAnyNumberOfThreads) {
  for (const unsigned chunks : {2u, 5u}) {
    for (const unsigned width : {1u, 3u}) {
      worker_pool pool(with_helpers(2));
      bounce_ring ring(*engine_, pool, {kChunk, chunks});
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kChunk / 4 + 1, kChunk - 1, kChunk, kChunk + 1,
                                      chunks * kChunk, chunks * kChunk + 1, 3 * chunks * kChunk - 17}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes, " << chunks << " chunks, width " << width);
        round_trip(ring, bytes, width, static_cast<unsigned>(bytes % 1000) + width);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Bounce, MovesRandomSizes) {
  worker_pool pool(with_helpers(3));
  bounce_ring ring(*engine_, pool, {.chunk_bytes = kChunk, .chunks = 3});
  for (unsigned seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::minstd_rand random(seed);
    const std::size_t bytes = 1 + random() % (1u << 20);
    round_trip(ring, bytes, 1 + static_cast<unsigned>(random() % 4), seed);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Bounce, CallersTakeTurns) {
  worker_pool pool(with_helpers(1));
  bounce_ring ring(*engine_, pool, {.chunk_bytes = kChunk, .chunks = 2});
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < 3; ++t)
    callers.emplace_back([&, t] {
      for (unsigned round = 0; round < 4; ++round) round_trip(ring, 3 * kChunk + 100 * t + round, 2, 10 * t + round);
    });
  for (auto& caller : callers) caller.join();
}

TEST_F(Bounce, OptionsAreMadeToFit) {
  worker_pool pool(with_helpers(0));
  bounce_ring ring(*engine_, pool, {.chunk_bytes = 1000, .chunks = 0});
  round_trip(ring, 200'000, 0, 1);
}

TEST_F(Bounce, EveryStepMayFailAndNothingStaysInFlight) {
  worker_pool pool(with_helpers(1));
  const test::current_device other(1);  // so that each submission makes the context current, which is a step as well
  for (const bool is_read : {true, false}) {
    for (const unsigned width : {1u, 2u}) {
      SCOPED_TRACE(testing::Message() << (is_read ? "read" : "write") << ", width " << width);
      const std::size_t bytes = 4 * kChunk + 5;
      guarded_device device(bytes);
      const auto data = test::random_bytes(bytes, 2);
      const int alive = failing_.alive();
      const int steps = failing_.sweep([&] {
        // The memory and the ring end right after a failed copy: a checker sees anything that is still in flight.
        bounce_ring ring(*engine_, pool, {.chunk_bytes = kChunk, .chunks = 2});
        guarded_host host(bytes);
        if (is_read) device.set(data);
        else host.set(data);
        auto done = is_read ? ring.to_host(host.data(), device.address(), bytes, width)
                            : ring.to_device(device.address(), host.data(), bytes, width);
        failing_.stop_failing();
        if (!done) {
          EXPECT_FALSE(done.error().message.empty());
          auto again = is_read ? ring.to_host(host.data(), device.address(), bytes, width)
                               : ring.to_device(device.address(), host.data(), bytes, width);
          EXPECT_TRUE(again) << "usable after a failure";
          EXPECT_EQ(is_read ? host.get() : device.get(), data);
          return false;
        }
        EXPECT_EQ(is_read ? host.get() : device.get(), data);
        return !failing_.has_fired();  // a wait may ask after its stream, and not need the answer that failed
      });
      EXPECT_GE(steps, 10);
      EXPECT_EQ(failing_.alive(), alive);
    }
  }
}

std::atomic<int> g_copies_left{0};
std::atomic<cu::context_t> g_doomed{nullptr};

TEST_F(Bounce, AContextThatGoesInTheMiddleIsAnError) {
  for (const bool is_read : {true, false}) {
    own_context own;
    auto opened = copy_engine::open(context_of(0, failing_.table(), own.handle()), 2);
    ASSERT_TRUE(opened);
    worker_pool pool(with_helpers(1));
    bounce_ring ring(**opened, pool, {.chunk_bytes = kChunk, .chunks = 3});
    guarded_device device(10 * kChunk);  // the primary context's: it stays
    guarded_host host(10 * kChunk);
    g_copies_left = 5;
    g_doomed = own.handle();
    auto* const before = failing_.table().cuMemcpyAsync;
    failing_.table().cuMemcpyAsync = [](cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
      if (--g_copies_left == 0) std::thread([] { test::simulated_cuda().cuCtxDestroy_v2(g_doomed); }).join();
      return test::simulated_cuda().cuMemcpyAsync(dst, src, bytes, stream);
    };
    auto done = is_read ? ring.to_host(host.data(), device.address(), 10 * kChunk, 2)
                        : ring.to_device(device.address(), host.data(), 10 * kChunk, 2);
    EXPECT_FALSE(done);
    failing_.table().cuMemcpyAsync = before;
    own.forget();
    device.get();
    host.get();
  }
}

TEST_F(Bounce, AForkedChildIsToldSo) {
  worker_pool pool(with_helpers(0));
  auto ring = std::make_unique<bounce_ring>(*engine_, pool, bounce_ring::options{.chunk_bytes = kChunk, .chunks = 2});
  guarded_device device(100);
  guarded_host host(100);
  ASSERT_TRUE(ring->to_host(host.data(), device.address(), 100, 1));
  const int answer = in_forked_child([&] {
    if (ring->to_host(host.data(), device.address(), 100, 1).code() != EACCES) return 1;
    if (ring->to_device(device.address(), host.data(), 100, 1).code() != EACCES) return 2;
    const transfer copy{.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = 100};
    if (copy_registered(*engine_, copy).code() != EACCES) return 3;
    ring.reset();
    return 0;
  });
  EXPECT_EQ(answer, 0);
}

// ---- registered for one copy ----------------------------------------------------------------------------------------

TEST_F(Bounce, RegisteredCopiesLeaveNoRegistration) {
  const int alive = failing_.alive();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100'001}}) {
    guarded_device device(bytes, 3);
    guarded_host host(bytes, 5);
    const auto data = test::random_bytes(bytes, 1);
    host.set(data);
    auto done = copy_registered(
        *engine_, {.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = bytes});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(device.get(), data);
    const auto back = test::random_bytes(bytes, 2);
    device.set(back);
    done = copy_registered(*engine_,
                           {.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = bytes});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(host.get(), back);
  }
  EXPECT_EQ(failing_.alive(), alive);
}

TEST_F(Bounce, RegisteredRowsReachTheLastOne) {
  guarded_device device(10 * 100);
  guarded_host host(9 * 5000 + 100);
  for (std::size_t row = 0; row < 10; ++row) std::memset(host.data() + row * 5000, static_cast<int>(row + 1), 100);
  auto done = copy_registered(*engine_, {direction::to_device, device.address(), host.address(), 100, 10, 100, 5000});
  ASSERT_TRUE(done) << done.error().message;
  const auto got = device.get();
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i / 100 + 1);
}

TEST_F(Bounce, AFailedRegisteredCopyLeavesEverythingAsItWas) {
  guarded_device device(10'000);
  guarded_host host(10'000);
  const transfer copy{.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = 10'000};
  const int alive = failing_.alive();
  const int steps = failing_.sweep([&] {
    const bool worked = copy_registered(*engine_, copy).ok();
    EXPECT_EQ(failing_.alive(), alive);
    return worked;
  });
  EXPECT_GE(steps, 3);
  const transfer within{.way = direction::on_device, .dst = device.address(), .src = device.address() + 64, .row_bytes = 8};
  EXPECT_EQ(copy_registered(*engine_, within).code(), EINVAL);
  transfer endless = copy;
  endless.row_bytes = ~std::size_t{0} - 4096;
  EXPECT_EQ(copy_registered(*engine_, endless).code(), EINVAL);
}

TEST_F(Bounce, SomebodyElsesRegistrationIsRespected) {
  auto other_buffer = pinned_buffer::make(context_, 8192);
  ASSERT_TRUE(other_buffer);
  guarded_device device(100);
  const int alive = failing_.alive();
  const auto address = address_of(other_buffer->data()) + 4000;
  auto refused =
      copy_registered(*engine_, {.way = direction::to_host, .dst = address, .src = device.address(), .row_bytes = 100});
  EXPECT_EQ(refused.code(), EBUSY);
  EXPECT_EQ(failing_.alive(), alive);
  ASSERT_EQ(cuda_.cuMemsetD8_v2(other_buffer->device_address(), 1, 8192), 0) << "still theirs";
}

}  // namespace
}  // namespace pl::copy
