// SPDX-License-Identifier: Apache-2.0
// Channels of one GPU on the memory of another: copies by either side's engine, what is refused, and the ends of life.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "dma/shared_region.hpp"
#include "test/dma/channel_fixture.hpp"

namespace {

using namespace pl;
using test::fake_engine;
using test::kChannelBytes;
using test::kTimeoutNs;

constexpr std::size_t kHalf = kChannelBytes / 2;
constexpr std::uint64_t kShortNs = 30'000'000;
const char* const kDriver = "580.159.04";

fake_engine::options two_gpus() {
  fake_engine::options out;
  out.gpus = 2;
  return out;
}

std::byte pattern(unsigned start, std::size_t i) { return static_cast<std::byte>(start + i * 7 + (i >> 10)); }

// Two GPUs of one client, each with an address space, memory and a channel of its own.
class PeerChannel : public testing::Test {
 protected:
  struct side {
    const rm::gpu* gpu = nullptr;
    std::shared_ptr<dma::address_space> space;
    dma::address_space::own_memory memory;
    dma::region host_region;
    std::unique_ptr<dma::channel> queue;
  };
  PeerChannel() : io(two_gpus()), client(std::move(*rm::client::open(io))) {
    host = static_cast<std::byte*>(mmap(nullptr, kChannelBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (unsigned i = 0; i < 2; ++i) {
      side& one = i == 0 ? near : far;
      one.gpu = *client->find_gpu({0, 6, i});
      one.space = *dma::address_space::open(*client, *one.gpu, kDriver);
      one.memory = std::move(*one.space->make_device_memory(kChannelBytes));
      one.host_region = std::move(*one.space->bind_host(host, kChannelBytes));
      one.queue = std::move(*dma::channel::open(one.space, {}));
    }
  }
  ~PeerChannel() override { munmap(host, kChannelBytes); }

  // `owner`'s memory as `user`'s channels reach it.
  static result<dma::region> bind(side& user, const side& owner) {
    return user.space->bind_share(owner.memory.memory, 0, kChannelBytes, owner.gpu);
  }
  void fill(side& one, unsigned start) const {
    for (std::size_t i = 0; i < kChannelBytes; ++i) host[i] = pattern(start, i);
    ASSERT_TRUE(copy(one, one.memory.bound.address(), one.host_region.address(), kChannelBytes));
  }
  // Whether [begin, begin + bytes) of `one` are those of the pattern from `first` on.
  bool has(side& one, std::size_t begin, std::size_t bytes, unsigned start, std::size_t first) const {
    std::memset(host, 0, kChannelBytes);
    if (!copy(one, one.host_region.address(), one.memory.bound.address(), kChannelBytes)) return false;
    for (std::size_t i = 0; i < bytes; ++i)
      if (host[begin + i] != pattern(start, first + i)) return false;
    return true;
  }
  static status copy(side& one, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
    const auto number = one.queue->copy(destination, source, bytes);
    return number ? one.queue->wait(*number, kTimeoutNs) : status(number.error());
  }

  fake_engine io;
  std::unique_ptr<rm::client> client;
  std::byte* host = nullptr;
  side near, far;
};

TEST_F(PeerChannel, EitherSidesEngineMovesBothWays) {
  for (side* user : {&near, &far}) {
    side& owner = user == &near ? far : near;
    fill(*user, 1);
    fill(owner, 99);
    const auto peer = bind(*user, owner);
    ASSERT_TRUE(peer) << peer.error().message;
    EXPECT_EQ(peer->kind(), rm::channel_objects::memory_kind::peer);
    EXPECT_EQ(&peer->owner(), owner.gpu);
    const std::uint64_t own = user->memory.bound.address();
    ASSERT_TRUE(copy(*user, peer->address(), own, kHalf));
    EXPECT_TRUE(has(owner, 0, kHalf, 1, 0));
    ASSERT_TRUE(copy(*user, own, peer->address() + kHalf, kHalf));
    EXPECT_TRUE(has(*user, 0, kHalf, 99, kHalf));
    EXPECT_EQ(user->space->peer_engine(), 1u) << "the engine that the driver names for the link";
    EXPECT_TRUE(has(owner, kHalf, kHalf, 99, kHalf));
  }
  EXPECT_EQ(io.protocol_errors(), 0);
}

TEST_F(PeerChannel, ListsFillsAndWords) {
  fill(near, 5);
  fill(far, 50);
  const auto peer = *bind(near, far);
  std::vector<dma::block> blocks;
  for (std::size_t i = 0; i < 64; ++i)
    blocks.push_back({peer.address() + (i * 37 % 64) * 16384, near.memory.bound.address() + i * 16384, 16384});
  const auto list = near.queue->copy_blocks(blocks);
  ASSERT_TRUE(list && near.queue->wait(*list, kTimeoutNs));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_TRUE(has(far, (i * 37 % 64) * 16384, 16384, 5, i * 16384)) << i;

  ASSERT_TRUE(near.queue->fill(peer.address() + kHalf, 0x5a5a5a5a, 4096));
  ASSERT_TRUE(near.queue->release(peer.address() + kHalf + 4096, 7));
  ASSERT_TRUE(near.queue->add(peer.address() + kHalf + 4096, 2));
  // The other GPU's channel goes on when the word is there.
  ASSERT_TRUE(far.queue->acquire(far.memory.bound.address() + kHalf + 4096, 9));
  const auto seen = far.queue->copy(far.host_region.address(), far.memory.bound.address() + kHalf, 4100);
  ASSERT_TRUE(seen && far.queue->wait(*seen, kTimeoutNs));
  EXPECT_EQ(host[0], std::byte{0x5a});
  EXPECT_EQ(host[4095], std::byte{0x5a});
  EXPECT_EQ(host[4096], std::byte{9});
  EXPECT_EQ(io.protocol_errors(), 0);
}

// An address that no longer shows the peer's memory, and one of the other address space, are faults of their channel alone.
TEST_F(PeerChannel, AnUnmappedPeerAddressIsAFault) {
  fill(far, 3);
  std::uint64_t gone = 0;
  {
    const auto peer = *bind(near, far);
    gone = peer.address();
  }
  for (const std::uint64_t wrong : {gone, far.memory.bound.address(), gone + kChannelBytes}) {
    const auto number = near.queue->copy(wrong, near.memory.bound.address(), 64);
    ASSERT_TRUE(number);
    EXPECT_EQ(near.queue->wait(*number, kTimeoutNs).code(), EIO);
    near.queue = std::move(*dma::channel::open(near.space, {}));
  }
  EXPECT_TRUE(has(far, 0, kChannelBytes, 3, 0)) << "nothing was written";
  const auto again = bind(near, far);
  ASSERT_TRUE(again);
  EXPECT_TRUE(copy(near, near.memory.bound.address(), again->address(), kChannelBytes));
  EXPECT_TRUE(has(near, 0, kChannelBytes, 3, 0));
  EXPECT_EQ(io.protocol_errors(), 0);
}

TEST_F(PeerChannel, NothingIsLeftBehind) {
  const int objects = io.live_objects(), maps = io.live_maps(), ours = client->live_objects();
  for (int round = 0; round < 3; ++round) {
    auto space = *dma::address_space::open(*client, *near.gpu, kDriver);
    auto first = *space->bind_share(far.memory.memory, 0, kChannelBytes, far.gpu);
    auto second = *space->bind_share(far.memory.memory, 4096, 4096, far.gpu);
    EXPECT_EQ(io.live_maps(), maps + 2);
    space.reset();
    first = dma::region();
    EXPECT_TRUE(second) << "a region keeps its address space and the link";
  }
  EXPECT_EQ(io.live_objects(), objects);
  EXPECT_EQ(io.live_maps(), maps);
  EXPECT_EQ(client->live_objects(), ours);
  EXPECT_EQ(io.protocol_errors(), 0) << "the link ended behind its mappings";
}

TEST_F(PeerChannel, ADescriptorOfAnotherGpusMemory) {
  fill(far, 11);
  const auto shared = dma::export_region(far.memory.bound);
  ASSERT_TRUE(shared) << shared.error().message;
  auto imported = dma::import_region(*near.space, *shared);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_TRUE(copy(near, near.memory.bound.address(), imported->address(), kChannelBytes));
  EXPECT_TRUE(has(near, 0, kChannelBytes, 11, 0));
  // What was imported can be given on: it stays memory of its GPU.
  const auto onward = dma::export_region(*imported);
  ASSERT_TRUE(onward) << onward.error().message;
  EXPECT_EQ(onward->gpu, far.gpu->pci);
  const int objects = io.live_objects();
  {
    const auto at_home = dma::import_region(*far.space, *onward);
    ASSERT_TRUE(at_home) << at_home.error().message;
    EXPECT_EQ(at_home->kind(), rm::channel_objects::memory_kind::device);
  }
  EXPECT_EQ(io.live_objects(), objects);
  EXPECT_EQ(io.protocol_errors(), 0);
}

TEST_F(PeerChannel, RangesAreChecked) {
  const int objects = io.live_objects();
  EXPECT_FALSE(near.space->bind_share(far.memory.memory, kChannelBytes, 4096, far.gpu));
  EXPECT_FALSE(near.space->bind_share(far.memory.memory, 4096, kChannelBytes, far.gpu));
  EXPECT_FALSE(near.space->bind_share(0x7777, 0, 4096, far.gpu));
  EXPECT_EQ(io.live_objects(), objects + 1) << "the link alone";
}

// Every call that makes or maps something may fail: the error is told and nothing is left.
TEST(PeerChannelFailures, EachCall) {
  int first = 0, last = 0;
  for (int failing = -1; failing <= last; failing = failing < 0 ? first : failing + 1) {
    SCOPED_TRACE(failing);
    auto options = two_gpus();
    options.failing_call = failing;
    fake_engine io(options);
    {
      auto client = std::move(*rm::client::open(io));
      const rm::gpu* const far_gpu = *client->find_gpu({0, 6, 1});
      auto near = *dma::address_space::open(*client, **client->find_gpu({0, 6, 0}), kDriver);
      auto far = *dma::address_space::open(*client, *far_gpu, kDriver);
      const auto memory = *far->make_device_memory(1u << 20);
      const auto shared = *dma::export_region(memory.bound);
      const int objects = io.live_objects(), maps = io.live_maps();
      if (failing < 0) first = io.calls();
      const auto piece = dma::import_region(*near, shared);
      if (failing < 0) last = io.calls() - 1;
      EXPECT_EQ(piece.ok(), failing < 0 || failing == first + 1) << "which engine is best need not be known";
      if (!piece) {
        EXPECT_FALSE(piece.error().message.empty());
        EXPECT_LE(io.live_objects(), objects + 1) << "the link at most";
        EXPECT_EQ(io.live_maps(), maps);
      }
    }
    EXPECT_EQ(io.protocol_errors(), 0);
    EXPECT_EQ(io.live_objects(), 0);
  }
  EXPECT_EQ(last - first + 1, 4) << "a link, its engines, a share, a mapping";
}

TEST(PeerChannelFailures, GpusWithoutALink) {
  auto options = two_gpus();
  options.has_links = false;
  fake_engine io(options);
  auto client = std::move(*rm::client::open(io));
  const rm::gpu* const far_gpu = *client->find_gpu({0, 6, 1});
  auto near = *dma::address_space::open(*client, **client->find_gpu({0, 6, 0}), kDriver);
  auto far = *dma::address_space::open(*client, *far_gpu, kDriver);
  const auto memory = *far->make_device_memory(1u << 20);
  const auto shared = *dma::export_region(memory.bound);
  const int objects = io.live_objects();
  int calls = 0;
  for (int round = 0; round < 2; ++round) {
    const auto refused = near->bind_share(memory.memory, 0, 4096, far_gpu);
    EXPECT_EQ(refused.code(), EXDEV);
    EXPECT_NE(refused.error().message.find("0000:06:01"), std::string::npos) << refused.error().message;
    if (round == 0) calls = io.calls();
  }
  EXPECT_EQ(io.calls(), calls) << "a refusal is remembered: the driver is not asked again";
  EXPECT_EQ(dma::import_region(*near, shared).code(), EXDEV);
  EXPECT_EQ(io.live_objects(), objects);
  EXPECT_TRUE(near->reach(near->objects().device()));
  EXPECT_EQ(io.protocol_errors(), 0);
}

// What the driver does with calls that no correct client makes: the model refuses them, so that a mistake shows.
TEST_F(PeerChannel, TheModelRefusesWhatWouldMapOtherMemory) {
  using kind = rm::channel_objects::memory_kind;
  auto& objects = near.space->objects();
  const auto range = *objects.make_virtual_memory(near.space->handle());
  EXPECT_FALSE(objects.map_dma(range, far.memory.memory, 0, 4096, kind::device));
  EXPECT_FALSE(objects.map_dma(range, near.memory.memory, 0, 4096, kind::peer));
  EXPECT_EQ(io.protocol_errors(), 2);
  EXPECT_FALSE(objects.map_dma(range, far.memory.memory, 0, 4096, kind::peer)) << "there is no link yet";
  const auto link = *objects.make_peer_link(*far.gpu);
  const auto address = objects.map_dma(range, far.memory.memory, 0, 4096, kind::peer);
  ASSERT_TRUE(address);
  EXPECT_TRUE(copy(near, *address, near.memory.bound.address(), 64));
  objects.release(link);
  EXPECT_EQ(io.protocol_errors(), 3) << "it ended before its mapping";
  const auto number = near.queue->copy(*address, near.memory.bound.address(), 64);
  EXPECT_FALSE(number && near.queue->wait(*number, kShortNs));
  objects.release(range);
}

}  // namespace
