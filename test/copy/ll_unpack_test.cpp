// SPDX-License-Identifier: Apache-2.0
#include "copy/ll_unpack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pl::copy {
namespace {

constexpr std::uint32_t kFlag = 0x8000'0007u;  // the sign bit too: comparisons must be of bits
constexpr std::uint32_t kOldFlag = 0x8000'0006u;
constexpr unsigned char kUnpackCanary = 0xC5;
constexpr std::size_t kUnpackMargin = 128;

// What a GPU does: one store of 8 bytes, data and flag.
void publish_half(void* lines, std::size_t half, std::uint32_t data, std::uint32_t flag) {
  auto* const word = static_cast<std::uint64_t*>(lines) + half;
  __atomic_store_n(word, data | std::uint64_t{flag} << 32, __ATOMIC_RELAXED);
}

unsigned char data_byte(std::size_t i) { return static_cast<unsigned char>(i * 131 + (i >> 8) * 7 + 1); }

std::uint32_t data_word(std::size_t half) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) word |= std::uint32_t{data_byte(half * 4 + i)} << (8 * i);
  return word;
}

std::size_t halves_of(std::size_t bytes) { return ll_line_bytes(bytes) / 8; }

// Lines at a chosen distance from a 64-byte boundary.
class line_memory {
 public:
  line_memory(std::size_t bytes, std::size_t offset) : memory_(ll_line_bytes(bytes) / 8 + 16) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = memory_.data() + ((64 - address % 64) % 64 + offset) / 8;
  }
  void* get() { return begin_; }
  void publish(std::size_t bytes, std::uint32_t flag = kFlag) {
    for (std::size_t half = 0; half < halves_of(bytes); ++half) publish_half(begin_, half, data_word(half), flag);
  }

 private:
  std::vector<std::uint64_t> memory_;
  std::uint64_t* begin_;
};

// A destination between canaries.
class destination {
 public:
  destination(std::size_t bytes, std::size_t offset)
      : bytes_(bytes), offset_(kUnpackMargin + offset), memory_(bytes + offset + 2 * kUnpackMargin, kUnpackCanary) {}
  void* get() { return memory_.data() + offset_; }

  // [begin, end) is the data, every other byte untouched. Empty: all right.
  std::string check(std::size_t begin, std::size_t end) const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool is_data = i >= offset_ + begin && i < offset_ + end;
      if (memory_[i] != (is_data ? data_byte(i - offset_) : kUnpackCanary))
        return "byte " + std::to_string(static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(offset_)) + " of " +
               std::to_string(bytes_) + (is_data ? " is wrong" : " was written");
    }
    return "";
  }

 private:
  std::size_t bytes_;
  std::size_t offset_;
  std::vector<unsigned char> memory_;
};

// How far unpacking gets if this half unit is the first with a wrong flag.
std::size_t stop_for(std::size_t wrong_half, std::size_t bytes) {
  return wrong_half * 4 >= bytes ? bytes : wrong_half * 4 / kLlBlockBytes * kLlBlockBytes;
}

class LlUnpack : public testing::TestWithParam<ll_unpack_variant> {
 protected:
  static std::size_t unpack(destination& target, line_memory& lines, std::size_t begin, std::size_t bytes) {
    return GetParam().unpack(target.get(), lines.get(), kFlag, begin, bytes);
  }
};

TEST_P(LlUnpack, EverySizeAtEveryAlignment) {
  for (const std::size_t line_offset : {0u, 16u, 48u}) {
    for (const std::size_t offset : {0u, 1u, 4u, 31u, 56u, 63u}) {
      for (std::size_t bytes = 0; bytes <= 600; ++bytes) {
        line_memory lines(bytes, line_offset);
        lines.publish(bytes);
        destination target(bytes, offset);
        ASSERT_EQ(unpack(target, lines, 0, bytes), bytes);
        ASSERT_EQ(target.check(0, bytes), "") << "at offset " << offset << ", lines at " << line_offset;
      }
    }
  }
}

TEST_P(LlUnpack, StopsAtTheBlockOfAWrongFlagWhereverItIs) {
  for (const std::size_t bytes : {1u, 4u, 8u, 60u, 64u, 65u, 128u, 200u, 256u, 320u, 500u, 512u, 777u}) {
    for (std::size_t wrong = 0; wrong < halves_of(bytes); ++wrong) {
      line_memory lines(bytes, 0);
      lines.publish(bytes);
      publish_half(lines.get(), wrong, data_word(wrong), kOldFlag);
      destination target(bytes, 3);
      const std::size_t stop = stop_for(wrong, bytes);
      ASSERT_EQ(unpack(target, lines, 0, bytes), stop) << "half unit " << wrong << " of " << bytes << " bytes";
      ASSERT_EQ(target.check(0, stop), "") << "half unit " << wrong;
      publish_half(lines.get(), wrong, data_word(wrong), kFlag);
      ASSERT_EQ(unpack(target, lines, stop, bytes), bytes);
      ASSERT_EQ(target.check(0, bytes), "") << "half unit " << wrong << ", second call";
    }
  }
}

TEST_P(LlUnpack, EveryBitOfTheFlagCounts) {
  constexpr std::size_t kBytes = 512;
  for (unsigned bit = 0; bit < 32; ++bit) {
    for (std::size_t half = 64; half < 128; ++half) {
      line_memory lines(kBytes, 0);
      lines.publish(kBytes);
      publish_half(lines.get(), half, data_word(half), kFlag ^ (1u << bit));
      destination target(kBytes, 0);
      ASSERT_EQ(unpack(target, lines, 0, kBytes), stop_for(half, kBytes)) << "bit " << bit << ", half unit " << half;
    }
  }
}

