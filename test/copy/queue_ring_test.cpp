// SPDX-License-Identifier: Apache-2.0
// Copies between pageable host memory and memory that the channels of a GPU reach, by a ring and several threads.
#include "copy/queue_ring.hpp"

#include "copy/channel_memory.hpp"
#include "test/copy/copy_fixture.hpp"

namespace pl::copy {
namespace {

class queue_ring_test : public testing::Test {
 protected:
  void SetUp() override {
    auto queues = gpus_.find(test::simulated_cuda(), 0);
    ASSERT_TRUE(queues) << queues.error().message;
    queues_ = *queues;
    memory_.emplace(test::simulated_cuda(), queues_->source().space, queues_->source().addresses);
    auto ring = queue_ring::open(queues_);
    ASSERT_TRUE(ring) << ring.error().message;
    ring_ = *std::move(ring);
  }
  // For the channels.
  channel_memory::piece piece_of(const guarded_device& device, std::size_t bytes) {
    auto info = cu::inspect_pointer(test::simulated_cuda(), device.address());
    EXPECT_TRUE(info);
    auto piece = memory_->find_device(*info, device.address(), bytes);
    EXPECT_TRUE(piece) << piece.error().message;
    EXPECT_EQ(piece->size_bytes, bytes);
    return *std::move(piece);
  }

  gpu_table gpus_;
  std::shared_ptr<gpu_queues> queues_;
  std::optional<channel_memory> memory_;
  std::unique_ptr<queue_ring> ring_;
};

// Less than a chunk, several rounds of the ring, odd ends.
TEST_F(queue_ring_test, BytesOfAnySizeArriveAndNothingElseChanges) {
  for (const std::size_t bytes : {0u, 1u, 4096u, 300'001u, 2'097'153u, 9'437'185u}) {
    SCOPED_TRACE(bytes);
    guarded_device device(bytes, 3);
    guarded_host source(bytes, 5), back(bytes, 1);
    const auto data = test::random_bytes(bytes, bytes + 1);
    source.set(data);
    channel_memory::piece piece;
    if (bytes > 0) piece = piece_of(device, bytes);
    auto put = ring_->to_device(piece.address, source.data(), bytes);
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_EQ(device.get(), data);
    auto got = ring_->to_host(back.data(), piece.address, bytes);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(back.get(), data);
  }
}

TEST_F(queue_ring_test, AFaultIsToldAndTheNextCopyIsGood) {
  constexpr std::size_t kBytes = 6u << 20;
  constexpr std::uint64_t kUnbound = 1ull << 46;
  guarded_device device(kBytes);
  guarded_host host(kBytes), back(kBytes);
  const auto data = test::random_bytes(kBytes, 7);
  host.set(data);
  const auto piece = piece_of(device, kBytes);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(ring_->to_device(kUnbound, host.data(), kBytes).code(), EIO);
    ASSERT_TRUE(ring_->to_device(piece.address, host.data(), kBytes));
    EXPECT_EQ(ring_->to_host(back.data(), kUnbound, kBytes).code(), EIO);
    ASSERT_TRUE(ring_->to_host(back.data(), piece.address, kBytes));
    EXPECT_EQ(back.get(), data);
  }
}

}  // namespace
}  // namespace pl::copy
