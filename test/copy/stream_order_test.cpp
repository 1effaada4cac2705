// SPDX-License-Identifier: Apache-2.0
// Copies by DMA channel behind CUDA streams, and streams behind copies: nothing begins early, no other copy is delayed, and
// whatever ends too soon (a context, a channel, the planner) leaves no stream waiting.
#include "copy/stream_order.hpp"

#include <atomic>
#include <thread>

#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"
#include "test/support/scarce_threads.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kTimeoutNs = 10'000'000'000;

template <class Reached>
bool is_soon(Reached reached) {
  for (int tries = 0; tries < 10'000 && !reached(); ++tries) usleep(1000);
  return reached();
}

class StreamOrder : public planner_fixture {
 protected:
  void SetUp() override {
    open_channels();
    ASSERT_EQ(cuda_.cuStreamCreate(&later_, cu::stream_flag::non_blocking), 0);
  }
  void TearDown() override { EXPECT_EQ(cuda_.cuStreamDestroy_v2(later_), 0); }
  result<completion> begin(const copy_case& one, const planner::async_options& wanted = {}) {
    const auto transfer = one.to_transfer();
    return planner_->begin(std::span(&transfer, 1), wanted);
  }
  bool is_later_done() const { return cuda_.cuStreamQuery(later_) == cu::error_code::success; }

  cu::stream_t later_ = nullptr;
};

// What channels reach, short and long.
struct piece {
  direction way;
  other_side side;
  std::size_t bytes;
};
constexpr piece kPieces[] = {{direction::to_host, other_side::pinned, 100},
                             {direction::to_host, other_side::pinned, 700'001},
                             {direction::to_device, other_side::pinned, 100},
                             {direction::to_device, other_side::pinned, 700'001},
                             {direction::on_device, other_side::same_gpu, 3000}};

// Without a monitoring thread, a copy is not queued in a channel: CUDA copies it.
TEST_F(StreamOrder, WithoutAThreadCopiesGoByCuda) {
  const copy_case one(direction::to_host, other_side::pinned, 700'001);
  const auto before = taken(method::dma_channel);
  gate held;
  std::optional<test::scarce_threads> none(std::in_place);
  auto begun = begin(one, {true, held.stream()});
  none.reset();
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(taken(method::dma_channel), before);
  EXPECT_TRUE(one.is_untouched());
  held.open();
  EXPECT_TRUE(begun->wait());
  EXPECT_TRUE(one.is_copied());
  const copy_case next(direction::to_host, other_side::pinned, 700'001);
  auto again = begin(next, {true, held.stream()});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->wait());
  EXPECT_EQ(taken(method::dma_channel), before + 1);
}

// Then no stream waits for a word that would stay unwritten if the channel ended, either: the caller waits.
TEST_F(StreamOrder, WithoutAThreadTheCallerWaits) {
  const copy_case one(direction::to_host, other_side::pinned, 700'001);
  auto begun = begin(one);
  ASSERT_TRUE(begun) << begun.error().message;
  std::optional<test::scarce_threads> none(std::in_place);
  const auto waited = begun->make_wait(later_);
  none.reset();
  EXPECT_TRUE(waited);
  EXPECT_TRUE(one.is_copied());
  EXPECT_TRUE(is_later_done());
  const copy_case next(direction::to_host, other_side::pinned, 700'001);
  auto again = begin(next);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->make_wait(later_));
  EXPECT_TRUE(is_soon([&] { return is_later_done(); }));
  EXPECT_TRUE(again->wait());
}

TEST_F(StreamOrder, CopiesComeAfterTheStreamByChannel) {
  for (const auto& [way, side, bytes] : kPieces) {
    const copy_case one(way, side, bytes, 1, 3);
    const auto before = taken(method::dma_channel);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    usleep(2000);
    auto early = begun->test();
    ASSERT_TRUE(early);
    EXPECT_FALSE(*early);
    EXPECT_TRUE(one.is_untouched()) << name_of(way) << " " << bytes;
    held.open();
    auto done = begun->wait();
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << bytes;
    EXPECT_EQ(taken(method::dma_channel) - before, 1u) << name_of(way) << " " << bytes;
  }
}

TEST_F(StreamOrder, OtherMemoryAndOtherGpusGoByCuda) {
  for (const auto& [way, side] :
       {std::pair{direction::to_host, other_side::pageable}, {direction::on_device, other_side::peer_gpu}}) {
    const copy_case one(way, side, 30'000);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    held.open();
    ASSERT_TRUE(begun->wait());
    EXPECT_TRUE(one.is_copied());
  }
  EXPECT_EQ(taken(method::dma_channel), 0u);
}

// More streams than channels; none of the streams continues before all other copies have ended.
TEST_F(StreamOrder, CopiesThatWaitForStreamsBlockNoOthers) {
  constexpr std::size_t kMany = stream_order::kChannels + 2;
  std::vector<std::unique_ptr<copy_case>> cases, others;  // freeing memory waits for all streams: only behind the gates
  std::vector<std::unique_ptr<gate>> gates;
  std::vector<completion> waiting;
  for (std::size_t i = 0; i < kMany; ++i) {
    cases.push_back(std::make_unique<copy_case>(direction::to_host, other_side::pinned, 50'000 + i));
    gates.push_back(std::make_unique<gate>());
    auto begun = begin(*cases.back(), {true, gates.back()->stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    waiting.push_back(*std::move(begun));
  }
  EXPECT_EQ(taken(method::dma_channel), stream_order::kChannels) << "the others go by CUDA";
  for (const auto& [way, side, bytes] : kPieces) {
    const auto& direct = *others.emplace_back(std::make_unique<copy_case>(way, side, bytes));
    const auto& queued = *others.emplace_back(std::make_unique<copy_case>(way, side, bytes));
    EXPECT_TRUE(planner_->copy(direct.to_transfer()));
    EXPECT_TRUE(direct.is_copied());
    auto begun = begin(queued);
    ASSERT_TRUE(begun);
    ASSERT_TRUE(begun->make_wait(later_));
    ASSERT_EQ(cuda_.cuStreamSynchronize(later_), 0);
    EXPECT_TRUE(queued.is_copied());
  }
  for (std::size_t i = kMany; i-- > 0;) {
    EXPECT_FALSE(*waiting[i].test());
    gates[i]->open();
    ASSERT_TRUE(waiting[i].wait());
    EXPECT_TRUE(cases[i]->is_copied());
  }
  // The channels are free again.
  const auto before = taken(method::dma_channel);
  const copy_case one(direction::to_host, other_side::pinned, 1000);
  gate held;
  auto begun = begin(one, {true, held.stream()});
  ASSERT_TRUE(begun);
  held.open();
  EXPECT_TRUE(begun->wait());
  EXPECT_EQ(taken(method::dma_channel) - before, 1u);
}

TEST_F(StreamOrder, StreamsWaitForCopiesWithoutACpu) {
  for (const auto& [way, side, bytes] : kPieces) {
    const copy_case one(way, side, bytes);
    gate held;
    auto begun = begin(one, {true, held.stream()});
    ASSERT_TRUE(begun);
    auto made = begun->make_wait(later_);  // would never return if it waited for the copy
    ASSERT_TRUE(made) << made.error().message;
    usleep(1000);
    EXPECT_FALSE(is_later_done());
    held.open();
    ASSERT_EQ(cuda_.cuStreamSynchronize(later_), 0);
    EXPECT_TRUE(one.is_copied()) << name_of(way) << " " << bytes;
    EXPECT_TRUE(begun->wait());
    EXPECT_TRUE(begun->make_wait(later_)) << "done already";
    EXPECT_TRUE(is_later_done());
  }
}

// Everything is queued before anything happens: each round reads what the stream wrote, and the stream overwrites it only
// when that round's copy has ended.
TEST_F(StreamOrder, RoundsOfOneStreamAreQueuedAtOnce) {
  constexpr std::size_t kRounds = 200, kBytes = 4000;
  guarded_device device(kBytes);
  guarded_host host(context_of(0), kRounds * kBytes);
  const auto before = taken(method::dma_channel);
  gate held;
  std::vector<completion> ends;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const auto value = static_cast<unsigned char>(round + 1);
    ASSERT_EQ(cuda_.cuMemsetD8Async(device.address(), value, kBytes, held.stream()), 0);
    const transfer one{direction::to_host, host.address() + round * kBytes, device.address(), kBytes};
    auto begun = planner_->begin(std::span(&one, 1), {true, held.stream()});
    ASSERT_TRUE(begun) << begun.error().message;
    ASSERT_TRUE(begun->make_wait(held.stream()));
    ends.push_back(*std::move(begun));
  }
  EXPECT_EQ(taken(method::dma_channel) - before, kRounds);
  EXPECT_EQ(host.get(), bytes_t(kRounds * kBytes, kCanary));
  held.open();
  ASSERT_EQ(cuda_.cuStreamSynchronize(held.stream()), 0);
  const bytes_t all = host.get();
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i / kBytes + 1) << i;
  for (auto& one : ends) EXPECT_TRUE(one.wait());
}

TEST_F(StreamOrder, ListsComeAfterTheStream) {
  constexpr std::size_t kCount = 5000, kPiece = 64;
  guarded_device device(kCount * kPiece);
  guarded_host host(context_of(0), kCount * kPiece);
  const auto data = test::random_bytes(kCount * kPiece, 17);
  device.set(data);
  std::vector<transfer> list;
  for (std::size_t i = 0; i < kCount; ++i)
    list.push_back({direction::to_host, host.address() + i * 7919 % kCount * kPiece,
                    device.address() + i * 7919 % kCount * kPiece, kPiece});
  gate held;
  auto begun = planner_->begin(list, {true, held.stream()});
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(taken(method::dma_channel), kCount);
  EXPECT_EQ(host.get(), bytes_t(kCount * kPiece, kCanary));
  held.open();
  ASSERT_TRUE(begun->wait());
  EXPECT_EQ(host.get(), data);
}

// An event behind a copy that has ended does not stand behind one whose stream has not come.
TEST_F(StreamOrder, EventsStandForTheirOwnCopies) {
  cu::event_t first = nullptr, second = nullptr;
  ASSERT_EQ(cuda_.cuEventCreate(&first, cu::event_flag::disable_timing), 0);
  ASSERT_EQ(cuda_.cuEventCreate(&second, cu::event_flag::disable_timing), 0);
  const copy_case one(direction::to_host, other_side::pinned, 50'000), two(direction::to_device, other_side::pinned, 50'000);
  gate held, open_soon;
  auto waits = begin(one, {true, held.stream()});
  auto ends = begin(two, {true, open_soon.stream()});
  ASSERT_TRUE(waits && ends);
  ASSERT_TRUE(waits->record(first));
  ASSERT_TRUE(ends->record(second));
  open_soon.open();
  EXPECT_EQ(cuda_.cuEventSynchronize(second), 0);
  EXPECT_TRUE(two.is_copied());
  EXPECT_EQ(cuda_.cuEventQuery(first), cu::error_code::not_ready);
  held.open();
  EXPECT_EQ(cuda_.cuEventSynchronize(first), 0);
  EXPECT_TRUE(one.is_copied());
  for (auto* event : {first, second}) EXPECT_EQ(cuda_.cuEventDestroy_v2(event), 0);
}

TEST_F(StreamOrder, AStreamUnderCaptureIsBusy) {
  const copy_case one(direction::to_host, other_side::pinned, 50'000), two(direction::to_host, other_side::pinned, 50'000);
  gate held;
  auto begun = begin(two, {true, held.stream()});
  ASSERT_TRUE(begun);
  constexpr int kRelaxed = cu::capture_mode::relaxed;
  ASSERT_EQ(cuda_.cuStreamBeginCapture_v2(later_, kRelaxed), 0);
  EXPECT_EQ(begin(one, {true, later_}).code(), EBUSY);
  EXPECT_EQ(begun->make_wait(later_).code(), EBUSY);
  cu::graph_t graph = nullptr;
  EXPECT_EQ(cuda_.cuStreamEndCapture(later_, &graph), 0) << "the capture is not spoilt";
  if (graph != nullptr) { EXPECT_EQ(cuda_.cuGraphDestroy(graph), 0); }
  held.open();
  EXPECT_TRUE(begun->wait());
  EXPECT_TRUE(one.is_untouched() && two.is_copied());
}

// A stream that never comes, since its context is destroyed: the copy fails, and streams that wait for it go on.
TEST_F(StreamOrder, AContextThatEndsFirstIsAnError) {
  void* memory = nullptr;
  ASSERT_EQ(cuda_.cuMemHostAlloc(&memory, 64, 0), 0);  // of the primary context: it outlives the other one
  auto* const word = static_cast<std::uint32_t*>(memory);
  *word = 0;
  own_context own;
  cu::context_t popped = nullptr;
  cu::stream_t stuck = nullptr;
  ASSERT_EQ(cuda_.cuCtxPushCurrent_v2(own.handle()), 0);
  ASSERT_EQ(cuda_.cuStreamCreate(&stuck, cu::stream_flag::non_blocking), 0);
  ASSERT_EQ(cuda_.cuStreamWaitValue32_v2(stuck, address_of(word), 1, cu::wait_value::eq), 0);
  ASSERT_EQ(cuda_.cuCtxPopCurrent_v2(&popped), 0);

  const copy_case one(direction::to_host, other_side::pinned, 50'000);
  auto begun = begin(one, {true, stuck});
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(taken(method::dma_channel), 1u);
  ASSERT_TRUE(begun->make_wait(later_));
  EXPECT_FALSE(is_later_done());
  own.destroy();
  EXPECT_TRUE(is_soon([&] { return is_later_done(); })) << "without anybody who waits for the copy";
  const auto ended = begun->wait();
  EXPECT_EQ(ended.code(), EIO);
  EXPECT_NE(ended.error().message.find("context of the stream"), std::string::npos) << ended.error().message;
  EXPECT_TRUE(begun->wait()) << "told once";
  EXPECT_TRUE(one.is_untouched());

  const copy_case two(direction::to_host, other_side::pinned, 50'000);
  gate held;
  auto next = begin(two, {true, held.stream()});
  ASSERT_TRUE(next);
  held.open();
  EXPECT_TRUE(next->wait());
  EXPECT_TRUE(two.is_copied());
  EXPECT_EQ(taken(method::dma_channel), 2u);
  EXPECT_EQ(cuda_.cuMemFreeHost(memory), 0);
}

TEST_F(StreamOrder, ManyThreadsAndStreams) {
  std::vector<std::thread> threads;
  std::atomic<unsigned> wrong{0};
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(0);
      for (unsigned i = 0; i < 10; ++i) {
        const auto& [way, side, bytes] = kPieces[(t + i) % std::size(kPieces)];
        const copy_case one(way, side, bytes), two(way, side, bytes);
        gate held;
        auto first = begin(one, {true, held.stream()});
        auto second = begin(two, {true, held.stream()});
        if (!first || !second) {
          ++wrong;
          continue;
        }
        if (i % 2 == 0 && !second->make_wait(held.stream())) ++wrong;
        held.open();
        if (!first->wait() || !second->wait() || !one.is_copied() || !two.is_copied()) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// ---- The channels themselves

class StreamOrderFaults : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = channel_source::open(cuda_, 0);
    ASSERT_TRUE(opened) << opened.error().message;
    source_.emplace(*std::move(opened));
    order_ = std::make_unique<stream_order>(context_of(0), *source_);
    ASSERT_EQ(cuda_.cuStreamCreate(&later_, cu::stream_flag::non_blocking), 0);
    auto memory = source_->addresses->make_device_memory(1u << 16);
    ASSERT_TRUE(memory);
    memory_ = *std::move(memory);
  }
  void TearDown() override { EXPECT_EQ(cuda_.cuStreamDestroy_v2(later_), 0); }
  std::vector<dma::block> good() const { return {{memory_.bound.address(), memory_.bound.address() + 4096, 1000}}; }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  std::optional<channel_source> source_;
  dma::address_space::own_memory memory_;
  std::unique_ptr<stream_order> order_;
  cu::stream_t later_ = nullptr;
};

TEST_F(StreamOrderFaults, AFaultLetsWaitingStreamsGoOn) {
  for (const bool is_waited_for : {true, false}) {
    gate held;
    const std::vector<dma::block> wrong{{0x7777'0000'0000, memory_.bound.address(), 64}};
    auto faulty = order_->begin(held.stream(), wrong);
    ASSERT_TRUE(faulty) << faulty.error().message;
    auto behind = order_->begin(held.stream(), good());
    ASSERT_TRUE(behind);
    ASSERT_TRUE(order_->make_wait(later_, *behind));
    held.open();
    if (is_waited_for) {
      const auto ended = order_->wait(*faulty, kTimeoutNs);
      EXPECT_EQ(ended.code(), EIO);
      EXPECT_NE(ended.error().message.find("Xid 31"), std::string::npos) << ended.error().message;
    }
    EXPECT_TRUE(is_soon([&] { return cuda_.cuStreamQuery(later_) == cu::error_code::success; }));
    EXPECT_TRUE(order_->has_failed(*behind));
    EXPECT_EQ(order_->wait(*behind, kTimeoutNs).code(), EIO);
    auto next = order_->begin(held.stream(), good());  // a new channel
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_TRUE(order_->wait(*next, kTimeoutNs));
  }
}

// Closed while a stream has not come: who waits for the copies goes on at once, and the stream writes a word that is still
// there when it comes.
TEST_F(StreamOrderFaults, ClosingReleasesWhoWaits) {
  gate held;
  auto begun = order_->begin(held.stream(), good());
  ASSERT_TRUE(begun) << begun.error().message;
  ASSERT_TRUE(order_->make_wait(later_, *begun));
  order_.reset();
  EXPECT_EQ(cuda_.cuStreamSynchronize(later_), 0);
  EXPECT_FALSE(begun->queue->is_done(begun->number)) << "nothing was copied";

  stream_order next(context_of(0), *source_);
  gate other;
  auto begun_next = next.begin(other.stream(), good());
  ASSERT_TRUE(begun_next);
  held.open();  // the late stream must not release the new channel
  ASSERT_EQ(cuda_.cuStreamSynchronize(held.stream()), 0);
  usleep(2000);
  EXPECT_FALSE(next.is_done(*begun_next));
  other.open();
  EXPECT_TRUE(next.wait(*begun_next, kTimeoutNs));
}

TEST_F(StreamOrderFaults, TooMuchForOneChannelIsRefusedAtOnce) {
  gate held;
  const std::vector<dma::block> most(stream_order::kMaxBlocks, good()[0]);
  auto begun = order_->begin(held.stream(), most);
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(order_->begin(held.stream(), good()).code(), EAGAIN) << "it would wait for the stream";
  held.open();
  EXPECT_TRUE(order_->wait(*begun, kTimeoutNs));
  EXPECT_TRUE(order_->begin(held.stream(), good()));
}

}  // namespace
}  // namespace pl::copy
