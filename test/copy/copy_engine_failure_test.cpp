// SPDX-License-Identifier: Apache-2.0
// The copy engine when something goes wrong: every call that can fail does once, contexts go, processes fork, time runs out.
// Nothing may leak, hang, or be left in flight.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "copy/copy_engine.hpp"
#include "test/copy/copy_fixture.hpp"
#include "test/copy/failing_cuda.hpp"

namespace pl::copy {
namespace {

using namespace std::chrono_literals;

class CopyEngineFailure : public testing::Test {
 protected:
  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  test::failing_cuda failing_;
  const gpu_context context_ = context_of(0, failing_.table());
};

TEST_F(CopyEngineFailure, AFailedOpenKeepsNothing) {
  // Another device is current: making the context current is a step as well.
  const test::current_device other(1);
  const int steps = failing_.sweep([&] {
    auto opened = copy_engine::open(context_, 2);
    failing_.stop_failing();
    if (!opened) { EXPECT_FALSE(opened.error().message.empty()); }
    if (!opened) { EXPECT_EQ(failing_.alive(), 0); }
    return opened.ok();
  });
  EXPECT_GE(steps, 8);
  EXPECT_EQ(failing_.alive(), 0) << "closed";
}

TEST_F(CopyEngineFailure, AFailedOpenWithEventsKeepsNothing) {
  failing_.table().cuStreamWriteValue32_v2 = nullptr;
  const int steps = failing_.sweep([&] {
    auto opened = copy_engine::open(context_, 1);
    failing_.stop_failing();
    if (!opened) { EXPECT_EQ(failing_.alive(), 0); }
    return opened.ok();
  });
  EXPECT_GE(steps, 32);
}

TEST_F(CopyEngineFailure, EveryStepOfASubmissionMayFail) {
  auto opened = copy_engine::open(context_, 2);
  ASSERT_TRUE(opened);
  auto& engine = **opened;
  guarded_host host(context_, 1000);
  guarded_device device(1000);
  const auto data = test::random_bytes(1000, 3);
  cu::stream_t stream = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  const int alive = failing_.alive();
  const transfer list[] = {{.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = 500},
                           {direction::to_device, device.address() + 500, host.address() + 500, 100, 4, 100, 101},
                           {direction::to_device, device.address() + 500, host.address() + 500, 250, 2, 250, 250}};
  const int steps = failing_.sweep([&] {
    host.set(data);
    auto queued = engine.submit(list, stream, true);
    if (!queued) {
      EXPECT_FALSE(queued.error().message.empty());
      host.set(bytes_t(1000, 0));  // a race, for those who look, if anything were still in flight
    } else {
      EXPECT_TRUE(engine.wait(*queued));
    }
    EXPECT_EQ(failing_.alive(), alive);
    auto filled = engine.submit_fill(device.address(), 1, 10);
    if (filled) { EXPECT_TRUE(engine.wait(*filled)); }
    return queued.ok() && filled.ok();
  });
  EXPECT_GE(steps, 8);
  ASSERT_EQ(cuda_.cuStreamDestroy_v2(stream), 0);
}

TEST_F(CopyEngineFailure, StepsOfOrderingAStreamMayFail) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  auto& engine = **opened;
  cu::stream_t stream = nullptr;
  cu::event_t event = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  ASSERT_EQ(cuda_.cuEventCreate(&event, 0), 0);
  gate held;
  auto queued = engine.submit(kNothing, held.stream(), true);
  ASSERT_TRUE(queued);
  EXPECT_GE(failing_.sweep([&] { return engine.make_wait(stream, *queued).ok(); }), 3);
  EXPECT_GE(failing_.sweep([&] { return engine.record(event, *queued).ok(); }), 1);
  held.open();
  ASSERT_EQ(cuda_.cuStreamSynchronize(stream), 0);
  ASSERT_EQ(cuda_.cuStreamDestroy_v2(stream), 0);
  ASSERT_EQ(cuda_.cuEventDestroy_v2(event), 0);
}

TEST_F(CopyEngineFailure, TheFailedCopyIsNamedAndTheOnesBeforeItHaveEnded) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  auto& engine = **opened;
  guarded_host host(context_, 64);
  guarded_device device(64);
  device.set(bytes_t(64, 9));
  const transfer list[] = {{.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = 64},
                           {.way = direction::to_host, .dst = host.address(), .src = 0x10, .row_bytes = 64},
                           {.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = 64}};
  gate held;
  std::atomic<bool> is_open{false};
  std::thread opener([&] {
    std::this_thread::sleep_for(10ms);
    is_open = true;
    held.open();
  });
  failing_.table().cuMemcpyAsync = [](cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
    return src < 4096 ? cu::result_t{cu::error_code::invalid_value}
                      : test::simulated_cuda().cuMemcpyAsync(dst, src, bytes, stream);
  };
  auto queued = engine.submit(list, held.stream(), true);
  EXPECT_TRUE(is_open) << "came back while the first copy was in flight";
  opener.join();
  ASSERT_FALSE(queued);
  EXPECT_EQ(queued.code(), EINVAL);
  EXPECT_NE(queued.error().message.find("copy 2 of 3"), std::string::npos) << queued.error().message;
  EXPECT_EQ(host.get(), bytes_t(64, 9));
}

