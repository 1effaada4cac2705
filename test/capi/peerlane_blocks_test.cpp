// SPDX-License-Identifier: Apache-2.0
// The blocks' C interface and the C++ layer over it: what is refused, that blocks arrive, and that they end as operations
// do.
#include <cerrno>
#include <cstring>
#include <peerlane/blocks.hpp>
#include <string>
#include <vector>

#include "test/capi/capi_fixture.hpp"
#include "test/copy/copy_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBlock = 96, kPages = 40, kPlanes = 3, kCount = 5;

class peerlane_block_copies : public capi_test {
 protected:
  void SetUp() override {
    capi_test::SetUp();
    ASSERT_EQ(peerlane_copier_open(nullptr, &copier_), 0) << peerlane_last_error();
    for (std::size_t plane = 0; plane < kPlanes; ++plane) {
      device_planes_.push_back(device_ + plane * kPages * kBlock);
      host_planes_.push_back(copy::address_of(host_.data() + plane * kBlock));
    }
    set_device_bytes(device_, data_);
    // Plane behind plane on the device; in host memory a page holds its part of every plane.
    blocks_.source = {device_planes_.data(), kPages * kBlock, kBlock, PEERLANE_MEMORY_DEVICE, 4, device_blocks_};
    blocks_.destination = {
        host_planes_.data(), host_.size() - (kPlanes - 1) * kBlock, kPlanes * kBlock, PEERLANE_MEMORY_HOST, 8, host_blocks_};
    blocks_.plane_count = kPlanes;
    blocks_.block_size_bytes = kBlock;
    blocks_.count = kCount;
  }
  void TearDown() override {
    EXPECT_EQ(peerlane_copier_close(copier_), 0) << peerlane_last_error();
    for (int i = 0; i < 1000 && mapping_count("peerlane-sim") != mapped_; ++i) usleep(1000);
    capi_test::TearDown();
  }
  void expect_moved() const {
    for (std::size_t plane = 0; plane < kPlanes; ++plane)
      for (std::size_t i = 0; i < kCount; ++i)
        EXPECT_EQ(
            std::memcmp(host_.data() + static_cast<std::size_t>(host_blocks_[i]) * kPlanes * kBlock + plane * kBlock,
                        data_.data() + (plane * kPages + static_cast<std::size_t>(device_blocks_[i])) * kBlock, kBlock),
            0)
            << plane << " " << i;
  }
  std::string refused(int code) {
    EXPECT_EQ(peerlane_blocks_copy(copier_, &blocks_), code);
    EXPECT_EQ(host_, std::vector<unsigned char>(host_.size(), 0)) << "nothing moves";
    return peerlane_last_error();
  }

  peerlane_copier_t copier_ = nullptr;
  std::vector<std::uint64_t> device_planes_, host_planes_;
  std::vector<unsigned char> host_ = std::vector<unsigned char>(kPages * kPlanes * kBlock);
  const std::vector<unsigned char> data_ = random_bytes(kPages * kPlanes * kBlock, 11);
  std::int32_t device_blocks_[kCount] = {39, 0, 7, 8, 9};
  std::int64_t host_blocks_[kCount] = {3, 39, 20, 21, 1};
  peerlane_blocks blocks_{};
};

