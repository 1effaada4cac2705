// SPDX-License-Identifier: Apache-2.0
// Blocks between paged memories: which requests are refused, and that each block is where it belongs, by channel and
// without.
#include "copy/block_transfer.hpp"

#include <poll.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "copy/block_order.hpp"
#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

// ---- What is refused

struct paged_request {
  std::vector<std::uint64_t> target{0x10000, 0x20000}, origin{0x30000, 0x40000};
  std::vector<std::int64_t> to_indices{3, 1, 7}, from_indices{0, 2, 2};
  block_transfer blocks;

  block_transfer& build(direction way = direction::to_host) {
    blocks.way = way;
    blocks.block_bytes = 256;
    blocks.count = to_indices.size();
    blocks.destination = {target, 8 * 512, 512, block_indices(to_indices.data())};
    blocks.source = {origin, 8 * 256, 256, block_indices(from_indices.data())};
    return blocks;
  }
};

std::string reason_of(const block_transfer& blocks) {
  auto good = check(blocks);
  if (good) return "";
  EXPECT_EQ(good.code(), EINVAL);
  return good.error().message;
}

TEST(BlockTransfer, SensibleRequestsAreAccepted) {
  paged_request asked;
  EXPECT_EQ(reason_of(asked.build()), "");
  asked.build().destination.indices = {};
  EXPECT_EQ(reason_of(asked.blocks), "") << "blocks 0, 1, 2";
  const std::int32_t narrow[] = {5, 4, 0};
  asked.blocks.destination.indices = block_indices(narrow);
  EXPECT_EQ(reason_of(asked.blocks), "");
  // Both planes in one page.
  asked.target = {0x10000, 0x10100};
  EXPECT_EQ(reason_of(asked.build()), "");
}

TEST(BlockTransfer, EachMistakeIsNamedWithItsPlace) {
  const auto expect = [](const char* part, auto change) {
    paged_request asked;
    asked.build();
    change(asked);
    const std::string reason = reason_of(asked.blocks);
    EXPECT_NE(reason.find(part), std::string::npos) << part << " / " << reason;
  };
  expect("index 1 of the source is 8; its planes hold blocks 0 to 7", [](paged_request& r) { r.from_indices[1] = 8; });
  expect("index 2 of the destination is -1", [](paged_request& r) { r.to_indices[2] = -1; });
  expect("index 2 of the destination: block 3 is written twice", [](paged_request& r) { r.to_indices[2] = 3; });
  expect("stride of 255 bytes is shorter", [](paged_request& r) { r.blocks.source.stride_bytes = 255; });
  expect("hold no block of 256", [](paged_request& r) { r.blocks.source.plane_bytes = 255; });
  expect("9 blocks are asked for, a plane of the source holds 8", [](paged_request& r) {
    r.blocks.source.indices = {};
    r.to_indices.assign(9, 0);
    std::iota(r.to_indices.begin(), r.to_indices.end(), 0);
    r.blocks.destination.plane_bytes = 9 * 512;
    r.blocks.destination.indices = block_indices(r.to_indices.data());
    r.blocks.count = 9;
  });
  expect("the destination has 2 planes, the source 1", [](paged_request& r) {
    r.origin.pop_back();
    r.blocks.source.planes = r.origin;
  });
  expect("plane 1 of the source: 0x0", [](paged_request& r) { r.origin[1] = 0; });
  expect("share bytes", [](paged_request& r) { r.target[1] = r.target[0] + 0x80; });
  expect("share bytes", [](paged_request& r) { r.target[1] = r.target[0]; });
  expect("share bytes", [](paged_request& r) { r.target[1] = r.target[0] + 512; });
  expect("is not a valid address", [](paged_request& r) { r.target[1] = UINT64_MAX - 100; });
}

// A few of very many blocks: what is noted of them follows their number (a bit for each block would be 128 GiB).
TEST(BlockTransfer, LargeIndicesTakeNoMemory) {
  std::vector<std::int64_t> written = {std::int64_t{1} << 40, 3, 5}, read = {7, 8, 9};
  paged_request asked;
  asked.target = asked.origin = {0x10000};
  block_transfer& blocks = asked.build(direction::on_device);
  const std::uint64_t plane_bytes = std::uint64_t{1} << 50;
  blocks.destination = {asked.target, plane_bytes, 512, block_indices(written.data())};
  blocks.source = {asked.origin, plane_bytes, 512, block_indices(read.data())};
  EXPECT_EQ(reason_of(blocks), "");
  read[2] = written[0];
  EXPECT_EQ(reason_of(blocks), "index 2 of the source: block 1099511627776 is read and written");
  written[2] = written[0];
  EXPECT_EQ(reason_of(blocks), "index 2 of the destination: block 1099511627776 is written twice");
}

