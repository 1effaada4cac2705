// SPDX-License-Identifier: Apache-2.0
// Lists of blocks with an address each: which are refused, and that each block is where it belongs, by channel and without.
#include "copy/block_list.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "copy/block_order.hpp"
#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

// ---- What is refused

struct request {
  std::vector<std::uint64_t> targets{0x10000, 0x30000, 0x20000}, origins{0x50000, 0x50100, 0x50000}, sizes{256, 512, 0};
  direction way = direction::to_host;
  bool has_sizes = true;

  block_list list() const {
    return {way, targets, origins, has_sizes ? std::span(sizes) : std::span<const std::uint64_t>(), 256};
  }
  std::string reason() const {
    auto good = check(list());
    if (good) return "";
    EXPECT_EQ(good.code(), EINVAL);
    return good.error().message;
  }
};

TEST(BlockList, SensibleListsAreAccepted) {
  request asked;
  EXPECT_EQ(asked.reason(), "");
  asked.has_sizes = false;
  EXPECT_EQ(asked.reason(), "");
  EXPECT_EQ(asked.list().bytes(), 768u);
  asked = {};
  asked.targets[2] = asked.origins[2] = 0;  // a block of no bytes
  EXPECT_EQ(asked.reason(), "");
  EXPECT_EQ(asked.list().bytes(), 768u);
  asked.targets.clear(), asked.origins.clear(), asked.sizes.clear();
  EXPECT_EQ(asked.reason(), "");
}

TEST(BlockList, EachMistakeIsNamedWithItsPlace) {
  const auto expect = [](const char* part, auto change) {
    request asked;
    change(asked);
    const std::string reason = asked.reason();
    EXPECT_NE(reason.find(part), std::string::npos) << part << " / " << reason;
  };
  expect("block 1 of the destination: 0x0 is not a valid address of 512 bytes", [](request& r) { r.targets[1] = 0; });
  expect("block 0 of the source: 0x0 is not a valid address", [](request& r) { r.origins[0] = 0; });
  expect("block 1 of the source: 0xffffffffffffff00", [](request& r) { r.origins[1] = UINT64_MAX - 255; });
  expect("3 destinations, 2 sources and 3 sizes", [](request& r) { r.origins.pop_back(); });
  expect("3 destinations, 3 sources and 2 sizes", [](request& r) { r.sizes.pop_back(); });
  expect("block 1 of the destination, 0x10000 and 512 bytes: another block writes",
         [](request& r) { r.targets[1] = 0x10000; });
  expect("block 1 of the destination", [](request& r) { r.targets[1] = 0x100ff; });
  expect("block 1 of the destination", [](request& r) { r.targets[1] = 0x10000 - 511; });
  expect("block 2 of the destination", [](request& r) { r.targets[2] = 0x30080, r.has_sizes = false; });
  expect("add up to more than 2^64", [](request& r) {
    r.targets = {0x10000, 0x20000, 0x30000};
    r.origins = r.targets;
    r.sizes.assign(3, UINT64_MAX / 2);
  });
  expect("block 1 of the source, 0x100ff and 512 bytes: a block writes there", [](request& r) {
    r.way = direction::on_device;
    r.origins[1] = 0x100ff;
  });
}