TEST_P(LlUnpack, DataThatEqualsTheFlagIsNoFlag) {
  constexpr std::size_t kBytes = 512;
  line_memory lines(kBytes, 0);
  for (std::size_t half = 0; half < halves_of(kBytes); ++half) publish_half(lines.get(), half, kFlag, kOldFlag);
  destination target(kBytes, 0);
  for (std::size_t begin = 0; begin < kBytes; begin += kLlBlockBytes) ASSERT_EQ(unpack(target, lines, begin, kBytes), begin);
  EXPECT_EQ(target.check(0, 0), "");
}

TEST_P(LlUnpack, BeginsAtEveryBlock) {
  constexpr std::size_t kBytes = 1000;
  for (std::size_t begin = 0; begin <= kBytes;
       begin = begin + kLlBlockBytes > kBytes && begin != kBytes ? kBytes : begin + 64) {
    line_memory lines(kBytes, 0);
    lines.publish(kBytes);
    destination target(kBytes, 5);
    ASSERT_EQ(unpack(target, lines, begin, kBytes), kBytes);
    ASSERT_EQ(target.check(begin, kBytes), "") << "from " << begin;
  }
}

TEST_P(LlUnpack, AHalfUnitWithoutDataIsNotWaitedFor) {
  for (const std::size_t bytes : {1u, 4u, 68u, 260u}) {  // an odd number of half units
    line_memory lines(bytes, 0);
    lines.publish(bytes);
    publish_half(lines.get(), halves_of(bytes) - 1, 0, kOldFlag);
    destination target(bytes, 0);
    ASSERT_EQ(unpack(target, lines, 0, bytes), bytes);
    ASSERT_EQ(target.check(0, bytes), "");
  }
}

// Random flags: all variants stop where the simple rule says, whatever is right behind it.
TEST_P(LlUnpack, StopsAtTheFirstOfManyWrongFlags) {
  const unsigned seed = 20240607;
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t bytes = 1 + random() % 1500;
    line_memory lines(bytes, 16 * (random() % 4));
    lines.publish(bytes);
    std::size_t first = halves_of(bytes);
    for (unsigned wrong = random() % 4; wrong > 0; --wrong) {
      const std::size_t half = random() % halves_of(bytes);
      first = std::min(first, half);
      publish_half(lines.get(), half, 0xDDDDDDDD, kOldFlag);
    }
    destination target(bytes, random() % 64);
    const std::size_t stop = stop_for(first, bytes);
    ASSERT_EQ(unpack(target, lines, 0, bytes), stop) << "seed " << seed << ", round " << round;
    ASSERT_EQ(target.check(0, stop), "") << "seed " << seed << ", round " << round;
  }
}

// The lines are used again and again, with the next flag each time, written in any order while the reader polls.
TEST_P(LlUnpack, FollowsAWriterThatPublishesInAnyOrder) {
  constexpr std::size_t kBytes = 3000;
  constexpr std::uint32_t kUses = 200;
  line_memory lines(kBytes, 0);
  std::atomic<std::uint32_t> consumed{0};
  std::thread writer([&] {
    std::mt19937 random(7);
    std::vector<std::size_t> order(halves_of(kBytes));
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::uint32_t use = 1; use <= kUses; ++use) {
      // Near its place, as a GPU's warps are: neighbours change places, and sometimes everything does.
      const std::size_t reach = use % 4 == 0 ? order.size() : 40;
      for (std::size_t i = 0; i < order.size(); i += reach)
        std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(i),
                     order.begin() + static_cast<std::ptrdiff_t>(std::min(i + reach, order.size())), random);
      for (const std::size_t half : order) publish_half(lines.get(), half, data_word(half) ^ use, use);
      while (consumed.load(std::memory_order_acquire) != use) std::this_thread::yield();
      std::sort(order.begin(), order.end());
    }
  });
  int wrong_words = 0;
  for (std::uint32_t use = 1; use <= kUses; ++use) {
    std::vector<std::uint32_t> target(kBytes / 4 + 1, 0xCCCCCCCC);
    for (std::size_t done = 0; done != kBytes;) {
      const std::size_t now = GetParam().unpack(target.data(), lines.get(), use, done, kBytes);
      if (now == done) std::this_thread::yield();
      done = now;
    }
    for (std::size_t half = 0; half < kBytes / 4; ++half) wrong_words += target[half] != (data_word(half) ^ use);
    wrong_words += target.back() != 0xCCCCCCCC;
    consumed.store(use, std::memory_order_release);
  }
  writer.join();
  EXPECT_EQ(wrong_words, 0);
}

INSTANTIATE_TEST_SUITE_P(Variants, LlUnpack, testing::ValuesIn(supported_ll_unpacks().begin(), supported_ll_unpacks().end()),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST(LlUnpackChoice, UnpacksToo) {
  constexpr std::size_t kBytes = 1023;
  line_memory lines(kBytes, 0);
  destination target(kBytes, 0);
  EXPECT_EQ(ll_unpack(target.get(), lines.get(), kFlag, 0, kBytes), 0u);
  lines.publish(kBytes);
  EXPECT_EQ(ll_unpack(target.get(), lines.get(), kFlag, 0, kBytes), kBytes);
  EXPECT_EQ(target.check(0, kBytes), "");
}

}  // namespace
}  // namespace pl::copy