// A few blocks of a large pool are remembered another way than many blocks of a small one.
TEST(BlockTransfer, ABlockThatIsWrittenTwiceIsFoundInPoolsOfEverySize) {
  std::mt19937_64 random(3);
  for (const std::uint64_t slots : {std::uint64_t{3000}, std::uint64_t{200'000}, std::uint64_t{1} << 31})
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{64}, std::size_t{2500}}) {
      std::vector<std::int64_t> written(count), read(count, 0);
      const std::uint64_t step = slots / count;
      for (std::size_t i = 0; i < count; ++i) written[i] = static_cast<std::int64_t>(i * step + random() % step);
      std::shuffle(written.begin(), written.end(), random);
      const std::uint64_t target = 1u << 20, origin = 2u << 20;
      const auto reason = [&] {
        return reason_of({direction::to_host,
                          {{&target, 1}, slots * 64, 64, block_indices(written.data())},
                          {{&origin, 1}, 64, 64, block_indices(read.data())},
                          64,
                          count});
      };
      EXPECT_EQ(reason(), "") << slots << " " << count;
      if (count < 2) continue;
      const std::size_t first = random() % (count - 1), second = first + 1 + random() % (count - 1 - first);
      written[second] = written[first];
      EXPECT_NE(reason().find("index " + std::to_string(second) + " of the destination: block " +
                              std::to_string(written[first]) + " is written twice"),
                std::string::npos)
          << reason();
    }
}

TEST(BlockTransfer, BlocksThatAreReadAndWrittenAreRefused) {
  paged_request asked;
  asked.target = asked.origin = {0x10000};
  asked.to_indices = {3, 1, 7};
  asked.from_indices = {0, 2, 4};
  asked.build(direction::on_device).source = {asked.origin, 8 * 512, 512, block_indices(asked.from_indices.data())};
  EXPECT_EQ(reason_of(asked.blocks), "");
  asked.from_indices[1] = 7;
  EXPECT_EQ(reason_of(asked.blocks), "index 1 of the source: block 7 is read and written");
  asked.from_indices[1] = 2;
  asked.blocks.source.stride_bytes = 256;
  EXPECT_NE(reason_of(asked.blocks).find("with other strides"), std::string::npos);
  asked.blocks.source.stride_bytes = 512;
  asked.origin[0] += 128;
  EXPECT_NE(reason_of(asked.blocks).find("they share bytes"), std::string::npos);
  asked.origin[0] += 128;  // the other halves of the same pages
  EXPECT_EQ(reason_of(asked.blocks), "");
}

TEST(BlockTransfer, NeighboursOnBothSidesAreOnePiece) {
  const std::uint64_t target = 0x10000, origin = 0x20000;
  const std::int64_t to_indices[] = {4, 5, 6, 9, 1}, from_indices[] = {0, 1, 2, 3, 4};
  block_transfer blocks{direction::to_host,
                        {{&target, 1}, 4096, 256, block_indices(to_indices)},
                        {{&origin, 1}, 4096, 256, block_indices(from_indices)},
                        256,
                        5};
  std::vector<std::uint64_t> sizes;
  const auto note = [&](std::size_t, std::uint64_t, std::uint64_t, std::uint64_t size_bytes) -> status {
    sizes.push_back(size_bytes);
    return {};
  };
  EXPECT_TRUE(for_each_piece(blocks, note));
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{768, 256, 256}));
  sizes.clear();
  blocks.destination.stride_bytes = 300;
  EXPECT_TRUE(for_each_piece(blocks, note));
  EXPECT_EQ(sizes, std::vector<std::uint64_t>(5, 256));
}

// ---- What arrives

class PlannerBlocks : public planner_fixture {};

// A paged memory over one allocation of `pages` pages, each with its part of every plane, or plane behind plane.
struct layout {
  bool is_woven = false;
  std::size_t pages = 0, planes = 0, block_bytes = 0, gap_bytes = 0;

