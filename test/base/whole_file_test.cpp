// SPDX-License-Identifier: Apache-2.0
#include "base/whole_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace pl {
namespace {

namespace fs = std::filesystem;

class whole_file : public testing::Test {
 protected:
  whole_file() {
    std::string pattern = (fs::temp_directory_path() / "peerlane-whole-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~whole_file() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  std::string folder_;
};

TEST_F(whole_file, ReplacesAndLeavesNothingBeside) {
  EXPECT_TRUE(is_replaceable(at("new")));
  ASSERT_TRUE(write_whole_file(at("new"), "first, and longer"));
  EXPECT_TRUE(is_replaceable(at("new")));
  ASSERT_TRUE(write_whole_file(at("new"), "second"));
  EXPECT_EQ(read(at("new")), "second");
  EXPECT_EQ(files(), 1u);
  struct stat about {};
  ASSERT_EQ(stat(at("new").c_str(), &about), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(about.st_mode & 0777u, 0666u & ~mask);
}

TEST_F(whole_file, AFailureLeavesTheFileAsItWas) {
  const auto missing = write_whole_file(at("none/file"), "text");
  EXPECT_EQ(missing.code(), ENOENT);
  EXPECT_EQ(missing.error().message, "ENOENT (No such file or directory)");
  fs::create_directory(at("folder"));
  EXPECT_FALSE(is_replaceable(at("folder")));
  EXPECT_EQ(write_whole_file(at("folder"), "text").code(), EISDIR);
  EXPECT_EQ(files(), 1u);
}

// `peerlane ... --json /dev/full` by root made a file of the device.
TEST_F(whole_file, ADeviceIsWrittenToAndStays) {
  if (mknod(at("full").c_str(), S_IFCHR | 0666, makedev(1, 7)) == 0) {
    // Where a folder may not have devices, it cannot be opened; it stays all the same.
    const int code = write_whole_file(at("full"), "text").code();
    EXPECT_TRUE(code == ENOSPC || code == EACCES) << code;
    struct stat about {};
    ASSERT_EQ(stat(at("full").c_str(), &about), 0);
    EXPECT_TRUE(S_ISCHR(about.st_mode));
    EXPECT_FALSE(is_replaceable(at("full")));
  }
  EXPECT_EQ(write_whole_file("/proc/self/fd/none", "text").code(), ENOENT);
}

TEST_F(whole_file, APipeGetsTheText) {
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  std::string came;
  std::thread reader([&] { came = read(at("pipe")); });
  EXPECT_TRUE(write_whole_file(at("pipe"), "through the pipe"));
  reader.join();
  EXPECT_EQ(came, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

TEST_F(whole_file, ALinkStaysAndItsTargetIsWritten) {
  fs::create_directory(at("other"));
  ASSERT_TRUE(write_whole_file(at("other/target"), "before"));
  fs::create_symlink("other/target", at("link"));
  ASSERT_TRUE(write_whole_file(at("link"), "after"));
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(read(at("other/target")), "after");
}

TEST_F(whole_file, ALinkOfTheTemporaryNameIsNotFollowed) {
  ASSERT_TRUE(write_whole_file(at("victim"), "untouched"));
  fs::create_symlink("victim", at("result." + std::to_string(getpid()) + ".tmp"));
  ASSERT_TRUE(write_whole_file(at("result"), "text"));
  EXPECT_EQ(read(at("victim")), "untouched");
  EXPECT_EQ(read(at("result")), "text");
}

// A command that ^C ends while it writes a long value.
TEST_F(whole_file, AProcessThatIsKilledLeavesNoPart) {
  const std::string text(std::size_t{8} << 20, 'x');
  const int without_name = open(folder_.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
  if (without_name < 0) GTEST_SKIP() << "the file system of " << folder_ << " has no files without a name (O_TMPFILE)";
  close(without_name);
  for (int turn = 0; turn < 10; ++turn) {
    const pid_t child = fork();
    if (child == 0)
      for (;;) (void)write_whole_file(at("file"), text);
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + turn));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    for (const auto& one : fs::directory_iterator(folder_)) EXPECT_EQ(one.file_size(), text.size()) << one.path();
  }
}

TEST_F(whole_file, is_read_to_its_end_or_not_at_all) {
  const std::string text(200'001, 'x');
  std::ofstream(at("file")) << text;
  ASSERT_TRUE(read_whole_file(at("file")));
  EXPECT_EQ(*read_whole_file(at("file")), text);
  EXPECT_EQ(read_whole_file(at("missing")).code(), ENOENT);
  // It opens, and fails when it is read. std::istreambuf_iterator throws there.
  EXPECT_EQ(read_whole_file(folder_).code(), EISDIR);
  EXPECT_EQ(file_text_or_empty(folder_), "");
}

TEST_F(whole_file, of_more_than_is_asked_for_is_an_error) {
  const std::string text(100'000, 'x');
  std::ofstream(at("file")) << text;
  EXPECT_EQ(*read_whole_file(at("file"), text.size()), text);
  EXPECT_EQ(read_whole_file(at("file"), text.size() - 1).code(), EFBIG);
  EXPECT_EQ(read_whole_file(at("file"), 0).code(), EFBIG);
  EXPECT_EQ(read_whole_file("/dev/zero", 1'000'000).code(), EFBIG);
}

TEST_F(whole_file, pipe_is_read_until_its_writers_end_and_none_is_waited_for) {
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(*read_whole_file(at("pipe")), "");
  const int writer = open(at("pipe").c_str(), O_RDWR);  // does not wait for a reader
  ASSERT_GE(writer, 0);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(::write(writer, "text", 4), 4);
    close(writer);
  });
  EXPECT_EQ(*read_whole_file(at("pipe")), "text");
  late.join();
}

// Threads of others may have so little.
TEST_F(whole_file, IsReadWithASmallStack) {
  std::ofstream(at("file")) << std::string(200'000, 'x');
  struct call {
    std::string path;
    result<std::string> text = std::string();
  } made{at("file")};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
  pthread_t thread;
  const auto body = [](void* given) -> void* {
    auto& to_make = *static_cast<call*>(given);
    to_make.text = read_whole_file(to_make.path);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, &made), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  ASSERT_TRUE(made.text);
  EXPECT_EQ(made.text->size(), 200'000u);
}

}  // namespace
}  // namespace pl
