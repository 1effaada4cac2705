// SPDX-License-Identifier: Apache-2.0
// The GPU engine and the planner's first use when something goes wrong: every call that can fail does once, the device is
// full, workers never answer. Nothing leaks, nothing hangs, and the next call works.
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "copy/completion.hpp"
#include "cuda/kernel_image.hpp"
#include "gpu_engine_image.hpp"
#include "test/copy/failing_cuda.hpp"
#include "test/copy/planner_fixture.hpp"
#include "test/support/counting_io.hpp"

namespace pl::copy {
namespace {

constexpr unsigned kMultiprocessors = 16;  // of the simulated GPU: so many workers fill it
constexpr unsigned kLongUs = 10'000'000;
#if defined(__SANITIZE_THREAD__)
constexpr int kStride = 2;  // of the long sweep: each step takes 0.1 s there
#else
constexpr int kStride = 1;
#endif

gpu_engine::options small_options() {
  gpu_engine::options wanted;
  wanted.shape = {2, 4};
  wanted.lease_us = 20'000;
  return wanted;
}

// A kernel that has all of the device, and leaves when it is told to or after a second.
class occupant {
 public:
  explicit occupant(const gpu_context& context) : cuda_(*context.cuda) {
    auto maps = open_backend({&default_device_io(), context.cuda}, "auto");
    EXPECT_TRUE(maps);
    maps_ = *std::move(maps);
    gpu_engine::options wanted;
    wanted.shape = {kMultiprocessors, 1};
    wanted.lease_us = 1'000'000;
    auto made = gpu_engine::open(context, *maps_, wanted);
    EXPECT_TRUE(made);
    engine_ = *std::move(made);
    EXPECT_TRUE(engine_->start_and_wait(kLongUs));
    usleep(5000);  // its other blocks
  }
  void leave() { engine_.reset(); }

