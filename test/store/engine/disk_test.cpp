// SPDX-License-Identifier: Apache-2.0
// The system's disk: what is written, staged or not, whole or as it comes, is what is read.
#include "store/engine/disk.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "store/engine/fill_progress.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

struct free_aligned {
  void operator()(std::byte* at) const { std::free(at); }
};
using blocks_memory = std::unique_ptr<std::byte[], free_aligned>;

blocks_memory memory_of(std::size_t size) {
  return blocks_memory(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, size)));
}

class SystemDisk : public ::testing::TestWithParam<staging> {
 protected:
  // More parts than are under way at once, and a last one that is not whole; small ones between.
  static constexpr std::size_t kBytes = (std::size_t{21} << 20) + 3 * kBlockBytes;
  void SetUp() override {
    auto opened = files_->open_file(folder_.path() + "/file", kBytes, false);
    ASSERT_TRUE(opened) << opened.error().message;
    file_ = *opened;
  }
  void TearDown() override {
    if (file_ >= 0) files_->close_file(file_);
  }
  std::vector<block_io> cut(std::byte* at, std::size_t most) const {
    std::vector<block_io> made;
    for (std::size_t done = 0; done < kBytes;) {
      const std::size_t size = std::min(made.size() % 3 == 1 ? kBlockBytes : most, kBytes - done);
      made.push_back(block_io{file_, done, at + done, size});
      done += size;
    }
    return made;
  }
  void expect_on_disk(const bytes& what) {
    const auto got = memory_of(kBytes);
    std::memset(got.get(), 0, kBytes);
    ASSERT_TRUE(files_->read(cut(got.get(), kBytes)));
    EXPECT_EQ(std::memcmp(got.get(), what.data(), kBytes), 0);
  }

  temporary_folder folder_;
  std::unique_ptr<disk> files_ = make_system_disk(GetParam());
  int file_ = -1;
};

TEST_P(SystemDisk, WritesWhatItIsGiven) {
  const auto memory = memory_of(kBytes);
  for (const std::size_t most : {kBytes, std::size_t{3} << 20, std::size_t{5} * kBlockBytes}) {
    const bytes what = pattern(kBytes, most);
    std::memcpy(memory.get(), what.data(), kBytes);
    ASSERT_TRUE(files_->write(cut(memory.get(), most)));
    expect_on_disk(what);  // and a read in between, which uses the same ring
  }
}

// Opens a block at a time, and only when its bytes are there.
class slow_gate final : public block_gate {
 public:
  slow_gate(std::span<const block_io> blocks, const bytes& from) {
    copier_ = std::thread([this, blocks, &from] {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::memcpy(blocks[i].data, from.data() + blocks[i].offset_bytes, blocks[i].size_bytes);
        filled_.reach(i + 1);
      }
    });
  }
  ~slow_gate() override { copier_.join(); }
  std::size_t ready(std::size_t passed, bool wait) override {
    if (wait) filled_.wait_for(passed + 1);
    return filled_.reached();
  }

 private:
  filling filled_;  // counts blocks
  std::thread copier_;
};

TEST_P(SystemDisk, WritesBlocksAsTheyCome) {
  const auto memory = memory_of(kBytes);
  for (const std::size_t most : {std::size_t{1} << 20, std::size_t{3} << 20}) {
    std::memset(memory.get(), 0xee, kBytes);
    const bytes what = pattern(kBytes, 77 + most);
    const auto blocks = cut(memory.get(), most);
    {
      slow_gate gate(blocks, what);
      ASSERT_TRUE(files_->write_when_ready(blocks, gate));
    }
    expect_on_disk(what);
  }
}

TEST_P(SystemDisk, AfterAFailureNothingIsWaitedFor) {
  const auto memory = memory_of(kBytes);
  std::memset(memory.get(), 1, kBytes);
  auto blocks = cut(memory.get(), std::size_t{1} << 20);
  class half_open final : public block_gate {
   public:
    std::size_t ready(std::size_t passed, bool wait) override {
      EXPECT_FALSE(wait && passed > 0) << "waits for what will not be written";
      return 1;
    }
  } gate;
  const int read_only = *files_->open_file(folder_.path() + "/file", 0, true);
  blocks[0].file = read_only;
  const status written = files_->write_when_ready(blocks, gate);
  files_->close_file(read_only);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, EBADF);
  blocks[0].file = file_;
  EXPECT_TRUE(files_->write(blocks)) << "the disk works on";
}

INSTANTIATE_TEST_SUITE_P(Disk, SystemDisk, ::testing::Values(staging::never, staging::always),
                         [](const auto& of) { return of.param == staging::never ? "InPlace" : "Staged"; });

}  // namespace
}  // namespace pl::store
