// SPDX-License-Identifier: Apache-2.0
// Disks that fail, fill up or forget: what callers are told, and what still works.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "store/engine/engine.hpp"
#include "store/engine/health.hpp"
#include "store/engine/index.hpp"
#include "store/engine/record.hpp"
#include "test/store/engine/disk_model.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

class Faults : public StoreTest {
 protected:
  static constexpr std::size_t kLong = (std::size_t{3} << 20) + 17;  // written while it is copied
  engine_options options() override {
    engine_options made = StoreTest::options();
    made.files = &disk_;
    made.disk_reserve_bytes = 4096;
    return made;
  }
  void SetUp() override {
    disk_.refuse = [this](std::string_view operation, std::string_view path) {
      const bool is_bad = operation == bad_operation_ && path.find(bad_path_) != std::string_view::npos;
      return is_bad ? bad_errno_.load() : 0;
    };
    StoreTest::SetUp();
  }
  // From now on this operation fails on files whose path holds `path`. The store must be idle.
  void fail(std::string_view operation, std::string_view path, int error) {
    bad_errno_ = 0;
    bad_operation_ = operation;
    bad_path_ = path;
    bad_errno_ = error;
  }
  void heal() { bad_errno_ = 0; }

  // Destroyed behind the store.
  disk_model disk_{folder_.path() + "/data", false};
  std::string bad_operation_, bad_path_;
  std::atomic<int> bad_errno_{0};

  void TearDown() override { store_.reset(); }
};

// A process without descriptors has a disk that is well.
TEST(Health, WantOfDescriptorsOrMemoryIsNoFailureOfTheDisk) {
  health state;
  for (const int code : {EMFILE, ENFILE, ENOMEM, ENOSPC}) {
    state.note(failure{code, "a file could not be opened"});
    EXPECT_TRUE(state.writable()) << code;
  }
  EXPECT_EQ(index_failure(rocksdb::Status::IOError("open", "Too many open files"), "writing").code, EMFILE);
  state.note(failure{EIO, "a write failed"});
  EXPECT_EQ(state.writable().code(), EROFS);
}

TEST_F(Faults, AnErrorOfTheDiskMakesItReadOnlyUntilReopened) {
  const struct {
    const char* operation;
    const char* path;
    std::size_t size;
  } cases[] = {{"write", ".extents", kLarge}, {"write", ".extents", kLong}, {"sync", ".extents", kLong},
               {"sync", ".extents", kLarge},  {"write", ".log", kSmall},    {"sync", ".log", kSmall}};
  for (const auto& test_case : cases) {
    ASSERT_TRUE(store_->put(pool_, "before", pattern_bytes(test_case.size, 1)));
    fail(test_case.operation, test_case.path, EIO);
    const auto failed = store_->put(pool_, "failed", pattern_bytes(test_case.size, 2));
    ASSERT_EQ(failed.code(), EIO) << test_case.operation << test_case.path;
    heal();  // it is not tried again, although it would work
    EXPECT_EQ(put("later", "value"), EROFS);
    EXPECT_EQ(store_->erase(pool_, "before").code(), EROFS);
    EXPECT_EQ(store_->create_pool("another", {}).code(), EROFS);
    EXPECT_TRUE(read("before") == text(pattern_bytes(test_case.size, 1)));
    EXPECT_EQ(read("failed"), "errno 2");
    EXPECT_FALSE(store_->read_only_reason().empty());
    EXPECT_TRUE(store_->stats().read_only);
    reopen();
    EXPECT_TRUE(read("before") == text(pattern_bytes(test_case.size, 1)));
    EXPECT_EQ(put("later", "value"), 0);
    expect_sound();
  }
}

