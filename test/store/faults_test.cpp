// SPDX-License-Identifier: Apache-2.0
// Disks that fail, fill up or forget: what callers are told, and what still works.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "disk_model.hpp"
#include "engine.hpp"
#include "index.hpp"
#include "record.hpp"
#include "store_fixture.hpp"

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
      const bool here = operation == bad_operation_ && path.find(bad_path_) != std::string_view::npos;
      return here ? bad_errno_.load() : 0;
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

TEST_F(Faults, AnErrorOfTheDiskMakesItReadOnlyUntilReopened) {
  const struct {
    const char* operation;
    const char* path;
    std::size_t size;
  } cases[] = {{"write", ".extents", kLarge}, {"write", ".extents", kLong}, {"sync", ".extents", kLong},
               {"sync", ".extents", kLarge},  {"write", ".log", kSmall},    {"sync", ".log", kSmall}};
  for (const auto& of : cases) {
    ASSERT_TRUE(store_->put(pool_, "before", pattern(of.size, 1)));
    fail(of.operation, of.path, EIO);
    const auto failed = store_->put(pool_, "failed", pattern(of.size, 2));
    ASSERT_EQ(failed.code(), EIO) << of.operation << of.path;
    heal();  // it is not tried again, although it would work
    EXPECT_EQ(put("later", "value"), EROFS);
    EXPECT_EQ(store_->erase(pool_, "before").code(), EROFS);
    EXPECT_EQ(store_->create_pool("another", {}).code(), EROFS);
    EXPECT_TRUE(read("before") == text(pattern(of.size, 1)));
    EXPECT_EQ(read("failed"), "errno 2");
    EXPECT_FALSE(store_->read_only_reason().empty());
    EXPECT_TRUE(store_->stats().read_only);
    reopen();
    EXPECT_TRUE(read("before") == text(pattern(of.size, 1)));
    EXPECT_EQ(put("later", "value"), 0);
    expect_sound();
  }
}

TEST_F(Faults, AFullIndexDiskIsFullNotBroken) {
  ASSERT_TRUE(store_->put(pool_, "before", pattern(kLarge, 1)));
  fail("write", ".log", ENOSPC);
  EXPECT_EQ(put("small", "value"), ENOSPC);
  EXPECT_EQ(store_->put(pool_, "large", pattern(kLarge, 2)).code(), ENOSPC);
  EXPECT_TRUE(read("before") == text(pattern(kLarge, 1)));
  EXPECT_TRUE(store_->read_only_reason().empty());
  EXPECT_EQ(store_->pool(pool_)->keys, 1u);
  heal();
  // RocksDB looks for room every five seconds.
  int code = ENOSPC;
  for (int waited = 0; waited < 2000 && code == ENOSPC; ++waited) {
    code = put("small", "value");
    if (code != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(store_->put(pool_, "large", pattern(kLarge, 3)));
  EXPECT_EQ(store_->pool(pool_)->keys, 3u);
  reopen();
  EXPECT_EQ(read("small"), "value");
  EXPECT_TRUE(read("large") == text(pattern(kLarge, 3)));
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
  EXPECT_EQ(store_->put(pool_, "large", pattern(kLarge, 1)).code(), ENOSPC);
  EXPECT_EQ(store_->put(pool_, "long", pattern(kLong, 1)).code(), ENOSPC);
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
  EXPECT_EQ(put("small", "value"), 0);
  heal();
  EXPECT_TRUE(store_->put(pool_, "large", pattern(kLarge, 1)));
}

TEST_F(Faults, AnUnreadableValueIsNamedAndTheRestServed) {
  ASSERT_TRUE(store_->put(pool_, "large", pattern(kLarge, 1)));
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
  EXPECT_TRUE(read("large") == text(pattern(kLarge, 1)));
}

TEST_F(Faults, AFlippedBitIsNamed) {
  ASSERT_TRUE(store_->put(pool_, "good", pattern(kLarge, 1)));
  ASSERT_TRUE(store_->put(pool_, "bad", pattern(kLarge, 2)));
  store_.reset();
  const std::string path = folder_.path() + "/data/extents/000000.extents";
  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  char byte = 0;
  const off_t at = (kLarge + kBlockBytes - 1) / kBlockBytes * kBlockBytes + 5000;
  ASSERT_EQ(::pread(file, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
  ::close(file);
  open();
  bytes out(kLarge);
  const auto got = store_->get(pool_, "bad", out);
  ASSERT_EQ(got.code(), EBADMSG);
  EXPECT_NE(got.error().message.find("key 'bad'"), std::string::npos) << got.error().message;
  EXPECT_NE(got.error().message.find("extent file 000000 at 102400"), std::string::npos) << got.error().message;
  EXPECT_TRUE(read("good") == text(pattern(kLarge, 1)));
  const auto report = store_->check(true);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].find("key 'bad'"), std::string::npos);
  // The damaged version can be replaced.
  EXPECT_TRUE(store_->put(pool_, "bad", pattern(kLarge, 3)));
  EXPECT_TRUE(read("bad") == text(pattern(kLarge, 3)));
}

TEST_F(Faults, RecordsThatContradictEachOtherStopTheStart) {
  ASSERT_TRUE(store_->put(pool_, "a", pattern(kLarge, 1)));
  store_.reset();
  const struct {
    std::vector<segment> pieces;
    const char* what;
  } cases[] = {{{{kBlockBytes, kBlockBytes}}, "in another"}, {{{std::uint64_t{1} << 40, kBlockBytes}}, "outside"}};
  for (const auto& of : cases) {
    {
      auto records = index::open({folder_.path() + "/data/index", 1 << 20, false, disk_.index_env()});
      ASSERT_TRUE(records);
      rocksdb::WriteBatch batch;
      (*records)->put(batch, family::extents, full_key(pool_, "liar"), encode_extents(of.pieces));
      ASSERT_TRUE((*records)->write(batch, true));
    }
    const auto opened = engine::open(options());
    ASSERT_EQ(opened.code(), EUCLEAN);
    EXPECT_NE(opened.error().message.find("key 'liar'"), std::string::npos) << opened.error().message;
    EXPECT_NE(opened.error().message.find(of.what), std::string::npos) << opened.error().message;
  }
  auto records = index::open({folder_.path() + "/data/index", 1 << 20, false, disk_.index_env()});
  ASSERT_TRUE(records);
  rocksdb::WriteBatch batch;
  (*records)->erase(batch, family::extents, full_key(pool_, "liar"));
  ASSERT_TRUE((*records)->write(batch, true));
  records->reset();
  open();
  EXPECT_TRUE(read("a") == text(pattern(kLarge, 1)));
}

}  // namespace
}  // namespace pl::store
