// SPDX-License-Identifier: Apache-2.0
#include "base/regular_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/text.hpp"

namespace pl {
namespace {

namespace fs = std::filesystem;

class regular_file : public testing::Test {
 protected:
  regular_file() {
    std::string pattern = (fs::temp_directory_path() / "peerlane-regular-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~regular_file() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

TEST_F(regular_file, IsOpenedAsByTheSystemCall) {
  const auto made = open_regular_file(at("file"), O_RDWR | O_CREAT | O_APPEND, 0640);
  ASSERT_TRUE(made) << made.error().message;
  const int flags = fcntl(*made, F_GETFL);
  EXPECT_EQ(flags & O_ACCMODE, O_RDWR);
  EXPECT_EQ(flags & O_APPEND, O_APPEND);
  EXPECT_EQ(flags & O_NONBLOCK, 0) << "requests of io_uring would end with EAGAIN";
  EXPECT_EQ(fcntl(*made, F_GETFD), FD_CLOEXEC);
  close(*made);
  EXPECT_EQ(open_regular_file(at("file"), O_WRONLY | O_CREAT | O_EXCL).code(), EEXIST);
  EXPECT_EQ(open_regular_file(at("none"), O_RDONLY).code(), ENOENT);
  fs::create_symlink("file", at("link"));
  const auto by_link = open_regular_file(at("link"), O_RDONLY);
  ASSERT_TRUE(by_link);
  close(*by_link);
}

// open() of a FIFO waits for its other end.
TEST_F(regular_file, NothingElseIsWaitedFor) {
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  fs::create_directory(at("folder"));
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR | O_CREAT}) {
    const auto fifo = open_regular_file(at("fifo"), flags);
    EXPECT_EQ(fifo.code(), ENOTSUP);
    EXPECT_NE(fifo.error().message.find("a FIFO"), std::string::npos);
    EXPECT_EQ(open_regular_file(at("folder"), flags).code(), EISDIR);
    EXPECT_EQ(open_regular_file("/dev/null", flags).code(), ENOTSUP);
  }
  EXPECT_TRUE(need_regular_file(at("none")));
  EXPECT_EQ(need_regular_file(at("fifo")).code(), ENOTSUP);
}

TEST_F(regular_file, APipeOfTheShellIsNoNamedPipe) {
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_EQ(need_no_named_pipe(at("fifo")).code(), ENOTSUP);
  EXPECT_TRUE(need_no_named_pipe(at("none")));
  EXPECT_TRUE(need_no_named_pipe("/dev/null"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(need_no_named_pipe(format("/dev/fd/%d", ends[0])));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace pl
