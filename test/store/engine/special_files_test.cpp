// SPDX-License-Identifier: Apache-2.0
// Something else has the name of a file of the store: a FIFO is not waited for, a device without an end is not read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "store/engine/store_folder.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;

class SpecialFiles : public StoreTest {
 protected:
  std::string data() const { return folder_.path() + "/data"; }
  std::string other() const { return folder_.path() + "/other"; }
  void fill_and_stop() {
    ASSERT_EQ(put("small", "value"), 0);
    ASSERT_EQ(put("large", std::string(kLarge, 'x')), 0);
    store_.reset();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> out{"lock", "commit.mark", "manifest.copy", "extents/000000.extents"};
    for (const auto& one : fs::directory_iterator(data() + "/index"))
      out.push_back("index/" + one.path().filename().string());
    return out;
  }
  failure opening_of(const std::string& folder) {
    engine_options settings = options();
    settings.directory = folder;
    const auto opened = engine::open(settings);
    return opened ? failure{0, {}} : opened.error();
  }
};

TEST_F(SpecialFiles, AFifoIsRefusedAndNotWaitedFor) {
  fill_and_stop();
  const std::string copy = folder_.path() + "/copy";
  for (const std::string& name : files()) {
    fs::remove_all(copy);
    fs::copy(data(), copy, fs::copy_options::recursive);
    fs::remove(copy + "/" + name);
    ASSERT_EQ(::mkfifo((copy + "/" + name).c_str(), 0600), 0);
    (void)check_folder(copy);  // these end
    (void)backup_folder(copy, other());
    fs::remove_all(other());
    (void)repair_folder(copy, other());
    fs::remove_all(other());
    const failure refused = opening_of(copy);
    // Only a value is lost with an extent file, and the copy of the manifest is made again.
    const bool is_served = name.starts_with("extents/") || name == "manifest.copy";
    EXPECT_EQ(refused.code == 0, is_served) << name << ": " << refused.message;
    if (!is_served) { EXPECT_NE(refused.message.find(name + ": it is a FIFO"), std::string::npos) << refused.message; }
  }
}

TEST_F(SpecialFiles, ADeviceWithoutAnEndIsNotRead) {
  fill_and_stop();
  for (const char* const name : {"commit.mark", "manifest.copy", "index/CURRENT"}) {
    fs::rename(data() + "/" + name, folder_.path() + "/aside");
    fs::create_symlink("/dev/zero", data() + "/" + name);
    (void)check_folder(data());
    (void)repair_folder(data(), other());
    fs::remove_all(other());
    fs::remove(data() + "/" + name);
    fs::rename(folder_.path() + "/aside", data() + "/" + name);
  }
  ASSERT_TRUE(backup_folder(data(), other()));
  fs::remove(other() + "/backup.list");
  fs::create_symlink("/dev/zero", other() + "/backup.list");
  EXPECT_EQ(restore_folder(other(), folder_.path() + "/new").code(), ENOTSUP);
}

// How many bytes this process has read by system calls.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t count = 0;
  while (file >> name >> count)
    if (name == "rchar:") return count;
  return 0;
}

// Extent files are allocated as a whole, and mostly not written.
TEST_F(SpecialFiles, ABackupReadsNoBlocksThatWereNeverWritten) {
  constexpr std::uint64_t kFileBytes = std::uint64_t{256} << 20;
  const std::string probe = folder_.path() + "/probe";
  const int file = ::open(probe.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  const bool is_allocated = ::fallocate(file, 0, 0, 1 << 20) == 0;
  const bool is_hole = ::lseek(file, 0, SEEK_DATA) < 0;
  ::close(file);
  if (!is_allocated || !is_hole)
    GTEST_SKIP() << "the file system of " << folder_.path() << " takes allocated blocks for data";
  store_.reset();
  fs::remove_all(data());
  engine_options settings = options();
  settings.extent_file_bytes = kFileBytes;
  {
    auto opened = engine::open(settings);
    ASSERT_TRUE(opened) << opened.error().message;
    const auto pool = (*opened)->create_pool("p", {});
    ASSERT_TRUE(pool);
    ASSERT_TRUE((*opened)->put(pool->id, "large", as_bytes(std::string(1 << 20, 'x')), {}));
  }
  const std::uint64_t before = bytes_read();
  ASSERT_GT(before, 0u);
  const auto done = backup_folder(data(), other());
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_LT(bytes_read() - before, kFileBytes / 4);
}

// A backup that fails removes what it has copied. Until the last of it is gone, the mark says that it is no store.
TEST_F(SpecialFiles, TheMarkOfAnUnfinishedCopyGoesLast) {
  fill_and_stop();
  { std::ofstream(data() + "/extents/000000.extents", std::ios::in | std::ios::out | std::ios::binary) << "damage"; }
  fs::create_directory(other());
  const int events = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(events, other().c_str(), IN_DELETE), 0);
  ASSERT_EQ(backup_folder(data(), other()).code(), EUCLEAN);
  std::vector<std::string> gone;
  alignas(inotify_event) char room[4096];
  for (ssize_t got; (got = ::read(events, room, sizeof room)) > 0;)
    for (ssize_t offset = 0; offset < got;) {
      const auto* const one = reinterpret_cast<const inotify_event*>(room + offset);
      gone.emplace_back(one->name);
      offset += static_cast<ssize_t>(sizeof *one + one->len);
    }
  ::close(events);
  EXPECT_GE(gone.size(), 3u);
  ASSERT_FALSE(gone.empty());
  EXPECT_EQ(gone.back(), "unfinished");
  EXPECT_TRUE(fs::is_empty(other()));
}

}  // namespace
}  // namespace pl::store
