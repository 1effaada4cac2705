// SPDX-License-Identifier: Apache-2.0
// Ordinary memory plays the device: what is tested is how a copy is split, not the bus.
#include "copy/cpu_copy.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

namespace pl::copy {
namespace {

constexpr std::size_t kMargin = 256;
constexpr unsigned char kCanary = 0xC5;
constexpr arch::mapping_type kTypes[] = {arch::mapping_type::wc, arch::mapping_type::cached, arch::mapping_type::device};
// Around one part, parts that end next to a line's end, many parts, the largest parts.
constexpr std::size_t kSizes[] = {0, 1, 63, 4095, 4096, 4097, 4160, 12289, 70001, 300003};
constexpr std::size_t kOffsets[] = {0, 1, 63};
constexpr std::size_t kMaxBytes = 300003;

// Without a period that a wrong part could hit.
const unsigned char* test_data() {
  static const std::vector<unsigned char> data = [] {
    std::vector<unsigned char> bytes(kMaxBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<unsigned char>(i * 167 + (i >> 8) * 13 + (i >> 16));
    return bytes;
  }();
  return data.data();
}

// Bytes between canaries, at a chosen distance from a line.
class bytes_at {
 public:
  bytes_at(std::size_t bytes, std::size_t offset) : bytes_(bytes), memory_(bytes + 2 * kMargin, kCanary) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = 64 + (64 - address % 64) % 64 + offset;
  }
  unsigned char* get() { return memory_.data() + begin_; }
  // The bytes are `expected`, and nothing was written beside them. (memcmp: this runs under slow checkers, too.)
  bool holds(const unsigned char* expected) {
    const std::vector<unsigned char> canaries(2 * kMargin, kCanary);
    return std::memcmp(get(), expected, bytes_) == 0 && std::memcmp(memory_.data(), canaries.data(), begin_) == 0 &&
           std::memcmp(get() + bytes_, canaries.data(), memory_.size() - begin_ - bytes_) == 0;
  }

 private:
  std::size_t bytes_;
  std::vector<unsigned char> memory_;
  std::size_t begin_;
};

std::string describe(std::size_t bytes, std::size_t offset, arch::mapping_type type = arch::mapping_type::none) {
  return std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + ", mapping type " +
         std::to_string(static_cast<int>(type));
}

class CpuCopy : public testing::TestWithParam<unsigned> {
 protected:
  worker_pool pool_{{.helpers = 3, .cpus = {}}};
};

TEST_P(CpuCopy, WritesEveryByteAndNoOther) {
  for (const auto type : kTypes)
    for (const std::size_t bytes : kSizes)
      for (const std::size_t offset : kOffsets) {
        bytes_at host(bytes, 63 - offset);
        bytes_at device(bytes, offset);
        std::memcpy(host.get(), test_data(), bytes);
        write_parallel(pool_, GetParam(), type, device.get(), host.get(), bytes);
        ASSERT_TRUE(device.holds(test_data())) << describe(bytes, offset, type);
      }
}

TEST_P(CpuCopy, ReadsEveryByteAndNoOther) {
  for (const auto type : kTypes)
    for (const std::size_t bytes : kSizes)
      for (const std::size_t offset : kOffsets) {
        bytes_at host(bytes, 63 - offset);
        bytes_at device(bytes, offset);
        std::memcpy(device.get(), test_data(), bytes);
        read_parallel(pool_, GetParam(), type, host.get(), device.get(), bytes);
        ASSERT_TRUE(host.holds(test_data())) << describe(bytes, offset, type);
      }
}

TEST_P(CpuCopy, FillsByDeviceAddress) {
  constexpr std::uint64_t kPattern = 0x0123'4567'89AB'CDEFu;
  for (const auto type : kTypes)
    for (const std::size_t bytes : kSizes)
      for (const std::size_t offset : kOffsets) {
        bytes_at device(bytes, offset);
        fill_parallel(pool_, GetParam(), type, device.get(), kPattern, bytes);
        const auto lead = static_cast<int>(reinterpret_cast<std::uintptr_t>(device.get()) % 8);
        const std::uint64_t first = std::rotr(kPattern, 8 * lead);
        std::vector<unsigned char> expected(bytes + 8);
        for (std::size_t i = 0; i < bytes; i += 8) std::memcpy(&expected[i], &first, 8);
        ASSERT_TRUE(device.holds(expected.data())) << describe(bytes, offset, type);
      }
}

TEST_P(CpuCopy, CopiesHostMemory) {
  for (const std::size_t bytes : kSizes)
    for (const std::size_t offset : kOffsets) {
      bytes_at source(bytes, 63 - offset);
      bytes_at destination(bytes, offset);
      std::memcpy(source.get(), test_data(), bytes);
      copy_host_parallel(pool_, GetParam(), destination.get(), source.get(), bytes);
      ASSERT_TRUE(destination.holds(test_data())) << describe(bytes, offset);
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, CpuCopy, testing::Values(0u, 1u, 2u, 64u),
                         [](const auto& width) { return "Width" + std::to_string(width.param); });

TEST(CpuCopyAlone, APoolWithoutHelpersCopiesToo) {
  constexpr std::size_t kBytes = 100000;
  worker_pool pool({.helpers = 0, .cpus = {}});
  bytes_at device(kBytes, 9);
  write_parallel(pool, 4, arch::mapping_type::wc, device.get(), test_data(), kBytes);
  EXPECT_TRUE(device.holds(test_data()));
}

}  // namespace
}  // namespace pl::copy