 private:
  const cu::driver_table& cuda_;
  std::unique_ptr<backend> maps_;
  std::unique_ptr<gpu_engine> engine_;
};

class EngineFailure : public planner_fixture {
 protected:
  void TearDown() override {
    planner_.reset();
    set_default_device_io_for_tests(nullptr);
  }
  test::failing_cuda failing_;
  const gpu_context context_ = context_of(0, failing_.table());
};

TEST_F(EngineFailure, AFailedOpenKeepsNothing) {
  test::counting_io io(default_device_io());
  auto maps = open_backend({&io, &cuda_}, "auto");
  ASSERT_TRUE(maps);
  const test::current_device other(1);  // making the context current is a step as well
  const int before = io.open_descriptors();
  const auto nothing_left = [&] {
    EXPECT_EQ(failing_.alive(), 0);
    EXPECT_EQ(io.open_descriptors(), before);
    EXPECT_EQ(io.mapped_bytes(), 0u);
  };
  int step = 0;
  for (bool fired = true; fired; ++step) {
    ASSERT_LT(step, 100);
    failing_.fail_at(step);
    auto opened = gpu_engine::open(context_, **maps, small_options());
    fired = failing_.has_fired();
    failing_.fail_at(-1);
    EXPECT_TRUE(opened.ok() || fired) << step;  // it does without stream priorities
    if (opened) opened->reset();
    else EXPECT_FALSE(opened.error().message.empty());
    nothing_left();
  }
  EXPECT_GE(step, 12);
  // The same with what the mapping asks of the kernel.
  for (step = 0;; ++step) {
    ASSERT_LT(step, 100);
    io.fail_at(step, EIO);
    auto opened = gpu_engine::open(context_, **maps, small_options());
    const bool fired = io.fired();
    io.fail_at(-1, 0);
    EXPECT_EQ(opened.ok(), !fired) << step;
    if (opened) {
      EXPECT_TRUE((*opened)->start_and_wait(kLongUs));
      opened->reset();
    }
    nothing_left();
    if (!fired) break;
  }
}

TEST_F(EngineFailure, LaunchesThatWaitForTheirEndAreRefused) {
  auto maps = open_backend({&default_device_io(), &cuda_}, "auto");
  ASSERT_TRUE(maps);
  ASSERT_EQ(setenv("CUDA_LAUNCH_BLOCKING", "1", 1), 0);
  const auto refused = gpu_engine::open(context_, **maps, small_options());
  EXPECT_EQ(unsetenv("CUDA_LAUNCH_BLOCKING"), 0);
  EXPECT_EQ(refused.code(), ENOTSUP);
  EXPECT_NE(refused.error().message.find("CUDA_LAUNCH_BLOCKING"), std::string::npos);
  EXPECT_TRUE(gpu_engine::open(context_, **maps, small_options()));
}

TEST_F(EngineFailure, AFailedLaunchIsToldAndTheNextOneWorks) {
  auto maps = open_backend({&default_device_io(), &cuda_}, "auto");
  ASSERT_TRUE(maps);
  auto made = gpu_engine::open(context_, **maps, small_options());
  ASSERT_TRUE(made);
  const int alive = failing_.alive();
  for (int step = 0; step < 10; ++step) {
    failing_.fail_at(step);
    auto started = (*made)->start();
    const bool fired = failing_.has_fired();
    failing_.fail_at(-1);
    EXPECT_EQ(started.ok(), !fired);
    EXPECT_FALSE(fired && (*made)->is_hot());
    if (!fired) break;
  }
  EXPECT_EQ(failing_.alive(), alive);
  ASSERT_TRUE((*made)->start_and_wait(kLongUs));
}

// Whatever fails at the first use of everything: the copies are copied or refused, and copied the next time.
TEST_F(EngineFailure, TheFirstUseMayFailAtAnyStep) {
  test::counting_io io(default_device_io());
  set_default_device_io_for_tests(&io);
  planner::options wanted;
  wanted.threads = 2;
  wanted.costs = cost_table::built_in().text();
  const copy_case cases[] = {{direction::to_device, other_side::pageable, 100},
                             {direction::to_host, other_side::pinned, 20'000},
                             {direction::to_host, other_side::pageable, 200'000},
                             {direction::to_device, other_side::pageable, 200'000}};
  const auto use = [&](planner& planner) {
    bool worked = planner.prepare(0).ok();
    for (const auto& one : cases) {
      auto done = planner.copy(one.to_transfer());
      if (done) EXPECT_TRUE(one.is_copied());
      else EXPECT_FALSE(done.error().message.empty());
      worked &= done.ok();
    }
    return worked;
  };
  int step = 0;
  for (bool fired = true; fired; step += kStride) {
    ASSERT_LT(step, 200);
    {
      auto copier = planner::open(failing_.table(), wanted);
      ASSERT_TRUE(copier);
      failing_.fail_at(step);
      const bool worked = use(**copier);
      fired = failing_.has_fired();
      failing_.fail_at(-1);
      EXPECT_TRUE(worked || fired) << step;
      EXPECT_TRUE(use(**copier)) << "after step " << step;
    }
    ASSERT_EQ(failing_.alive(), 0) << step;
    ASSERT_EQ(io.open_descriptors(), 0) << step;
    ASSERT_EQ(io.mapped_bytes(), 0u) << step;
  }
  EXPECT_GE(step, 30);
}

TEST_F(EngineFailure, AnEngineThatCouldNotOpenOnceMayOpenLater) {
  planner::options wanted;
  wanted.costs = header() + curve(direction::to_host, other_side::pinned, {method::engine_copy, 1});
  auto copier = planner::open(failing_.table(), wanted);
  ASSERT_TRUE(copier);
  const copy_case one(direction::to_host, other_side::pinned, 5000);
  ASSERT_TRUE((*copier)->copy(one.to_transfer()));
  failing_.table().cuModuleLoadData = [](cu::module_t*, const void*) -> cu::result_t {
    return cu::error_code::out_of_memory;
  };
  EXPECT_EQ((*copier)->keep_hot(0).code(), ENOMEM);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE((*copier)->copy(one.to_transfer()));
  failing_.table().cuModuleLoadData = cuda_.cuModuleLoadData;
  EXPECT_EQ((*copier)->keep_hot(0).code(), ENOMEM) << "not asked again at once";
  usleep(1'050'000);
  EXPECT_TRUE((*copier)->keep_hot(0));
}

// ---- an engine that is of no use
// ------------------------------------------------------------------------------------------

TEST_F(EngineFailure, AFullDeviceHoldsUpNoCopy) {
  open();
  std::vector<std::unique_ptr<copy_case>> many;  // freeing memory waits for all that runs on a device: not part of this
  for (const auto way : kDirections)
    for (const auto side : sides_of(way))
      for (const std::size_t bytes : {8u, 3000u, 20'000u}) many.push_back(std::make_unique<copy_case>(way, side, bytes));
  ASSERT_TRUE(planner_->prepare(0));
  occupant all(context_of(0));
  auto hot = planner_->keep_hot(0);
  ASSERT_TRUE(hot) << hot.error().message;
  const std::uint64_t begin_ns = monotonic_ns();
  const auto before = planner_->counts();
  for (const auto& one : many) {
    ASSERT_TRUE(planner_->copy(one->to_transfer()));
    ASSERT_TRUE(one->is_copied());
  }
  const copy_case& last = *many.back();
  const auto transfer = last.to_transfer();
  auto begun = planner_->begin(std::span(&transfer, 1), {});
  ASSERT_TRUE(begun);
  ASSERT_TRUE(begun->wait());
  const auto after = planner_->counts();
  EXPECT_EQ(after.engine.low_latency + after.engine.copies, before.engine.low_latency + before.engine.copies);
  EXPECT_EQ(after.copies[static_cast<std::size_t>(method::engine_copy)], 0u);
  EXPECT_GT(after.copies[static_cast<std::size_t>(method::copy_engine)], 0u);
  EXPECT_LT(monotonic_ns() - begin_ns, 5'000'000'000u);
  usleep(20'000);
  EXPECT_GT(planner_->counts().engine.never_started, 0u) << "the statistics say so";
  all.leave();
  // The kernel that waited for room has come by now, or comes soon.
  const copy_case late(direction::to_host, other_side::pinned, 20'000);
  for (int i = 0; i < 2000 && planner_->counts().engine.copies + planner_->counts().engine.low_latency == 0; ++i) {
    ASSERT_TRUE(planner_->copy(late.to_transfer()));
    usleep(500);
  }
  EXPECT_GT(planner_->counts().engine.copies + planner_->counts().engine.low_latency, 0u);
}

// Its context goes while requests are under way, again and again.
TEST_F(EngineFailure, AWorkerThatNeverAnswersIsAnErrorNotAHang) {
  auto maps = open_backend({&default_device_io(), &cuda_}, "auto");
  ASSERT_TRUE(maps);
  for (int round = 0; round < 8; ++round) {
    own_context own;
    auto made = gpu_engine::open(context_of(0, cuda_, own.handle()), **maps, small_options());
    ASSERT_TRUE(made) << made.error().message;
    auto pinned = pinned_buffer::make(context_of(0), 1 << 20);
    ASSERT_TRUE(pinned);
    const test::device_buffer memory(1 << 20);
    std::atomic<bool> stop{false};
    std::atomic<int> answers{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        while (!stop) {
          (void)(*made)->start();
          if (t == 0) {
            std::uint64_t words[100];
            (void)(*made)->read_low_latency(words, memory.pointer(), sizeof words);
          } else if (auto begun =
                         (*made)->begin_copy({direction::to_host, pinned->device_address(), memory.pointer(), 1 << 20}, 2)) {
            (void)(*made)->wait(*begun);
          }
          ++answers;
          sched_yield();
        }
      });
    while (answers < 20) sched_yield();
    usleep(static_cast<useconds_t>(round * 300));
    const std::uint64_t begin_ns = monotonic_ns();
    own.destroy();
    usleep(1000);
    stop = true;
    for (auto& thread : threads) thread.join();
    made->reset();
    EXPECT_LT(monotonic_ns() - begin_ns, 5'000'000'000u);
  }
}

// A kernel that dies without a word, and one that hangs: what was asked of them is an error in bounded time.
TEST_F(EngineFailure, ASilentKernelIsGivenUp) {
  auto maps = open_backend({&default_device_io(), &cuda_}, "auto");
  ASSERT_TRUE(maps);
  const test::device_buffer memory(4096);
  auto wanted = small_options();
  wanted.timeout_ms = 50;
  wanted.lease_us = 200'000;
  for (const bool is_dead : {true, false}) {
    auto made = gpu_engine::open(context_, **maps, wanted);
    ASSERT_TRUE(made);
    ASSERT_TRUE((*made)->start_and_wait(kLongUs));
    failing_.table().cuStreamQuery = is_dead ? [](cu::stream_t) -> cu::result_t { return cu::error_code::illegal_address; }
                                             : [](cu::stream_t) -> cu::result_t { return cu::error_code::not_ready; };
    // Rows keep the workers busy for long enough to be asked about.
    auto pinned = pinned_buffer::make(context_, 1 << 20);
    ASSERT_TRUE(pinned);
    const std::uint64_t begin_ns = monotonic_ns();
    auto begun = (*made)->begin_copy({direction::to_host, pinned->device_address(), memory.pointer(), 1, 300'000, 0, 0}, 2);
    ASSERT_TRUE(begun);
    auto answer = (*made)->wait(*begun);
    if (!answer) { EXPECT_EQ(answer.code(), is_dead ? EIO : ETIMEDOUT) << answer.error().message; }
    EXPECT_LT(monotonic_ns() - begin_ns, 5'000'000'000u);
    auto again = (*made)->wait(*begun);
    EXPECT_TRUE(again) << "told once";
    failing_.table().cuStreamQuery = cuda_.cuStreamQuery;
    made->reset();
  }
}

}  // namespace
}  // namespace pl::copy