// The quick ways to look for shared bytes say what comparing all pairs says, with and without a common granule.
TEST(BlockList, SharedBytesAreFoundInListsOfEveryKind) {
  unsigned refused = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint64_t step = seed % 3 == 0 ? 1 : seed % 3 == 1 ? 64 : 4096;
    const std::size_t count = 1 + random() % 12;
    const std::uint64_t room = seed % 7 == 0 ? std::uint64_t{1} << 40 : 40 + random() % 200;
    request asked;
    asked.way = seed % 2 == 0 ? direction::on_device : direction::to_host;
    asked.targets.clear(), asked.origins.clear(), asked.sizes.clear();
    for (std::size_t i = 0; i < count; ++i) {
      asked.targets.push_back(0x1000000 + random() % room * step);
      asked.origins.push_back(0x1000000 + random() % room * step);
      asked.sizes.push_back(random() % 4 * step);
    }
    if (seed % 11 == 0) {  // pages: all of one size, now and then one of them twice
      asked.sizes.assign(count, step);
      if (seed % 4 == 1) asked.targets.back() = asked.targets.front();
    }
    if (seed % 5 == 0) std::sort(asked.targets.begin(), asked.targets.end());
    const auto meet = [&](std::uint64_t a, std::size_t i, std::uint64_t b, std::size_t k) {
      return asked.sizes[i] != 0 && asked.sizes[k] != 0 && a < b + asked.sizes[k] && b < a + asked.sizes[i];
    };
    bool is_wrong = false;
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t k = 0; k < count; ++k)
        is_wrong = is_wrong || (i < k && meet(asked.targets[i], i, asked.targets[k], k)) ||
                   (asked.way == direction::on_device && meet(asked.origins[i], i, asked.targets[k], k));
    EXPECT_EQ(!asked.reason().empty(), is_wrong) << seed << " " << asked.reason();
    refused += is_wrong;
  }
  EXPECT_GT(refused, 400u);
  EXPECT_LT(refused, 3600u);
}

// ---- What arrives

class PlannerBlockList : public planner_fixture {
 protected:
  void open_planner(channel_use use) {
    planner::options wanted;
    wanted.channels = use;
    wanted.use_engine = false;
    open("", wanted);
  }
  // Blocks of any size between three allocations on each side, in any order.
  void expect_moved(direction way, bool is_pinned, unsigned seed) {
    constexpr std::size_t kParts = 3, kRoom = 60'000;
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<guarded_host>> hosts;
    std::vector<std::unique_ptr<guarded_device>> devices;
    for (std::size_t i = 0; i < 2 * kParts; ++i) {
      devices.push_back(std::make_unique<guarded_device>(kRoom, random() % 70));
      hosts.push_back(is_pinned ? std::make_unique<guarded_host>(context_of(0), kRoom, random() % 70)
                                : std::make_unique<guarded_host>(kRoom, random() % 70));
    }
    const bool to_host = way == direction::to_host, from_host = way == direction::to_device;
    std::vector<std::vector<unsigned char>> data, expected;
    for (std::size_t i = 0; i < kParts; ++i) {
      data.push_back(test::random_bytes(kRoom, seed + static_cast<unsigned>(i)));
      expected.push_back(test::random_bytes(kRoom, seed + 100 + static_cast<unsigned>(i)));
      if (from_host) hosts[i]->set(data[i]);
      else devices[i]->set(data[i]);
      if (to_host) hosts[kParts + i]->set(expected[i]);
      else devices[kParts + i]->set(expected[i]);
    }
    struct place {
      std::size_t part, offset, size;
    };
    std::vector<place> places;
    for (std::size_t part = 0; part < kParts; ++part)
      for (std::size_t offset = random() % 100; offset < kRoom - 3000; offset += random() % 2 == 0 ? 0 : random() % 900) {
        const std::size_t size = random() % 8 == 0 ? 0 : 1 + random() % 2900;
        places.push_back({part, offset, size});
        offset += size;
      }
    std::shuffle(places.begin(), places.end(), random);
    std::vector<std::uint64_t> targets, origins, sizes;
    for (const place& target : places) {
      const std::size_t part = random() % kParts, offset = random() % (kRoom - target.size);
      targets.push_back((to_host ? hosts[kParts + target.part]->address() : devices[kParts + target.part]->address()) +
                        target.offset);
      origins.push_back((from_host ? hosts[part]->address() : devices[part]->address()) + offset);
      sizes.push_back(target.size);
      std::copy_n(data[part].begin() + static_cast<long>(offset), target.size,
                  expected[target.part].begin() + static_cast<long>(target.offset));
    }
    planner::async_options wanted;
    wanted.is_urgent = seed % 3 == 0;
    auto begun = planner_->begin_block_list({way, targets, origins, sizes, 0}, wanted);
    ASSERT_TRUE(begun) << begun.error().message;
    auto ended = begun->wait();
    ASSERT_TRUE(ended) << ended.error().message;
    for (std::size_t i = 0; i < kParts; ++i)
      EXPECT_EQ(to_host ? hosts[kParts + i]->get() : devices[kParts + i]->get(), expected[i]) << seed << " " << i;
  }
};