TEST_F(Faults, AFullIndexDiskIsFullNotBroken) {
  ASSERT_TRUE(store_->put(pool_, "before", pattern_bytes(kLarge, 1)));
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(put("small", "value"), ENOSPC);
  EXPECT_EQ(store_->put(pool_, "large", pattern_bytes(kLarge, 2)).code(), ENOSPC);
  EXPECT_TRUE(read("before") == text(pattern_bytes(kLarge, 1)));
  EXPECT_TRUE(store_->read_only_reason().empty());
  EXPECT_EQ(store_->pool(pool_)->keys, 1u);
  heal();
  EXPECT_EQ(put("small", "value"), 0);
  EXPECT_TRUE(store_->put(pool_, "large", pattern_bytes(kLarge, 3)));
  EXPECT_EQ(store_->pool(pool_)->keys, 3u);
  reopen();
  EXPECT_EQ(read("small"), "value");
  EXPECT_TRUE(read("large") == text(pattern_bytes(kLarge, 3)));
  expect_sound();
}

// RocksDB takes a new log only where memory holds something to flush, and ends the process if it is asked to append to a
// log that has refused a write.
TEST_F(Faults, ALogThatRefusesItsFirstWriteIsReplaced) {
  for (int round = 0; round < 3; ++round) {
    reopen();  // with an empty log, and nothing in memory
    fail("write", ".log", ENOSPC);
    for (int again = 0; again < 5; ++again) EXPECT_EQ(put("small", "refused"), ENOSPC) << round << " " << again;
    heal();
    EXPECT_EQ(put("small", "value " + std::to_string(round)), 0);
    EXPECT_EQ(read("small"), "value " + std::to_string(round));
    fail("write", ".log", ENOSPC);
    EXPECT_EQ(put("small", "refused"), ENOSPC);
    const int synced = store_->sync(pool_).code();
    EXPECT_TRUE(synced == 0 || synced == ENOSPC) << synced;
    EXPECT_EQ(put("small", "refused"), ENOSPC);
    heal();
  }
  EXPECT_EQ(put("last", "value"), 0);
  reopen();
  EXPECT_EQ(read("small"), "value 2");
  EXPECT_EQ(read("last"), "value");
  expect_sound();
}

TEST_F(Faults, FailedChangesGiveOwnersBackWhatTheyCounted) {
  const owner_id ann = store_->need_owner("ann"), bob = store_->need_owner("bob");
  const pool_id other = make_pool("other", durability::durable);
  ASSERT_TRUE(store_->put(pool_, "small", pattern_bytes(kSmall, 1), {.owner = ann}));
  ASSERT_TRUE(store_->put(other, "large", pattern_bytes(kLarge, 1), {.owner = bob}));
  ASSERT_TRUE(store_->put(other, "volatile", pattern_bytes(kSmall, 1), {.level = durability::volatile_, .owner = bob}));
  const auto expect_counts = [&](std::uint64_t ann_bytes, std::uint64_t bob_bytes) {
    for (const owner_info& one : store_->list_owners()) EXPECT_EQ(one.bytes, one.name == "ann" ? ann_bytes : bob_bytes);
  };
  expect_counts(kSmall, kLarge + kSmall);
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(store_->put(pool_, "new", pattern_bytes(kSmall, 2), {.owner = bob}).code(), ENOSPC);
  EXPECT_EQ(store_->put(pool_, "small", pattern_bytes(kLarge, 2), {.owner = bob}).code(), ENOSPC);
  EXPECT_EQ(store_->put(other, "volatile", pattern_bytes(kLarge, 2), {.owner = ann}).code(), ENOSPC);
  EXPECT_EQ(store_->erase(other, "large").code(), ENOSPC);
  EXPECT_EQ(store_->delete_pool(other).code(), ENOSPC);
  const batch_operation both[] = {{.key = "small", .value = as_bytes("x")}, {.key = "new", .value = as_bytes("y")}};
  for (const bool atomic : {false, true}) {
    batch_options options;
    options.atomic = atomic;
    options.owner = bob;
    EXPECT_EQ(store_->batch(pool_, both, options).code(), ENOSPC);
  }
  expect_counts(kSmall, kLarge + kSmall);
  heal();
  EXPECT_EQ(store_->delete_pool(other).code(), 0);
  expect_counts(kSmall, 0);
  reopen();
  expect_counts(kSmall, 0);
  expect_sound();
}

