// SPDX-License-Identifier: Apache-2.0
// Copies between two GPUs by DMA channels on the simulated GPU: single copies, lists, blocks, asynchronous ones, and what
// happens where there is no link.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

constexpr choice kChannel{method::dma_channel, 1};

class PlannerPeer : public planner_fixture {
 protected:
  void open_both() {
    open_channels();
    ASSERT_TRUE(planner_->prepare(1));
  }
};

TEST_F(PlannerPeer, CopiesOfEachSizeBothWays) {
  open_both();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{4097}, (std::size_t{3} << 20) + 5})
    for (const bool is_back : {false, true}) {
      guarded_device near(bytes, 3, 0), far(bytes, 1, 1);
      guarded_device &origin_memory = is_back ? far : near, &target_memory = is_back ? near : far;
      const auto data = test::random_bytes(bytes, bytes + is_back);
      origin_memory.set(data);
      const auto before = taken(method::dma_channel);
      auto done =
          planner_->copy_by(kChannel, {direction::on_device, target_memory.address(), origin_memory.address(), bytes});
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(target_memory.get(), data) << bytes;
      EXPECT_EQ(taken(method::dma_channel) - before, 1u);
    }
}

TEST_F(PlannerPeer, TheCheapestWayByTheBuiltInCosts) {
  open_both();
  for (const std::size_t bytes : {std::size_t{16} << 10, std::size_t{4} << 20}) {
    const copy_case one(direction::on_device, other_side::peer_gpu, bytes);
    const auto before = taken(method::dma_channel);
    ASSERT_TRUE(planner_->copy(one.to_transfer()));
    EXPECT_TRUE(one.is_copied());
    EXPECT_EQ(taken(method::dma_channel) - before, 1u) << bytes;
  }
}

TEST_F(PlannerPeer, RowsAndLists) {
  open_both();
  constexpr std::size_t kRows = 50, kRow = 300, kPitch = 512;
  guarded_device near(kRows * kPitch, 0, 0), far(kRows * kPitch, 0, 1);
  const auto data = test::random_bytes(kRows * kPitch, 4);
  near.set(data);
  far.set(bytes_t(kRows * kPitch, 0));
  transfer rows{direction::on_device, far.address(), near.address(), kRow};
  rows.rows = kRows;
  rows.dst_pitch = rows.src_pitch = kPitch;
  ASSERT_TRUE(planner_->copy_by(kChannel, rows));
  auto expected = bytes_t(kRows * kPitch, 0);
  for (std::size_t row = 0; row < kRows; ++row)
    std::copy_n(data.begin() + static_cast<long>(row * kPitch), kRow, expected.begin() + static_cast<long>(row * kPitch));
  EXPECT_EQ(far.get(), expected);

  std::vector<transfer> list;
  for (std::size_t i = 0; i < 100; ++i)
    list.push_back({direction::on_device, far.address() + (i * 37 % 100) * 256, near.address() + i * 256, 256});
  const auto before = taken(method::dma_channel);
  ASSERT_TRUE(planner_->copy_list(list));
  EXPECT_EQ(taken(method::dma_channel) - before, list.size());
  const auto got = far.get();
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_TRUE(std::equal(data.begin() + static_cast<long>(i * 256), data.begin() + static_cast<long>(i * 256 + 256),
                           got.begin() + static_cast<long>((i * 37 % 100) * 256)))
        << i;
}

// Pieces that GPU 0 sends and pieces that it gets, in one list: all arrive, by any executor.
TEST_F(PlannerPeer, AListOfBothDirections) {
  open_both();
  constexpr std::size_t kBytes = 64u << 10;
  guarded_device near(2 * kBytes, 0, 0), far(2 * kBytes, 0, 1);
  const auto a = test::random_bytes(2 * kBytes, 1), b = test::random_bytes(2 * kBytes, 2);
  near.set(a);
  far.set(b);
  const transfer list[] = {{direction::on_device, far.address(), near.address(), kBytes},
                           {direction::on_device, near.address() + kBytes, far.address() + kBytes, kBytes}};
  ASSERT_TRUE(planner_->copy_list(list));
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + kBytes, far.get().begin()));
  EXPECT_TRUE(std::equal(b.begin() + kBytes, b.end(), near.get().begin() + kBytes));
}

// Copies within GPU 0 first, then copies to GPU 1, which only the channel of peers flushes there.
TEST_F(PlannerPeer, ListsWithinAGpuAndToAnotherAreNotOneList) {
  open_both();
  constexpr std::size_t kBytes = 64u << 10;
  guarded_device origin(kBytes, 0, 0), near(kBytes, 0, 0), far(kBytes, 0, 1);
  const auto data = test::random_bytes(kBytes, 3);
  origin.set(data);
  const transfer list[] = {{direction::on_device, near.address(), origin.address(), kBytes},
                           {direction::on_device, far.address(), origin.address(), kBytes}};
  ASSERT_TRUE(planner_->copy_list(list));
  EXPECT_EQ(near.get(), data);
  EXPECT_EQ(far.get(), data);
  EXPECT_EQ(taken(method::dma_channel), 0u);
}

