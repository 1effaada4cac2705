// SPDX-License-Identifier: Apache-2.0
// The words that copy engines were seen to understand (H100, driver 580.159.04), spelt out.
#include "dma/commands.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

using namespace pl::dma;
using words = std::vector<std::uint32_t>;

template <class Build>
words written(Build build) {
  std::uint32_t room[64] = {};
  command_writer commands(room);
  build(commands);
  return {room, room + commands.words()};
}

TEST(commands, ACopy) {
  const auto seen = written([](command_writer& writer) {
    writer.copy(0x1'2000'0040, 0x3'4000'0080, 4096, launch::kPipelined | launch::kReleaseWord);
  });
  EXPECT_EQ(seen, (words{0x20088100, 0x3, 0x40000080, 0x1, 0x20000040, 0, 0, 4096, 1, 0x818980c0}));
  EXPECT_LE(seen.size(), command_writer::kCopyWords);
}

TEST(commands, RowsSayTheirPitches) {
  const auto seen =
      written([](command_writer& writer) { writer.copy(0x1000, 0x2000, 300, launch::kPipelined, 100, 1024, 512); });
  EXPECT_EQ(seen, (words{0x20088100, 0, 0x2000, 0, 0x1000, 512, 1024, 300, 100, 0x838180c0}));
}

TEST(commands, TheNextOfAListSetsAddressesAlone) {
  const auto seen = written([](command_writer& writer) { writer.copy_again(0x1000, 0x2000, launch::kPipelined); });
  EXPECT_EQ(seen, (words{0x20048100, 0, 0x2000, 0, 0x1000, 0x818180c0}));
  EXPECT_EQ(seen.size(), command_writer::kBlockWords);
}

// list_writer writes what command_writer does, in fewer instructions.
TEST(commands, AListOfBlocks) {
  constexpr std::uint64_t kTarget = 0x1'2345'6780, kOrigin = 0x3'8765'4320;
  std::uint32_t room[128] = {};
  list_writer list(room);
  EXPECT_TRUE(list.is_empty());
  for (const std::uint32_t size : {4096u, 4096u, 512u, 512u}) list.add(kTarget + size, kOrigin + size, size);
  list.end(0x5'0000'0040, 9, launch::kReleaseWord | launch::kFlush);
  const auto expected = written([&](command_writer& writer) {
    writer.copy(kTarget + 4096, kOrigin + 4096, 4096, launch::kPipelined);
    writer.copy_again(kTarget + 4096, kOrigin + 4096, launch::kPipelined);
    writer.copy(kTarget + 512, kOrigin + 512, 512, launch::kPipelined);
    writer.copy_again(kTarget + 512, kOrigin + 512, launch::kPipelined);
  });
  const auto seen = list.commands();
  words want(expected.begin(), expected.end() - 1);  // the end stands in the place of the last block's launch
  words end(command_writer::kCompletionWords + 1);
  command_writer last(end);
  last.completion(0x5'0000'0040, 9);
  last.launch(launch::kPitchLayouts | launch::kPipelined | launch::kReleaseWord | launch::kFlush);
  want.insert(want.end(), end.begin(), end.end());
  EXPECT_EQ(words(seen.begin(), seen.end()), want);
  list.restart();
  list.add(kTarget, kOrigin, 512);
  EXPECT_EQ(list.words(), 10u) << "what lies between two parts may have set another size";
}

TEST(commands, ACompletionWord) {
  const auto seen = written([](command_writer& writer) { writer.completion(0x5'0000'0000, 7); });
  EXPECT_EQ(seen, (words{0x20038090, 5, 0, 7}));
  EXPECT_EQ(seen.size(), command_writer::kCompletionWords);
}

TEST(commands, AFill) {
  const auto seen = written([](command_writer& writer) { writer.fill(0x1'0000'1000, 0xabcd, 64, launch::kPipelined); });
  EXPECT_EQ(seen, (words{0x200181c0, 0xabcd, 0x200181c2, 0x30004, 0x20028102, 1, 0x1000, 0x20028106, 64, 1, 0x858180c0}));
  EXPECT_LE(seen.size(), command_writer::kFillWords);
}

TEST(commands, AFillOfBytes) {
  const auto seen =
      written([](command_writer& writer) { writer.fill(0x1001, 0x5a5a'5a5a, 3, launch::kPipelined, kRemapFill8); });
  EXPECT_EQ(seen, (words{0x200181c0, 0x5a5a5a5a, 0x200181c2, 0x4, 0x20028102, 0, 0x1001, 0x20028106, 3, 1, 0x858180c0}));
}

TEST(commands, AnAddition) {
  const auto seen = written([](command_writer& writer) { writer.launch_word(launch::kReleaseWord | launch::kAddWord); });
  EXPECT_EQ(seen, (words{0x200180c0, 0x000d4008}));
}

TEST(commands, AnAcquire) {
  const auto seen = written([](command_writer& writer) { writer.acquire(0x5'0000'0010, 9); });
  EXPECT_EQ(seen, (words{0x20050017, 0x10, 5, 9, 0, 3}));
  EXPECT_EQ(seen.size(), command_writer::kSemaphoreWords);
  EXPECT_EQ(written([](command_writer& writer) { writer.acquire(0, 9, true); }).back(), 0x1003u);
}

TEST(commands, ARingEntry) {
  EXPECT_EQ(ring_entry(0x2'0002'0040, 15), 0x2'0002'0040 | 15ull << 42);
  EXPECT_EQ(ring_entry(0x40, 1, true) >> 63, 1u);
}

}  // namespace