std::atomic<bool> g_has_no_memory{false};

// A GPU whose memory the application has used up: mappings and copies go on, as those of cuMemcpy do.
TEST_F(CopyEngineFailure, WithoutMemoryForAStreamCopiesUseTheDefaultStreamUntilThereIsSome) {
  failing_.table().cuStreamCreateWithPriority = [](cu::stream_t* stream, unsigned flags, int priority) -> cu::result_t {
    if (g_has_no_memory) return cu::error_code::out_of_memory;
    return test::simulated_cuda().cuStreamCreateWithPriority(stream, flags, priority);
  };
  g_has_no_memory = true;
  auto opened = copy_engine::open(context_, 2);
  ASSERT_TRUE(opened) << opened.error().message;
  auto& engine = **opened;
  guarded_host host(context_, 5000);
  guarded_device device(5000);
  const auto data = test::random_bytes(5000, 11);
  const auto copied = [&](cu::stream_t after) {
    host.set(data);
    device.set(bytes_t(5000, 0));
    const transfer copy{.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = 5000};
    return engine.submit(std::span(&copy, 1), after, after != nullptr);
  };
  cu::stream_t later = nullptr;
  cu::event_t event = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&later, cu::stream_flag::non_blocking), 0);
  ASSERT_EQ(cuda_.cuEventCreate(&event, cu::event_flag::disable_timing), 0);
  {
    gate held;
    auto queued = copied(held.stream());
    ASSERT_TRUE(queued) << queued.error().message;
    const test::current_device other(1);  // the default stream is still that of the copies' context
    ASSERT_TRUE(engine.make_wait(later, *queued));
    ASSERT_TRUE(engine.record(event, *queued));
    EXPECT_EQ(engine.wait(*queued, 20).code(), ETIMEDOUT) << "it does not wait for the stream";
    EXPECT_NE(cuda_.cuStreamQuery(later), 0);
    held.open();
    ASSERT_TRUE(engine.wait(*queued));
  }
  EXPECT_EQ(cuda_.cuStreamSynchronize(later), 0);
  EXPECT_EQ(cuda_.cuEventSynchronize(event), 0);
  EXPECT_EQ(device.get(), data);

  failing_.table().cuStreamIsCapturing = [](cu::stream_t, int*) -> cu::result_t {
    return 906;
  };  // ..._STREAM_CAPTURE_IMPLICIT
  EXPECT_EQ(copied(nullptr).code(), EBUSY);
  EXPECT_EQ(engine.submit_fill(device.address(), 1, 10).code(), EBUSY);
  failing_.table().cuStreamIsCapturing = test::simulated_cuda().cuStreamIsCapturing;

  g_has_no_memory = false;
  std::this_thread::sleep_for(150ms);
  host.set(data);
  device.set(bytes_t(5000, 0));
  gate held;  // the default stream waits for it, and copies do not any more
  ASSERT_EQ(cuda_.cuEventRecord(event, held.stream()), 0);
  ASSERT_EQ(cuda_.cuStreamWaitEvent(nullptr, event, 0), 0);
  auto queued =
      engine.submit({.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = 5000});
  ASSERT_TRUE(queued) << queued.error().message;
  EXPECT_TRUE(engine.wait(*queued, 10'000));
  held.open();
  EXPECT_EQ(device.get(), data);
  EXPECT_EQ(cuda_.cuStreamSynchronize(nullptr), 0);
  EXPECT_EQ(cuda_.cuStreamDestroy_v2(later), 0);
  EXPECT_EQ(cuda_.cuEventDestroy_v2(event), 0);
}

TEST_F(CopyEngineFailure, StreamsUnderCaptureAreRefused) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  auto& engine = **opened;
  guarded_device device(64);
  gate held;
  auto pending = engine.submit(kNothing, held.stream(), true);
  ASSERT_TRUE(pending);
  const transfer copy{.way = direction::on_device, .dst = device.address(), .src = device.address() + 32, .row_bytes = 16};
  using capturing = cu::result_t (*)(cu::stream_t, int*);
  const capturing answers[] = {[](cu::stream_t, int* status) -> cu::result_t {
                                 *status = cu::capture_status::active;
                                 return 0;
                               },
                               [](cu::stream_t, int*) -> cu::result_t { return 906; }};  // ..._STREAM_CAPTURE_IMPLICIT
  for (const auto answer : answers) {
    failing_.table().cuStreamIsCapturing = answer;
    auto refused = engine.submit(std::span(&copy, 1), held.stream(), true);
    EXPECT_EQ(refused.code(), EBUSY);
    EXPECT_EQ(engine.make_wait(held.stream(), *pending).code(), EBUSY);
  }
  held.open();
  EXPECT_TRUE(engine.wait(*pending));
  EXPECT_EQ(device.get(), bytes_t(64, kCanary)) << "nothing was queued";
}