TEST_F(peerlane_block_copies, BlocksArriveAndOperationsEnd) {
  ASSERT_EQ(peerlane_blocks_copy(copier_, &blocks_), 0) << peerlane_last_error();
  expect_moved();
  std::fill(host_.begin(), host_.end(), 0);
  peerlane_op_t op = PEERLANE_OP_INIT;
  ASSERT_EQ(peerlane_blocks_begin(copier_, &blocks_, PEERLANE_BEGIN_URGENT, nullptr, &op), 0) << peerlane_last_error();
  EXPECT_EQ(peerlane_copier_close(copier_), EBUSY) << "an operation is left";
  peerlane_op_info info{};
  ASSERT_EQ(peerlane_op_wait(&op, 10'000, &info), 0);
  EXPECT_EQ(info.size_bytes, kCount * kPlanes * kBlock);
  expect_moved();
  // The same bytes back to other blocks, and a list of nothing.
  std::swap(blocks_.source, blocks_.destination);
  ASSERT_EQ(peerlane_blocks_copy(copier_, &blocks_), 0) << peerlane_last_error();
  EXPECT_EQ(device_bytes(device_, data_.size()), data_);
  blocks_.count = 0;
  EXPECT_EQ(peerlane_blocks_copy(copier_, &blocks_), 0);
}

TEST_F(peerlane_block_copies, MistakesAreErrorsThatNameTheirPlace) {
  device_blocks_[3] = 40;
  EXPECT_NE(refused(EINVAL).find("index 3 of the source is 40"), std::string::npos);
  device_blocks_[3] = 8;
  host_blocks_[4] = 3;
  EXPECT_NE(refused(EINVAL).find("block 3 is written twice"), std::string::npos);
  host_blocks_[4] = 1;
  blocks_.source.index_size_bytes = 2;
  EXPECT_NE(refused(EINVAL).find("index_size_bytes is 2"), std::string::npos);
  blocks_.source.index_size_bytes = 4;
  blocks_.source.memory = 7;
  (void)refused(EINVAL);
  blocks_.source.memory = PEERLANE_MEMORY_HOST;
  EXPECT_NE(refused(EINVAL).find("host memory both"), std::string::npos);
  blocks_.source.memory = PEERLANE_MEMORY_ANY;
  device_planes_[2] += 1u << 30;
  EXPECT_NE(refused(EINVAL).find("plane 2 of the source"), std::string::npos);
  device_planes_[2] -= 1u << 30;
  const auto right = host_planes_[1];
  host_planes_[1] = device_ + 64'000;
  EXPECT_NE(refused(EINVAL).find("plane 1 of the destination: GPU memory"), std::string::npos) << peerlane_last_error();
  host_planes_[1] = right;
  const void* const indices = blocks_.source.indices;
  blocks_.source.indices = reinterpret_cast<const char*>(indices) + 1;
  EXPECT_NE(refused(EINVAL).find("not aligned"), std::string::npos);
  blocks_.source.indices = indices;
  EXPECT_EQ(peerlane_blocks_copy(copier_, nullptr), EINVAL);
  EXPECT_EQ(peerlane_blocks_copy(nullptr, &blocks_), EINVAL);
  peerlane_op_t op = PEERLANE_OP_INIT;
  EXPECT_EQ(peerlane_blocks_begin(copier_, &blocks_, 8, nullptr, &op), EINVAL);
  EXPECT_EQ(peerlane_blocks_begin(copier_, &blocks_, 0, nullptr, nullptr), EINVAL);
  EXPECT_TRUE(peerlane_op_is_empty(&op));
  blocks_.source.planes = nullptr;
  EXPECT_EQ(peerlane_blocks_copy(copier_, &blocks_), EINVAL);
}

TEST_F(peerlane_block_copies, CppTakesSpans) {
  auto copier = peerlane::copier::open();
  ASSERT_TRUE(copier) << copier.error().message;
  const peerlane::paged_memory gpu{device_planes_, kPages * kBlock, kBlock, PEERLANE_MEMORY_DEVICE, device_blocks_, {}};
  const peerlane::paged_memory host{
      host_planes_, host_.size() - (kPlanes - 1) * kBlock, kPlanes * kBlock, PEERLANE_MEMORY_HOST, {}, host_blocks_};
  auto begun = peerlane::begin_blocks(*copier, host, gpu, kBlock);
  ASSERT_TRUE(begun) << begun.error().message;
  ASSERT_TRUE(begun->wait());
  expect_moved();
  auto fewer = gpu;
  fewer.indices = fewer.indices.first(2);
  EXPECT_EQ(peerlane::copy_blocks(*copier, host, fewer, kBlock).code(), EINVAL);
  fewer = gpu;
  fewer.planes = fewer.planes.first(2);
  EXPECT_EQ(peerlane::copy_blocks(*copier, host, fewer, kBlock).code(), EINVAL);
}

// ---- Blocks with an address each

// The same blocks, as addresses.
struct address_arrays {
  std::vector<std::uint64_t> destinations, sources, sizes;

  peerlane_block_list list() const {
    peerlane_block_list out{};
    out.destinations = destinations.data();
    out.sources = sources.data();
    out.sizes_bytes = sizes.data();
    out.count = destinations.size();
    return out;
  }
};

class peerlane_block_lists : public peerlane_block_copies {
 protected:
  void SetUp() override {
    peerlane_block_copies::SetUp();
    for (std::size_t plane = 0; plane < kPlanes; ++plane)
      for (std::size_t i = 0; i < kCount; ++i) {
        arrays_.destinations.push_back(host_planes_[plane] + static_cast<std::uint64_t>(host_blocks_[i]) * kPlanes * kBlock);
        arrays_.sources.push_back(device_planes_[plane] + static_cast<std::uint64_t>(device_blocks_[i]) * kBlock);
        arrays_.sizes.push_back(kBlock);
      }
    list_ = arrays_.list();
  }
  std::string list_refused() {
    EXPECT_EQ(peerlane_block_list_copy(copier_, &list_), EINVAL);
    EXPECT_EQ(host_, std::vector<unsigned char>(host_.size(), 0)) << "nothing moves";
    return peerlane_last_error();
  }
  address_arrays arrays_;
  peerlane_block_list list_{};
};

TEST_F(peerlane_block_lists, BlocksArriveAndOperationsEnd) {
  ASSERT_EQ(peerlane_block_list_copy(copier_, &list_), 0) << peerlane_last_error();
  expect_moved();
  std::fill(host_.begin(), host_.end(), 0);
  list_.sizes_bytes = nullptr;
  list_.block_size_bytes = kBlock;
  list_.source_memory = PEERLANE_MEMORY_DEVICE;
  list_.destination_memory = PEERLANE_MEMORY_HOST;
  peerlane_op_t op = PEERLANE_OP_INIT;
  ASSERT_EQ(peerlane_block_list_begin(copier_, &list_, PEERLANE_BEGIN_URGENT, nullptr, &op), 0) << peerlane_last_error();
  peerlane_op_info info{};
  ASSERT_EQ(peerlane_op_wait(&op, 10'000, &info), 0);
  EXPECT_EQ(info.size_bytes, kCount * kPlanes * kBlock);
  expect_moved();
  std::swap(list_.sources, list_.destinations);
  std::swap(list_.source_memory, list_.destination_memory);
  ASSERT_EQ(peerlane_block_list_copy(copier_, &list_), 0) << peerlane_last_error();
  EXPECT_EQ(device_bytes(device_, data_.size()), data_);
  list_.count = 0;
  EXPECT_EQ(peerlane_block_list_copy(copier_, &list_), 0);
  list_ = arrays_.list();
  arrays_.sizes.assign(arrays_.sizes.size(), 0);
  EXPECT_EQ(peerlane_block_list_copy(copier_, &list_), 0) << "blocks of no bytes";
}

TEST_F(peerlane_block_lists, MistakesAreErrorsThatNameTheirPlace) {
  std::swap(arrays_.destinations[4], arrays_.destinations[9]);
  arrays_.destinations[9] = arrays_.destinations[0] + kBlock - 1;
  EXPECT_NE(list_refused().find("block 9 of the destination"), std::string::npos) << peerlane_last_error();
  arrays_.destinations[9] = device_ + 64'000;
  EXPECT_NE(list_refused().find("block 9 of the destination: GPU memory"), std::string::npos) << peerlane_last_error();
  arrays_.destinations[9] = 0;
  EXPECT_NE(list_refused().find("block 9 of the destination: 0x0"), std::string::npos) << peerlane_last_error();
  arrays_ = {{host_planes_[0]}, {host_planes_[1]}, {kBlock}};
  list_ = arrays_.list();
  EXPECT_NE(list_refused().find("host memory both"), std::string::npos);
  list_.source_memory = 9;
  (void)list_refused();
  list_.source_memory = PEERLANE_MEMORY_ANY;
  list_.sources = nullptr;
  (void)list_refused();
  list_ = arrays_.list();
  peerlane_op_t op = PEERLANE_OP_INIT;
  EXPECT_EQ(peerlane_block_list_begin(copier_, &list_, 8, nullptr, &op), EINVAL);
  EXPECT_EQ(peerlane_block_list_begin(copier_, &list_, 0, nullptr, nullptr), EINVAL);
  EXPECT_EQ(peerlane_block_list_begin(copier_, nullptr, 0, nullptr, &op), EINVAL);
  EXPECT_EQ(peerlane_block_list_begin(nullptr, &list_, 0, nullptr, &op), EINVAL);
  EXPECT_TRUE(peerlane_op_is_empty(&op));
}

TEST_F(peerlane_block_lists, CppTakesSpans) {
  auto copier = peerlane::copier::open();
  ASSERT_TRUE(copier) << copier.error().message;
  peerlane::block_list list{arrays_.destinations, arrays_.sources, {}, kBlock};
  auto begun = peerlane::begin_block_list(*copier, list);
  ASSERT_TRUE(begun) << begun.error().message;
  ASSERT_TRUE(begun->wait());
  expect_moved();
  list.sizes_bytes = arrays_.sizes;
  std::fill(host_.begin(), host_.end(), 0);
  ASSERT_TRUE(peerlane::copy_block_list(*copier, list));
  expect_moved();
  list.sources = list.sources.first(2);
  EXPECT_EQ(peerlane::copy_block_list(*copier, list).code(), EINVAL);
}

}  // namespace
}  // namespace pl::test
