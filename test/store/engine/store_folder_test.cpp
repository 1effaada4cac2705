// SPDX-License-Identifier: Apache-2.0
// Folders of stopped stores: check names what is damaged, repair saves what is good, a backup comes back as it was.
#include "store/engine/store_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;

class StoreFolder : public StoreTest {
 protected:
  static constexpr int kKeys = 40;
  std::string data() const { return folder_.path() + "/data"; }
  std::string other() const { return folder_.path() + "/other"; }
  engine_options options() override {
    engine_options made = StoreTest::options();
    made.extent_file_bytes = std::uint64_t{1} << 20;
    return made;
  }
  static std::string name_of_key(int key) { return "key" + std::to_string(key); }
  static std::string value_for(int key) {
    const std::size_t size = key == 39 ? (9u << 20) + 5 : key % 4 == 0 ? kLarge : kSmall;
    const bytes made = pattern_bytes(size, static_cast<std::uint64_t>(key));
    return text(made);
  }
  static void fill(engine& store, pool_id pool) {
    for (int key = 0; key < kKeys; ++key) {
      const auto level = key % 2 == 0 ? durability::durable : durability::logged;
      ASSERT_TRUE(store.put(pool, name_of_key(key), as_bytes(value_for(key)),
                            {.level = level, .user_flags = static_cast<std::uint32_t>(key)}));
    }
    for (int key = 1; key < kKeys; key += 10) ASSERT_TRUE(store.erase(pool, name_of_key(key)));
  }
  static bool is_there(int key) { return key % 10 != 1; }
  // Runs in a process that is killed.
  void fill_and_die() {
    store_.reset();
    const pid_t child = ::fork();
    if (child == 0) {
      auto opened = engine::open(options());
      if (opened) fill(**opened, pool_);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
  }
  std::unique_ptr<engine> open_other() {
    engine_options settings = options();
    settings.directory = other();
    auto opened = engine::open(settings);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  static void flip(const std::string& path, std::uintmax_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 16);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  std::string largest(const std::string& suffix) const {
    std::string out;
    for (const auto& one : fs::directory_iterator(data() + "/index"))
      if (one.path().string().ends_with(suffix) && (out.empty() || one.file_size() > fs::file_size(out))) out = one.path();
    return out;
  }
  static bool names(const std::vector<std::string>& lines, const std::string& wanted) {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& one) { return one.find(wanted) != std::string::npos; });
  }
  // Checks a repaired folder: each key is right or in the list of losses.
  void expect_saved(const repair_report& report, int at_least) {
    const auto made = open_other();
    ASSERT_NE(made, nullptr);
    const auto pool = made->find_pool("pool");
    ASSERT_TRUE(pool);
    int saved = 0;
    for (int key = 0; key < kKeys; ++key) {
      const std::string got = read(*made, pool->id, name_of_key(key));
      if (got == "errno 2") {
        if (is_there(key)) { EXPECT_TRUE(names(report.lost, "'" + name_of_key(key) + "'")) << key; }
        continue;
      }
      EXPECT_TRUE(is_there(key)) << key << " is back";
      EXPECT_TRUE(got == value_for(key)) << key;
      EXPECT_EQ(made->stat(pool->id, name_of_key(key))->user_flags, static_cast<std::uint32_t>(key));
      ++saved;
    }
    EXPECT_GE(saved, at_least);
    EXPECT_EQ(static_cast<std::uint64_t>(saved), report.saved_keys);
    const auto checked = made->check(true);
    ASSERT_TRUE(checked);
    EXPECT_TRUE(checked->problems.empty());
  }
};

TEST_F(StoreFolder, AGoodFolderIsGoodAfterAStopAndAfterAKill) {
  fill(*store_, pool_);
  EXPECT_EQ(check_folder(data()).code(), EBUSY);
  EXPECT_EQ(backup_folder(data(), other()).code(), EBUSY);
  store_.reset();
  for (int turn = 0; turn < 2; ++turn) {
    const auto report = check_folder(data());
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->is_good()) << report->problems.front();
    EXPECT_EQ(report->keys, 36u);
    EXPECT_EQ(report->values_read, 36u);
    if (turn == 0) fill_and_die();
  }
  EXPECT_EQ(check_folder(folder_.path()).code(), ENOENT);
}

TEST_F(StoreFolder, CheckAndRepairNameWhatAnExtentFileTakesAlong) {
  fill(*store_, pool_);
  store_.reset();
  fs::remove(data() + "/extents/000000.extents");
  const auto report = check_folder(data());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->opens);
  ASSERT_FALSE(report->problems.empty());
  EXPECT_TRUE(names(report->problems, "pool 'pool', key 'key0': its extent file is missing"));
  const auto repaired = repair_folder(data(), other());
  ASSERT_TRUE(repaired) << repaired.error().message;
  EXPECT_EQ(repaired->lost.size(), report->problems.size());
  expect_saved(*repaired, 25);
}

