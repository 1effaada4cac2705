// SPDX-License-Identifier: Apache-2.0
// Copies by DMA channels on the simulated GPU: lists, asynchronous copies, memory that is freed and allocated anew, and long
// reads of mapped memory.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "copy/channel_reader.hpp"
#include "copy/completion.hpp"
#include "rm/simulated_device_io.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

class PlannerChannel : public planner_fixture {
 protected:
  std::size_t free_bytes() const {
    std::size_t now = 0, all = 0;
    EXPECT_EQ(cuda_.cuMemGetInfo_v2(&now, &all), cu::error_code::success);
    return now;
  }
};

std::vector<transfer> pieces_of(direction way, std::uint64_t device, std::uint64_t host, std::size_t count,
                                std::size_t piece_bytes) {
  std::vector<transfer> out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t offset = (i * 7919 % count) * piece_bytes;  // every piece once, in another order
    if (way == direction::to_device) out.push_back({way, device + offset, host + offset, piece_bytes});
    else out.push_back({way, host + offset, device + offset, piece_bytes});
  }
  return out;
}

TEST_F(PlannerChannel, ListsOfPinnedMemoryGoByChannelAndOthersDoNot) {
  open_channels();
  constexpr std::size_t kCount = 2003, kPiece = 129;
  for (const bool is_pinned : {true, false}) {
    guarded_device device(kCount * kPiece, 3);
    auto host = is_pinned ? std::make_unique<guarded_host>(context_of(0), kCount * kPiece, 5)
                          : std::make_unique<guarded_host>(kCount * kPiece, 5);
    const auto data = test::random_bytes(kCount * kPiece, 7);
    host->set(data);
    const auto before = taken(method::dma_channel);
    ASSERT_TRUE(planner_->copy_list(pieces_of(direction::to_device, device.address(), host->address(), kCount, kPiece)));
    EXPECT_EQ(device.get(), data);
    host->set(bytes_t(kCount * kPiece, 0));
    ASSERT_TRUE(planner_->copy_list(pieces_of(direction::to_host, device.address(), host->address(), kCount, kPiece)));
    EXPECT_EQ(host->get(), data);
    EXPECT_EQ(taken(method::dma_channel) - before, is_pinned ? 2 * kCount : 0);
  }
}

// With a seed (planner_late_bytes) the simulated engine's words overtake bytes that are not flushed.
TEST_F(PlannerChannel, ACopyThatHasReturnedIsThere) {
  open_channels();
  constexpr std::size_t kBytes = 16384;
  guarded_device first(kBytes, 1), second(kBytes, 2);
  guarded_host pinned(context_of(0), kBytes, 3), pageable(kBytes, 4);
  const bytes_t data[] = {test::random_bytes(kBytes, 5), test::random_bytes(kBytes, 6)};
  first.set(data[0]);
  second.set(data[1]);
  unsigned late = 0;
  for (unsigned round = 0; round < 400; ++round)
    for (auto* host : {&pinned, &pageable}) {
      const auto source = round % 2 == 0 ? first.address() : second.address();
      ASSERT_TRUE(planner_->copy({direction::to_host, host->address(), source, kBytes}));
      late += host->get() != data[round % 2] ? 1 : 0;
    }
  EXPECT_EQ(late, 0u);
  EXPECT_GT(taken(method::dma_channel) + taken(method::dma_bounce), 400u);
}

TEST_F(PlannerChannel, FillsGoByChannelWhereThatIsQuicker) {
  open_channels(
      "curve on_device same_gpu dma_channel 1 64:4000 1048576:5000\n"
      "curve on_device same_gpu copy_engine 1 64:10000 1048576:11000\n");
  constexpr std::size_t kBytes = 100'003;
  guarded_device device(kBytes, 3);
  for (const std::size_t offset : {0u, 1u, 3u})
    for (const std::size_t bytes : {1u, 2u, 5u, 64u, 4097u, 99'999u}) {
      auto expected = test::random_bytes(kBytes, bytes);
      device.set(expected);
      const auto before = taken(method::dma_channel);
      ASSERT_TRUE(planner_->fill(device.address() + offset, 0x5a, bytes));
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), bytes, static_cast<bytes_t::value_type>(0x5a));
      EXPECT_EQ(device.get(), expected) << offset << ' ' << bytes;
      EXPECT_EQ(taken(method::dma_channel) - before, 1u);
    }
}