TEST_F(PlannerBlockList, EachBlockIsWhereItBelongs) {
  open_planner(channel_use::always);
  for (unsigned seed = 0; seed < 20; ++seed)
    for (const direction way : kDirections) expect_moved(way, true, seed);
  EXPECT_GE(taken(method::dma_channel), 60u);
  EXPECT_EQ(taken(method::copy_engine), 0u);
}

// One memory on each side, and enough blocks to be sorted by their places (block_order.hpp); some have no bytes.
TEST_F(PlannerBlockList, LongListsOutOfOrderArriveToo) {
  open_planner(channel_use::always);
  constexpr std::size_t kSlot = 40;
  std::mt19937 random(5);
  for (unsigned seed = 0; seed < 12; ++seed) {
    const direction way = kDirections[seed % 3];
    const std::size_t count = block_order::kMinBlocks + random() % 4000, bytes = count * kSlot;
    guarded_device device(bytes, random() % 70), other(way == direction::on_device ? bytes : 1, 3);
    guarded_host host(context_of(0), bytes, random() % 70);
    const auto data = test::random_bytes(bytes, seed), old = test::random_bytes(bytes, seed + 50);
    const bool to_host = way == direction::to_host;
    if (way == direction::to_device) host.set(data), device.set(old);
    else if (to_host) host.set(old), device.set(data);
    else other.set(data), device.set(old);
    const std::uint64_t source = to_host ? device.address() : way == direction::to_device ? host.address() : other.address();
    const std::uint64_t target = to_host ? host.address() : device.address();
    std::vector<std::size_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random);
    std::vector<std::uint64_t> targets, origins, sizes;
    auto expected = old;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t origin = random() % count * kSlot, size = random() % 9 == 0 ? 0 : 1 + random() % kSlot;
      targets.push_back(size == 0 ? 0 : target + slots[i] * kSlot);
      origins.push_back(source + origin);
      sizes.push_back(size);
      std::copy_n(data.begin() + static_cast<long>(origin), size, expected.begin() + static_cast<long>(slots[i] * kSlot));
    }
    if (seed % 2 == 0) {  // all of one size
      sizes.clear();
      expected = old;
      for (std::size_t i = 0; i < count; ++i) {
        targets[i] = target + slots[i] * kSlot;
        std::copy_n(data.begin() + static_cast<long>(origins[i] - source), kSlot - 1,
                    expected.begin() + static_cast<long>(slots[i] * kSlot));
      }
    }
    auto begun = planner_->begin_block_list({way, targets, origins, sizes, kSlot - 1}, {});
    ASSERT_TRUE(begun) << begun.error().message;
    auto ended = begun->wait();
    ASSERT_TRUE(ended) << ended.error().message;
    EXPECT_EQ(to_host ? host.get() : device.get(), expected) << seed;
  }
  EXPECT_EQ(taken(method::copy_engine), 0u);
}

TEST_F(PlannerBlockList, IsRightForPageableMemoryAndWithoutChannels) {
  open_planner(channel_use::always);
  for (const direction way : {direction::to_device, direction::to_host}) expect_moved(way, false, 50);
  open_planner(channel_use::never);
  for (const direction way : kDirections) expect_moved(way, true, 51);
  EXPECT_EQ(taken(method::dma_channel), 0u);
}