TEST_F(PlannerPeer, BlocksOfPagedMemories) {
  open_both();
  constexpr std::size_t kBlock = 16384, kCount = 40, kPlane = kBlock * kCount;
  for (const bool is_back : {false, true}) {
    guarded_device near(2 * kPlane, 0, 0), far(2 * kPlane, 0, 1);
    guarded_device &origin_memory = is_back ? far : near, &target_memory = is_back ? near : far;
    const auto data = test::random_bytes(2 * kPlane, 9);
    origin_memory.set(data);
    std::vector<std::int64_t> written(kCount), read(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      written[i] = static_cast<std::int64_t>(i * 7 % kCount);
      read[i] = static_cast<std::int64_t>(i * 11 % kCount);
    }
    const std::vector<std::uint64_t> target{target_memory.address(), target_memory.address() + kPlane},
        origin{origin_memory.address(), origin_memory.address() + kPlane};
    const auto before = taken(method::dma_channel);
    auto done = planner_->copy_blocks({direction::on_device,
                                       {target, kPlane, kBlock, block_indices(written.data())},
                                       {origin, kPlane, kBlock, block_indices(read.data())},
                                       kBlock,
                                       kCount});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(taken(method::dma_channel) - before, 2 * kCount);
    const auto got = target_memory.get();
    for (std::size_t plane = 0; plane < 2; ++plane)
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto origin_at = static_cast<long>(plane * kPlane + static_cast<std::size_t>(read[i]) * kBlock);
        const auto target_at = static_cast<long>(plane * kPlane + static_cast<std::size_t>(written[i]) * kBlock);
        ASSERT_TRUE(std::equal(data.begin() + origin_at, data.begin() + origin_at + kBlock, got.begin() + target_at)) << i;
      }
  }
}

TEST_F(PlannerPeer, AsynchronousCopiesAndStreamsThatWaitForThem) {
  open_both();
  constexpr std::size_t kBytes = 300'000;
  guarded_device near(kBytes, 0, 0), far(kBytes, 0, 1), behind(kBytes, 0, 0);
  cu::stream_t stream = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, 1), cu::error_code::success);
  for (unsigned round = 0; round < 8; ++round) {
    const auto data = test::random_bytes(kBytes, round);
    near.set(data);
    const transfer moved[] = {{direction::on_device, far.address(), near.address(), kBytes}};
    const auto before = taken(method::dma_channel);
    auto begun = planner_->begin(moved, {});
    ASSERT_TRUE(begun) << begun.error().message;
    EXPECT_EQ(taken(method::dma_channel) - before, 1u);
    if (round % 2 == 1) {
      ASSERT_TRUE(begun->make_wait(stream));
      ASSERT_EQ(cuda_.cuMemcpyDtoDAsync_v2(behind.address(), far.address(), kBytes, stream), cu::error_code::success);
      ASSERT_EQ(cuda_.cuStreamSynchronize(stream), cu::error_code::success);
      EXPECT_EQ(behind.get(), data);
    }
    ASSERT_TRUE(begun->wait());
    EXPECT_EQ(far.get(), data);
  }
  cuda_.cuStreamDestroy_v2(stream);
}

// Memory of the other GPU that is freed goes back to it, and what is allocated there anew is never reached by the old
// binding.
TEST_F(PlannerPeer, FreedMemoryOfTheOtherGpu) {
  open_both();
  constexpr std::size_t kBytes = 1u << 20;
  guarded_device near(kBytes, 0, 0);
  const auto free_on_one = [&] {
    const test::current_device current(1);
    std::size_t now = 0, all = 0;
    EXPECT_EQ(cuda_.cuMemGetInfo_v2(&now, &all), cu::error_code::success);
    return now;
  };
  {
    guarded_device first(kBytes, 0, 1);  // opens the channel of that GPU, which has memory of its own
    ASSERT_TRUE(planner_->copy_by(kChannel, {direction::on_device, first.address(), near.address(), kBytes}));
  }
  planner_->trim();
  const std::size_t before = free_on_one();
  for (unsigned round = 0; round < 5; ++round) {
    const auto data = test::random_bytes(kBytes, round);
    near.set(data);
    guarded_device far(kBytes, 0, 1);
    ASSERT_TRUE(planner_->copy_by(kChannel, {direction::on_device, far.address(), near.address(), kBytes}));
    EXPECT_EQ(far.get(), data) << round;
  }
  planner_->trim();
  EXPECT_EQ(free_on_one(), before);
}

TEST_F(PlannerPeer, WithoutALinkCudaCopies) {
  ASSERT_EQ(setenv("PEERLANE_SIM_MODE", "no_peers", 1), 0);
  open_both();
  const copy_case one(direction::on_device, other_side::peer_gpu, 100'000);
  const auto refused = planner_->copy_by(kChannel, one.to_transfer());
  EXPECT_EQ(refused.code(), ENOTSUP);
  EXPECT_NE(refused.error().message.find("do not reach each other's memory"), std::string::npos) << refused.error().message;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(planner_->copy(one.to_transfer()));
  EXPECT_TRUE(one.is_copied());
  EXPECT_EQ(taken(method::dma_channel), 0u);
  EXPECT_EQ(taken(method::copy_engine), 3u);
  const copy_case same(direction::on_device, other_side::same_gpu, 64u << 10);
  EXPECT_TRUE(planner_->copy_by(kChannel, same.to_transfer())) << "inside one GPU it works as before";
  unsetenv("PEERLANE_SIM_MODE");
}

}  // namespace
}  // namespace pl::copy