TEST_F(Faults, ASyncAfterAFullIndexDiskIsAnErrorOrIsDone) {
  ASSERT_EQ(put("logged", "value", {.level = durability::logged}), 0);
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(put("small", "value"), ENOSPC);
  // The index may have made itself room by then: its tables are other files than its log.
  const int synced = store_->sync(pool_).code();
  EXPECT_TRUE(synced == 0 || synced == ENOSPC) << synced;
  const int closed = store_->close().code();
  EXPECT_TRUE(closed == 0 || closed == ENOSPC) << closed;
  heal();
  reopen();
  EXPECT_EQ(read("logged"), "value");
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(put("small", "value"), ENOSPC);
  heal();
  EXPECT_EQ(store_->sync(pool_).code(), 0);
  EXPECT_EQ(put("small", "value"), 0);
  reopen();
  EXPECT_EQ(read("small"), "value");
  expect_sound();
}

TEST_F(Faults, AStopSoonAfterAFullIndexDiskRecoversIt) {
  ASSERT_EQ(put("logged", "value", {.level = durability::logged}), 0);
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(put("small", "value"), ENOSPC);
  heal();
  const status closed = store_->close();
  EXPECT_TRUE(closed) << closed.error().message;
  reopen();
  EXPECT_EQ(read("logged"), "value");
  expect_sound();
}

TEST_F(Faults, AMarkThatCannotBeWrittenStopsTheNextChangeNotTheOneThatIsDone) {
  fail("write", "commit.mark", ENOSPC);
  EXPECT_EQ(put("a", "value"), 0);
  EXPECT_EQ(put("b", "value"), 0);
  fail("write", "commit.mark", EIO);
  EXPECT_EQ(put("c", "value"), 0);
  EXPECT_EQ(put("d", "value"), EIO);
  EXPECT_EQ(put("e", "value"), EROFS);
  EXPECT_EQ(read("c"), "value");
  heal();
  reopen();
  for (const char* key : {"a", "b", "c"}) EXPECT_EQ(read(key), "value") << key;
  EXPECT_EQ(read("d"), "errno 2");
  expect_sound();
}

TEST_F(Faults, BelowTheReservePutsAreRefusedAndErasesAreNot) {
  ASSERT_EQ(put("a", "value"), 0);
  fail("free", "", ENOSPC);
  int code = 0;
  for (int i = 0; i < 3000 && code == 0; ++i) code = put("b", std::string(8000, 'b'), {.level = durability::logged});
  EXPECT_EQ(code, ENOSPC);  // noticed after some megabytes at the latest
  EXPECT_TRUE(store_->stats().full);
  EXPECT_TRUE(store_->erase(pool_, "b"));
  heal();
  EXPECT_EQ(put("b", "value"), 0);
}

TEST_F(Faults, NoExtentFileMeansFull) {
  fail("allocate", ".extents", ENOSPC);
  EXPECT_EQ(store_->put(pool_, "large", pattern_bytes(kLarge, 1)).code(), ENOSPC);
  EXPECT_EQ(store_->put(pool_, "long", pattern_bytes(kLong, 1)).code(), ENOSPC);
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
  EXPECT_EQ(put("small", "value"), 0);
  heal();
  EXPECT_TRUE(store_->put(pool_, "large", pattern_bytes(kLarge, 1)));
}

TEST_F(Faults, AnUnreadableValueIsNamedAndTheRestServed) {
  ASSERT_TRUE(store_->put(pool_, "large", pattern_bytes(kLarge, 1)));
  ASSERT_EQ(put("small", "value"), 0);
  reopen();
  fail("read", "extents", EIO);
  bytes out(kLarge);
  const auto got = store_->get(pool_, "large", out);
  ASSERT_EQ(got.code(), EIO);
  EXPECT_NE(got.error().message.find("pool 'pool', key 'large', extent file 000000 at 0"), std::string::npos)
      << got.error().message;
  EXPECT_EQ(read("small"), "value");
  EXPECT_EQ(put("more", "value"), 0);
  heal();
  EXPECT_TRUE(read("large") == text(pattern_bytes(kLarge, 1)));
}

