// SPDX-License-Identifier: Apache-2.0
// Host pools: memory at once, pinned piece by piece behind it, and what becomes of those that the machine has no room for.
#include "copy/host_pool.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "base/memory_limit.hpp"
#include "copy/host_memory.hpp"
#include "test/copy/planner_fixture.hpp"
#include "test/support/scarce_threads.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kPiece = 64u << 10, kPlenty = std::uint64_t{1} << 40;
constexpr std::int64_t kLongMs = 60'000;

class HostPool : public planner_fixture {
 protected:
  // What the pool asks before each step; a gate, so that a test can look at a pool that is pinned in part.
  struct gate {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t open_steps = 1;  // the question of make()
    std::uint64_t answer = kPlenty;
    std::uint64_t ask() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return open_steps > 0; });
      --open_steps;
      return answer;
    }
    void open(std::uint64_t steps, std::uint64_t now = kPlenty) {
      const std::lock_guard lock(mutex);
      open_steps += steps;
      answer = now;
      changed.notify_all();
    }
  };
  host_pool::options options(std::uint64_t size_bytes) {
    host_pool::options out;
    out.size_bytes = size_bytes;
    out.piece_bytes = kPiece;
    out.available_bytes = [this] { return gate_.ask(); };
    return out;
  }
  void wait_for_pinned(const host_pool& pool, std::uint64_t size_bytes) {
    for (int i = 0; i < 10'000 && pool.pinned_bytes() < size_bytes; ++i) usleep(1000);
    ASSERT_EQ(pool.pinned_bytes(), size_bytes);
  }
  bool is_pinned(const host_pool& pool, std::uint64_t offset) {
    return inspect_host(cuda_, pool.data() + offset, 1).is_pinned;
  }
  gate gate_;
};

TEST_F(HostPool, WithoutAThreadIsRefused) {
  std::optional<test::scarce_threads> none(std::in_place);
  const auto refused = host_pool::make(cuda_, options(5 * kPiece));
  none.reset();
  EXPECT_EQ(refused.code(), EAGAIN);
  gate_.open(100);
  auto made = host_pool::make(cuda_, options(5 * kPiece));
  EXPECT_TRUE(made) << made.error().message;
}

TEST_F(HostPool, IsMemoryAtOnceAndPinnedPieceByPiece) {
  constexpr std::uint64_t kBytes = 5 * kPiece + 4096;
  auto made = host_pool::make(cuda_, options(kBytes));
  ASSERT_TRUE(made) << made.error().message;
  host_pool& pool = **made;
  EXPECT_EQ(pool.size_bytes(), kBytes);
  EXPECT_EQ(address_of(pool.data()) % (2u << 20), 0u);
  const auto data = test::random_bytes(kBytes, 3);
  std::memcpy(pool.data(), data.data(), kBytes);  // in use before anything is pinned
  EXPECT_EQ(pool.wait(0).code(), ETIMEDOUT);
  EXPECT_EQ(pool.pinned_bytes(), 0u);
  EXPECT_FALSE(is_pinned(pool, 0));
  gate_.open(2);
  wait_for_pinned(pool, 2 * kPiece);
  EXPECT_TRUE(is_pinned(pool, 2 * kPiece - 1));
  EXPECT_FALSE(is_pinned(pool, 2 * kPiece));
  EXPECT_TRUE(pool.pinning());
  gate_.open(100);
  auto ended = pool.wait(kLongMs);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(pool.pinned_bytes(), kBytes);
  EXPECT_TRUE(is_pinned(pool, kBytes - 1));
  EXPECT_EQ(std::memcmp(pool.data(), data.data(), kBytes), 0) << "pinning writes nothing";
}

TEST_F(HostPool, CopiesAreRightAtEveryStageAndGoByChannelInTheEnd) {
  constexpr std::uint64_t kBytes = 4 * kPiece, kBlock = 3000, kBlocks = kBytes / kBlock;
  planner::options wanted;
  wanted.channels = channel_use::always;
  wanted.use_engine = false;
  open("", wanted);
  auto made = host_pool::make(cuda_, options(kBytes));
  ASSERT_TRUE(made) << made.error().message;
  host_pool& pool = **made;
  guarded_device device(kBytes);
  const std::uint64_t host_begin = address_of(pool.data()), device_begin = device.address();
  std::uint64_t by_channel = 0;
  for (std::uint64_t pinned = 0; pinned <= 4; ++pinned) {
    wait_for_pinned(pool, pinned * kPiece);
    const auto data = test::random_bytes(kBytes, static_cast<unsigned>(pinned));
    device.set(data);
    by_channel = taken(method::dma_channel);
    const auto done = planner_->copy_blocks({direction::to_host,
                                             {{&host_begin, 1}, kBlocks * kBlock, kBlock, {}},
                                             {{&device_begin, 1}, kBlocks * kBlock, kBlock, {}},
                                             kBlock,
                                             kBlocks});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(std::memcmp(pool.data(), data.data(), kBlocks * kBlock), 0) << pinned;
    by_channel = taken(method::dma_channel) - by_channel;
    if (pinned < 4) gate_.open(1);
  }
  EXPECT_GT(by_channel, 0u);
}