TEST_F(StoreFolder, AFlippedBitOfAValueCostsThatValue) {
  fill(*store_, pool_);
  store_.reset();
  flip(data() + "/extents/000000.extents", 5000);
  const auto report = check_folder(data());
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_TRUE(names(report->problems, "key 'key0': its value in the extents has another checksum"));
  const auto repaired = repair_folder(data(), other());
  ASSERT_TRUE(repaired);
  expect_saved(*repaired, 35);
}

TEST_F(StoreFolder, ADamagedLogIsRepairedFromBothSidesOfTheDamage) {
  fill_and_die();
  const std::string log = largest(".log");
  for (const std::uintmax_t offset : {fs::file_size(log) / 3, fs::file_size(log) / 2, fs::file_size(log) - 20}) {
    fs::remove_all(other());
    flip(log, offset);
    const auto report = check_folder(data());
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->opens);
    EXPECT_TRUE(names(report->problems, "acknowledged and are lost")) << report->problems.front();
    const auto repaired = repair_folder(data(), other());
    ASSERT_TRUE(repaired) << repaired.error().message;
    EXPECT_TRUE(names(repaired->lost, "of the index's log"));
    expect_saved(*repaired, 30);
    flip(log, offset);
  }
  EXPECT_TRUE(check_folder(data())->is_good());
}

TEST_F(StoreFolder, ADamagedTableIsRepairedFromBothSides) {
  fill(*store_, pool_);
  store_.reset();
  const std::string table = largest(".sst");
  flip(table, fs::file_size(table) / 2);
  const auto report = check_folder(data());
  ASSERT_TRUE(report);
  EXPECT_TRUE(names(report->problems, "a table of the index is damaged")) << report->problems.front();
  const auto repaired = repair_folder(data(), other());
  ASSERT_TRUE(repaired) << repaired.error().message;
  EXPECT_TRUE(names(repaired->lost, "a table of the index is damaged"));
  // Small values have no second record: their keys are told as a range.
  const auto made = open_other();
  ASSERT_NE(made, nullptr);
  int saved = 0;
  for (int key = 0; key < kKeys; ++key) {
    const std::string got = read(*made, made->find_pool("pool")->id, name_of_key(key));
    if (got != "errno 2") { EXPECT_TRUE(is_there(key) && got == value_for(key)) << key; }
    saved += got != "errno 2";
  }
  EXPECT_GT(saved, 15);
}

TEST_F(StoreFolder, WithoutCurrentOrManifestTheCopyOfTheStopIsUsed) {
  fill(*store_, pool_);
  store_.reset();
  for (const auto& one : fs::directory_iterator(data() + "/index")) {
    const std::string name = one.path().filename().string();
    if (name != "CURRENT" && !name.starts_with("MANIFEST-")) continue;
    const std::string path = one.path().string(), kept = folder_.path() + "/kept";
    fs::rename(path, kept);
    EXPECT_EQ(engine::open(options()).code(), EUCLEAN) << name;
    fs::remove_all(other());
    const auto repaired = repair_folder(data(), other());
    ASSERT_TRUE(repaired) << name << repaired.error().message;
    EXPECT_TRUE(repaired->lost.empty()) << repaired->lost.front();
    expect_saved(*repaired, 36);
    fs::rename(kept, path);
  }
}

TEST_F(StoreFolder, ABackupComesBackAsItWasUnderANewIdentity) {
  fill(*store_, pool_);
  const std::string identity = store_->identity();
  store_.reset();
  const std::string backup = folder_.path() + "/backup";
  for (int turn = 0; turn < 2; ++turn) {  // of a store that was stopped, and of one that was killed
    fs::remove_all(backup);
    fs::remove_all(other());
    const auto copied = backup_folder(data(), backup);
    ASSERT_TRUE(copied) << copied.error().message;
    EXPECT_EQ(copied->values_read, 36u);
    EXPECT_EQ(restore_folder(backup, data()).code(), ENOTEMPTY);
    const auto restored = restore_folder(backup, other());
    ASSERT_TRUE(restored) << restored.error().message;
    {
      const auto made = open_other();
      ASSERT_NE(made, nullptr);
      EXPECT_NE(made->identity(), identity);
      const auto pool = made->find_pool("pool");
      ASSERT_TRUE(pool);
      for (int key = 0; key < kKeys; ++key)
        EXPECT_TRUE(read(*made, pool->id, name_of_key(key)) == (is_there(key) ? value_for(key) : "errno 2")) << key;
      EXPECT_TRUE(made->put(pool->id, "more", as_bytes("value")));
    }
    if (turn == 0) fill_and_die();
  }
}

