// SPDX-License-Identifier: Apache-2.0
#include "store/engine/engine.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "arch/crc32c.hpp"
#include "store/engine/disk.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

using Engine = StoreTest;

TEST_F(Engine, ValuesOfEverySizeComeBackAlsoAfterRestart) {
  const std::size_t sizes[] = {0, 1, 63, 64, 65, 2048, 2049, 4096, 32767, 32768, 32769, 100'000, 5'000'000};
  for (const std::size_t size : sizes) {
    const bytes value = pattern_bytes(size, 1);
    const auto done = store_->put(pool_, std::to_string(size), value);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(done->reached, durability::durable);
  }
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t size : sizes) EXPECT_TRUE(read(std::to_string(size)) == text(pattern_bytes(size, 1))) << size;
    expect_sound();
    reopen();
  }
  EXPECT_EQ(store_->pool(pool_)->keys, std::size(sizes));
}

TEST_F(Engine, ARangeOfAValue) {
  const bytes value = pattern_bytes(kLarge, 2);
  ASSERT_TRUE(store_->put(pool_, "k", value));
  bytes out(1000);
  const auto got = store_->get(pool_, "k", out, {.offset_bytes = 99'500});
  ASSERT_TRUE(got);
  EXPECT_EQ(got->copied_bytes, 500u);
  EXPECT_EQ(got->info.length_bytes, kLarge);
  EXPECT_EQ(std::memcmp(out.data(), value.data() + 99'500, 500), 0);
  EXPECT_EQ(store_->get(pool_, "k", out, {.offset_bytes = kLarge + 1}).code(), EINVAL);
}

TEST_F(Engine, ConditionsHoldOrNothingChanges) {
  EXPECT_EQ(put("k", "x", {.precondition = condition::if_present}), ENOENT);
  EXPECT_EQ(put("k", "one", {.precondition = condition::if_absent}), 0);
  EXPECT_EQ(put("k", "two", {.precondition = condition::if_absent}), EEXIST);
  const version_t version = store_->stat(pool_, "k")->version;
  EXPECT_EQ(put("k", "two", {.precondition = condition::if_version, .expected_version = version + 1}), ESTALE);
  EXPECT_EQ(read("k"), "one");
  EXPECT_EQ(put("k", "two", {.precondition = condition::if_version, .expected_version = version}), 0);
  EXPECT_EQ(read("k"), "two");
  EXPECT_EQ(store_->erase(pool_, "k", {.precondition = condition::if_version, .expected_version = version}).code(), ESTALE);
  EXPECT_EQ(store_->erase(pool_, "k").code(), 0);
  EXPECT_EQ(store_->erase(pool_, "k").code(), ENOENT);
  EXPECT_EQ(store_->erase(pool_, "k", {.precondition = condition::none}).code(), 0);
}

TEST_F(Engine, VersionsGrowAcrossRestarts) {
  version_t last = 0;
  const pool_id quick = make_pool("quick", durability::volatile_);
  for (int i = 0; i < 3; ++i) {
    for (const pool_id pool : {pool_, quick}) {
      const auto done = store_->put(pool, "k", as_bytes("v"));
      ASSERT_TRUE(done);
      EXPECT_GT(done->version, last);
      last = done->version;
    }
    reopen();
  }
}

TEST_F(Engine, VolatileValuesLiveAsLongAsTheProcess) {
  const pool_id quick = make_pool("quick", durability::volatile_);
  ASSERT_TRUE(store_->put(quick, "k", as_bytes("value")));
  const auto kept = store_->put(quick, "kept", as_bytes("value"), {.level = durability::logged});
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->reached, durability::logged);
  EXPECT_EQ(store_->pool(quick)->keys, 2u);
  reopen();
  EXPECT_EQ(read(*store_, quick, "k"), "errno 2");
  EXPECT_EQ(read(*store_, quick, "kept"), "value");
  EXPECT_EQ(store_->pool(quick)->keys, 1u);
}

// One truth for a key: a volatile put takes the durable value's place for good.
TEST_F(Engine, AVolatilePutReplacesADurableOne) {
  ASSERT_TRUE(store_->put(pool_, "k", pattern_bytes(kLarge, 1)));
  ASSERT_EQ(put("k", "new", {.level = durability::volatile_}), 0);
  EXPECT_EQ(read("k"), "new");
  ASSERT_TRUE(store_->sync(pool_));
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
  const auto page = store_->find(pool_, {});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->keys, std::vector<std::string>{"k"});
  EXPECT_EQ(put("k", "newer", {.level = durability::durable}), 0);
  EXPECT_EQ(read("k"), "newer");
  reopen();
  EXPECT_EQ(read("k"), "newer");
}

TEST_F(Engine, FlagsStayWithTheVersion) {
  ASSERT_EQ(put("k", "v", {.user_flags = 7}), 0);
  const auto before = store_->stat(pool_, "k");
  EXPECT_EQ(before->user_flags, 7u);
  ASSERT_TRUE(store_->set_user_flags(pool_, "k", 9));
  EXPECT_EQ(store_->stat(pool_, "k")->user_flags, 9u);
  reopen();
  EXPECT_EQ(store_->stat(pool_, "k")->user_flags, 9u);
  EXPECT_EQ(store_->stat(pool_, "k")->version, before->version);
  EXPECT_EQ(store_->set_user_flags(pool_, "none", 1).code(), ENOENT);
}

TEST_F(Engine, ReadersKeepTheirVersion) {
  const bytes old = pattern_bytes(kLarge, 1);
  ASSERT_TRUE(store_->put(pool_, "k", old));
  const session_id session = store_->open_session();
  const auto pinned = store_->lookup(session, pool_, "k");
  ASSERT_TRUE(pinned);
  ASSERT_TRUE(store_->put(pool_, "k", pattern_bytes(kLarge, 2)));
  ASSERT_TRUE(store_->erase(pool_, "k"));
  const std::byte* memory = store_->arena().base + pinned->segments[0].offset_bytes;
  EXPECT_EQ(std::memcmp(memory, old.data(), old.size()), 0);
  EXPECT_EQ(store_->stats().pins, 1u);
  EXPECT_TRUE(store_->unpin(session, pinned->pin));
  EXPECT_EQ(store_->unpin(session, pinned->pin).code(), EBADF);
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
}

TEST_F(Engine, AGrantBecomesAValueOnCommitOnly) {
  const session_id session = store_->open_session();
  const bytes value = pattern_bytes(kLarge, 3);
  const auto given = store_->begin_put(session, pool_, "k", value.size());
  ASSERT_TRUE(given);
  ASSERT_EQ(given->segments.size(), 1u);
  std::memcpy(store_->arena().base + given->segments[0].offset_bytes, value.data(), value.size());
  EXPECT_EQ(read("k"), "errno 2");
  EXPECT_EQ(store_->delete_pool(pool_).code(), EBUSY);
  EXPECT_EQ(store_->commit(session + 1, given->id).code(), EBADF);
  ASSERT_TRUE(store_->commit(session, given->id));
  EXPECT_TRUE(read("k") == text(value));
  EXPECT_EQ(store_->commit(session, given->id).code(), EBADF);

  const auto update = store_->begin_put(session, pool_, "k", value.size() + 10, {.from_current = true});
  ASSERT_TRUE(update);
  EXPECT_EQ(update->base_version, store_->stat(pool_, "k")->version);
  store_->arena().base[update->segments[0].offset_bytes] = std::byte{1};
  ASSERT_TRUE(store_->commit(session, update->id,
                             {.put = {.precondition = condition::if_version, .expected_version = update->base_version}}));
  bytes changed = value;
  changed[0] = std::byte{1};
  changed.resize(value.size() + 10);
  EXPECT_TRUE(read("k") == text(changed));
}

// A grant whose bytes come step by step.
class EarlyWrites : public StoreTest {
 protected:
  static constexpr std::uint64_t kStep = std::uint64_t{1} << 20, kBytes = 5 * kStep + 777;
  void begin() {
    const auto given = store_->begin_put(session_, pool_, "k", kBytes);
    ASSERT_TRUE(given);
    ASSERT_EQ(given->segments.size(), 1u);
    grant_ = given->id;
    memory_ = store_->arena().base + given->segments[0].offset_bytes;
  }
  void come(std::uint64_t first, std::uint64_t bound, durability level = durability::pool_default) {
    std::memcpy(memory_ + first, value_.data() + first, bound - first);
    ASSERT_TRUE(store_->arrived(session_, grant_, bound, level));
  }
  void commit(const commit_options& settings = {}) {
    std::memcpy(memory_, value_.data(), kBytes);
    const auto done = store_->commit(session_, grant_, settings);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_TRUE(read("k") == text(value_));
  }
  commit_options with_checksum(durability level = durability::pool_default) const {
    return {.put = {.level = level}, .take_crc = true, .crc32c = arch::crc32c(value_.data(), value_.size())};
  }
  const bytes value_ = pattern_bytes(kBytes, 5);
  session_id session_ = 0;
  grant_id grant_ = 0;
  std::byte* memory_ = nullptr;
  void SetUp() override {
    StoreTest::SetUp();
    session_ = store_->open_session();
    begin();
  }
};

TEST_F(EarlyWrites, AreTheCommittedValue) {
  // Again where the machine took too long: what comes late goes the usual way.
  for (int i = 0; i < 50 && store_->stats().early_writes == 0; ++i) {
    for (std::uint64_t offset = 0; offset < 5 * kStep; offset += kStep) come(offset, offset + kStep);
    commit(with_checksum());
    begin();
  }
  EXPECT_GT(store_->stats().early_writes, 0u);
  ASSERT_TRUE(store_->abort(session_, grant_));
  reopen();
  EXPECT_TRUE(read("k") == text(value_));
  expect_sound();
}

TEST_F(EarlyWrites, ThatStallAreWrittenAtTheCommit) {
  come(0, kStep);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // Others are not kept waiting, whatever comes of this one.
  EXPECT_EQ(put("other", std::string(2 * kStep, 'x')), 0);
  come(kStep, 2 * kStep);
  commit(with_checksum());
  EXPECT_EQ(store_->stats().early_writes, 0u);
  expect_sound();
}

TEST_F(EarlyWrites, LeaveNothingBehindWhenTheyAreGivenUp) {
  come(0, 2 * kStep);
  ASSERT_TRUE(store_->abort(session_, grant_));
  begin();
  come(0, 3 * kStep);
  store_->close_session(session_);
  session_ = store_->open_session();
  begin();
  come(0, kStep);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  ASSERT_TRUE(store_->abort(session_, grant_));
  // The writer holds the last one until it has heard.
  const auto left = [&] { return store_->stats().disk_used_bytes + store_->stats().arena_used_bytes; };
  while (left() != 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(left(), 0u);
  EXPECT_TRUE(store_->read_only_reason().empty());
}

TEST_F(EarlyWrites, MayBecomeUnneededAtTheCommit) {
  come(0, 5 * kStep);
  commit();  // the checksum is made here
  begin();
  come(0, 5 * kStep);
  commit(with_checksum(durability::volatile_));
  EXPECT_EQ(store_->stats().early_writes, 0u);
  begin();
  come(0, 5 * kStep, durability::volatile_);
  commit(with_checksum());
  EXPECT_EQ(store_->stats().early_writes, 0u);
  begin();
  come(0, kStep);
  EXPECT_EQ(store_->commit(session_, grant_, {.put = {.precondition = condition::if_absent}, .take_crc = true, .crc32c = 1})
                .code(),
            EEXIST);
  expect_sound();
}

TEST_F(EarlyWrites, BadNumbersAreRefused) {
  EXPECT_EQ(store_->arrived(session_, grant_, kBytes + 1).code(), EINVAL);
  EXPECT_EQ(store_->arrived(session_, grant_ + 1, 1).code(), EBADF);
  EXPECT_EQ(store_->arrived(session_ + 1, grant_, 1).code(), EBADF);
  come(0, kBytes);
  ASSERT_TRUE(store_->arrived(session_, grant_, 1));  // less than before says nothing
  commit(with_checksum());
  EXPECT_EQ(store_->arrived(session_, grant_, 1).code(), EBADF);
}

TEST_F(Engine, AWritersChecksumIsCompared) {
  const session_id session = store_->open_session();
  for (const std::uint64_t size : {std::uint64_t{10}, std::uint64_t{kLarge}}) {
    const auto given = store_->begin_put(session, pool_, "k", size);
    ASSERT_TRUE(given);
    EXPECT_EQ(store_->commit(session, given->id, {.put = {}, .check_crc = true, .crc32c = 1}).code(), EBADMSG);
    EXPECT_EQ(read("k"), "errno 2");
  }
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

TEST_F(Engine, ASessionsEndGivesEverythingBack) {
  const session_id session = store_->open_session();
  ASSERT_TRUE(store_->begin_put(session, pool_, "a", 1'000'000));
  ASSERT_TRUE(store_->put(pool_, "b", pattern_bytes(1'000'000, 1)));
  ASSERT_TRUE(store_->lookup(session, pool_, "b"));
  ASSERT_TRUE(store_->erase(pool_, "b"));
  EXPECT_GT(store_->stats().arena_used_bytes, 2'000'000u);
  store_->close_session(session);
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
  EXPECT_EQ(store_->stats().grants, 0u);
  EXPECT_TRUE(store_->delete_pool(pool_));
}

TEST_F(Engine, AScribbleAfterCommitIsNoticed) {
  const session_id session = store_->open_session();
  const auto given = store_->begin_put(session, pool_, "some key", kLarge);
  ASSERT_TRUE(given);
  ASSERT_TRUE(store_->commit(session, given->id));
  store_->arena().base[given->segments[0].offset_bytes + 5] ^= std::byte{1};
  bytes out(kLarge);
  const auto got = store_->get(pool_, "some key", out, {.verify = true});
  ASSERT_EQ(got.code(), EBADMSG);
  EXPECT_NE(got.error().message.find("'pool', key 'some key'"), std::string::npos) << got.error().message;
  EXPECT_EQ(store_->stats().checksum_errors, 1u);
}

TEST_F(Engine, TheArenaForReadersCannotBeWritten) {
  const arena_info& arena = store_->arena();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena.read_only_fd, 0), MAP_FAILED);
  void* readable = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena.read_only_fd, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(::mprotect(readable, 4096, PROT_READ | PROT_WRITE), 0);
  ::munmap(readable, 4096);
  EXPECT_NE(::ftruncate(arena.fd, 0), 0);
}

TEST_F(Engine, MoreThanTheArenaHoldsIsEvictedToDisk) {
  const pool_id quick = make_pool("quick", durability::volatile_);
  constexpr int kValues = 40;  // of 1 MB, the arena has 16 MiB
  for (int i = 0; i < kValues; ++i) {
    ASSERT_TRUE(store_->put(pool_, std::to_string(i), pattern_bytes(1'000'000, static_cast<std::uint64_t>(i))));
    const auto quickly = store_->put(quick, std::to_string(i), pattern_bytes(500'000, static_cast<std::uint64_t>(i)));
    ASSERT_TRUE(quickly) << quickly.error().message;
  }
  for (int i = 0; i < kValues; ++i) {
    EXPECT_TRUE(read(std::to_string(i)) == text(pattern_bytes(1'000'000, static_cast<std::uint64_t>(i)))) << i;
    EXPECT_TRUE(read(*store_, quick, std::to_string(i)) == text(pattern_bytes(500'000, static_cast<std::uint64_t>(i)))) << i;
  }
  EXPECT_GT(store_->stats().spilled_bytes, 0u);
  EXPECT_GT(store_->stats().misses, 0u);
  EXPECT_LE(store_->stats().arena_used_bytes, 16u << 20);
}

// The system's files, with the writes counted.
class counting_disk final : public disk {
 public:
  result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) override {
    return files_->open_file(path, size_bytes, read_only);
  }
  result<int> open_cached(const std::string& path, std::uint64_t size_bytes) override {
    return files_->open_cached(path, size_bytes);
  }
  status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) override {
    return files_->write_cached(file, offset_bytes, bytes);
  }
  void close_file(int file) noexcept override { files_->close_file(file); }
  status write(std::span<const block_io> blocks) override {
    ++writes;
    return files_->write(blocks);
  }
  status read(std::span<const block_io> blocks) override { return files_->read(blocks); }
  status sync(int file) override { return files_->sync(file); }
  result<std::uint64_t> free_bytes(const std::string& path) override { return files_->free_bytes(path); }
  result<std::uint64_t> total_bytes(const std::string& path) override { return files_->total_bytes(path); }
  std::string boot_id() override { return files_->boot_id(); }
  std::atomic<std::uint64_t> writes{0};

 private:
  std::unique_ptr<disk> files_ = make_system_disk();
};

TEST_F(Engine, SmallValuesThatLeaveMemoryAreWrittenTogether) {
  store_.reset();
  counting_disk files;
  engine_options settings = options();
  settings.files = &files;
  const auto opened = engine::open(settings);
  ASSERT_TRUE(opened) << opened.error().message;
  engine& store = **opened;
  pool_options quickly;
  quickly.level = durability::volatile_;
  const pool_id quick = store.create_pool("quick", quickly)->id;
  constexpr std::uint64_t kValues = 6000;  // of 4 KiB, the arena has 16 MiB
  const auto key = [](std::uint64_t i) { return std::to_string(i); };
  for (std::uint64_t i = 0; i < kValues; ++i) ASSERT_TRUE(store.put(quick, key(i), pattern_bytes(4096, i)));
  const auto now = store.stats();
  ASSERT_GE(now.evictions, kValues - 4096);
  EXPECT_LE(files.writes * 8, now.evictions);
  constexpr std::uint64_t kStay = 4096 * 7 / 8;  // what volatile values may take
  EXPECT_LE(now.evictions, kValues - kStay + 64) << "more went than had to";
  for (std::uint64_t i = 0; i < kValues; i += 7)
    EXPECT_TRUE(read(store, quick, key(i)) == text(pattern_bytes(4096, i))) << i;
}

// They share blocks in memory, each has one of its own on disk: what comes back must not touch its neighbours.
TEST_F(Engine, ValuesThatShareABlockComeBackFromDisk) {
  const pool_id quick = make_pool("quick", durability::volatile_);
  const auto size = [](std::uint64_t i) { return std::size_t{1} + i * 37 % 2048; };
  constexpr std::uint64_t kValues = 16'000;  // of 1 KiB: half of the arena is theirs
  const auto key = [](std::uint64_t i) { return std::to_string(i); };
  for (std::uint64_t i = 0; i < kValues; ++i) {
    const auto done = store_->put(quick, key(i), pattern_bytes(size(i), i));
    ASSERT_TRUE(done) << i << ": " << done.error().message;
  }
  ASSERT_GT(store_->stats().spilled_bytes, 0u);
  for (int round = 0; round < 2; ++round)
    for (std::uint64_t i = 0; i < kValues; ++i)
      ASSERT_EQ(read(*store_, quick, key(i)), text(pattern_bytes(size(i), i))) << i << " in round " << round;
  EXPECT_EQ(store_->read_only_reason(), "");
}

// Written step by step while it is copied: into several extent files, by several threads, with a checksum of its own or
// given.
TEST_F(Engine, LongValuesComeBackWhole) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  const std::size_t sizes[] = {kStep - 1, kStep, kStep + 1, 2 * kStep, 3 * kStep + 4095, 5 * kStep + 4097, 7 * kStep + 1};
  std::vector<std::thread> putting;
  for (std::size_t t = 0; t < 2; ++t) {
    putting.emplace_back([&, t] {
      for (std::size_t i = t; i < std::size(sizes); i += 2) {
        const bytes content = pattern_bytes(sizes[i], i);
        put_options settings;
        settings.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        if (i % 3 == 0) settings.known_crc = arch::crc32c(content.data(), content.size());
        const auto done = store_->put(pool_, std::to_string(i), content, settings);
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(done->crc32c, arch::crc32c(content.data(), content.size())) << sizes[i];
        EXPECT_EQ(done->reached, durability::durable);
      }
    });
  }
  for (std::thread& one : putting) one.join();
  reopen();
  for (std::size_t i = 0; i < std::size(sizes); ++i)
    EXPECT_TRUE(read(std::to_string(i)) == text(pattern_bytes(sizes[i], i))) << sizes[i];
  const auto report = store_->check(true);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->problems.empty());
}

TEST_F(Engine, NoRoomIsSaidOrWaitedFor) {
  const session_id session = store_->open_session();
  EXPECT_EQ(store_->begin_put(session, pool_, "k", (8u << 20) + 1).code(), EFBIG);
  const auto half = store_->begin_put(session, pool_, "k", 8u << 20);
  const auto all = store_->begin_put(session, pool_, "k", 7u << 20);
  ASSERT_TRUE(half);
  ASSERT_TRUE(all);
  EXPECT_EQ(put("x", std::string(2u << 20, 'x')), ENOSPC);
  std::thread later([&] { (void)store_->abort(session, all->id); });
  EXPECT_EQ(put("x", std::string(2u << 20, 'x'), {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20)}),
            0);
  later.join();
}

TEST_F(Engine, AFullDiskIsFullAndEraseMakesRoom) {
  store_.reset();
  engine_options settings = options();
  settings.disk_limit_bytes = std::uint64_t{4} << 20;
  auto opened = engine::open(settings);
  ASSERT_TRUE(opened);
  store_ = std::move(*opened);
  ASSERT_EQ(put("a", std::string(3u << 20, 'a')), 0);
  EXPECT_EQ(put("b", std::string(3u << 20, 'b')), ENOSPC);
  EXPECT_EQ(read("b"), "errno 2");
  EXPECT_TRUE(store_->read_only_reason().empty());
  ASSERT_TRUE(store_->erase(pool_, "a"));
  EXPECT_EQ(put("b", std::string(3u << 20, 'b')), 0);
}

// The space of a logged erase may come back with the old record, so it is not reused before the log is synced.
TEST_F(Engine, SpaceOfALoggedEraseIsReusedAfterASync) {
  store_.reset();
  engine_options settings = options();
  settings.disk_limit_bytes = std::uint64_t{4} << 20;
  auto opened = engine::open(settings);
  ASSERT_TRUE(opened);
  store_ = std::move(*opened);
  ASSERT_EQ(put("a", std::string(3u << 20, 'a')), 0);
  const std::uint64_t syncs = store_->stats().syncs;
  ASSERT_TRUE(store_->erase(pool_, "a", {.level = durability::logged}));
  EXPECT_GE(store_->stats().disk_used_bytes, 3u << 20);
  EXPECT_EQ(put("b", std::string(3u << 20, 'b'), {.level = durability::logged}), 0);
  EXPECT_EQ(store_->stats().syncs, syncs + 2);  // the log's, the value's
}

TEST_F(Engine, OneEngineAtATime) {
  const auto second = engine::open(options());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EBUSY);
}

TEST_F(Engine, AfterCloseCallsAreRefused) {
  ASSERT_EQ(put("k", "v"), 0);
  EXPECT_TRUE(store_->close());
  EXPECT_EQ(put("k", "w"), ESHUTDOWN);
  EXPECT_EQ(store_->sync(pool_).code(), ESHUTDOWN);
  EXPECT_TRUE(store_->close());
}

TEST_F(Engine, ReadOnlyServesAndRefuses) {
  ASSERT_EQ(put("k", "v"), 0);
  store_.reset();
  engine_options settings = options();
  settings.read_only = true;
  auto opened = engine::open(settings);
  ASSERT_TRUE(opened) << opened.error().message;
  store_ = std::move(*opened);
  EXPECT_EQ(read("k"), "v");
  EXPECT_EQ(put("k", "w"), EROFS);
  EXPECT_EQ(store_->create_pool("another", {}).code(), EROFS);
}

TEST_F(Engine, BadNamesAndKeys) {
  EXPECT_EQ(put("", "v"), EINVAL);
  EXPECT_EQ(put(std::string(kMaxKeyBytes + 1, 'k'), "v"), EFBIG);
  EXPECT_EQ(put(std::string(kMaxKeyBytes, 'k'), "v"), 0);
  EXPECT_EQ(store_->put(pool_ + 1, "k", as_bytes("v")).code(), ENXIO);
  EXPECT_EQ(store_->create_pool("pool", {}).code(), EEXIST);
  EXPECT_EQ(store_->create_pool("", {}).code(), EINVAL);
}

}  // namespace
}  // namespace pl::store
