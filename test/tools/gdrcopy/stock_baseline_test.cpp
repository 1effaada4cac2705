// SPDX-License-Identifier: Apache-2.0
// A comparison with a baseline that copies wrongly would be worthless: every alignment and size, on plain memory.
#include "tools/gdrcopy/stock_baseline.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace pl::tools::baseline {
namespace {

constexpr std::size_t kWindow = 1024;

struct aligned_window {
  std::unique_ptr<unsigned char, void (*)(void*)> memory{static_cast<unsigned char*>(std::aligned_alloc(64, kWindow)),
                                                         std::free};
  unsigned char* data() { return memory.get(); }
};

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> out;
  for (std::size_t bytes = 0; bytes <= 200; ++bytes) out.push_back(bytes);
  out.insert(out.end(), {255, 256, 257, 511, 512, 700});
  return out;
}

TEST(baseline_copy, writes_exactly_the_bytes_at_every_alignment) {
  aligned_window device;
  std::vector<unsigned char> host(kWindow), wanted(kWindow);
  for (std::size_t i = 0; i < kWindow; ++i) host[i] = static_cast<unsigned char>(i * 7 + 1);
  for (std::size_t offset = 0; offset < 64; ++offset)
    for (const std::size_t bytes : sizes()) {
      std::memset(device.data(), 0xEE, kWindow);
      std::fill(wanted.begin(), wanted.end(), static_cast<unsigned char>(0xEE));
      std::memcpy(wanted.data() + offset, host.data() + bytes % 61, bytes);
      copy_to_mapping(device.data() + offset, host.data() + bytes % 61, bytes);
      ASSERT_EQ(std::memcmp(device.data(), wanted.data(), kWindow), 0) << bytes << " bytes at " << offset;
    }
}

TEST(baseline_copy, reads_exactly_the_bytes_at_every_alignment) {
  aligned_window device;
  std::vector<unsigned char> host(kWindow), wanted(kWindow);
  for (std::size_t i = 0; i < kWindow; ++i) device.data()[i] = static_cast<unsigned char>(i * 11 + 5);
  for (std::size_t offset = 0; offset < 64; ++offset)
    for (const std::size_t bytes : sizes()) {
      std::fill(host.begin(), host.end(), static_cast<unsigned char>(0xEE));
      std::fill(wanted.begin(), wanted.end(), static_cast<unsigned char>(0xEE));
      std::memcpy(wanted.data() + bytes % 61, device.data() + offset, bytes);
      copy_from_mapping(host.data() + bytes % 61, device.data() + offset, bytes);
      ASSERT_EQ(host, wanted) << bytes << " bytes at " << offset;
    }
}

}  // namespace
}  // namespace pl::tools::baseline