// Each line is taken as it arrives, so nothing of another read may ever come along: threads share the channel.
TEST_F(PlannerChannel, ReadsThroughOurMemoryFromManyThreads) {
  open_channels();
  constexpr std::size_t kBytes = 300'000;
  guarded_device device(kBytes, 3);
  const auto data = test::random_bytes(kBytes, 21);
  device.set(data);
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 6; ++thread)
    threads.emplace_back([&, thread] {
      const test::current_device current(0);
      std::minstd_rand random(thread + 1);
      for (unsigned round = 0; round < 60; ++round) {
        const std::size_t bytes = 1 + random() % (round % 8 == 0 ? kBytes - 1 : 5000), offset = random() % (kBytes - bytes);
        bytes_t out(bytes + 2, kCanary);
        const transfer read{direction::to_host, address_of(out.data()) + 1, device.address() + offset, bytes};
        auto done = planner_->copy_by({method::dma_bounce, 1}, read);
        for (; !done && done.code() == EAGAIN; done = planner_->copy_by({method::dma_bounce, 1}, read))
          std::this_thread::yield();  // four buffers, six threads
        wrong += !done || std::memcmp(out.data() + 1, data.data() + offset, bytes) != 0 || out.front() != kCanary ||
                 out.back() != kCanary;
      }
    });
  for (auto& one : threads) one.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(taken(method::dma_bounce), 360u);
}

// A channel has one direction. Long pieces decide that a list goes by channel before all of it was read.
TEST_F(PlannerChannel, ListsOfLongPiecesInSeveralDirectionsArrive) {
  open_channels();
  constexpr std::size_t kBytes = 100'000;
  for (const direction first : kDirections)
    for (const direction second : kDirections)
      for (const bool is_begun : {false, true}) {
        const copy_case one(first, sides_of(first)[0], kBytes, 1), other(second, sides_of(second)[0], kBytes, 2);
        const transfer list[] = {one.to_transfer(), other.to_transfer()};
        if (is_begun) {
          auto begun = planner_->begin(list, {});
          ASSERT_TRUE(begun) << begun.error().message;
          EXPECT_TRUE(begun->wait());
        } else {
          const auto done = planner_->copy_list(list);
          ASSERT_TRUE(done) << done.error().message;
        }
        EXPECT_TRUE(one.is_copied() && other.is_copied()) << name_of(first) << " " << name_of(second);
      }
}

TEST_F(PlannerChannel, CopiesWithoutBytesAreLeftOutOfLists) {
  open_channels();
  const copy_case one(direction::to_host, other_side::pinned, 100'000), other(direction::to_host, other_side::pinned, 5'000);
  const transfer list[] = {{}, one.to_transfer(), {}, other.to_transfer(), {}};
  const auto done = planner_->copy_list(list);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(one.is_copied() && other.is_copied());
  auto begun = planner_->begin(list, {});
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_TRUE(begun->wait());
  EXPECT_EQ(taken(method::dma_channel), 4u);
  EXPECT_TRUE(planner_->copy_list(std::vector<transfer>(3)));
}

TEST_F(PlannerChannel, AListWithAWrongPieceChangesNothingBehindIt) {
  open_channels();
  guarded_device device(8192);
  guarded_host host(context_of(0), 8192, 0);
  auto list = pieces_of(direction::to_host, device.address(), host.address(), 64, 128);
  list.back().src = device.address() + (1u << 30);
  EXPECT_EQ(planner_->copy_list(list).code(), EINVAL);
  list.back().src = 0x1000;
  EXPECT_EQ(planner_->copy_list(list).code(), EINVAL);
  list.pop_back();
  EXPECT_TRUE(planner_->copy_list(list));
}

TEST_F(PlannerChannel, AsynchronousListsEnd) {
  open_channels();
  constexpr std::size_t kCount = 300, kPiece = 1000;
  guarded_device device(kCount * kPiece);
  guarded_host host(context_of(0), kCount * kPiece, 0);
  const auto data = test::random_bytes(kCount * kPiece, 11);
  device.set(data);
  auto begun = planner_->begin(pieces_of(direction::to_host, device.address(), host.address(), kCount, kPiece), {});
  ASSERT_TRUE(begun) << begun.error().message;
  for (result<bool> is_done = false; is_done && !*is_done;) is_done = begun->test();
  EXPECT_TRUE(begun->wait());
  EXPECT_EQ(host.get(), data);
  auto dropped = planner_->begin(pieces_of(direction::to_host, device.address(), host.address(), kCount, kPiece), {});
  EXPECT_TRUE(dropped);
  EXPECT_EQ(taken(method::dma_channel), 2 * kCount);
}