// ---- ends that never come -------------------------------------------------------------------------------------------

TEST_F(CopyEngineFailure, WaitingEndsWhenTimeRunsOut) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  gate held;
  auto queued = (*opened)->submit(kNothing, held.stream(), true);
  ASSERT_TRUE(queued);
  EXPECT_EQ((*opened)->wait(*queued, 1).code(), ETIMEDOUT);
  EXPECT_EQ((*opened)->wait(*queued, 10).code(), ETIMEDOUT);
  held.open();
  EXPECT_TRUE((*opened)->wait(*queued, 60'000));
  EXPECT_EQ((*opened)->wait({.channel = 1, .value = 1}).code(), EINVAL) << "there is one channel";
}

TEST_F(CopyEngineFailure, ADestroyedContextEndsTheWait) {
  gate held;  // of the primary context, so that it survives
  own_context own;
  auto opened = copy_engine::open(context_of(0, failing_.table(), own.handle()), 1);
  ASSERT_TRUE(opened);
  auto queued = (*opened)->submit(kNothing, held.stream(), true);
  ASSERT_TRUE(queued) << queued.error().message;
  status ended;
  std::thread waiter([&] { ended = (*opened)->wait(*queued); });
  std::this_thread::sleep_for(3ms);
  EXPECT_FALSE((*opened)->is_done(*queued));
  own.destroy();
  waiter.join();  // would hang otherwise
  EXPECT_EQ(ended.code(), EIO);
  EXPECT_FALSE(ended.error().message.empty());  // how far the destruction had come decides what it says
  EXPECT_EQ((*opened)->wait(*queued).code(), EIO);
  EXPECT_EQ((*opened)->submit(kNothing).code(), EIO);
  EXPECT_EQ((*opened)->submit(kNothing, held.stream(), true).code(), EIO);
  EXPECT_EQ((*opened)->make_wait(held.stream(), *queued).code(), EIO);
  const int alive = failing_.alive();
  opened->reset();
  EXPECT_EQ(failing_.alive(), alive) << "what went with the context is not touched";
}

TEST_F(CopyEngineFailure, AFaultInTheContextEndsTheWaitWithItsReason) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  gate held;
  auto queued = (*opened)->submit(kNothing, held.stream(), true);
  ASSERT_TRUE(queued);
  failing_.table().cuStreamQuery = [](cu::stream_t) -> cu::result_t { return cu::error_code::illegal_address; };
  auto ended = (*opened)->wait(*queued);
  EXPECT_EQ(ended.code(), EIO);
  EXPECT_NE(ended.error().message.find("ILLEGAL_ADDRESS"), std::string::npos) << ended.error().message;
}

TEST_F(CopyEngineFailure, AnIdleStreamWithoutItsWordEndsTheWait) {
  auto opened = copy_engine::open(context_, 1);
  ASSERT_TRUE(opened);
  failing_.table().cuStreamWriteValue32_v2 = [](cu::stream_t, cu::device_ptr, std::uint32_t, unsigned) -> cu::result_t {
    return 0;
  };
  auto queued = (*opened)->submit(kNothing);
  ASSERT_TRUE(queued);
  EXPECT_EQ((*opened)->wait(*queued).code(), EIO);
}

TEST_F(CopyEngineFailure, AForkedChildIsToldSo) {
  auto opened = copy_engine::open(context_, 2);
  ASSERT_TRUE(opened);
  auto queued = (*opened)->submit(kNothing);
  ASSERT_TRUE(queued);
  ASSERT_TRUE((*opened)->wait(*queued));
  const int answer = in_forked_child([&] {
    auto& engine = **opened;
    if (engine.is_of_this_process()) return 1;
    if (engine.submit(kNothing).code() != EACCES) return 2;
    if (engine.submit_fill(0x1000, 0, 8).code() != EACCES) return 3;
    if (engine.is_done(*queued)) return 4;
    if (engine.wait(*queued).code() != EACCES) return 5;
    if (engine.make_wait(nullptr, *queued).code() != EACCES) return 6;
    if (engine.record(nullptr, *queued).code() != EACCES) return 7;
    const int alive = failing_.alive();
    opened->reset();
    return failing_.alive() == alive ? 0 : 8;
  });
  EXPECT_EQ(answer, 0);
  EXPECT_TRUE((*opened)->is_of_this_process());
  EXPECT_TRUE((*opened)->submit(kNothing)) << "the parent goes on";
}

}  // namespace
}  // namespace pl::copy