TEST_F(Faults, AFlippedBitIsNamed) {
  ASSERT_TRUE(store_->put(pool_, "good", pattern_bytes(kLarge, 1)));
  ASSERT_TRUE(store_->put(pool_, "bad", pattern_bytes(kLarge, 2)));
  store_.reset();
  const std::string path = folder_.path() + "/data/extents/000000.extents";
  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  char byte = 0;
  const off_t offset = (kLarge + kBlockBytes - 1) / kBlockBytes * kBlockBytes + 5000;
  ASSERT_EQ(::pread(file, &byte, 1, offset), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(file, &byte, 1, offset), 1);
  ::close(file);
  open();
  bytes out(kLarge);
  const auto got = store_->get(pool_, "bad", out);
  ASSERT_EQ(got.code(), EBADMSG);
  EXPECT_NE(got.error().message.find("key 'bad'"), std::string::npos) << got.error().message;
  EXPECT_NE(got.error().message.find("extent file 000000 at 102400"), std::string::npos) << got.error().message;
  EXPECT_TRUE(read("good") == text(pattern_bytes(kLarge, 1)));
  const auto report = store_->check(true);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].find("key 'bad'"), std::string::npos);
  // The damaged version can be replaced.
  EXPECT_TRUE(store_->put(pool_, "bad", pattern_bytes(kLarge, 3)));
  EXPECT_TRUE(read("bad") == text(pattern_bytes(kLarge, 3)));
}

TEST_F(Faults, RecordsThatContradictEachOtherStopTheStart) {
  ASSERT_TRUE(store_->put(pool_, "a", pattern_bytes(kLarge, 1)));
  store_.reset();
  const struct {
    std::vector<segment> pieces;
    const char* name;
  } cases[] = {{{{kBlockBytes, kBlockBytes}}, "in another"}, {{{std::uint64_t{1} << 40, kBlockBytes}}, "outside"}};
  for (const auto& test_case : cases) {
    {
      auto records = index::open({folder_.path() + "/data/index", 1 << 20, false, disk_.index_env()});
      ASSERT_TRUE(records);
      rocksdb::WriteBatch batch;
      (*records)->put(batch, family::extents, full_key(pool_, "liar"), encode_extents(test_case.pieces));
      ASSERT_TRUE((*records)->write(batch, true));
    }
    const auto opened = engine::open(options());
    ASSERT_EQ(opened.code(), EUCLEAN);
    EXPECT_NE(opened.error().message.find("key 'liar'"), std::string::npos) << opened.error().message;
    EXPECT_NE(opened.error().message.find(test_case.name), std::string::npos) << opened.error().message;
  }
  auto records = index::open({folder_.path() + "/data/index", 1 << 20, false, disk_.index_env()});
  ASSERT_TRUE(records);
  rocksdb::WriteBatch batch;
  (*records)->erase(batch, family::extents, full_key(pool_, "liar"));
  ASSERT_TRUE((*records)->write(batch, true));
  records->reset();
  open();
  EXPECT_TRUE(read("a") == text(pattern_bytes(kLarge, 1)));
}

TEST_F(Faults, AFullDiskIsServedToReadersOnly) {
  ASSERT_TRUE(store_->put(pool_, "large", pattern_bytes(kLarge, 1)));
  ASSERT_EQ(put("small", "value"), 0);
  disk_.free = 0;
  store_.reset();  // a stop without room loses nothing either
  const auto full = engine::open(options());
  ASSERT_EQ(full.code(), ENOSPC);
  EXPECT_NE(full.error().message.find("--read-only"), std::string::npos) << full.error().message;
  engine_options reading = options();
  reading.read_only = true;
  auto opened = engine::open(reading);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(read(**opened, pool_, "small"), "value");
  EXPECT_TRUE(read(**opened, pool_, "large") == text(pattern_bytes(kLarge, 1)));
  EXPECT_EQ((*opened)->put(pool_, "more", as_bytes("value")).code(), EROFS);
  auto second = engine::open(reading);  // readers do not keep each other out, and writers do
  EXPECT_TRUE(second) << second.error().message;
  disk_.free = std::uint64_t{1} << 40;
  EXPECT_EQ(engine::open(options()).code(), EBUSY);
  opened->reset();
  second->reset();
  open();
  EXPECT_EQ(read("small"), "value");
  expect_sound();
}

