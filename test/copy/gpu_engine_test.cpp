// SPDX-License-Identifier: Apache-2.0
// The GPU engine on the simulated GPU: what it copies, when it is there, and that nothing it waits for can keep it for ever.
#include "copy/gpu_engine.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "cuda/kernel_image.hpp"
#include "gpu_engine_image.hpp"
#include "test/support/scarce_threads.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kLeaseUs = 20'000;  // the simulated GPU shares two CPUs with the test
constexpr unsigned kLongUs = 10'000'000;
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kShortestUs = 1000;  // slow as it is, no request would meet a worker before it leaves
#else
constexpr unsigned kShortestUs = 20;
#endif

gpu_engine::options small_options() {
  gpu_engine::options wanted;
  wanted.shape = {2, 4};
  wanted.lease_us = kLeaseUs;
  return wanted;
}

class GpuEngine : public testing::Test {
 protected:
  void SetUp() override {
    auto found = find_context(cuda_, 0, nullptr);
    ASSERT_TRUE(found);
    context_ = *found;
    auto opened = open_backend({&default_device_io(), &cuda_}, "auto");
    ASSERT_TRUE(opened) << opened.error().message;
    maps_ = *std::move(opened);
    make(small_options());
  }
  void make(const gpu_engine::options& wanted) {
    engine_.reset();
    auto made = gpu_engine::open(context_, *maps_, wanted);
    ASSERT_TRUE(made) << made.error().message;
    engine_ = *std::move(made);
  }
  // Looks again and again, for ten seconds at most.
  template <class Condition>
  static bool comes_true(Condition&& condition) {
    const std::uint64_t begin_ns = monotonic_ns();
    while (monotonic_ns() - begin_ns < kLongUs * 1000ull) {
      if (condition()) return true;
      usleep(100);
    }
    return false;
  }
  // An operation until it is done: the lease may end at any moment.
  template <class Operation>
  void until_done(Operation&& operation) {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      ASSERT_TRUE(engine_->start_and_wait(kLongUs));
      auto got = operation();
      ASSERT_TRUE(got) << got.error().message;
      if (*got == gpu_engine::fate::done) return;
      ASSERT_EQ(*got, gpu_engine::fate::not_taken);
    }
    FAIL() << "never done";
  }
  void copy(const transfer& transfer, unsigned workers) {
    until_done([&]() -> result<gpu_engine::fate> {
      auto begun = engine_->begin_copy(transfer, workers);
      if (!begun) return begun.error();
      return engine_->wait(*begun);
    });
  }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  test::current_device current_{0};
  gpu_context context_;
  std::unique_ptr<backend> maps_;
  std::unique_ptr<gpu_engine> engine_;
};

TEST_F(GpuEngine, ReadsEverySizeAndAlignmentWithLowLatency) {
  const test::device_buffer memory(8192);
  const auto data = test::random_bytes(8192, 1);
  test::set_device_bytes(memory.pointer(), data);
  for (std::size_t offset : {0u, 1u, 3u, 7u, 8u, 13u})
    for (std::size_t bytes : {1u, 2u, 4u, 7u, 8u, 9u, 31u, 64u, 65u, 200u, 1024u, 4099u}) {
      std::vector<unsigned char> got(bytes + 16, 0xEE);
      until_done([&] { return engine_->read_low_latency(got.data() + 8, memory.pointer() + offset, bytes); });
      ASSERT_EQ(std::memcmp(got.data() + 8, data.data() + offset, bytes), 0) << offset << " " << bytes;
      for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(got[static_cast<std::size_t>(i)], 0xEE);
        ASSERT_EQ(got[bytes + 8 + static_cast<std::size_t>(i)], 0xEE);
      }
    }
  EXPECT_EQ(engine_->counts().low_latency, 6u * 12u);
}

