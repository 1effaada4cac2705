// SPDX-License-Identifier: Apache-2.0
// Which accesses the routines make to the mapping, instruction by instruction: what the byte checks cannot see. The bus
// is paid by the access, and a flag written as two halves is a bug that no final content shows.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "arch/copy_routines.hpp"
#include "test/arch/access_recorder.hpp"
#include "test/arch/copy_checker.hpp"

namespace pl::arch {

namespace {

using check::access;
using check::access_recorder;

constexpr std::size_t kLine = 64;

class AccessShape : public testing::TestWithParam<copy_ops> {
 protected:
  void SetUp() override {
    if (!access_recorder::works()) GTEST_SKIP() << "single-stepping by the trap flag does not work here";
    recorder_ = std::make_unique<access_recorder>();
    std::memset(host_, 0x5a, sizeof host_);
  }

  const copy_ops& ops() const { return GetParam(); }
  bool is(const char* name) const { return std::strcmp(ops().name, name) == 0; }

  std::vector<access> record_write(std::size_t offset, std::size_t bytes) {
    std::memset(recorder_->page(), 0xa5, access_recorder::kPageBytes);
    return recorder_->record([&] { ops().write(recorder_->page() + offset, host_ + 1, bytes); });
  }
  std::vector<access> record_fill(std::size_t offset, std::size_t bytes) {
    std::memset(recorder_->page(), 0xa5, access_recorder::kPageBytes);
    return recorder_->record([&] { ops().fill(recorder_->page() + offset, 0x0101010101010101u, bytes); });
  }
  std::vector<access> record_read(std::size_t offset, std::size_t bytes) {
    return recorder_->record([&] { ops().read(host_ + 1, recorder_->page() + offset, bytes); });
  }

