// SPDX-License-Identifier: Apache-2.0
// Disks that fail while a folder is listed, or only when a value is read a second time: what was not read is named, or the
// command fails.
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <functional>
#include <string>

#include "base/folder_list.hpp"
#include "store/engine/store_folder.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace {

// Of folders whose path ends like this, this call of readdir fails, once.
std::string g_failing_folder;
std::atomic<int> g_good_calls{INT_MAX};
thread_local int t_failures = 0;

bool is_failing(DIR* folder) {
  if (g_good_calls.load() == INT_MAX) return false;
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(dirfd(folder));
  const ssize_t bytes = readlink(link.c_str(), path, sizeof path);
  if (bytes <= 0 || !std::string_view(path, static_cast<std::size_t>(bytes)).ends_with(g_failing_folder)) return false;
  if (g_good_calls.fetch_sub(1) != 0) return false;
  g_good_calls = INT_MAX;
  ++t_failures;
  errno = EIO;
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) dirent* readdir(DIR* folder) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(dlsym(RTLD_NEXT, "readdir"));
  return is_failing(folder) ? nullptr : real(folder);
}
extern "C" __attribute__((visibility("default"))) dirent64* readdir64(DIR* folder) {
  static const auto real = reinterpret_cast<dirent64* (*)(DIR*)>(dlsym(RTLD_NEXT, "readdir64"));
  return is_failing(folder) ? nullptr : real(folder);
}

namespace pl::store {
namespace {

namespace fs = std::filesystem;

// The system's disk; one of its reads fails.
class failing_disk final : public disk {
 public:
  failing_disk(int good_reads, int error) : good_reads_(good_reads), error_(error) {}
  result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) override {
    return disk_->open_file(path, size_bytes, read_only);
  }
  result<int> open_cached(const std::string& path, std::uint64_t size_bytes) override {
    return disk_->open_cached(path, size_bytes);
  }
  status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) override {
    return disk_->write_cached(file, offset_bytes, bytes);
  }
  void close_file(int file) noexcept override { disk_->close_file(file); }
  status write(std::span<const block_io> blocks) override { return disk_->write(blocks); }
  status read(std::span<const block_io> blocks) override {
    if (good_reads_-- != 0) return disk_->read(blocks);
    has_failed = true;
    return failure{error_, "the test's reason"};
  }
  status sync(int file) override { return disk_->sync(file); }
  result<std::uint64_t> free_bytes(const std::string& path) override { return disk_->free_bytes(path); }
  result<std::uint64_t> total_bytes(const std::string& path) override { return disk_->total_bytes(path); }
  std::string boot_id() override { return disk_->boot_id(); }

  std::atomic<bool> has_failed{false};

 private:
  std::unique_ptr<disk> disk_ = make_system_disk(staging::never);
  std::atomic<int> good_reads_;
  const int error_;
};

class Unreadable : public StoreTest {
 protected:
  static constexpr int kKeys = 4;
  std::string data() const { return folder_.path() + "/data"; }
  std::string other() const { return folder_.path() + "/other"; }
  static std::string name_of_key(int key) { return "key" + std::to_string(key); }
  static std::string value_for(int key) {
    return text(pattern_bytes(key == 0 ? (9u << 20) + 5 : kLarge, static_cast<std::uint64_t>(key)));
  }
  void SetUp() override {
    StoreTest::SetUp();
    for (int key = 0; key < kKeys; ++key) ASSERT_EQ(put(name_of_key(key), value_for(key)), 0);
    store_.reset();
  }
  void TearDown() override { g_good_calls = INT_MAX; }
  // The number of values that the repaired store has. Each is whole.
  int saved_values() {
    engine_options settings = options();
    settings.directory = other();
    const auto made = engine::open(settings);
    EXPECT_TRUE(made) << made.error().message;
    int count = 0;
    for (int key = 0; made && key < kKeys; ++key) {
      const std::string got = read(**made, (*made)->find_pool("pool")->id, name_of_key(key));
      count += got == value_for(key);
      EXPECT_TRUE(got == value_for(key) || got == "errno 2") << name_of_key(key);
    }
    return count;
  }
};

