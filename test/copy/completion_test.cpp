// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies: when they happen, how their end is told, and that nothing is in flight after a failure.
#include "copy/completion.hpp"

#include <atomic>
#include <thread>

#include "test/copy/failing_cuda.hpp"
#include "test/copy/planner_fixture.hpp"
#include "test/support/scarce_threads.hpp"

namespace pl::copy {
namespace {

// A piece of each kind: what the GPU does alone and what needs a CPU, short and long.
struct piece {
  direction way;
  other_side side;
  std::size_t bytes;
};
constexpr piece kPieces[] = {
    {direction::to_host, other_side::pinned, 100},      {direction::to_host, other_side::pinned, 200'000},
    {direction::to_host, other_side::pageable, 100},    {direction::to_host, other_side::pageable, 200'000},
    {direction::to_device, other_side::pinned, 100},    {direction::to_device, other_side::pinned, 200'000},
    {direction::to_device, other_side::pageable, 100},  {direction::to_device, other_side::pageable, 200'000},
    {direction::on_device, other_side::same_gpu, 3000}, {direction::on_device, other_side::peer_gpu, 30'000}};

class Completion : public planner_fixture {
 protected:
  void SetUp() override { open(); }
  result<completion> begin(const copy_case& one, const planner::async_options& wanted = {}) {
    const auto transfer = one.to_transfer();
    return planner_->begin(std::span(&transfer, 1), wanted);
  }
  cu::stream_t stream() {
    cu::stream_t made = nullptr;
    EXPECT_EQ(cuda_.cuStreamCreate(&made, cu::stream_flag::non_blocking), 0);
    return made;
  }
};

TEST_F(Completion, ADefaultOneIsDone) {
  completion none;
  auto done = none.test();
  ASSERT_TRUE(done);
  EXPECT_TRUE(*done);
  EXPECT_TRUE(none.wait());
  EXPECT_TRUE(none.make_wait(nullptr));
  EXPECT_TRUE(none.record(nullptr));
  auto empty = planner_->begin({}, {});
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->wait());
}

// What needs a CPU and is long needs a thread. Nobody waits for a job that none will do.
TEST_F(Completion, WithoutAThreadIsRefused) {
  const copy_case one(direction::to_host, other_side::pageable, 4'000'000);
  std::optional<test::scarce_threads> none(std::in_place);
  const auto refused = begin(one);
  none.reset();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), EAGAIN) << refused.error().message;
  EXPECT_TRUE(one.is_untouched());
  auto begun = begin(one);
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_TRUE(begun->wait());
  EXPECT_TRUE(one.is_copied());
}

TEST_F(Completion, IsTestedOrWaitedFor) {
  auto hot = planner_->keep_hot(0);
  for (const auto& [way, side, bytes] : kPieces)
    for (const bool by_test : {false, true}) {
      const copy_case one(way, side, bytes, 3, 1);
      auto begun = begin(one, {.least_workers = by_test ? 8u : 0u});  // more than there are
      ASSERT_TRUE(begun) << begun.error().message;
      if (by_test) {
        for (auto done = begun->test();; done = begun->test()) {
          ASSERT_TRUE(done) << done.error().message;
          if (*done) break;
          sched_yield();
        }
      } else {
        auto done = begun->wait();
        ASSERT_TRUE(done) << done.error().message;
      }
      ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << name_of(side) << " " << bytes;
      EXPECT_TRUE(begun->wait()) << "done stays done";
      EXPECT_TRUE(*begun->test());
    }
  const auto counts = planner_->counts();
  EXPECT_LE(counts.copies[static_cast<std::size_t>(method::engine_copy)], counts.engine.copies);
}

TEST_F(Completion, ComesAfterTheStream) {
  for (const auto& [way, side, bytes] : kPieces) {
    const copy_case one(way, side, bytes, 1, 3);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    usleep(2000);
    auto early = begun->test();
    ASSERT_TRUE(early);
    EXPECT_FALSE(*early);
    EXPECT_TRUE(one.is_untouched()) << name_of(way) << " " << name_of(side) << " " << bytes;
    held.open();
    auto done = begun->wait();
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << name_of(side) << " " << bytes;
  }
}

// Streams of other contexts, and the default stream of the caller's own.
TEST_F(Completion, ComesAfterStreamsOfOtherContexts) {
  for (const auto side : {other_side::pinned, other_side::pageable}) {
    const copy_case one(direction::to_host, side, 50'000);
    const test::current_device other(1);
    for (const bool is_default : {false, true}) {
      gate held;
      cu::event_t opened = nullptr;
      if (is_default) {
        ASSERT_EQ(cuda_.cuEventCreate(&opened, cu::event_flag::disable_timing), 0);
        ASSERT_EQ(cuda_.cuEventRecord(opened, held.stream()), 0);
        ASSERT_EQ(cuda_.cuStreamWaitEvent(nullptr, opened, 0), 0);
      }
      auto begun = begin(one, {true, is_default ? nullptr : held.stream()});
      ASSERT_TRUE(begun) << begun.error().message;
      usleep(2000);
      auto early = begun->test();
      ASSERT_TRUE(early);
      EXPECT_FALSE(*early);
      held.open();
      ASSERT_TRUE(begun->wait());
      EXPECT_TRUE(one.is_copied());
      if (opened != nullptr) { EXPECT_EQ(cuda_.cuEventDestroy_v2(opened), 0); }
    }
  }
}

// The work that a copy waits for may wait for another copy: no copy blocks the others.
TEST_F(Completion, ACopyThatWaitsForAStreamBlocksNoOther) {
  const copy_case first(direction::to_host, other_side::pageable, 100'000),
      second(direction::to_host, other_side::pinned, 100'000);
  const copy_case third(direction::to_host, other_side::pageable, 100'000),
      fourth(direction::to_device, other_side::pinned, 100'000);
  const copy_case fifth(direction::to_host, other_side::pageable, 100'000);
  gate held;
  auto waits = begin(first, {true, held.stream()});
  auto waits_too = begin(second, {true, held.stream()});
  ASSERT_TRUE(waits && waits_too);
  auto queued = begin(third);
  ASSERT_TRUE(queued);
  EXPECT_TRUE(queued->wait()) << "behind one that waits for a stream";
  EXPECT_TRUE(third.is_copied());
  auto direct = begin(fourth);
  ASSERT_TRUE(direct);
  EXPECT_TRUE(direct->wait());
  EXPECT_TRUE(planner_->copy(fifth.to_transfer()));
  EXPECT_FALSE(*waits->test());
  EXPECT_FALSE(*waits_too->test());
  held.open();
  EXPECT_TRUE(waits->wait());
  EXPECT_TRUE(waits_too->wait());
  EXPECT_TRUE(first.is_copied() && second.is_copied());
}

TEST_F(Completion, ABadPieceIsToldAtOnceEvenBehindABlockedStream) {
  const copy_case good(direction::to_host, other_side::pinned, 100'000);
  gate held;
  const transfer list[] = {good.to_transfer(), {direction::to_host, 0, good.to_transfer().src, 100'000}};
  auto refused = planner_->begin(list, {true, held.stream()});
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_TRUE(good.is_untouched()) << "nothing was queued";
}

TEST_F(Completion, DroppingOneWaitsForIt) {
  for (const auto side : {other_side::pinned, other_side::pageable}) {
    const copy_case one(direction::to_host, side, 100'000);
    gate held;
    std::atomic<bool> is_open{false};
    std::thread opener;
    {
      auto begun = begin(one, {true, held.stream()});
      ASSERT_TRUE(begun);
      opener = std::thread([&] {
        usleep(3000);
        is_open = true;
        held.open();
      });
    }
    EXPECT_TRUE(is_open);
    EXPECT_TRUE(one.is_copied());
    opener.join();
  }
}

TEST_F(Completion, MovesKeepWhatIsUnderWay) {
  const copy_case one(direction::to_host, other_side::pageable, 100'000),
      two(direction::to_host, other_side::pinned, 100'000);
  gate held;
  auto first = begin(one, {true, held.stream()});
  ASSERT_TRUE(first);
  completion moved = *std::move(first);
  completion other;
  other = std::move(moved);
  EXPECT_TRUE(moved.wait()) << "empty";
  EXPECT_FALSE(*other.test());
  held.open();
  auto second = begin(two);
  ASSERT_TRUE(second);
  other = *std::move(second);  // waits for what it had
  EXPECT_TRUE(one.is_copied());
  EXPECT_TRUE(other.wait());
  EXPECT_TRUE(two.is_copied());
}

TEST_F(Completion, StreamsAndEventsComeAfterTheCopies) {
  for (const auto& [way, side, bytes] : kPieces) {
    const copy_case one(way, side, bytes);
    auto* const later = stream();
    cu::event_t event = nullptr;
    ASSERT_EQ(cuda_.cuEventCreate(&event, cu::event_flag::disable_timing), 0);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun);
    std::thread opener([&] {
      usleep(2000);
      held.open();
    });
    ASSERT_TRUE(begun->make_wait(later)) << name_of(way) << " " << name_of(side);
    ASSERT_EQ(cuda_.cuStreamSynchronize(later), 0);
    opener.join();
    EXPECT_TRUE(one.is_copied()) << name_of(way) << " " << name_of(side);
    if (way != direction::on_device) {  // of the copy's context, which is the source's
      ASSERT_TRUE(begun->record(event));
      EXPECT_EQ(cuda_.cuEventSynchronize(event), 0);
    }
    EXPECT_EQ(cuda_.cuEventDestroy_v2(event), 0);
    EXPECT_EQ(cuda_.cuStreamDestroy_v2(later), 0);
  }
}

TEST_F(Completion, AStreamUnderCaptureIsBusy) {
  auto table = cuda_;
  table.cuStreamIsCapturing = [](cu::stream_t, int* status) -> cu::result_t {
    *status = cu::capture_status::active;
    return 0;
  };
  planner::options wanted;
  wanted.costs = cost_table::built_in().text();
  auto copier = planner::open(table, wanted);
  ASSERT_TRUE(copier);
  for (const auto side : {other_side::pinned, other_side::pageable}) {
    const copy_case one(direction::to_host, side, 50'000);
    const auto transfer = one.to_transfer();
    auto* const captured = stream();
    EXPECT_EQ((*copier)->begin(std::span(&transfer, 1), {true, captured}).code(), EBUSY);
    EXPECT_TRUE(one.is_untouched());
    EXPECT_EQ(cuda_.cuStreamDestroy_v2(captured), 0);
  }
}

TEST_F(Completion, AContextThatEndsFirstIsAnError) {
  for (const bool is_pinned : {true, false}) {
    own_context own;
    gate held;  // of the primary context: it stays shut
    cu::device_ptr memory = 0;
    ASSERT_EQ(cuda_.cuCtxPushCurrent_v2(own.handle()), 0);
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&memory, 100'000), 0);
    cu::context_t popped = nullptr;
    ASSERT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), 0);
    guarded_host host = is_pinned ? guarded_host(context_of(0), 100'000) : guarded_host(100'000);
    const transfer transfer{direction::to_host, host.address(), memory, 100'000};
    auto begun = planner_->begin(std::span(&transfer, 1), {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    own.destroy();
    EXPECT_FALSE(begun->wait()) << "it cannot have been copied";
    EXPECT_TRUE(begun->wait()) << "told once";
    EXPECT_EQ(host.get(), bytes_t(100'000, kCanary));
    held.open();  // unregistering the host memory waits for it
  }
}

TEST_F(Completion, EveryStepMayFailAndLeavesNothingInFlight) {
  test::failing_cuda failing;
  planner::options wanted;
  wanted.costs = cost_table::built_in().text();
  wanted.use_engine = false;
  auto copier = planner::open(failing.table(), wanted);
  ASSERT_TRUE(copier);
  ASSERT_TRUE((*copier)->prepare(0));
  auto* const before = stream();
  const int alive = failing.alive();
  for (const bool has_after : {false, true})
    for (const auto& [way, side, bytes] : kPieces) {
      if (side == other_side::peer_gpu) continue;
      const int steps = failing.sweep([&] {
        const copy_case one(way, side, bytes);
        const auto transfer = one.to_transfer();
        auto begun = (*copier)->begin(std::span(&transfer, 1), {has_after, before});
        auto done = begun ? begun->wait() : status(begun.error());
        if (done) EXPECT_TRUE(one.is_copied());
        else EXPECT_FALSE(done.error().message.empty());
        if (failing.has_fired() && done) return false;  // it went another way: that is as good, and the sweep goes on
        return done.ok();
      });
      EXPECT_LT(steps, 100);
    }
  EXPECT_LE(failing.alive() - alive, 1 + 1) << "the ring of the first bounce stays";
  failing.stop_failing();
  copier->reset();
  EXPECT_EQ(failing.alive(), 0);
  EXPECT_EQ(cuda_.cuStreamDestroy_v2(before), 0);
}

TEST_F(Completion, ManyThreadsBeginAndEnd) {
  auto hot = planner_->keep_hot(0);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(static_cast<int>(t % 2));
      for (unsigned i = 0; i < 8; ++i) {
        const auto& [way, side, bytes] = kPieces[(t * 3 + i) % std::size(kPieces)];
        const copy_case one(way, side, bytes);
        gate held;
        auto begun = begin(one, {i % 2 == 0, held.stream()});
        ASSERT_TRUE(begun) << begun.error().message;
        held.open();
        ASSERT_TRUE(begun->wait());
        ASSERT_TRUE(one.is_copied());
      }
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace pl::copy
