// SPDX-License-Identifier: Apache-2.0
// What the copy engine moves, in what order, and from how many threads. What goes wrong is in copy_engine_failure_test.cpp.
#include "copy/copy_engine.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <thread>

#include "test/copy/copy_fixture.hpp"

namespace pl::copy {
namespace {

std::unique_ptr<copy_engine> open_engine(const gpu_context& context, unsigned channels = 2, std::uint32_t first_value = 0) {
  auto opened = copy_engine::open(context, channels, first_value);
  EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
  return opened ? *std::move(opened) : nullptr;
}

// Queues, waits, and says what went wrong.
void run(copy_engine& engine, std::span<const transfer> copies) {
  auto queued = engine.submit(copies);
  ASSERT_TRUE(queued) << queued.error().message;
  auto ended = engine.wait(*queued);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_TRUE(engine.is_done(*queued));
}
void run(copy_engine& engine, const transfer& copy) { run(engine, std::span(&copy, 1)); }

class CopyEngine : public testing::Test {
 protected:
  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  const gpu_context context_ = context_of(0);
};

TEST_F(CopyEngine, MovesRandomRangesBothWays) {
  auto engine = open_engine(context_);
  for (unsigned seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::minstd_rand random(seed);
    const std::size_t bytes = 1 + random() % (seed % 5 == 0 ? 700'000 : 5000);
    guarded_device device(bytes, random() % 64);
    const bool is_pinned = random() % 3 != 0;
    const auto skew = random() % 64;
    guarded_host host = is_pinned ? guarded_host(context_, bytes, skew) : guarded_host(bytes, skew);
    const auto pattern = test::random_bytes(bytes, seed);
    host.set(pattern);
    run(*engine, {.way = direction::to_device, .dst = device.address(), .src = host.address(), .row_bytes = bytes});
    ASSERT_EQ(device.get(), pattern);
    const auto back = test::random_bytes(bytes, seed + 1000);
    device.set(back);
    run(*engine, {.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = bytes});
    ASSERT_EQ(host.get(), back);
  }
}

TEST_F(CopyEngine, MovesWithinAGpuAndToAnotherOne) {
  auto engine = open_engine(context_);
  for (const int ordinal : {0, 1}) {
    const std::size_t bytes = 100'003;
    guarded_device source(bytes, 3, 0);
    guarded_device destination(bytes, 5, ordinal);
    const auto data = test::random_bytes(bytes, 7);
    source.set(data);
    run(*engine, {.way = direction::on_device, .dst = destination.address(), .src = source.address(), .row_bytes = bytes});
    EXPECT_EQ(destination.get(), data) << "GPU 0 to " << ordinal;
  }
}

struct shape {
  std::size_t row_bytes, rows, dst_pitch, src_pitch;
  std::size_t dst_bytes() const { return (rows - 1) * dst_pitch + row_bytes; }
  std::size_t src_bytes() const { return (rows - 1) * src_pitch + row_bytes; }
};

bytes_t rows_of(const shape& s, const bytes_t& source) {
  bytes_t expected(s.dst_bytes(), kCanary);  // what lies between the rows stays
  for (std::size_t row = 0; row < s.rows; ++row)
    std::copy_n(source.begin() + static_cast<long>(row * s.src_pitch), s.row_bytes,
                expected.begin() + static_cast<long>(row * s.dst_pitch));
  return expected;
}

TEST_F(CopyEngine, MovesRowsOfOddPitches) {
  auto engine = open_engine(context_);
  const shape shapes[] = {{1, 1, 0, 0},    {7, 9, 7, 13},       {33, 17, 101, 33},
                          {64, 8, 64, 64}, {255, 31, 257, 511}, {1, 50, 3, 2}};
  for (const auto& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows of " << s.row_bytes);
    guarded_host source(context_, s.src_bytes(), 1);
    guarded_device device(s.dst_bytes(), 3);
    source.set(test::random_bytes(s.src_bytes(), s.rows));
    run(*engine, {direction::to_device, device.address(), source.address(), s.row_bytes, s.rows, s.dst_pitch, s.src_pitch});
    ASSERT_EQ(device.get(), rows_of(s, source.get()));
    // Back, with the pitches exchanged: what came out of the rows goes where it was.
    guarded_host back(context_, s.src_bytes(), 2);
    run(*engine, {direction::to_host, back.address(), device.address(), s.row_bytes, s.rows, s.src_pitch, s.dst_pitch});
    const shape reverse{s.row_bytes, s.rows, s.src_pitch, s.dst_pitch};
    ASSERT_EQ(back.get(), rows_of(reverse, device.get()));
    guarded_device other(s.dst_bytes(), 0, 1);
    run(*engine, {direction::on_device, other.address(), device.address(), s.row_bytes, s.rows, s.dst_pitch, s.dst_pitch});
    const shape same{s.row_bytes, s.rows, s.dst_pitch, s.dst_pitch};
    ASSERT_EQ(other.get(), rows_of(same, device.get()));
  }
}

TEST_F(CopyEngine, RowsFurtherApartThanCudasLargestPitchGoOneByOne) {
  constexpr std::size_t kPitch = 0x80000001u;
  void* const host =
      mmap(nullptr, kPitch + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  std::memset(host, 1, 16);
  std::memset(static_cast<char*>(host) + kPitch, 2, 16);
  auto engine = open_engine(context_);
  guarded_device device(32);
  run(*engine, {direction::to_device, device.address(), address_of(host), 16, 2, 16, kPitch});
  bytes_t expected(32, 1);
  std::fill(expected.begin() + 16, expected.end(), static_cast<unsigned char>(2));
  EXPECT_EQ(device.get(), expected);
  munmap(host, kPitch + 4096);
}

TEST_F(CopyEngine, OneTicketIsBehindAWholeList) {
  auto engine = open_engine(context_);
  guarded_host host(context_, 3000);
  guarded_device first(3000);
  guarded_device second(3000);
  host.set(test::random_bytes(3000, 1));
  second.set(test::random_bytes(3000, 2));
  const auto old = second.get();
  guarded_host result(context_, 3000);
  const transfer list[] = {
      {.way = direction::to_device, .dst = first.address(), .src = host.address(), .row_bytes = 1000},
      {.way = direction::on_device, .dst = first.address() + 8, .src = first.address() + 100, .row_bytes = 0},  // nothing
      {direction::to_device, first.address() + 1000, host.address() + 1000, 100, 20, 100, 101},
      {.way = direction::to_host, .dst = result.address(), .src = second.address(), .row_bytes = 3000},
  };
  run(*engine, list);
  EXPECT_EQ(result.get(), old);
  const bytes_t pattern = first.get(), copied = host.get();
  EXPECT_TRUE(std::equal(pattern.begin(), pattern.begin() + 1000, copied.begin()));
  run(*engine, kNothing);  // a mark
}

// Calls of the driver that a table counts; one test at a time.
struct call_counts {
  int single = 0, together = 0;
};
call_counts g_calls;
cu::result_t g_answer_to_lists = cu::error_code::success;

cu::driver_table counting(const cu::driver_table& real) {
  static cu::driver_table below;
  below = real;
  g_calls = {};
  g_answer_to_lists = cu::error_code::success;
  cu::driver_table out = real;
  out.cuMemcpyAsync = [](cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
    ++g_calls.single;
    if (dst < 4096) return cu::result_t{cu::error_code::invalid_value};
    return below.cuMemcpyAsync(dst, src, bytes, stream);
  };
  out.cuMemcpyBatchAsync_v2 = [](cu::device_ptr* dsts, cu::device_ptr* srcs, std::size_t* sizes, std::size_t count,
                                 cu::memcpy_attributes* attributes, std::size_t* first, std::size_t attribute_count,
                                 cu::stream_t stream) {
    ++g_calls.together;
    if (g_answer_to_lists != cu::error_code::success) return g_answer_to_lists;
    return below.cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, first, attribute_count, stream);
  };
  return out;
}

TEST_F(CopyEngine, LinearPiecesOfAListAreQueuedByOneCall) {
  const cu::driver_table table = counting(cuda_);
  auto engine = open_engine(context_of(0, table));
  constexpr std::size_t kPieces = 16, kBytes = 100;
  guarded_host host(context_, kPieces * kBytes);
  guarded_device device(kPieces * kBytes);
  std::vector<transfer> list;
  for (std::size_t i = 0; i < kPieces; ++i)
    list.push_back({.way = direction::to_device,
                    .dst = device.address() + (kPieces - 1 - i) * kBytes,
                    .src = host.address() + i * kBytes,
                    .row_bytes = i == 3 ? 0 : kBytes});
  const auto expected = [&](bytes_t before) {
    const bytes_t copied = host.get();
    for (std::size_t i = 0; i < kPieces; ++i)
      if (i != 3)
        std::copy_n(copied.begin() + static_cast<long>(i * kBytes), kBytes,
                    before.begin() + static_cast<long>((kPieces - 1 - i) * kBytes));
    return before;
  };
  for (const bool is_refused : {false, true}) {
    g_calls = {};
    g_answer_to_lists = is_refused ? cu::error_code::not_supported : cu::error_code::success;
    host.set(test::random_bytes(kPieces * kBytes, is_refused));
    const bytes_t wanted = expected(device.get());
    run(*engine, list);
    EXPECT_EQ(device.get(), wanted);
    EXPECT_EQ(g_calls.together, 1);
    EXPECT_EQ(g_calls.single, is_refused ? 15 : 0);
  }
  g_calls = {};
  run(*engine, std::span(list).first(1));
  EXPECT_EQ(g_calls.together, 0) << "one piece needs no list";
  // Which piece it was is told, and nothing is in flight.
  g_answer_to_lists = cu::error_code::success;
  list[5].dst = 64;
  auto queued = engine->submit(list);
  ASSERT_FALSE(queued);
  EXPECT_NE(queued.error().message.find("copy 6 of 16"), std::string::npos) << queued.error().message;
}

TEST_F(CopyEngine, Fills) {
  auto engine = open_engine(context_);
  guarded_device device(1001, 1);
  auto queued = engine->submit_fill(device.address(), 0x5A, 1001);
  ASSERT_TRUE(queued);
  ASSERT_TRUE(engine->wait(*queued));
  EXPECT_EQ(device.get(), bytes_t(1001, 0x5A));
  ASSERT_TRUE(engine->submit_fill(device.address(), 1, 0));
}

TEST_F(CopyEngine, ThreadsSpreadOverChannels) {
  auto engine = open_engine(context_, 3);
  std::array<std::set<std::uint32_t>, 5> channels;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < channels.size(); ++t)
    threads.emplace_back([&, t] {
      const std::size_t bytes = 997 + t;
      guarded_device device(bytes, t);
      guarded_host pattern(context_, bytes);
      guarded_host back(context_, bytes);
      for (unsigned round = 0; round < 30; ++round) {
        pattern.set(test::random_bytes(bytes, t * 1000 + round));
        const transfer both[] = {
            {.way = direction::to_device, .dst = device.address(), .src = pattern.address(), .row_bytes = bytes},
            {.way = direction::to_host, .dst = back.address(), .src = device.address(), .row_bytes = bytes}};
        auto queued = engine->submit(both);
        ASSERT_TRUE(queued) << queued.error().message;
        channels[t].insert(queued->channel);
        ASSERT_TRUE(engine->wait(*queued));
        ASSERT_EQ(back.get(), pattern.get());
      }
      device.get();
    });
  for (auto& thread : threads) thread.join();
  std::set<std::uint32_t> all;
  for (const auto& mine : channels) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 3u);
  EXPECT_LT(*all.rbegin(), 3u);
}

TEST_F(CopyEngine, CountsThroughTheWrap) {
  auto engine = open_engine(context_, 1, 0xfffffffdu);
  guarded_device device(64);
  std::vector<copy_engine::ticket> tickets;
  for (unsigned i = 0; i < 8; ++i) {
    gate held;
    const auto value = static_cast<unsigned char>(i);
    ASSERT_TRUE(engine->submit(kNothing, held.stream(), true));
    auto queued = engine->submit_fill(device.address(), value, 64);
    ASSERT_TRUE(queued);
    tickets.push_back(*queued);
    EXPECT_FALSE(engine->is_done(*queued)) << i;
    for (unsigned earlier = 0; earlier < i; ++earlier) EXPECT_TRUE(engine->is_done(tickets[earlier])) << earlier;
    held.open();
    ASSERT_TRUE(engine->wait(*queued));
    EXPECT_EQ(device.get(), bytes_t(64, value));
  }
  EXPECT_LT(tickets.back().value, tickets.front().value);
}

// ---- order ----------------------------------------------------------------------------------------------------------

TEST_F(CopyEngine, CopiesComeAfterTheApplicationsStream) {
  auto engine = open_engine(context_);
  guarded_device device(4096);
  guarded_host host(context_, 4096);
  gate held;
  ASSERT_EQ(cuda_.cuMemsetD8Async(device.address(), 0x31, 4096, held.stream()), 0);
  const transfer copy{.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = 4096};
  auto queued = engine->submit(std::span(&copy, 1), held.stream(), true);
  ASSERT_TRUE(queued) << queued.error().message;
  EXPECT_EQ(engine->wait(*queued, 5).code(), ETIMEDOUT);
  EXPECT_FALSE(engine->is_done(*queued));
  held.open();
  ASSERT_TRUE(engine->wait(*queued));
  EXPECT_EQ(host.get(), bytes_t(4096, 0x31));
}

// The work that a copy waits for may itself wait for later copies: these must not be blocked, from any thread.
TEST_F(CopyEngine, ACopyBehindAStreamHoldsUpNoOther) {
  auto engine = open_engine(context_, 2);
  guarded_device device(256);
  guarded_host host(context_, 256);
  std::vector<std::unique_ptr<guarded_device>> mine;  // freeing them waits for the whole context
  for (int t = 0; t < 4; ++t) mine.push_back(std::make_unique<guarded_device>(100));
  gate held;
  const transfer inside{.way = direction::to_host, .dst = host.address(), .src = device.address(), .row_bytes = 256};
  std::vector<copy_engine::ticket> waiting;
  for (int i = 0; i < 3; ++i) {
    auto queued = engine->submit(std::span(&inside, 1), held.stream(), true);
    ASSERT_TRUE(queued);
    waiting.push_back(*queued);
  }
  std::vector<std::thread> threads;
  for (unsigned char t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(0);
      for (int i = 0; i < 3; ++i) {
        auto queued = engine->submit_fill(mine[t]->address(), t, 100);
        ASSERT_TRUE(queued);
        ASSERT_TRUE(engine->wait(*queued, 10'000)) << "held up";
      }
      EXPECT_EQ(mine[t]->get(), bytes_t(100, t));
    });
  for (auto& thread : threads) thread.join();
  for (const auto& one : waiting) EXPECT_FALSE(engine->is_done(one));
  held.open();
  for (const auto& one : waiting) EXPECT_TRUE(engine->wait(one));
  // All channels are open to everybody again.
  std::set<std::uint32_t> channels;
  for (int t = 0; t < 4; ++t)
    std::thread([&] {
      const test::current_device current(0);
      auto queued = engine->submit(kNothing);
      ASSERT_TRUE(queued);
      channels.insert(queued->channel);
    }).join();
  EXPECT_EQ(channels.size(), 2u);
}

TEST_F(CopyEngine, AnotherContextsStreamsCanBeWaitedFor) {
  auto engine = open_engine(context_);
  guarded_device pattern(512, 0, 1);
  guarded_device copied(512);
  const transfer copy{.way = direction::on_device, .dst = copied.address(), .src = pattern.address(), .row_bytes = 512};
  const test::current_device other(1);
  for (const bool is_default : {false, true}) {
    const unsigned char value = is_default ? 2 : 1;
    gate held;
    cu::stream_t stream = held.stream();
    cu::event_t opened = nullptr;
    if (is_default) {  // of GPU 1: it is the current context's
      ASSERT_EQ(cuda_.cuEventCreate(&opened, cu::event_flag::disable_timing), 0);
      ASSERT_EQ(cuda_.cuEventRecord(opened, stream), 0);
      ASSERT_EQ(cuda_.cuStreamWaitEvent(nullptr, opened, 0), 0);
      stream = nullptr;
    }
    ASSERT_EQ(cuda_.cuMemsetD8Async(pattern.address(), value, 512, stream), 0);
    auto queued = engine->submit(std::span(&copy, 1), stream, true);
    ASSERT_TRUE(queued) << queued.error().message;
    EXPECT_EQ(engine->wait(*queued, 3).code(), ETIMEDOUT);
    held.open();
    ASSERT_TRUE(engine->wait(*queued));
    EXPECT_EQ(copied.get(), bytes_t(512, value));
    if (opened != nullptr) { EXPECT_EQ(cuda_.cuEventDestroy_v2(opened), 0); }
  }
}

// The copy's context is current; the stream belongs to another one.
TEST_F(CopyEngine, AStreamIsFoundWithoutItsContextBeingCurrent) {
  auto engine = open_engine(context_);
  guarded_device pattern(512, 0, 1);
  guarded_device copied(512);
  const transfer copy{.way = direction::on_device, .dst = copied.address(), .src = pattern.address(), .row_bytes = 512};
  std::optional<gate> held;
  {
    const test::current_device other(1);
    held.emplace();
    ASSERT_EQ(cuda_.cuMemsetD8Async(pattern.address(), 7, 512, held->stream()), 0);
  }
  const test::current_device own(0);
  auto queued = engine->submit(std::span(&copy, 1), held->stream(), true);
  ASSERT_TRUE(queued) << queued.error().message;
  EXPECT_EQ(engine->wait(*queued, 3).code(), ETIMEDOUT);
  held->open();
  ASSERT_TRUE(engine->wait(*queued));
  EXPECT_EQ(copied.get(), bytes_t(512, 7));
  const test::current_device other(1);  // where the gate's stream ends
  held.reset();
}

TEST_F(CopyEngine, StreamsAndEventsComeAfterATicket) {
  auto engine = open_engine(context_, 1);
  guarded_device first(256);
  guarded_device second(256);
  cu::stream_t stream = nullptr;
  cu::event_t event = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  ASSERT_EQ(cuda_.cuEventCreate(&event, cu::event_flag::disable_timing), 0);
  gate held;
  ASSERT_TRUE(engine->submit(kNothing, held.stream(), true));
  auto queued = engine->submit_fill(first.address(), 0x44, 256);
  ASSERT_TRUE(queued);
  ASSERT_TRUE(engine->make_wait(stream, *queued));
  ASSERT_TRUE(engine->record(event, *queued));
  ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(second.address(), first.address(), 256, stream), 0);
  EXPECT_EQ(cuda_.cuEventQuery(event), cu::error_code::not_ready);
  EXPECT_EQ(cuda_.cuStreamQuery(stream), cu::error_code::not_ready);
  held.open();
  ASSERT_EQ(cuda_.cuStreamSynchronize(stream), 0);
  EXPECT_EQ(second.get(), bytes_t(256, 0x44));
  ASSERT_EQ(cuda_.cuEventSynchronize(event), 0);
  EXPECT_TRUE(engine->make_wait(stream, *queued)) << "long done";
  EXPECT_TRUE(engine->record(event, *queued));
  ASSERT_EQ(cuda_.cuStreamDestroy_v2(stream), 0);
  ASSERT_EQ(cuda_.cuEventDestroy_v2(event), 0);
}

TEST_F(CopyEngine, AnEventOfAnotherContextIsRefused) {
  auto engine = open_engine(context_);
  cu::event_t foreign = nullptr;
  const test::current_device other(1);
  ASSERT_EQ(cuda_.cuEventCreate(&foreign, cu::event_flag::disable_timing), 0);
  auto queued = engine->submit(kNothing);
  ASSERT_TRUE(queued);
  EXPECT_EQ(engine->record(foreign, *queued).code(), EINVAL);
  ASSERT_EQ(cuda_.cuEventDestroy_v2(foreign), 0);
}

// ---- without cuStreamWriteValue32 -----------------------------------------------------------------------------------

class CopyEngineByEvents : public CopyEngine, public testing::WithParamInterface<bool> {};

TEST_P(CopyEngineByEvents, EndsAreSeen) {
  cu::driver_table table = cuda_;
  table.cuStreamWriteValue32_v2 = nullptr;
  if (GetParam())
    table.cuStreamWriteValue32_v2 = [](cu::stream_t, cu::device_ptr, std::uint32_t, unsigned) -> cu::result_t {
      return cu::error_code::not_supported;
    };
  auto engine = open_engine(context_of(0, table), 1, 0xfffffff0u);
  guarded_device device(64);
  std::vector<copy_engine::ticket> tickets;
  for (unsigned i = 0; i < 100; ++i) {  // three times as many as there are events
    auto queued = engine->submit_fill(device.address(), static_cast<unsigned char>(i), 64);
    ASSERT_TRUE(queued);
    tickets.push_back(*queued);
  }
  ASSERT_TRUE(engine->wait(tickets.back()));
  EXPECT_EQ(device.get(), bytes_t(64, 99));
  for (const auto& ticket : tickets) EXPECT_TRUE(engine->is_done(ticket));
  gate held;
  auto blocked = engine->submit(kNothing, held.stream(), true);
  ASSERT_TRUE(blocked);
  EXPECT_FALSE(engine->is_done(*blocked));
  EXPECT_EQ(engine->wait(*blocked, 3).code(), ETIMEDOUT);
  EXPECT_TRUE(engine->is_done(tickets.front()));
  held.open();
  EXPECT_TRUE(engine->wait(*blocked));
}

INSTANTIATE_TEST_SUITE_P(drivers, CopyEngineByEvents, testing::Bool(),
                         [](const auto& p) { return std::string(p.param ? "that_refuse_the_call" : "without_the_call"); });

}  // namespace
}  // namespace pl::copy