TEST_F(PlannerBlockList, NothingMovesWhereOneBlockIsWrong) {
  open_planner(channel_use::always);
  guarded_device device(8192), freed(8192);
  guarded_host host(context_of(0), 8192, 0);
  const auto old = test::random_bytes(8192, 3);
  host.set(old);
  const std::vector<std::uint64_t> targets{host.address(), host.address() + 2048, host.address() + 4096};
  std::vector<std::uint64_t> origins{device.address(), device.address() + 1024, device.address() + 3000};
  const auto expect_refused = [&](const char* part) {
    auto refused = planner_->copy_block_list({direction::to_host, targets, origins, {}, 1024});
    EXPECT_EQ(refused.code(), EINVAL);
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
    EXPECT_EQ(host.get(), old);
  };
  origins[2] = 0x1000;
  expect_refused("block 2 of the source");
  origins[2] = host.address();
  expect_refused("block 2 of the source");
  {
    const test::device_buffer gone(1 << 20);
    origins[2] = gone.pointer();
  }
  expect_refused("block 2 of the source");
  const test::device_buffer end(1 << 20);
  origins[2] = end.pointer() + (1 << 20) - 512;
  expect_refused("block 2 of the source");
}

TEST_F(PlannerBlockList, GpuMemoryAmongHostMemoryIsNamed) {
  open_planner(channel_use::always);
  guarded_device device(4096);
  guarded_host host(context_of(0), 4096, 0);
  const std::vector<std::uint64_t> targets{host.address(), device.address()},
      origins{device.address() + 1024, device.address() + 2048};
  const auto refused = planner_->copy_block_list({direction::to_host, targets, origins, {}, 512});
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("block 1 of the destination: GPU memory"), std::string::npos)
      << refused.error().message;
}

// Host memory that was registered in two pieces, as PyTorch's threads and host pools do: blocks in each and across both go
// by channel, by addresses and by planes; where the second piece is not registered, the ordinary way.
TEST_F(PlannerBlockList, MemoryThatIsPinnedInPiecesGoesByChannel) {
  constexpr std::size_t kPiece = 64 * 4096, kBlock = 3000, kBlocks = 2 * kPiece / kBlock;
  open_planner(channel_use::always);
  void* const host = mmap(nullptr, 2 * kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  guarded_device device(2 * kPiece);
  const auto data = test::random_bytes(2 * kPiece, 9);
  device.set(data);
  const std::uint64_t host_begin = address_of(host), device_begin = device.address();
  std::vector<std::uint64_t> targets, origins;
  std::vector<std::int32_t> order(kBlocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  for (const auto i : order) {
    targets.push_back(host_begin + static_cast<std::uint64_t>(i) * kBlock);
    origins.push_back(device_begin + static_cast<std::uint64_t>(i) * kBlock);
  }
  const auto expect_both_forms = [&](std::uint64_t by_channel) {
    for (const bool by_planes : {false, true}) {
      std::memset(host, 0, 2 * kPiece);
      const auto before = taken(method::dma_channel);
      const paged_memory target{{&host_begin, 1}, kBlocks * kBlock, kBlock, block_indices(order.data())},
          origin{{&device_begin, 1}, kBlocks * kBlock, kBlock, block_indices(order.data())};
      const auto done = by_planes ? planner_->copy_blocks({direction::to_host, target, origin, kBlock, kBlocks})
                                  : planner_->copy_block_list({direction::to_host, targets, origins, {}, kBlock});
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(std::memcmp(host, data.data(), kBlocks * kBlock), 0) << by_planes;
      EXPECT_EQ(taken(method::dma_channel) - before > 0, by_channel > 0) << by_planes;
    }
  };
  ASSERT_TRUE(cuda_.cuMemHostRegister_v2(host, kPiece, 0) == cu::error_code::success);
  expect_both_forms(0);
  char* const second = static_cast<char*>(host) + kPiece;
  ASSERT_TRUE(cuda_.cuMemHostRegister_v2(second, kPiece, 0) == cu::error_code::success);
  expect_both_forms(1);
  cuda_.cuMemHostUnregister(second);
  cuda_.cuMemHostUnregister(host);
  munmap(host, 2 * kPiece);
}

}  // namespace
}  // namespace pl::copy