TEST_F(PlannerChannel, FreedMemoryIsNeverReachedThroughItsOldBinding) {
  open_channels();
  constexpr std::size_t kBytes = 3u << 20;
  for (unsigned round = 1; round <= 8; ++round) {
    test::device_buffer device(kBytes);
    void* memory = nullptr;
    ASSERT_EQ(cuda_.cuMemHostAlloc(&memory, kBytes, 0), cu::error_code::success);
    const auto data = test::random_bytes(kBytes, round);
    ASSERT_EQ(cuda_.cuMemcpyHtoD_v2(device.pointer(), data.data(), kBytes), cu::error_code::success);
    auto done =
        planner_->copy_by({method::dma_channel, 1}, {direction::to_host, address_of(memory), device.pointer(), kBytes});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(std::memcmp(memory, data.data(), kBytes), 0) << round;
    ASSERT_EQ(cuda_.cuMemFreeHost(memory), cu::error_code::success);
  }
}

TEST_F(PlannerChannel, FreedMemoryGoesBack) {
  open_channels();
  guarded_host host(context_of(0), 4096, 0);
  const std::size_t before = free_bytes();
  for (const bool by_trim : {true, false}) {
    {
      test::device_buffer device(8u << 20);
      ASSERT_TRUE(planner_->copy_by({method::dma_channel, 1}, {direction::to_host, host.address(), device.pointer(), 4096}));
    }
    EXPECT_LT(free_bytes(), before) << "bound memory stays for a moment";
    if (by_trim) planner_->trim();
    for (int tries = 0; !by_trim && tries < 5000 && free_bytes() < before; ++tries) usleep(1000);
    EXPECT_EQ(free_bytes(), before) << (by_trim ? "by trim()" : "by the sweep");
  }
}

// Inside one GPU what is short, by the built-in costs with the flush in them.
TEST_F(PlannerChannel, CopiesOnTheDevice) {
  open_channels();
  const copy_case small(direction::on_device, other_side::same_gpu, 64u << 10);
  const copy_case large(direction::on_device, other_side::same_gpu, 4u << 20);
  for (const auto* one : {&small, &large}) {
    ASSERT_TRUE(planner_->copy(one->to_transfer()));
    EXPECT_TRUE(one->is_copied());
  }
  EXPECT_EQ(taken(method::dma_channel), 1u);
  EXPECT_EQ(taken(method::copy_engine), 1u);
  EXPECT_TRUE(planner_->copy_by({method::dma_channel, 1}, large.to_transfer())) << "where it is asked for";
}

// Sizes around a chunk and around the whole ring, which goes round then.
TEST_F(PlannerChannel, PageableMemoryGoesThroughARing) {
  open_channels();
  for (const auto way : {direction::to_device, direction::to_host})
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{65'537}, std::size_t{1} << 20, (std::size_t{16} << 20) + 1,
                                    (std::size_t{37} << 20) - 5})
      for (const auto width : std::initializer_list<std::uint8_t>{1, 2, 4}) {
        if (bytes > 1u << 20 && width == 1) continue;
        const copy_case one(way, other_side::pageable, bytes, 3, 1);
        const auto before = taken(method::dma_ring);
        auto done = planner_->copy_by({method::dma_ring, width}, one.to_transfer());
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_TRUE(one.is_copied()) << name_of(way) << " " << bytes << " x" << unsigned{width};
        EXPECT_EQ(taken(method::dma_ring) - before, 1u);
      }
}