  std::size_t stride() const { return is_woven ? (block_bytes + gap_bytes) * planes : block_bytes + gap_bytes; }
  std::size_t plane_step() const { return is_woven ? block_bytes + gap_bytes : stride() * pages; }
  std::size_t bytes() const { return (block_bytes + gap_bytes) * planes * pages; }
  std::size_t offset(std::size_t plane, std::int64_t page) const {
    return plane * plane_step() + static_cast<std::size_t>(page) * stride();
  }
  std::vector<std::uint64_t> addresses(std::uint64_t begin) const {
    std::vector<std::uint64_t> out;
    for (std::size_t plane = 0; plane < planes; ++plane) out.push_back(begin + plane * plane_step());
    return out;
  }
  paged_memory memory(std::span<const std::uint64_t> bases, const std::vector<std::int64_t>& indices) const {
    return {bases, (pages - 1) * stride() + block_bytes, stride(), block_indices(indices.data())};
  }
};

std::vector<std::int64_t> some_pages(std::size_t pages, std::size_t count, std::mt19937& random) {
  std::vector<std::int64_t> all(pages);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

struct block_limits {
  std::size_t min_count = 1, max_count = 40, max_block_bytes = 3000;
};
// Long enough to be sorted by their places (block_order.hpp).
constexpr block_limits kLongLists{block_order::kMinBlocks, 5000, 24};

void expect_blocks_moved(planner& copies, direction way, bool is_pinned, bool is_urgent, unsigned seed,
                         const block_limits& limits = {}) {
  std::mt19937 random(seed);
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  const std::size_t planes = between(1, 5), block_bytes = between(1, limits.max_block_bytes),
                    count = between(limits.min_count, limits.max_count);
  const layout target{random() % 2 == 0, count + between(0, 30), planes, block_bytes,
                      random() % 2 == 0 ? 0 : between(1, 99)};
  const layout origin{random() % 2 == 0, count + between(0, 30), planes, block_bytes,
                      random() % 2 == 0 ? 0 : between(1, 99)};
  const auto host_bytes = way == direction::to_host ? target.bytes() : origin.bytes();
  const auto device_bytes = way == direction::to_host ? origin.bytes() : target.bytes();
  auto host = is_pinned ? std::make_unique<guarded_host>(context_of(0), host_bytes, between(0, 70))
                        : std::make_unique<guarded_host>(host_bytes, between(0, 70));
  guarded_device device(device_bytes, between(0, 70));
  guarded_device other(way == direction::on_device ? origin.bytes() : 1, 3);
  const std::uint64_t to_begin = way == direction::to_host ? host->address() : device.address();
  const std::uint64_t from_begin = way == direction::to_host     ? device.address()
                                   : way == direction::to_device ? host->address()
                                                                 : other.address();
  const auto data = test::random_bytes(origin.bytes(), seed), old = test::random_bytes(target.bytes(), seed + 1);
  if (way == direction::to_host) {
    device.set(data);
    host->set(old);
  } else {
    device.set(old);
    if (way == direction::to_device) host->set(data);
    else other.set(data);
  }
  const auto to_indices = some_pages(target.pages, count, random), from_indices = some_pages(origin.pages, count, random);
  const auto to_planes = target.addresses(to_begin), from_planes = origin.addresses(from_begin);
  planner::async_options wanted;
  wanted.is_urgent = is_urgent;
  auto begun = copies.begin_blocks(
      {way, target.memory(to_planes, to_indices), origin.memory(from_planes, from_indices), block_bytes, count}, wanted);
  ASSERT_TRUE(begun) << begun.error().message;
  auto ended = begun->wait();
  ASSERT_TRUE(ended) << ended.error().message;

  auto expected = old;
  for (std::size_t plane = 0; plane < planes; ++plane)
    for (std::size_t i = 0; i < count; ++i)
      std::copy_n(data.begin() + static_cast<long>(origin.offset(plane, from_indices[i])), block_bytes,
                  expected.begin() + static_cast<long>(target.offset(plane, to_indices[i])));
  EXPECT_EQ(way == direction::to_host ? host->get() : device.get(), expected) << seed;
}

TEST_F(PlannerBlocks, EachBlockIsWhereItBelongs) {
  open_channels();
  for (unsigned seed = 0; seed < 60; ++seed)
    for (const direction way : kDirections) expect_blocks_moved(*planner_, way, true, seed % 3 == 0, seed);
  for (unsigned seed = 60; seed < 75; ++seed)
    for (const direction way : kDirections) expect_blocks_moved(*planner_, way, true, seed % 3 == 0, seed, kLongLists);
  EXPECT_GE(taken(method::dma_channel), 180u);
  EXPECT_EQ(taken(method::copy_engine), 0u);
}

TEST_F(PlannerBlocks, AreRightForPageableMemoryAndWithoutChannels) {
  open_channels();
  for (unsigned seed = 100; seed < 106; ++seed)
    for (const direction way : {direction::to_device, direction::to_host})
      expect_blocks_moved(*planner_, way, false, false, seed);
  auto wanted = by_channels();
  wanted.channels = channel_use::never;
  open("", wanted);
  for (unsigned seed = 200; seed < 206; ++seed)
    for (const direction way : kDirections) expect_blocks_moved(*planner_, way, true, false, seed);
  EXPECT_EQ(taken(method::dma_channel), 0u);
}

TEST_F(PlannerBlocks, LongListsFillTheRingAndHaveAChannelOfTheirOwn) {
  open_channels();
  // More blocks than the commands' ring of a bulk channel holds, and windows of 256 MiB crossed on both sides.
  constexpr std::size_t kBlocks = 400'000, kBlockBytes = 16, kPages = kBlocks + 7;
  guarded_device device(kPages * kBlockBytes);
  guarded_host host(context_of(0), kPages * kBlockBytes, 0);
  const auto data = test::random_bytes(kPages * kBlockBytes, 5);
  device.set(data);
  std::vector<std::int32_t> origin(kBlocks), target(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    origin[i] = static_cast<std::int32_t>(i * 7919 % kPages);
    target[i] = static_cast<std::int32_t>((i * 104'729 + 3) % kPages);
  }
  const std::uint64_t host_begin = host.address(), device_begin = device.address();
  auto begun = planner_->begin_blocks({direction::to_host,
                                       {{&host_begin, 1}, kPages * kBlockBytes, kBlockBytes, block_indices(target.data())},
                                       {{&device_begin, 1}, kPages * kBlockBytes, kBlockBytes, block_indices(origin.data())},
                                       kBlockBytes,
                                       kBlocks},
                                      {});
  ASSERT_TRUE(begun) << begun.error().message;
  auto ended = begun->wait();
  ASSERT_TRUE(ended) << ended.error().message;
  const auto got = host.get();
  for (std::size_t i = 0; i < kBlocks; ++i)
    ASSERT_EQ(std::memcmp(got.data() + static_cast<std::size_t>(target[i]) * kBlockBytes,
                          data.data() + static_cast<std::size_t>(origin[i]) * kBlockBytes, kBlockBytes),
              0)
        << i;
  EXPECT_EQ(taken(method::dma_channel), kBlocks);
}

// Two engines carry a long list. Who sleeps for it, a stream and an event: each waits for both.
TEST_F(PlannerBlocks, WhatFollowsALongListWaitsForBothOfItsEngines) {
  open_channels();
  constexpr std::size_t kBlocks = 5000, kBlockBytes = 512, kBytes = kBlocks * kBlockBytes;
  guarded_device device(kBytes);
  guarded_host host(context_of(0), kBytes, 0), seen(context_of(0), kBytes, 0);
  std::vector<std::int32_t> reversed(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) reversed[i] = static_cast<std::int32_t>(kBlocks - 1 - i);
  const std::uint64_t host_begin = host.address(), device_begin = device.address();
  const auto begin = [&] {
    return planner_->begin_blocks({direction::to_device,
                                   {{&device_begin, 1}, kBytes, kBlockBytes, {}},
                                   {{&host_begin, 1}, kBytes, kBlockBytes, block_indices(reversed.data())},
                                   kBlockBytes,
                                   kBlocks},
                                  {});
  };
  const auto turned = [&](const bytes_t& data) {
    bytes_t out(kBytes);
    for (std::size_t i = 0; i < kBlocks; ++i)
      std::copy_n(data.begin() + static_cast<long>((kBlocks - 1 - i) * kBlockBytes), kBlockBytes,
                  out.begin() + static_cast<long>(i * kBlockBytes));
    return out;
  };
  cu::stream_t stream = nullptr;
  cu::event_t event = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, 1), cu::error_code::success);
  ASSERT_EQ(cuda_.cuEventCreate(&event, 2), cu::error_code::success);
  const auto read_behind = [&] {
    EXPECT_EQ(cuda_.cuMemcpyDtoHAsync_v2(host_pointer(seen.address()), device.address(), kBytes, stream),
              cu::error_code::success);
    EXPECT_EQ(cuda_.cuStreamSynchronize(stream), cu::error_code::success);
    return seen.get();
  };
  for (unsigned round = 0; round < 12; ++round) {
    const auto data = test::random_bytes(kBytes, round);
    host.set(data);
    auto begun = begin();
    ASSERT_TRUE(begun) << begun.error().message;
    if (round % 3 == 0) {
      const auto fd = begun->descriptor();
      ASSERT_TRUE(fd) << fd.error().message;
      for (auto is_done = begun->test(); is_done && !*is_done; is_done = begun->test()) {
        pollfd asked{*fd, POLLIN, 0};
        ASSERT_EQ(poll(&asked, 1, 20'000), 1) << "it slept for ever";
      }
      EXPECT_EQ(device.get(), turned(data));
    } else if (round % 3 == 1) {
      ASSERT_TRUE(begun->make_wait(stream));
      EXPECT_EQ(read_behind(), turned(data));
    } else {
      ASSERT_TRUE(begun->record(event));
      ASSERT_EQ(cuda_.cuStreamWaitEvent(stream, event, 0), cu::error_code::success);
      EXPECT_EQ(read_behind(), turned(data));
    }
    EXPECT_TRUE(begun->wait());
  }
  cuda_.cuEventDestroy_v2(event);
  cuda_.cuStreamDestroy_v2(stream);
}

TEST_F(PlannerBlocks, NothingMovesWhereOnePlaneIsWrong) {
  open_channels();
  guarded_device device(64 * 1024);
  guarded_host host(context_of(0), 64 * 1024, 0);
  const auto old = test::random_bytes(64 * 1024, 3);
  host.set(old);
  const std::vector<std::uint64_t> target{host.address(), host.address() + 32 * 1024};
  std::vector<std::uint64_t> origin{device.address(), device.address() + 48 * 1024};
  const block_transfer blocks{direction::to_host, {target, 32 * 1024, 1024, {}}, {origin, 32 * 1024, 1024, {}}, 1024, 32};
  auto refused = planner_->copy_blocks(blocks);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("plane 1 of the source"), std::string::npos) << refused.error().message;
  EXPECT_EQ(host.get(), old);
  origin[1] = 0x1000;
  refused = planner_->copy_blocks(blocks);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_EQ(host.get(), old);
  EXPECT_TRUE(
      planner_->copy_blocks({direction::to_host, {target, 32 * 1024, 1024, {}}, {origin, 32 * 1024, 1024, {}}, 1024, 0}));
}

TEST_F(PlannerBlocks, MemoryOfManyWindowsIsFoundAgain) {
  open_channels();
  // 1.2 GB of address space; pages at its ends and in between, in an order that leaves and enters windows all the time.
  constexpr std::size_t kPage = 65536, kPages = 19'000;
  test::device_buffer device(kPage * kPages);
  guarded_host host(context_of(0), 64 * kPage, 0);
  std::vector<std::int64_t> origin(64), target(64);
  for (std::size_t i = 0; i < 64; ++i) {
    origin[i] = static_cast<std::int64_t>((i * 7919) % kPages);
    target[i] = static_cast<std::int64_t>(63 - i);
    const std::uint64_t mark = i * 0x0101010101010101u + 1;
    ASSERT_EQ(
        cuda_.cuMemcpyHtoD_v2(device.pointer() + static_cast<std::uint64_t>(origin[i]) * kPage + 8, &mark, sizeof mark),
        cu::error_code::success);
  }
  const std::uint64_t host_begin = host.address(), device_begin = device.pointer();
  ASSERT_TRUE(planner_->copy_blocks({direction::to_host,
                                     {{&host_begin, 1}, 64 * kPage, kPage, block_indices(target.data())},
                                     {{&device_begin, 1}, kPage * kPages, kPage, block_indices(origin.data())},
                                     kPage,
                                     64}));
  const auto got = host.get();
  for (std::size_t i = 0; i < 64; ++i) {
    std::uint64_t mark = 0;
    std::memcpy(&mark, got.data() + static_cast<std::size_t>(target[i]) * kPage + 8, sizeof mark);
    EXPECT_EQ(mark, i * 0x0101010101010101u + 1) << i;
  }
}

}  // namespace
}  // namespace pl::copy