TEST_F(StoreFolder, NoBackupOfADamagedStoreAndNoRestoreOfADamagedBackup) {
  fill(*store_, pool_);
  store_.reset();
  const std::string backup = folder_.path() + "/backup";
  ASSERT_TRUE(backup_folder(data(), backup));
  std::vector<std::string> files;
  for (const auto& one : fs::recursive_directory_iterator(backup))
    if (one.is_regular_file() && one.file_size() > 0) files.push_back(one.path().string());
  for (const std::string& path : files) {
    flip(path, fs::file_size(path) / 2);
    EXPECT_EQ(restore_folder(backup, other()).code(), EUCLEAN) << path;
    EXPECT_FALSE(fs::exists(other() + "/index"));
    flip(path, fs::file_size(path) / 2);
  }
  ASSERT_TRUE(restore_folder(backup, other()));
  flip(data() + "/extents/000000.extents", 5000);
  const auto refused = backup_folder(data(), folder_.path() + "/second");
  EXPECT_EQ(refused.code(), EUCLEAN);
  EXPECT_NE(refused.error().message.find("key 'key0'"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(fs::is_empty(folder_.path() + "/second"));
}

// Another store at the place of an open one gets none of its files, and that one's values stay where it was put.
// The process may open `more` files than it has open now.
class few_descriptors {
 public:
  explicit few_descriptors(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    const rlimit now{static_cast<rlim_t>(next + more), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  few_descriptors(const few_descriptors&) = delete;
  ~few_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(StoreFolder, TooFewDescriptorsAreNotDamage) {
  fill(*store_, pool_);
  store_.reset();
  bool is_good = false;
  for (int more = 0; more < 200 && !is_good; ++more) {
    const few_descriptors few(more);
    const auto found = check_folder(data());
    if (!found) continue;
    ASSERT_TRUE(found->is_good()) << more << " more: " << found->problems.front();
    is_good = true;
  }
  EXPECT_TRUE(is_good);
}

TEST_F(StoreFolder, AFolderThatIsReplacedWhileItIsOpenGetsNothing) {
  store_.reset();
  int opened[2], replaced[2];
  ASSERT_TRUE(::pipe(opened) == 0 && ::pipe(replaced) == 0);
  char token = 0;
  const pid_t child = ::fork();  // a process has one index at a path
  if (child == 0) {
    open();
    fill(*store_, pool_);
    const bool is_replaced = ::write(opened[1], "o", 1) == 1 && ::read(replaced[0], &token, 1) == 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the place is looked at five times a second
    bool is_right = is_replaced && put("late", "value") == EROFS;
    is_right = is_right && store_->read_only_reason().find("moved or replaced") != std::string::npos;
    for (int key = 0; key < kKeys; ++key) is_right = is_right && (read(name_of_key(key)) == value_for(key)) == is_there(key);
    is_right = is_right && store_->close().code() == ENOENT;
    store_.reset();
    ::_exit(is_right ? 0 : 1);
  }
  ASSERT_EQ(::read(opened[0], &token, 1), 1);
  fs::rename(data(), other());
  open();
  const auto pool = store_->create_pool("next", {});
  ASSERT_TRUE(pool);
  ASSERT_TRUE(store_->put(pool->id, "k", as_bytes("value")));
  ASSERT_EQ(::write(replaced[1], "r", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int one : {opened[0], opened[1], replaced[0], replaced[1]}) ::close(one);
  EXPECT_FALSE(fs::exists(data() + "/manifest.copy")) << "the first one's";
  EXPECT_EQ(read(*store_, pool->id, "k"), "value");
  ASSERT_TRUE(store_->close());
  store_.reset();
  const auto next = check_folder(data()), moved = check_folder(other());
  ASSERT_TRUE(next && moved);
  EXPECT_EQ(next->problems.size() + moved->problems.size(), 0u);
  fs::remove_all(data());
  fs::rename(other(), data());
  open();
  for (int key = 0; key < kKeys; ++key) EXPECT_EQ(read(name_of_key(key)) == value_for(key), is_there(key)) << key;
  EXPECT_EQ(put("late", "value"), 0);
}

// The last change before a stop is not the last chance to notice it.
TEST_F(StoreFolder, AFolderThatIsDeletedIsNoticedAtTheStop) {
  ASSERT_EQ(put("k", "value"), 0);
  fs::remove_all(data());
  const auto closed = store_->close();
  EXPECT_EQ(closed.code(), ENOENT);
  EXPECT_NE(closed.error().message.find("deleted"), std::string::npos);
  store_.reset();
  EXPECT_FALSE(fs::exists(data()));
}

}  // namespace
}  // namespace pl::store
