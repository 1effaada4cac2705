// SPDX-License-Identifier: Apache-2.0
// Values that are longer than memory holds: through windows to their extents and back.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>

#include "store/engine/value_stream.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kLong = (std::uint64_t{21} << 20) + 12'345;  // the arena has 16 MiB

class Streams : public StoreTest {
 protected:
  result<put_result> put_long(std::string_view key, std::uint64_t seed, const put_options& settings = {}) {
    return store_->put(pool_, key, pattern_bytes(kLong, seed), settings);
  }
  // [offset, offset + length) by get().
  std::string part(std::string_view key, std::uint64_t offset, std::uint64_t length, bool verify = false) {
    std::string out(length, '?');
    const auto got =
        store_->get(pool_, key, std::as_writable_bytes(std::span(out)), {.offset_bytes = offset, .verify = verify});
    if (!got) return "errno " + std::to_string(got.code());
    out.resize(got->copied_bytes);
    return out;
  }
  void flip_a_byte_on_disk() {
    std::fstream file(folder_.path() + "/data/extents/000000.extents", std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file);
    file.seekg(1'000'000);
    const char was = static_cast<char>(file.get());
    file.seekp(1'000'000);
    file.put(static_cast<char>(was ^ 1));
  }
};

TEST_F(Streams, PutGetAndEraseSurviveARestart) {
  const std::string expected = text(pattern_bytes(kLong, 1));
  const auto done = put_long("k", 1);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->reached, durability::durable);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(read("k") == expected);
    const auto info = store_->stat(pool_, "k");
    ASSERT_TRUE(info);
    EXPECT_EQ(info->location, tier::disk);
    EXPECT_EQ(info->crc32c, done->crc32c);
    // Windows end at 4 MiB of the value, blocks at 4096.
    for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, 1},
                                         {(4u << 20) - 1, 2},
                                         {12'345, 9u << 20},
                                         {kLong - 5, 100},
                                         {kLong, 5}})
      EXPECT_TRUE(part("k", offset, length, round == 1) == expected.substr(offset, length)) << offset;
    EXPECT_EQ(part("k", kLong + 1, 1), "errno " + std::to_string(EINVAL));
    expect_sound();
    reopen();
  }
  EXPECT_LE(store_->stats().arena_used_bytes, 4u << 20);
  ASSERT_TRUE(store_->erase(pool_, "k"));
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

TEST_F(Streams, VolatileOnesGoWithTheProcess) {
  const pool_id quick = make_pool("quick", durability::volatile_);
  const auto done = store_->put(quick, "k", pattern_bytes(kLong, 2));
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->reached, durability::volatile_);
  EXPECT_TRUE(read(*store_, quick, "k") == text(pattern_bytes(kLong, 2)));
  ASSERT_TRUE(store_->put(quick, "k", as_bytes("short")));
  EXPECT_EQ(read(*store_, quick, "k"), "short");
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
  ASSERT_TRUE(store_->put(quick, "k", pattern_bytes(kLong, 3)));
  reopen();
  EXPECT_EQ(read(*store_, quick, "k"), "errno " + std::to_string(ENOENT));
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

TEST_F(Streams, AReaderKeepsItsVersion) {
  ASSERT_TRUE(put_long("k", 1));
  auto reader = store_->open_reader(pool_, "k");
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_TRUE(put_long("k", 2));
  ASSERT_TRUE(put_long("other", 3));  // would take the old one's space
  std::string seen;
  for (;;) {
    const auto window = (*reader)->next();
    ASSERT_TRUE(window) << window.error().message;
    if (window->empty()) break;
    seen.append(reinterpret_cast<const char*>(window->data()), window->size());
  }
  EXPECT_TRUE(seen == text(pattern_bytes(kLong, 1)));
  const std::uint64_t used = store_->stats().disk_used_bytes;
  reader->reset();
  EXPECT_LT(store_->stats().disk_used_bytes, used);
  expect_sound();
}

TEST_F(Streams, AWriterThatGoesLeavesNothing) {
  {
    auto writer = store_->open_writer(pool_, "k", kLong);
    ASSERT_TRUE(writer) << writer.error().message;
    (*writer)->filled((*writer)->room().size());
    ASSERT_FALSE((*writer)->room().empty());
    std::promise<int> answer;
    (*writer)->commit_async({}, 0, [&](result<put_result> got) { answer.set_value(got.code()); });
    EXPECT_EQ(answer.get_future().get(), EINVAL) << "there are bytes missing";
  }
  EXPECT_TRUE(store_->close());  // what was under way has ended
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
  reopen();
  EXPECT_EQ(read("k"), "errno " + std::to_string(ENOENT));
}