TEST_F(GpuEngine, TheCpuLoadsTheHeadOfALowLatencyMessage) {
  constexpr std::size_t kBytes = 65536;
  const test::device_buffer memory(kBytes);
  const auto data = test::random_bytes(kBytes, 3);
  test::set_device_bytes(memory.pointer(), data);
  pin_request request;
  request.range = {memory.pointer(), kBytes};
  auto pin = maps_->pin(request);
  ASSERT_TRUE(pin) << pin.error().message;
  auto view = (*pin)->map((*pin)->range().size_bytes, arch::mapping_type::none);
  ASSERT_TRUE(view);
  const char* const mapped = static_cast<char*>(view->address) + (memory.pointer() - (*pin)->range().begin);
  for (const std::size_t offset : {0u, 13u})
    for (const std::size_t bytes : {2u, 100u, 1025u, 4096u, 5001u})
      for (const std::size_t by_cpu : {std::size_t{1}, bytes / 2, bytes - 1}) {
        std::vector<unsigned char> got(bytes + 16, 0xEE);
        until_done([&] {
          return engine_->read_low_latency(got.data() + 8, memory.pointer() + offset, bytes,
                                           {view->type, mapped + offset, by_cpu});
        });
        ASSERT_EQ(std::memcmp(got.data() + 8, data.data() + offset, bytes), 0) << offset << " " << bytes << " " << by_cpu;
        ASSERT_TRUE(got[7] == 0xEE && got[bytes + 8] == 0xEE);
      }
  std::uint64_t word = 0;
  EXPECT_EQ(engine_->read_low_latency(&word, memory.pointer(), 8, {view->type, mapped, 8}).code(), EINVAL) << "none is left";
  (*pin)->unmap(*view, unmapping::by_request);
}

