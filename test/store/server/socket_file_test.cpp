// SPDX-License-Identifier: Apache-2.0
// The file of the server's socket: servers that start at the same moment, and a file that somebody removes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>

#include "store/protocol/byte_channel.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using namespace std::chrono_literals;

// A socket at the path; without a listener, it is what a server leaves that was killed.
int socket_at(const std::string& path, bool listens) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  if (listens) { EXPECT_EQ(listen(fd, 5), 0); }
  return fd;
}

template <class Condition>
bool becomes(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
  return condition();
}

class socket_file : public testing::Test {
 protected:
  std::string log() const {
    std::ifstream file(rig_.config.log);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  store_rig rig_;
  const std::string path_ = rig_.directory() + "/s.sock";
};

TEST_F(socket_file, AServerDoesNotRemoveTheSocketOfOneThatStartsAtTheSameMoment) {
  rig_.config.socket = path_;
  close(socket_at(path_, false));
  // The other server is between its look at the path and its own socket.
  const int folder = open(rig_.directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(folder, LOCK_EX), 0);
  int code = 0;
  std::string text;
  std::thread second([&] {
    const auto made = store_server::server::open(rig_.config);
    code = made.code();
    if (!made) text = made.error().message;
  });
  std::this_thread::sleep_for(500ms);
  const int other = socket_at(path_, true);
  close(folder);
  second.join();
  EXPECT_EQ(code, EADDRINUSE) << text;
  EXPECT_TRUE(store_client::is_listened_to(path_));
  close(other);
}

TEST_F(socket_file, AForeignLockOfTheFolderDelaysAServerOnly) {
  const int folder = open(rig_.directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(folder, LOCK_EX), 0);
  rig_.config.socket = path_;
  ASSERT_NO_FATAL_FAILURE(rig_.start());
  EXPECT_TRUE(store_client::is_listened_to(path_));
  close(folder);
}

TEST_F(socket_file, IsMadeAgainWhenSomebodyRemovesIt) {
  rig_.config.socket = path_;
  rig_.config.socket_mode = "0600";
  ASSERT_NO_FATAL_FAILURE(rig_.start());
  auto options = rig_.over_unix();
  options.server.socket = path_;
  const auto before = store_rig::open(options);
  const auto pool = before->create_pool("p", {});
  ASSERT_TRUE(pool);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(unlink(path_.c_str()), 0);
    ASSERT_TRUE(becomes([&] { return store_client::is_listened_to(path_); })) << log();
    const auto mode = std::filesystem::status(path_).permissions();
    EXPECT_EQ(static_cast<unsigned>(mode & std::filesystem::perms::all), 0600u);
    const auto after = store_rig::open(options);
    ASSERT_NE(after, nullptr);
    EXPECT_TRUE(after->open_pool("p"));
    EXPECT_EQ(put(*before, *pool, "k", random_value(100'000, 1)).status, 0) << "connections stay";
  }
  EXPECT_EQ(before->reconnects(), 0u);
  EXPECT_NE(log().find("socket_made_again"), std::string::npos) << log();
  rig_.stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(socket_file, OfSomebodyElseIsLeftAlone) {
  rig_.config.socket = path_;
  ASSERT_NO_FATAL_FAILURE(rig_.start());
  const int other = socket_at(path_, true);
  EXPECT_TRUE(becomes([&] { return log().find("socket_lost") != std::string::npos; }));
  EXPECT_TRUE(store_rig::open(rig_.over_tcp()) != nullptr) << "the server goes on";
  close(other);
  ASSERT_EQ(unlink(path_.c_str()), 0);  // as the log says
  EXPECT_TRUE(becomes([&] { return store_client::is_listened_to(path_); })) << log();
}

// Its folder is not the one of the start, and may belong to another store.
TEST_F(socket_file, IsNotMadeInAnotherFolder) {
  const std::string folder = rig_.directory() + "/run", path = folder + "/s.sock";
  std::filesystem::create_directory(folder);
  rig_.config.socket = path;
  ASSERT_NO_FATAL_FAILURE(rig_.start());
  std::filesystem::rename(folder, folder + ".old");
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(becomes([&] { return log().find("socket_lost") != std::string::npos; }));
  std::this_thread::sleep_for(1500ms);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace pl::store_test