TEST_F(Streams, ConditionsAndRepetitionsHoldAsForOthers) {
  ASSERT_TRUE(put_long("k", 1, {.request = {7, 1}}));
  EXPECT_EQ(put_long("k", 2, {.precondition = condition::if_absent}).code(), EEXIST);
  const auto again = put_long("k", 3, {.request = {7, 1}});
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->repeated);
  EXPECT_TRUE(read("k") == text(pattern_bytes(kLong, 1)));
  expect_sound();
  // Both of the others have given their space back, once what they were asked by is gone.
  EXPECT_TRUE(store_->close());
  EXPECT_EQ(store_->stats().disk_used_bytes, whole_blocks(kLong));
}

TEST_F(Streams, DamageOnDiskIsFound) {
  ASSERT_TRUE(put_long("k", 1));
  flip_a_byte_on_disk();
  std::string out(kLong, '?');
  const auto got = store_->get(pool_, "k", std::as_writable_bytes(std::span(out)));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.code(), EBADMSG);
  EXPECT_NE(got.error().message.find(", extent file 0000"), std::string::npos) << got.error().message;
  EXPECT_EQ(part("k", 5'000'000, 10, true), "errno " + std::to_string(EBADMSG));
  EXPECT_EQ(part("k", 5'000'000, 10).size(), 10u);
  const auto report = store_->check(true);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->problems.size(), 1u);
}

// Whoever announces a long value holds as much of the disk as has come, and some 64 MiB more.
TEST_F(Streams, AnAnnouncedValueDoesNotHoldTheDisk) {
  constexpr std::uint64_t kAnnounced = (std::uint64_t{300} << 20) + 4321, kFirst = std::uint64_t{64} << 20;
  std::vector<std::shared_ptr<value_writer>> open;
  for (int i = 0; i < 2; ++i) {
    auto one = store_->open_writer(pool_, "announced" + std::to_string(i), kAnnounced);
    ASSERT_TRUE(one) << one.error().message;
    open.push_back(*one);
  }
  EXPECT_EQ(store_->stats().disk_used_bytes, 2 * kFirst);
  open.clear();
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
  // What comes finds its place, behind what lies there in pieces.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(store_->put(pool_, std::to_string(i), pattern_bytes(3'000'000, 1)));
  for (int i = 0; i < 40; i += 2) ASSERT_TRUE(store_->erase(pool_, std::to_string(i)));
  constexpr std::uint64_t kWritten = (std::uint64_t{150} << 20) + 4321;
  const auto value = pattern_bytes(kWritten, 5);
  const auto done = store_->put(pool_, "long", value);
  ASSERT_TRUE(done) << done.error().message;
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(read("long") == text(value));
    expect_sound();
    reopen();
  }
}

TEST_F(Streams, LimitsAreSaid) {
  // Extent files of 4 MiB, and a record names at most kMaxSegments pieces.
  EXPECT_EQ(store_->open_writer(pool_, "k", (std::uint64_t{4} << 20) * kMaxSegments + 1).code(), EFBIG);
  EXPECT_EQ(store_->open_writer(pool_, "k", 0).code(), EINVAL);
  EXPECT_EQ(store_->open_reader(pool_, "k").code(), ENOENT);
  ASSERT_EQ(put("k", "short"), 0);
  EXPECT_EQ(store_->open_reader(pool_, "k").code(), EAGAIN);
  pool_options settings;
  settings.level = durability::durable;
  settings.quota_bytes = kLong - 1;
  const auto small = store_->create_pool("small", settings);
  ASSERT_TRUE(small);
  EXPECT_EQ(store_->open_writer(small->id, "k", kLong).code(), EDQUOT);
  std::vector<std::shared_ptr<value_writer>> open;
  for (int i = 0; i < kMaxStreams; ++i) {
    auto one = store_->open_writer(pool_, "k", 1'000'000);
    ASSERT_TRUE(one) << one.error().message;
    open.push_back(*one);
  }
  EXPECT_EQ(store_->open_writer(pool_, "k", 1'000'000).code(), ENOSPC);
  open.pop_back();
  EXPECT_TRUE(store_->open_writer(pool_, "k", 1'000'000));
}

}  // namespace
}  // namespace pl::store