TEST_F(Unreadable, ARepairNamesAValueThatIsReadOnceAndNotAgain) {
  for (int good_reads = 0;; ++good_reads) {
    fs::remove_all(other());
    failing_disk files(good_reads, EIO);
    const auto repaired = repair_folder(data(), other(), &files);
    ASSERT_TRUE(repaired) << repaired.error().message;
    if (!files.has_failed) {
      EXPECT_GT(good_reads, 2 * kKeys - 1) << "each value is read twice";
      EXPECT_TRUE(repaired->lost.empty());
      return;
    }
    ASSERT_EQ(repaired->lost.size(), 1u) << "read " << good_reads;
    EXPECT_NE(repaired->lost.front().find("the test's reason"), std::string::npos) << repaired->lost.front();
    EXPECT_EQ(repaired->saved_keys, kKeys - 1u);
    EXPECT_EQ(saved_values(), kKeys - 1) << "read " << good_reads;
  }
}

TEST_F(Unreadable, ARepairThatIsShortOfMemoryFails) {
  for (int good_reads = 0;; ++good_reads) {
    fs::remove_all(other());
    failing_disk files(good_reads, ENOMEM);
    const auto repaired = repair_folder(data(), other(), &files);
    if (!files.has_failed) {
      EXPECT_TRUE(repaired) << repaired.error().message;
      return;
    }
    EXPECT_EQ(repaired.code(), ENOMEM);
    EXPECT_TRUE(fs::is_empty(other()));
  }
}

TEST_F(Unreadable, AListOfAFolderThatEndsEarlyIsAnError) {
  g_failing_folder = "/index";
  g_good_calls = 3;
  EXPECT_EQ(list_folder(data() + "/index").code(), EIO);
  EXPECT_EQ(list_folder(data() + "/none").code(), ENOENT);
  EXPECT_TRUE(list_folder(data() + "/index"));
}

// Whatever listing fails, nothing is copied in part, and the store can be used afterwards.
TEST_F(Unreadable, CommandsFailIfAFolderCannotBeListed) {
  const std::string backup = folder_.path() + "/backup";
  ASSERT_TRUE(backup_folder(data(), backup));
  const std::function<int()> commands[] = {
      [&] { return check_folder(data()).code(); },
      [&] { return backup_folder(data(), other()).code(); },
      [&] { return restore_folder(backup, other()).code(); },
      [&] {
        const auto repaired = repair_folder(data(), other());
        EXPECT_TRUE(!repaired || repaired->lost.empty()) << repaired->lost.front();
        return repaired.code();
      },
      [&] {
        const auto opened = engine::open(options());
        return opened ? (*opened)->close().code() : opened.code();
      },
  };
  int failed = 0;
  for (const char* folder : {"/index", "/extents"}) {
    for (const auto& command : commands) {
      for (int good_calls = 0;; good_calls += 7) {
        fs::remove_all(other());
        g_failing_folder = folder;
        g_good_calls = good_calls;
        t_failures = 0;
        const int code = command();
        g_good_calls = INT_MAX;
        const std::string place = std::string(folder) + ", call " + std::to_string(good_calls) + ", command " +
                                  std::to_string(&command - commands);
        if (t_failures == 0) break;
        EXPECT_TRUE(code == EIO || code == EUCLEAN || code == 0) << place << ": " << code;
        failed += code != 0;
        EXPECT_TRUE(code != 0 || !fs::exists(other() + "/index") || check_folder(other())->is_good()) << place;
        const auto report = check_folder(data());
        ASSERT_TRUE(report) << place << ": " << report.error().message;
        ASSERT_TRUE(report->is_good()) << place << ": " << report->problems.front();
      }
    }
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace pl::store