TEST_F(Faults, SizesFollowASmallDisk) {
  store_.reset();
  const struct {
    std::uint64_t disk_bytes, file_bytes;
  } cases[] = {{std::uint64_t{48} << 20, std::uint64_t{4} << 20},
               {std::uint64_t{1} << 30, std::uint64_t{64} << 20},
               {std::uint64_t{20} << 30, std::uint64_t{1} << 30}};
  for (const auto& test_case : cases) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_.path() + "/data", ignored);
    disk_.total = test_case.disk_bytes;
    disk_.free = test_case.disk_bytes / 2;
    engine_options settings = options();
    settings.extent_file_bytes = settings.disk_reserve_bytes = kByDisk;
    auto opened = engine::open(settings);
    ASSERT_TRUE(opened) << opened.error().message;
    const auto pool = (*opened)->create_pool("pool", {});
    ASSERT_TRUE(pool);
    ASSERT_TRUE((*opened)->put(pool->id, "large", pattern_bytes(kLarge, 1))) << test_case.disk_bytes;
    EXPECT_EQ(std::filesystem::file_size(folder_.path() + "/data/extents/000000.extents"), test_case.file_bytes);
    // Below a twentieth, or 256 MiB, no further file is made.
    disk_.free = std::min(test_case.disk_bytes / 20, std::uint64_t{256} << 20) + test_case.file_bytes - 1;
    int code = 0;
    for (int i = 0; i < 70 && code == 0 && test_case.file_bytes <= (64u << 20); ++i)
      code = (*opened)->put(pool->id, std::to_string(i), pattern_bytes(1 << 20, 1), {.level = durability::logged}).code();
    if (test_case.file_bytes <= (64u << 20)) { EXPECT_EQ(code, ENOSPC); }
  }
}

// A full disk may hit any file, at a stop (which flushes), at a start and between: the result is an error, and nothing is
// lost.
TEST_F(Faults, NoFileOfTheIndexThatMeetsAFullDiskEndsTheProcess) {
  for (const char* operation : {"write", "allocate", "sync"}) {
    for (const char* path : {".sst", "MANIFEST", "OPTIONS", "dbtmp", ".log", "index/"}) {
      SCOPED_TRACE(std::string(operation) + " " + path);
      ASSERT_TRUE(store_->put(pool_, "key", as_bytes(path)));
      fail(operation, path, ENOSPC);
      store_.reset();
      auto opened = engine::open(options());
      if (opened) { EXPECT_EQ(read(**opened, pool_, "key"), path); }
      heal();
      if (!opened) open();
      else store_ = std::move(*opened);
      ASSERT_EQ(read("key"), path);
    }
  }
}

