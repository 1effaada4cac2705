// SPDX-License-Identifier: Apache-2.0
#include "arch/crc32c.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

namespace pl::arch {
namespace {

TEST(crc32c, KnownValues) {
  struct {
    std::string_view text;
    std::uint32_t crc;
  } const known[] = {
      {"", 0}, {"a", 0xc1d04330}, {"123456789", 0xe3069283}, {"The quick brown fox jumps over the lazy dog", 0x22620404}};
  for (const auto& one : known) {
    EXPECT_EQ(crc32c(one.text.data(), one.text.size()), one.crc) << one.text;
    EXPECT_EQ(crc32c_portable(one.text.data(), one.text.size()), one.crc) << one.text;
  }
  const std::vector<unsigned char> zeros(32, 0), ones(32, 0xff);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones.data(), 32), 0x62a8ab43u);
}

// Every boundary of the streams' and the folded blocks, at odd addresses, from the start and as a continuation.
TEST(crc32c, AllWaysAgreeAtEveryLengthThatMatters) {
  std::mt19937 random(7);
  std::vector<unsigned char> data(40000);
  for (auto& byte : data) byte = static_cast<unsigned char>(random());
  for (const std::size_t around : {0u, 8u, 256u, 512u, 768u, 1024u, 1536u, 4096u, 12288u, 24576u, 36864u})
    for (std::size_t bytes = around < 9 ? 0 : around - 9; bytes < around + 9; ++bytes)
      for (const std::size_t skew : {0u, 1u, 7u})
        for (const std::uint32_t before : {0u, 0x9e3779b9u}) {
          const std::uint32_t right = crc32c_portable(&data[skew], bytes, before);
          ASSERT_EQ(crc32c(&data[skew], bytes, before), right) << bytes << " at " << skew;
          ASSERT_EQ(crc32c_streams(&data[skew], bytes, before), right) << bytes << " at " << skew;
        }
}

// Both ways of storing, at all skews of both ends against a line, with the bytes around it left alone.
TEST(crc32c, CopiesWhatItSums) {
  std::mt19937 random(9);
  std::vector<unsigned char> data(40000);
  for (auto& byte : data) byte = static_cast<unsigned char>(random());
  std::vector<unsigned char> destination(data.size() + 256);
  for (const std::size_t bytes : {0u, 1u, 63u, 511u, 512u, 513u, 575u, 1023u, 4096u, 16384u, 16385u, 38000u})
    for (const std::size_t skew : {0u, 1u, 63u})
      for (const std::size_t begin : {0u, 1u, 8u})
        for (const bool non_temporal : {false, true}) {
          std::fill(destination.begin(), destination.end(), static_cast<unsigned char>(0xa5));
          unsigned char* const target = &destination[64 + skew];
          ASSERT_EQ(crc32c_copy(target, &data[begin], bytes, 77, non_temporal), crc32c_portable(&data[begin], bytes, 77))
              << bytes << " from " << begin << " to " << skew << (non_temporal ? " past the cache" : "");
          ASSERT_TRUE(std::equal(target, target + bytes, &data[begin])) << bytes << " from " << begin << " to " << skew;
          ASSERT_TRUE(target[-1] == 0xa5 && target[bytes] == 0xa5) << bytes << " from " << begin << " to " << skew;
        }
}

TEST(crc32c, ContinuesAndCombines) {
  std::mt19937 random(8);
  std::vector<unsigned char> data(20000);
  for (auto& byte : data) byte = static_cast<unsigned char>(random());
  const std::uint32_t whole = crc32c(data.data(), data.size());
  for (const std::size_t cut : {0u, 1u, 4095u, 12288u, 19999u, 20000u}) {
    const std::uint32_t first = crc32c(data.data(), cut), second = crc32c(&data[0] + cut, data.size() - cut);
    EXPECT_EQ(crc32c(&data[0] + cut, data.size() - cut, first), whole) << cut;
    EXPECT_EQ(crc32c_combine(first, second, data.size() - cut), whole) << cut;
  }
}

// Pages are summed from 0 and without complement: what crc32c gives, less what the start and the end do to it.
TEST(crc32c, JoinsPages) {
  for (const std::size_t bytes : {1u, 4095u, 4096u, 4097u, 8192u, 100'000u}) {
    std::vector<unsigned char> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 37 + i / 251);
    std::vector<std::uint32_t> pages;
    std::size_t last = 0;
    for (std::size_t offset = 0; offset < bytes; offset += last) {
      last = std::min(kCrcPageBytes, bytes - offset);
      pages.push_back(~crc32c(data.data() + offset, last, ~0u));
    }
    EXPECT_EQ(crc32c_join_pages(pages, last), crc32c(data.data(), bytes)) << bytes;
  }
  EXPECT_EQ(crc32c_join_pages({}, 0), 0u);
}

}  // namespace
}  // namespace pl::arch