// Lists of a pool that is pinned need no set-up of their own.
TEST_F(HostPool, PiecesAreBoundToChannelsInTheBackground) {
  constexpr std::uint64_t kBytes = 4 * kPiece;
  planner::options wanted;
  wanted.channels = channel_use::always;
  wanted.use_engine = false;
  open("", wanted);
  std::uint64_t bound = 0;
  auto options_of_pool = options(kBytes);
  options_of_pool.pinned = [&](std::byte* data, std::uint64_t size_bytes) {
    auto fresh = planner_->prepare_host_memory(data, size_bytes, 0);
    EXPECT_TRUE(fresh) << fresh.error().message;
    bound += fresh ? *fresh : 0;
  };
  auto made = host_pool::make(cuda_, options_of_pool);
  ASSERT_TRUE(made) << made.error().message;
  gate_.open(100);
  auto ended = (*made)->wait(kLongMs);
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(bound, kBytes);
  const auto again = planner_->prepare_host_memory((*made)->data(), kBytes, 0);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, 0u) << "a list would have bound it";
}

TEST_F(HostPool, OnlyPinnedMemoryIsPrepared) {
  planner::options wanted;
  wanted.channels = channel_use::always;
  wanted.use_engine = false;
  open("", wanted);
  std::vector<char> ordinary(kPiece);
  EXPECT_EQ(planner_->prepare_host_memory(ordinary.data(), ordinary.size(), 0).code(), ENOTSUP);
  guarded_host pinned(context_of(0), kPiece, 0);
  EXPECT_TRUE(planner_->prepare_host_memory(host_pointer(pinned.address()), kPiece, 0));
  wanted.channels = channel_use::never;
  open("", wanted);
  EXPECT_EQ(planner_->prepare_host_memory(host_pointer(pinned.address()), kPiece, 0).code(), ENOTSUP);
}

// A page holds its part of every plane, and the pool is pinned piece by piece: blocks lie in all pieces, some in two.
TEST_F(HostPool, PagesOfSeveralPlanesLieInManyPieces) {
  constexpr std::uint64_t kBytes = 4 * kPiece, kBlock = 1000, kPlanes = 3, kPages = kBytes / (kBlock * kPlanes);
  planner::options wanted;
  wanted.channels = channel_use::always;
  wanted.use_engine = false;
  open("", wanted);
  auto made = host_pool::make(cuda_, options(kBytes));
  ASSERT_TRUE(made) << made.error().message;
  gate_.open(100);
  ASSERT_TRUE((*made)->wait(kLongMs));
  std::byte* const pool = (*made)->data();
  guarded_device device(kPages * kPlanes * kBlock);
  const auto data = test::random_bytes(kPages * kPlanes * kBlock, 3);
  device.set(data);
  std::memset(pool, 0, kBytes);
  std::vector<std::uint64_t> on_host, on_device;
  std::vector<std::int32_t> page_of_block;
  for (std::uint64_t plane = 0; plane < kPlanes; ++plane) {
    on_host.push_back(address_of(pool) + plane * kBlock);
    on_device.push_back(device.address() + plane * kPages * kBlock);
  }
  for (std::uint64_t i = 0; i < kPages; ++i) page_of_block.push_back(static_cast<std::int32_t>(i * 7 % kPages));
  ASSERT_NE(kPages % 7, 0u);
  const std::uint64_t stride = kPlanes * kBlock;
  const auto before = taken(method::dma_channel);
  const auto done =
      planner_->copy_blocks({direction::to_host,
                             {on_host, (kPages - 1) * stride + kBlock, stride, block_indices(page_of_block.data())},
                             {on_device, kPages * kBlock, kBlock, {}},
                             kBlock,
                             kPages});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(taken(method::dma_channel) - before, kPages * kPlanes);
  for (std::uint64_t plane = 0; plane < kPlanes; ++plane)
    for (std::uint64_t i = 0; i < kPages; ++i)
      ASSERT_EQ(std::memcmp(pool + static_cast<std::uint64_t>(page_of_block[i]) * stride + plane * kBlock,
                            data.data() + (plane * kPages + i) * kBlock, kBlock),
                0)
          << plane << " " << i;
}