  std::unique_ptr<access_recorder> recorder_;
  unsigned char host_[access_recorder::kPageBytes + 64];
};

TEST_P(AccessShape, AlignedWordsAreOneStoreOfTheirWidth) {
  for (const std::size_t bytes : {1u, 2u, 4u, 8u}) {
    for (std::size_t offset = 0; offset < 2 * kLine; offset += bytes) {
      for (const auto& accesses : {record_write(offset, bytes), record_fill(offset, bytes)}) {
        ASSERT_EQ(accesses.size(), 1u) << bytes << " bytes at " << offset;
        EXPECT_TRUE(accesses[0].is_write);
        EXPECT_EQ(accesses[0].offset, offset);
        EXPECT_EQ(accesses[0].bytes, bytes);
      }
    }
  }
}

TEST_P(AccessShape, AlignedWordsAreOneLoad) {
  for (const std::size_t bytes : {1u, 2u, 4u, 8u}) {
    for (std::size_t offset = 0; offset < 2 * kLine; offset += bytes) {
      const auto accesses = record_read(offset, bytes);
      ASSERT_EQ(accesses.size(), 1u) << bytes << " bytes at " << offset;
      EXPECT_FALSE(accesses[0].is_write);
      EXPECT_EQ(accesses[0].offset, offset);
    }
  }
}

TEST_P(AccessShape, NothingIsNoAccess) {
  EXPECT_TRUE(record_write(5, 0).empty());
  EXPECT_TRUE(record_fill(5, 0).empty());
  EXPECT_TRUE(record_read(5, 0).empty());
}

// Stores: ascending, without overlap or gap, only writes, each within one line and (but for masked lines) naturally
// aligned powers of two; whole lines with as few stores as the instruction set allows.
TEST_P(AccessShape, WritesAreNaturalPiecesAndWholeLines) {
  const std::size_t widest = is("movdir64b") || is("avx512") || is("avx512_masked") ? 64
                             : is("avx2")                                           ? 32
                             : is("sse2") || is("sse41")                            ? 16
                                                                                    : 8;
  for (std::size_t offset = 0; offset < kLine; ++offset) {
    for (const std::size_t bytes : {3u, 15u, 31u, 63u, 64u, 65u, 100u, 128u, 192u, 300u}) {
      for (const auto& accesses : {record_write(offset, bytes), record_fill(offset, bytes)}) {
        std::size_t position = offset;
        for (const access& one : accesses) {
          ASSERT_TRUE(one.is_write);
          ASSERT_EQ(one.offset, position) << bytes << " bytes at " << offset;
          ASSERT_EQ(one.offset / kLine, (one.offset + one.bytes - 1) / kLine);
          if (!is("avx512_masked")) {
            ASSERT_EQ(one.bytes & (one.bytes - 1), 0u);
            ASSERT_EQ(one.offset % one.bytes, 0u) << bytes << " bytes at " << offset;
          }
          const std::size_t line = position - position % kLine;
          const bool whole_line = line >= offset && line + kLine <= offset + bytes;
          if (whole_line) { ASSERT_EQ(one.bytes, widest) << bytes << " bytes at " << offset; }
          position += one.bytes;
        }
        ASSERT_EQ(position, offset + bytes);
      }
    }
  }
}

// Loads: any read inside one line is one line access, and in general each line is loaded once.
TEST_P(AccessShape, ReadsTakeEachLineOnce) {
  // How many loads a line takes follows from the routine, which several entries may share.
  const std::size_t per_line = ops().read == avx512::read  ? 1
                               : ops().read == avx2::read  ? 2
                               : ops().read == sse41::read ? 4
                                                           : 0;  // portable and SSE2 do not over-read whole lines
  for (std::size_t offset = 0; offset < kLine; ++offset) {
    for (const std::size_t bytes : {3u, 15u, 16u, 31u, 61u, 64u, 65u, 200u, 1024u, 1100u}) {
      const auto accesses = record_read(offset, bytes);
      const std::size_t lines = (offset + bytes + kLine - 1) / kLine;
      if (per_line != 0) {
        ASSERT_EQ(accesses.size(), lines * per_line) << bytes << " bytes at " << offset;
        for (std::size_t i = 0; i < accesses.size(); ++i) ASSERT_EQ(accesses[i].offset / kLine, i / per_line);
      } else if (ops().read == sse2::read) {
        ASSERT_EQ(accesses.size(), (offset % 16 + bytes + 15) / 16) << bytes << " bytes at " << offset;
      }
      for (const access& one : accesses) {
        ASSERT_FALSE(one.is_write);
        ASSERT_LT(one.offset, lines * kLine);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AccessShape, testing::ValuesIn(supported_copy_ops().begin(), supported_copy_ops().end()),
                         [](const auto& entry) { return std::string(entry.param.name); });

TEST(AccessShapeCached, AlignedWordsAreOneStoreOfTheirWidth) {
  if (!access_recorder::works()) GTEST_SKIP() << "single-stepping by the trap flag does not work here";
  access_recorder recorder;
  const std::uint64_t value = 0x0101010101010101u;
  for (const std::size_t bytes : {1u, 2u, 4u, 8u}) {
    std::memset(recorder.page(), 0xa5, access_recorder::kPageBytes);
    const auto accesses = recorder.record([&] { cached::write(recorder.page() + 24, &value, bytes); });
    ASSERT_EQ(accesses.size(), 1u);
    EXPECT_EQ(accesses[0].bytes, bytes);
  }
}

// The helper that skips the table for words, which is what flags go through.
TEST(AccessShapeHelpers, CopyToIsOneStoreForAWord) {
  if (!access_recorder::works()) GTEST_SKIP() << "single-stepping by the trap flag does not work here";
  access_recorder recorder;
  const std::uint64_t value = 0x0101010101010101u;
  std::uint64_t back = 0;
  for (const std::size_t bytes : {1u, 2u, 4u, 8u}) {
    std::memset(recorder.page(), 0xa5, access_recorder::kPageBytes);
    const auto writes = recorder.record([&] { copy_to(mapping_type::device, recorder.page() + 40, &value, bytes); });
    ASSERT_EQ(writes.size(), 1u);
    EXPECT_EQ(writes[0].bytes, bytes);
    const auto reads = recorder.record([&] { copy_from(mapping_type::device, &back, recorder.page() + 40, bytes); });
    EXPECT_EQ(reads.size(), 1u);
  }
  EXPECT_EQ(back, value);
}

}  // namespace
}  // namespace pl::arch