TEST_F(PlannerChannel, RingsAreTakenWhereTheyCostLeastAndOnlyWhereTheyAreAllowed) {
  const auto curves = curve(direction::to_device, other_side::pageable, {method::bounce, 2}, 100) +
                      curve(direction::to_device, other_side::pageable, {method::dma_ring, 2}) +
                      curve(direction::to_host, other_side::pageable, {method::bounce, 2}, 100) +
                      curve(direction::to_host, other_side::pageable, {method::dma_ring, 2});
  for (const bool is_allowed : {true, false}) {
    auto wanted = by_channels();
    wanted.rings = is_allowed ? trial::simulated : trial::never;
    open(curves, wanted);
    ASSERT_TRUE(planner_->prepare(0));
    for (const auto way : {direction::to_device, direction::to_host}) {
      const copy_case one(way, other_side::pageable, 3u << 20);
      ASSERT_TRUE(planner_->copy(one.to_transfer()));
      EXPECT_TRUE(one.is_copied());
      EXPECT_EQ(planner_->copy_by({method::dma_ring, 2}, one.to_transfer()).code(), is_allowed ? 0 : ENOTSUP);
    }
    EXPECT_EQ(taken(method::dma_ring), is_allowed ? 4u : 0u);
    EXPECT_EQ(taken(method::bounce), is_allowed ? 0u : 2u);
  }
}

TEST_F(PlannerChannel, RingsOfSeveralThreadsTakeTurns) {
  open_channels();
  std::vector<std::thread> threads;
  std::atomic<unsigned> wrong{0};
  for (unsigned t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      const test::current_device current(0);
      for (unsigned i = 0; i < 3; ++i) {
        const copy_case one(t % 2 == 0 ? direction::to_host : direction::to_device, other_side::pageable,
                            1'500'000 + t * 777);
        if (!planner_->copy_by({method::dma_ring, 2}, one.to_transfer()) || !one.is_copied()) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// ---- Long reads of mapped memory: the rm backend on the simulated GPU's device files.

class ChannelReader : public testing::Test {
 protected:
  ChannelReader() {
    set_default_device_io_for_tests(rm::simulated_device_io(cuda_));
    auto opened = open_backend({&default_device_io(), &cuda_}, "rm");
    EXPECT_TRUE(opened) << opened.error().message;
    maps_ = *std::move(opened);
  }
  ~ChannelReader() override { set_default_device_io_for_tests(nullptr); }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  std::unique_ptr<backend> maps_;
};

TEST_F(ChannelReader, ReadsWhatIsThereOnceItIsOpen) {
  constexpr std::size_t kBytes = 3u << 20;
  auto device = std::make_unique<test::device_buffer>(kBytes);
  const auto data = test::random_bytes(kBytes, 3);
  ASSERT_EQ(cuda_.cuMemcpyHtoD_v2(device->pointer(), data.data(), kBytes), cu::error_code::success);
  pin_request request;
  request.range = {device->pointer(), kBytes};
  auto pin = maps_->pin(request);
  ASSERT_TRUE(pin) << pin.error().message;
  auto view = (*pin)->map((*pin)->range().size_bytes, arch::mapping_type::none);
  ASSERT_TRUE(view) << view.error().message;
  const auto* const mapped = static_cast<const std::byte*>(view->address);
  bytes_t out(kBytes);
  EXPECT_FALSE(read_by_channel(**pin, 0, mapped, out.data(), 4095)) << "short reads are quicker by loads";
  int refused = 0;
  while (refused < 10 && !read_by_channel(**pin, 0, mapped, out.data(), kBytes)) ++refused;
  EXPECT_EQ(refused, 3) << "the first long reads open nothing";
  EXPECT_EQ(out, data);
  for (const auto& [offset, bytes] : {std::pair{1u, 8192u}, {4095u, 70'001u}, {65536u, 1u << 20}, {777u, 2'500'000u}}) {
    bytes_t part(bytes + 2, kCanary);
    ASSERT_TRUE(read_by_channel(**pin, offset, mapped + offset, part.data() + 1, bytes));
    EXPECT_EQ(std::memcmp(part.data() + 1, data.data() + offset, bytes), 0) << offset;
    EXPECT_TRUE(part.front() == kCanary && part.back() == kCanary);
  }
  device.reset();  // freed: the pin keeps it
  ASSERT_TRUE(read_by_channel(**pin, 0, mapped, out.data(), kBytes));
  EXPECT_EQ(out, data);
  const pid_t child = fork();
  if (child == 0) _exit(read_by_channel(**pin, 0, mapped, out.data(), kBytes) ? 1 : 0);
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << "a forked child reads by loads";
  (*pin)->unmap(*view, unmapping::by_request);
}

}  // namespace
}  // namespace pl::copy