TEST_F(HostPool, MemoryBeyondTheLimitIsRefusedOrStaysPageable) {
  auto wanted = options(8 * kPiece);
  gate_.answer = 8 * kPiece - 1;
  auto refused = host_pool::make(cuda_, wanted);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), ENOMEM);
  EXPECT_NE(refused.error().message.find("may use 524287 bytes more"), std::string::npos) << refused.error().message;
  gate_.open(1);
  wanted.size_bytes = UINT64_MAX - 4096;
  wanted.available_bytes = [] { return UINT64_MAX; };
  EXPECT_EQ(host_pool::make(cuda_, wanted).code(), ENOMEM);
  wanted.size_bytes = std::uint64_t{1} << 50;  // more than there are addresses
  refused = host_pool::make(cuda_, wanted);
  EXPECT_EQ(refused.code(), ENOMEM);
  EXPECT_NE(refused.error().message.find("ask for less"), std::string::npos) << refused.error().message;

  auto made = host_pool::make(cuda_, options(4 * kPiece));
  ASSERT_TRUE(made) << made.error().message;
  gate_.open(2);
  wait_for_pinned(**made, 2 * kPiece);
  gate_.open(1, 1u << 20);
  const auto stopped = (*made)->wait(kLongMs);
  EXPECT_EQ(stopped.code(), ENOMEM);
  EXPECT_NE(stopped.error().message.find("131072 of 262144 bytes of the host pool are pinned"), std::string::npos)
      << stopped.error().message;
  EXPECT_EQ((*made)->pinning().code(), ENOMEM);
  std::memset((*made)->data(), 1, 4 * kPiece);  // still memory
}

TEST_F(HostPool, MistakesAreNamed) {
  EXPECT_EQ(host_pool::make(cuda_, options(0)).code(), EINVAL);
  auto wanted = options(kPiece);
  for (const std::uint64_t piece : {0u, 4096u, 100'000u}) {
    wanted.piece_bytes = piece;
    EXPECT_EQ(host_pool::make(cuda_, wanted).code(), EINVAL) << piece;
  }
  wanted = options(kPiece);
  wanted.device_ordinal = 77;
  EXPECT_FALSE(host_pool::make(cuda_, wanted));
}

TEST_F(HostPool, ClosesInTheMiddleOfItsWork) {
  for (std::uint64_t steps = 0; steps < 4; ++steps) {
    gate_.open_steps = 1;
    auto made = host_pool::make(cuda_, options(16 * kPiece));
    ASSERT_TRUE(made);
    const std::byte* const data = (*made)->data();
    gate_.open(steps);
    wait_for_pinned(**made, steps * kPiece);
    std::thread opener([&] { gate_.open(1000); });  // the thread waits at the gate
    made->reset();
    opener.join();
    EXPECT_FALSE(inspect_host(cuda_, data, 1).is_pinned) << "nothing stays registered";
  }
}

TEST_F(HostPool, IsNotThereInAForkedChild) {
  gate_.open(100);
  auto made = host_pool::make(cuda_, options(2 * kPiece));
  ASSERT_TRUE(made);
  ASSERT_TRUE((*made)->wait(kLongMs));
  (*made)->data()[0] = std::byte{7};
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused = (*made)->wait(0).code() == EACCES;
    made->reset();  // touches neither the driver nor the thread
    _exit(is_refused ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  EXPECT_EQ((*made)->data()[0], std::byte{7});
  EXPECT_TRUE(is_pinned(**made, 0));
}

TEST_F(HostPool, KnowsTheNodeOfItsGpuAndWhatIsLeft) {
  const std::string folder = testing::TempDir() + "host_pool_" + std::to_string(getpid());
  const std::string device = folder + "/bus/pci/devices/0000:fe:00.0";
  ASSERT_EQ(std::system(("mkdir -p " + device).c_str()), 0);
  EXPECT_EQ(numa_node_of_gpu(cuda_, 0, folder), -1);
  std::ofstream(device + "/numa_node") << "1\n";
  EXPECT_EQ(numa_node_of_gpu(cuda_, 0, folder), 1);
  EXPECT_EQ(numa_node_of_gpu(cuda_, 99, folder), -1);
  ASSERT_EQ(std::system(("rm -r " + folder).c_str()), 0);
  EXPECT_GT(available_memory(), 1u << 20);
  EXPECT_LT(available_memory(), std::uint64_t{1} << 50);
}

}  // namespace
}  // namespace pl::copy