TEST_F(GpuEngine, CopiesEverySizeAndAlignmentBothWays) {
  const test::device_buffer memory(40'000);
  auto pinned = pinned_buffer::make(context_, 40'000);
  ASSERT_TRUE(pinned);
  std::uint64_t seed = 7;
  for (std::size_t dst_offset : {0u, 1u, 5u, 16u})
    for (std::size_t src_offset : {0u, 1u, 8u, 11u})
      for (std::size_t bytes : {1u, 15u, 16u, 17u, 255u, 4096u, 20'001u}) {
        const auto data = test::random_bytes(bytes, ++seed);
        // To the host ...
        auto around = test::random_bytes(40'000, ++seed);
        test::set_device_bytes(memory.pointer() + src_offset, data);
        std::memcpy(pinned->data(), around.data(), around.size());
        copy({direction::to_host, pinned->device_address() + dst_offset, memory.pointer() + src_offset, bytes}, 2);
        std::memcpy(around.data() + dst_offset, data.data(), bytes);
        ASSERT_EQ(std::memcmp(pinned->data(), around.data(), around.size()), 0);
        // ... and to the device.
        around = test::random_bytes(40'000, ++seed);
        test::set_device_bytes(memory.pointer(), around);
        std::memcpy(pinned->data() + src_offset, data.data(), bytes);
        copy({direction::to_device, memory.pointer() + dst_offset, pinned->device_address() + src_offset, bytes}, 2);
        std::memcpy(around.data() + dst_offset, data.data(), bytes);
        ASSERT_EQ(test::device_bytes(memory.pointer(), 40'000), around);
      }
}

TEST_F(GpuEngine, CopiesRowsAndLists) {
  const test::device_buffer memory(64 * 1024);
  auto pinned = pinned_buffer::make(context_, 64 * 1024);
  ASSERT_TRUE(pinned);
  const auto data = test::random_bytes(64 * 1024, 5);
  test::set_device_bytes(memory.pointer(), data);
  transfer rows{direction::to_host, pinned->device_address() + 3, memory.pointer() + 1, 37, 50, 100, 211};
  copy(rows, 2);
  for (std::size_t row = 0; row < 50; ++row) {
    ASSERT_EQ(std::memcmp(pinned->data() + 3 + row * 100, data.data() + 1 + row * 211, 37), 0) << row;
    ASSERT_EQ(std::to_integer<int>(pinned->data()[3 + row * 100 + 37]), 0) << "written behind a row";
  }

  std::vector<engine::list_entry> pieces;
  std::vector<unsigned char> wanted;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::size_t bytes = i % 29 + 1;
    pieces.push_back({memory.pointer() + i * 200 + i % 7, wanted.size(), bytes, 0});
    wanted.insert(wanted.end(), data.begin() + static_cast<long>(i * 200 + i % 7),
                  data.begin() + static_cast<long>(i * 200 + i % 7 + bytes));
  }
  std::vector<unsigned char> got(wanted.size());
  until_done([&] {
    return engine_->gather(
        pieces, wanted.size(),
        [](void* out, const std::byte* source) {
          auto& bytes = *static_cast<std::vector<unsigned char>*>(out);
          std::memcpy(bytes.data(), source, bytes.size());
        },
        &got);
  });
  EXPECT_EQ(got, wanted);
  // What the gathering left in the lines is no message.
  std::uint64_t word = 0;
  until_done([&] { return engine_->read_low_latency(&word, memory.pointer(), 8); });
  EXPECT_EQ(std::memcmp(&word, data.data(), 8), 0);
}

TEST_F(GpuEngine, IsNotHotBeforeItIsStartedAndLeavesAfterItsLease) {
  std::uint64_t word = 0;
  const test::device_buffer memory(64);
  auto cold = engine_->read_low_latency(&word, memory.pointer(), 8);
  ASSERT_TRUE(cold);
  EXPECT_EQ(*cold, gpu_engine::fate::not_taken);
  EXPECT_EQ(engine_->counts().not_hot, 1u);
  ASSERT_TRUE(engine_->start_and_wait(kLongUs));
  EXPECT_TRUE(engine_->is_hot());
  // Everything that waits for the device gets through.
  const std::uint64_t begin_ns = monotonic_ns();
  EXPECT_EQ(cuda_.cuCtxSynchronize(), 0);
  EXPECT_LT(monotonic_ns() - begin_ns, 5'000'000'000u);
  EXPECT_FALSE(engine_->is_hot());
  EXPECT_EQ(engine_->counts().launches, 1u);
}

TEST_F(GpuEngine, StaysHotWhileItIsUsed) {
  const test::device_buffer memory(64);
  std::uint64_t word = 0;
  // A launch takes far more than a lease where CPUs are taken and a sanitizer watches: the launches count, not the time.
  EXPECT_TRUE(comes_true([&] {
    until_done([&] { return engine_->read_low_latency(&word, memory.pointer(), 8); });
    return engine_->counts().launches >= 3;
  }));
}

TEST_F(GpuEngine, WithoutAThreadThereIsNoHold) {
  std::optional<test::scarce_threads> none(std::in_place);
  const auto refused = engine_->keep_hot();
  none.reset();
  EXPECT_EQ(refused.code(), EAGAIN);
  EXPECT_TRUE(engine_->keep_hot());
}

TEST_F(GpuEngine, AHoldKeepsItHotWithoutUse) {
  {
    auto held = engine_->keep_hot();
    ASSERT_TRUE(held);
    ASSERT_TRUE(engine_->start_and_wait(kLongUs));
    EXPECT_TRUE(comes_true([&] { return engine_->counts().launches >= 3; }));
    ASSERT_TRUE(engine_->start_and_wait(kLongUs));
  }
  usleep(3 * kLeaseUs);
  EXPECT_TRUE(comes_true([&] { return !engine_->is_hot(); }));
  const auto before = engine_->counts().launches;
  usleep(2 * kLeaseUs);
  EXPECT_EQ(engine_->counts().launches, before);
}

TEST_F(GpuEngine, ServesManyThreads) {
  const test::device_buffer memory(16 * 1024);
  const auto data = test::random_bytes(16 * 1024, 3);
  test::set_device_bytes(memory.pointer(), data);
  std::atomic<int> wrong{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(0);
      std::vector<unsigned char> got(512);
      for (unsigned i = 0; done.load() < 200 && i < 1'000'000; ++i) {
        (void)engine_->start_and_wait(kLongUs);
        const std::size_t offset = (t * 1013 + i * 37) % 15'000;
        auto answer = engine_->read_low_latency(got.data(), memory.pointer() + offset, got.size());
        if (!answer) ++wrong;
        else if (*answer == gpu_engine::fate::done) {
          ++done;
          if (std::memcmp(got.data(), data.data() + offset, got.size()) != 0) ++wrong;
        } else sched_yield();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GE(done.load(), 200);
}

// The lease ends between any two steps: with the shortest one most requests meet a worker that is leaving.
TEST_F(GpuEngine, RequestsThatMeetALeavingWorkerAreTakenBack) {
  auto wanted = small_options();
  wanted.lease_us = kShortestUs;
  make(wanted);
  const test::device_buffer memory(4096);
  const auto data = test::random_bytes(4096, 9);
  test::set_device_bytes(memory.pointer(), data);
  auto pinned = pinned_buffer::make(context_, 4096);
  ASSERT_TRUE(pinned);
  unsigned done = 0;
  for (unsigned i = 0; i < 3000 && done < 300; ++i) {
    (void)engine_->start_and_wait(2000);
    const std::size_t offset = i % 1000;
    if (i % 2 == 0) {
      std::vector<unsigned char> got(100);
      auto answer = engine_->read_low_latency(got.data(), memory.pointer() + offset, got.size());
      ASSERT_TRUE(answer) << answer.error().message;
      if (*answer == gpu_engine::fate::not_taken) continue;
      ++done;
      ASSERT_EQ(std::memcmp(got.data(), data.data() + offset, got.size()), 0);
    } else {
      std::memset(pinned->data(), 0, 4096);
      auto begun = engine_->begin_copy({direction::to_host, pinned->device_address(), memory.pointer() + offset, 3000}, 2);
      ASSERT_TRUE(begun);
      auto answer = engine_->wait(*begun);
      ASSERT_TRUE(answer) << answer.error().message;
      if (*answer == gpu_engine::fate::not_taken) {
        // Taken back means: nobody writes there any more.
        std::memset(pinned->data(), 0x77, 4096);
        (void)engine_->start_and_wait(2000);
        for (int byte = 0; byte < 4096; ++byte) ASSERT_EQ(std::to_integer<int>(pinned->data()[byte]), 0x77);
        continue;
      }
      ++done;
      ASSERT_EQ(std::memcmp(pinned->data(), data.data() + offset, 3000), 0);
    }
  }
  EXPECT_GT(done, 0u);
  EXPECT_GT(engine_->counts().launches, 10u);
}

TEST_F(GpuEngine, ADestroyedContextIsAnErrorNotAHang) {
  cu::context_t own = nullptr;
  ASSERT_EQ(cuda_.cuCtxCreate_v2(&own, 0, 0), 0);
  auto found = find_context(cuda_, 0, own);
  ASSERT_TRUE(found);
  auto made = gpu_engine::open(*found, *maps_, small_options());
  ASSERT_TRUE(made) << made.error().message;
  const test::device_buffer memory(64);
  ASSERT_TRUE((*made)->start_and_wait(kLongUs));
  ASSERT_EQ(cuda_.cuCtxDestroy_v2(own), 0);
  std::uint64_t word = 0;
  auto answer = (*made)->read_low_latency(&word, memory.pointer(), 8);
  EXPECT_TRUE(!answer || *answer == gpu_engine::fate::not_taken);
  EXPECT_FALSE((*made)->start()) << "the context is gone";
}

TEST_F(GpuEngine, RefusesWhatItCannotDo) {
  auto wanted = small_options();
  wanted.lease_us = 5;
  EXPECT_EQ(gpu_engine::open(context_, *maps_, wanted).code(), EINVAL);
  wanted = small_options();
  wanted.shape.workers = 0;
  EXPECT_EQ(gpu_engine::open(context_, *maps_, wanted).code(), EINVAL);
  std::uint64_t word = 0;
  EXPECT_EQ(engine_->read_low_latency(&word, 1, 0).code(), EINVAL);
  EXPECT_EQ(engine_->read_low_latency(&word, 1, kLowLatencyBytes + 1).code(), EINVAL);
  EXPECT_EQ(engine_->begin_copy({direction::to_host, 1, 1, 0}, 1).code(), EINVAL);
  EXPECT_EQ(engine_->begin_list({}).code(), EINVAL);
}

TEST_F(GpuEngine, AForkedChildIsRefused) {
  ASSERT_TRUE(engine_->start_and_wait(kLongUs));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::uint64_t word = 0;
    auto answer = engine_->read_low_latency(&word, 1, 8);
    const bool good = !engine_->is_hot() && answer && *answer == gpu_engine::fate::not_taken &&
                      engine_->start().code() == EACCES && engine_->keep_hot().code() == EACCES;
    engine_.reset();
    _exit(good ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

// The keeper sleeps in a condition variable, and requests are under way, when the process forks.
TEST_F(GpuEngine, AForkedChildCanDropWhatWasUnderWay) {
  auto pinned = pinned_buffer::make(context_, 64 * 1024);
  ASSERT_TRUE(pinned);
  const test::device_buffer memory(64 * 1024);
  auto held = engine_->keep_hot();
  ASSERT_TRUE(held);
  gpu_engine::request pending;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    ASSERT_TRUE(engine_->start_and_wait(kLongUs));
    auto begun = engine_->begin_copy({direction::to_host, pinned->device_address(), memory.pointer(), 60'000}, 1);
    ASSERT_TRUE(begun);
    pending = *std::move(begun);
    auto now = engine_->test(pending);
    ASSERT_TRUE(now);
    if (*now == gpu_engine::fate::pending) break;
  }
  { auto dropped = *std::move(held); }
  usleep(20'000);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool good = engine_->wait(pending).code() == EACCES;
    { const gpu_engine::request mine = std::move(pending); }
    engine_.reset();
    _exit(good ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0) << "it crashed, or hung";
  EXPECT_TRUE(engine_->wait(pending)) << "the parent goes on";
}

// A waiting thread asks the driver about the kernel now and then; the next kernel may be launched at that very moment.
TEST_F(GpuEngine, ALaunchIsNoReasonToGiveUp) {
  auto wanted = small_options();
  wanted.lease_us = 20;
  make(wanted);
  auto loaded = cu::load_kernels(cuda_, kernels::gpu_engine());
  ASSERT_TRUE(loaded);
  cu::function_t function = nullptr;
  ASSERT_EQ(cuda_.cuModuleGetFunction(&function, *loaded, "gpu_engine"), 0);
  auto kernel = copy_kernel::make(context_, function, *maps_, wanted.shape);
  ASSERT_TRUE(kernel) << kernel.error().message;
  std::atomic<bool> stop{false};
  std::thread launcher([&] {
    const test::current_device current(0);
    for (int i = 0; i < 300 || !stop; ++i) {
      (void)(*kernel)->launch(1000);
      sched_yield();
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    const auto rc = (*kernel)->query();
    if (rc != cu::error_code::success && rc != cu::error_code::not_ready) {
      ADD_FAILURE() << "a healthy kernel is given up: " << rc << " at look " << i;
      break;
    }
  }
  stop = true;
  launcher.join();
  kernel->reset();
  EXPECT_EQ(cuda_.cuModuleUnload(*loaded), 0);
}

}  // namespace
}  // namespace pl::copy
