// SPDX-License-Identifier: Apache-2.0
// The system's disk: what is written, staged or not, whole or as it comes, is what is read.
#include "store/engine/disk.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "store/engine/fill_progress.hpp"
#include "test/messaging/refused_call.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

struct free_aligned {
  void operator()(std::byte* memory) const { std::free(memory); }
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
  std::vector<block_io> cut(std::byte* memory, std::size_t max_bytes) const {
    std::vector<block_io> made;
    for (std::size_t done = 0; done < kBytes;) {
      const std::size_t size = std::min(made.size() % 3 == 1 ? kBlockBytes : max_bytes, kBytes - done);
      made.push_back(block_io{file_, done, memory + done, size});
      done += size;
    }
    return made;
  }
  void expect_on_disk(const bytes& expected) {
    const auto got = memory_of(kBytes);
    std::memset(got.get(), 0, kBytes);
    ASSERT_TRUE(files_->read(cut(got.get(), kBytes)));
    EXPECT_EQ(std::memcmp(got.get(), expected.data(), kBytes), 0);
  }

  temporary_folder folder_;
  std::unique_ptr<disk> files_ = make_system_disk(GetParam());
  int file_ = -1;
};

TEST_P(SystemDisk, WritesWhatItIsGiven) {
  const auto memory = memory_of(kBytes);
  for (const std::size_t max_bytes : {kBytes, std::size_t{3} << 20, std::size_t{5} * kBlockBytes}) {
    const bytes expected = pattern_bytes(kBytes, max_bytes);
    std::memcpy(memory.get(), expected.data(), kBytes);
    ASSERT_TRUE(files_->write(cut(memory.get(), max_bytes)));
    expect_on_disk(expected);  // and a read in between, which uses the same ring
  }
}

// Opens a block at a time, and only when its bytes are there.
class slow_gate final : public block_gate {
 public:
  slow_gate(std::span<const block_io> blocks, const bytes& source) {
    copier_ = std::thread([this, blocks, &source] {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::memcpy(blocks[i].data, source.data() + blocks[i].offset_bytes, blocks[i].size_bytes);
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
  fill_progress filled_;  // counts blocks
  std::thread copier_;
};

TEST_P(SystemDisk, WritesBlocksAsTheyCome) {
  const auto memory = memory_of(kBytes);
  for (const std::size_t max_bytes : {std::size_t{1} << 20, std::size_t{3} << 20}) {
    std::memset(memory.get(), 0xee, kBytes);
    const bytes expected = pattern_bytes(kBytes, 77 + max_bytes);
    const auto blocks = cut(memory.get(), max_bytes);
    {
      slow_gate gate(blocks, expected);
      ASSERT_TRUE(files_->write_when_ready(blocks, gate));
    }
    expect_on_disk(expected);
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

// A container's filter: of all of io_uring, or of the calls behind the one that makes a ring.
TEST(SystemDiskUnderAFilter, WritesAndReadsWithoutRings) {
  for (const long refused : {SYS_io_uring_setup, SYS_io_uring_enter})
    for (const int code : {EPERM, ENOSYS}) {
      const pid_t child = fork();
      if (child == 0) {
        if (!messaging::refuse_call(refused, code)) _exit(2);
        const temporary_folder folder;
        const auto files = make_system_disk(staging::never);
        const auto memory = memory_of(kBlockBytes);
        std::memset(memory.get(), 0x5a, kBlockBytes);
        const int file = *files->open_file(folder.path() + "/file", kBlockBytes, false);
        const block_io whole{file, 0, memory.get(), kBlockBytes};
        const bool is_written = files->write({&whole, 1}).ok();
        std::memset(memory.get(), 0, kBlockBytes);
        const bool is_read = files->read({&whole, 1}).ok() && memory[kBlockBytes - 1] == std::byte{0x5a};
        std::filesystem::remove_all(folder.path());
        _exit(is_written && is_read ? 0 : 1);
      }
      int state = -1;
      ASSERT_EQ(waitpid(child, &state, 0), child);
      EXPECT_EQ(state, 0) << refused << " " << code;
    }
}

INSTANTIATE_TEST_SUITE_P(Disk, SystemDisk, ::testing::Values(staging::never, staging::always),
                         [](const auto& instance) { return instance.param == staging::never ? "InPlace" : "Staged"; });

}  // namespace
}  // namespace pl::store