// The same while it works, with tables that are written all the time, and for descriptors that run out.
TEST_F(Faults, NoFileOfTheIndexThatMeetsAFullDiskAtWorkLosesAnything) {
  disk_.total = std::uint64_t{64} << 20;  // small tables
  reopen();
  std::map<std::string, std::string> expected;
  std::uint64_t turn = 0, refused = 0;
  const auto change = [&](durability level) {
    const std::string key = "key " + std::to_string(turn++ % 64), value = text(pattern_bytes(30'000, turn));
    const auto done = store_->put(pool_, key, as_bytes(value), {.level = level});
    if (done) expected[key] = value;
    else ++refused;
    return done ? status() : status(done.error());
  };
  for (const int error : {ENOSPC, EMFILE}) {
    for (const char* operation : {"write", "allocate", "sync"}) {
      for (const char* path : {".sst", "MANIFEST", ".log", "index/"}) {
        if (error == EMFILE && operation != std::string("allocate")) continue;
        SCOPED_TRACE(std::string(operation) + " " + path + " " + std::to_string(error));
        fail(operation, path, error);
        for (int i = 0; i < 150; ++i) {
          const status done = change(i % 50 == 0 ? durability::durable : durability::logged);
          ASSERT_TRUE(done || done.code() == error || done.code() == ENOSPC) << i << " " << done.error().message;
        }
        heal();
        // After an attempt that failed the index waits for a second.
        status done = change(durability::logged);
        for (int waited = 0; waited < 2000 && !done && (done.code() == ENOSPC || done.code() == error); ++waited) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          done = change(durability::logged);
        }
        ASSERT_TRUE(done) << done.error().message;
        for (const auto& [key, value] : expected) ASSERT_TRUE(read(key) == value) << key;
      }
    }
  }
  EXPECT_GT(refused, 0u);
  reopen();
  for (const auto& [key, value] : expected) ASSERT_TRUE(read(key) == value) << key;
  expect_sound();
}

// A store that was not stopped and whose index has written tables: manifest, tables and log are damaged.
TEST_F(Faults, NoDamageOfAnUnstoppedStoreWithTablesIsSilent) {
  constexpr int kKeys = 150;
  std::vector<std::string> values;
  for (int key = 0; key < kKeys; ++key) values.push_back(text(pattern_bytes(30'000, static_cast<std::uint64_t>(key))));
  const auto value_for = [&](int key) -> const std::string& { return values[static_cast<std::size_t>(key)]; };
  disk_.total = std::uint64_t{64} << 20;  // small tables
  reopen();
  for (int key = 0; key < kKeys; ++key)
    ASSERT_TRUE(store_->put(pool_, std::to_string(key), as_bytes(value_for(key)), {.level = durability::logged}));
  // The state that a kill leaves once the tables are written. RocksDB's threads do not live in a child that could be
  // killed.
  namespace fs = std::filesystem;
  const fs::path data = folder_.path() + "/data", copy = folder_.path() + "/copy";
  std::this_thread::sleep_for(std::chrono::seconds(1));
  fs::copy(data, copy, fs::copy_options::recursive);
  store_.reset();
  std::vector<fs::path> names;
  int tables = 0;
  for (const auto& one : fs::directory_iterator(copy / "index")) {
    names.push_back(one.path().filename());
    tables += one.path().extension() == ".sst";
  }
  ASSERT_GT(tables, 2);
  std::mt19937 random(3);
  int refused = 0, reported = 0, right = 0;
  for (const fs::path& name : names) {
    const bool is_manifest = name.string().starts_with("MANIFEST");
    const std::uintmax_t size = fs::file_size(copy / "index" / name);
    for (int turn = 0; turn < (is_manifest ? 40 : 3) && size > 0; ++turn) {
      fs::remove_all(data);
      fs::copy(copy, data, fs::copy_options::recursive);
      const fs::path file = data / "index" / name;
      // The end of a manifest above all: what is cut off there looks like its end.
      const std::uintmax_t offset =
          is_manifest ? size - 1 - random() % std::min<std::uintmax_t>(size, 300) : random() % size;
      if (turn == 0) fs::remove(file);
      else if (turn % 2 == 0) fs::resize_file(file, offset);
      else {
        const int bits = ::open(file.c_str(), O_RDWR);
        char byte = 0;
        ASSERT_EQ(::pread(bits, &byte, 1, static_cast<off_t>(offset)), 1);
        byte = static_cast<char>(byte ^ (1 << random() % 8));
        ASSERT_EQ(::pwrite(bits, &byte, 1, static_cast<off_t>(offset)), 1);
        ::close(bits);
      }
      const auto opened = engine::open(options());
      refused += !opened;
      for (int key = 0; opened && key < kKeys; ++key) {
        const std::string got = read(**opened, pool_, std::to_string(key));
        const bool is_told = got.starts_with("errno ") && got != "errno 2";
        reported += is_told;
        right += got == value_for(key);
        EXPECT_TRUE(is_told || got == value_for(key)) << name << " turn " << turn << " at " << offset << " key " << key;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(right, kKeys);
}

}  // namespace
}  // namespace pl::store
