// SPDX-License-Identifier: Apache-2.0
// Power is lost while RocksDB's manifest is written: a start gets over a torn end by itself, and over nothing else. Whatever
// is done to the manifest, an acknowledged value is there, or the store refuses and names the file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "base/text.hpp"
#include "store/engine/store_folder.hpp"
#include "test/store/engine/disk_model.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kSector = 512;
// RocksDB is not instrumented, and a start takes ten times as long beside it: fewer of the same kind.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kEach = 4;
#else
constexpr std::size_t kEach = 1;
#endif

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string manifest_name(const std::string& folder) {
  std::string name = bytes_of(folder + "/index/CURRENT");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}
fs::path manifest_of(const std::string& folder) { return folder + "/index/" + manifest_name(folder); }

// Of a store that runs: its threads remove files meanwhile. The mark is older than what it speaks of.
void copy_live(const fs::path& source, const fs::path& target) {
  fs::create_directories(target / "index");
  fs::create_directories(target / "extents");
  std::error_code gone;
  fs::copy_file(source / "commit.mark", target / "commit.mark", gone);
  fs::copy_file(source / "lock", target / "lock", gone);
  for (const auto& file : fs::directory_iterator(source / "index", gone))
    fs::copy_file(file.path(), target / "index" / file.path().filename(), gone);
}

// The folder as a loss of power may leave it, while the manifest's last records are written and not synced.
struct moment {
  std::string folder;
  std::size_t synced_bytes = 0;                 // of the manifest
  std::map<std::string, std::string> expected;  // acknowledged as durable before
};

class Manifest : public ::testing::Test {
 protected:
  static constexpr int kKeys = 40;
  static std::string value_for(int turn) {
    const bytes made = pattern_bytes(3000 + static_cast<std::size_t>(turn % 7) * 100, static_cast<std::uint64_t>(turn));
    return {reinterpret_cast<const char*>(made.data()), made.size()};
  }

  engine_options options(const std::string& folder, disk& files) const {
    engine_options made;
    made.directory = folder;
    made.arena_bytes = made.chunk_bytes = std::uint64_t{4} << 20;
    made.extent_file_bytes = std::uint64_t{1} << 20;
    made.disk_reserve_bytes = 0;
    made.small_value_bytes = 4096;
    made.files = &files;
    return made;
  }

  // Lives long enough that the index flushes tables, and keeps the folder at each sync of the manifest.
  void live(int turns) {
    const std::string data = folder_.path() + "/live";
    disk_model files(data, false);
    files.total = std::uint64_t{64} << 20;  // small memory tables
    std::map<std::string, std::string> expected;
    std::map<std::string, std::size_t> synced;  // manifest -> its size at its last sync
    std::mutex mutex;
    files.refuse = [&](std::string_view operation, std::string_view path) {
      const std::size_t name_begin = path.find("MANIFEST-");
      if (operation != "sync" || name_begin == std::string_view::npos) return 0;
      const std::lock_guard lock(mutex);
      const std::string name(path.substr(name_begin));
      moment now{folder_.path() + "/moment" + std::to_string(moments_.size()), synced[name], expected};
      synced[name] = fs::file_size(data + "/" + std::string(path));
      if (manifest_name(data) != name) return 0;  // a new one that CURRENT does not name yet
      copy_live(data, now.folder);
      moments_.push_back(std::move(now));
      return 0;
    };
    auto opened = engine::open(options(data, files));
    ASSERT_TRUE(opened) << opened.error().message;
    pool_options settings;
    settings.level = durability::durable;
    const auto pool = (*opened)->create_pool("pool", settings);
    ASSERT_TRUE(pool);
    for (int turn = 0; turn < turns; ++turn) {
      const std::string key = "key" + std::to_string(turn % kKeys), value = value_for(turn);
      ASSERT_TRUE((*opened)->put(pool->id, key, as_bytes(value)));
      const std::lock_guard lock(mutex);
      expected[key] = value;
    }
    copy_live(data, folder_.path() + "/last");  // killed here
    last_ = {folder_.path() + "/last", 0, expected};
    opened->reset();
    files.refuse = nullptr;
  }

  // A copy to work on.
  std::string copy_of(const moment& one) {
    const std::string target = folder_.path() + "/copy";
    fs::remove_all(target);
    fs::copy(one.folder, target, fs::copy_options::recursive);
    return target;
  }

  // What is wrong with a store that has opened; empty: nothing. A put that was under way may be there.
  static std::string missing(engine& store, const std::map<std::string, std::string>& expected) {
    const auto pool = store.find_pool("pool");
    if (!pool) return expected.empty() ? "" : "the pool is gone";
    for (const auto& [key, value] : expected) {
      const auto info = store.stat(pool->id, key);
      std::string got(info ? info->length_bytes : 0, '?');
      if (!info || !store.get(pool->id, key, std::as_writable_bytes(std::span(got)))) return key + " is gone";
      if (got == value) continue;
      bool is_later = false;  // the put that was under way
      for (int turn = 0; turn < 4000 && !is_later; ++turn)
        is_later = "key" + std::to_string(turn % kKeys) == key && value_for(turn) == got && value_for(turn - kKeys) == value;
      if (!is_later) return key + " has another value";
    }
    const auto report = store.check(true);
    return !report ? report.error().message : report->problems.empty() ? "" : report->problems.front();
  }

  // Opens, compares, puts, stops and opens again. Empty: all is well. `refused`: it did not open.
  std::string outcome(const std::string& folder, const std::map<std::string, std::string>& expected, std::string* refused) {
    for (int round = 0; round < 2; ++round) {
      disk_model files(folder, false);  // another boot
      auto opened = engine::open(options(folder, files));
      if (!opened) {
        if (refused == nullptr || round != 0) return opened.error().message;
        *refused = opened.error().message;
        if (opened.code() != EUCLEAN || opened.error().message.find(folder) == std::string::npos)
          return "the refusal names nothing: " + opened.error().message;
        return {};
      }
      if (std::string wrong = missing(**opened, expected); !wrong.empty()) return wrong;
      auto pool = (*opened)->find_pool("pool");
      if (!pool) pool = (*opened)->create_pool("pool", {});
      if (!pool || !(*opened)->put(pool->id, "after", as_bytes("it goes on"), {.level = durability::durable}))
        return "it takes no put";
    }
    return {};
  }

  temporary_folder folder_;
  std::vector<moment> moments_;
  moment last_;
};

// The ways in which sectors that were not synced may be missing.
std::vector<std::string> torn_ends(const std::string& bytes, std::size_t synced) {
  std::vector<std::string> out;
  for (std::size_t first = synced; first < bytes.size(); first = (first / kSector + 1) * kSector) {
    const std::size_t end = std::min(bytes.size(), (first / kSector + 1) * kSector);
    std::string hole = bytes;
    std::fill(hole.begin() + static_cast<std::ptrdiff_t>(first), hole.begin() + static_cast<std::ptrdiff_t>(end), '\0');
    out.push_back(hole);                                                              // this sector is lost
    out.push_back(bytes.substr(0, first));                                            // the end is lost
    out.push_back(bytes.substr(0, first) + std::string(bytes.size() - first, '\0'));  // the end is lost, not the length
    out.push_back(bytes.substr(0, first + (end - first) / 2));                        // it ends within the record
  }
  return out;
}

TEST_F(Manifest, ATornEndIsGotOverAndLosesNothing) {
  live(1500);
  ASSERT_GE(moments_.size(), 8u);
  std::size_t torn = 0, kept = 0;
  std::size_t number = 0;
  for (const moment& one : moments_) {
    const std::string good = bytes_of(manifest_of(one.folder));
    for (const std::string& bad : torn_ends(good, one.synced_bytes)) {
      if (number++ % kEach != 0) continue;
      const std::string folder = copy_of(one);
      const std::string name = manifest_name(folder);
      write_bytes(manifest_of(folder), bad);
      ASSERT_EQ(outcome(folder, one.expected, nullptr), "") << one.folder << ", " << bad.size() << " bytes";
      ++torn;
      if (!fs::exists(folder + "/" + name + ".torn")) continue;
      ++kept;
      EXPECT_EQ(bytes_of(folder + "/" + name + ".torn"), bad);
    }
  }
  EXPECT_GT(torn * kEach, 30u);
  EXPECT_GT(kept * kEach, 5u) << "none was torn within a record";
}

// The same, of a record that was synced: its log may be gone.
TEST_F(Manifest, AnEndThatWasSyncedIsNotMissedInSilence) {
  live(1500);
  const std::string good = bytes_of(manifest_of(last_.folder));
  int refusals = 0;
  // Each end that a record has, and within records.
  std::vector<std::size_t> ends;
  for (const moment& one : moments_)
    if (manifest_name(one.folder) == manifest_name(last_.folder)) ends.push_back(one.synced_bytes);
  ASSERT_GE(ends.size(), 6u);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    for (const std::size_t size : {ends[i], ends[i] + 20}) {
      if (size == 0) continue;
      for (const bool zeros : {false, true}) {
        const std::string folder = copy_of(last_);
        std::string bad = good.substr(0, size);
        if (zeros) bad.resize(good.size());
        write_bytes(manifest_of(folder), bad);
        std::string refused;
        EXPECT_EQ(outcome(folder, last_.expected, &refused), "") << "cut off at " << size << " of " << good.size();
        refusals += !refused.empty();
        if (!refused.empty()) { EXPECT_EQ(bytes_of(manifest_of(folder)), bad) << "a refusal changes nothing"; }
      }
    }
  }
  EXPECT_GT(refusals, 8);
  EXPECT_EQ(outcome(copy_of(last_), last_.expected, nullptr), "");
}

TEST_F(Manifest, AFlippedBitIsNoTornEnd) {
  live(1000);
  std::mt19937 random(3);
  int refusals = 0;
  for (int turn = 0; turn < 60; ++turn) {
    const moment& one = turn % 2 == 0 ? last_ : moments_[random() % moments_.size()];
    const std::string good = bytes_of(manifest_of(one.folder));
    const std::string folder = copy_of(one), name = manifest_name(folder);
    std::string bad = good;
    const std::size_t first = one.synced_bytes < good.size() && turn % 3 != 0 ? one.synced_bytes : 0;
    const std::size_t place = first + random() % (good.size() - first);
    bad[place] = static_cast<char>(bad[place] ^ (1 << random() % 8));
    write_bytes(manifest_of(folder), bad);
    std::string refused;
    EXPECT_EQ(outcome(folder, one.expected, &refused), "") << "turn " << turn << " at " << place;
    refusals += !refused.empty();
    if (!refused.empty()) {
      EXPECT_EQ(bytes_of(manifest_of(folder)), bad) << "a refusal changes nothing";
    } else {  // a length behind the file's end looks like one that was cut off
      EXPECT_EQ(bytes_of(folder + "/" + name + ".torn"), bad) << "turn " << turn << " at " << place << " of " << good.size();
    }
  }
  EXPECT_GT(refusals, 50);
}

TEST_F(Manifest, AfterACleanStopNothingIsTorn) {
  live(300);
  const std::string data = folder_.path() + "/live";
  const std::string good = bytes_of(manifest_of(data));
  write_bytes(manifest_of(data), good.substr(0, good.size() - 5));
  std::string refused;
  EXPECT_EQ(outcome(data, last_.expected, &refused), "");
  EXPECT_NE(refused.find("when the store was stopped"), std::string::npos) << refused;
}

TEST_F(Manifest, CurrentThatLeadsNowhereIsDamage) {
  live(600);
  const std::string name = manifest_name(last_.folder);
  const std::string garbage[] = {"MANIFEST-999999\n", "", "MANIFEST", std::string(16, '\0')};
  for (const std::string& bad : garbage) {
    const std::string folder = copy_of(last_);
    write_bytes(folder + "/index/CURRENT", bad);
    std::string refused;
    EXPECT_EQ(outcome(folder, last_.expected, &refused), "");
    EXPECT_NE(refused.find("CURRENT"), std::string::npos) << refused;
    EXPECT_NE(refused.find("store repair"), std::string::npos) << refused;
    EXPECT_EQ(bytes_of(folder + "/index/CURRENT"), bad);
    // Nothing is lost: there is one manifest.
    disk_model files(folder, false);
    const auto report = repair_folder(folder, folder + "-repaired", &files);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->lost.empty()) << report->lost.front();
    EXPECT_EQ(outcome(folder + "-repaired", last_.expected, nullptr), "");
    fs::remove_all(folder + "-repaired");
  }
}

// What only looks at a folder sees what a start would serve, and changes nothing.
TEST_F(Manifest, ATornEndCanBeReadWithoutAChange) {
  live(1500);
  std::size_t looked = 0;
  std::size_t number = 0;
  for (const moment& one : moments_) {
    const std::string good = bytes_of(manifest_of(one.folder));
    if (one.expected.empty()) continue;
    for (const std::string& bad : torn_ends(good, one.synced_bytes)) {
      if (number++ % kEach != 0) continue;
      const std::string folder = copy_of(one);
      write_bytes(manifest_of(folder), bad);
      disk_model files(folder, false);
      engine_options settings = options(folder, files);
      settings.read_only = true;
      {
        auto opened = engine::open(settings);
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_EQ(missing(**opened, one.expected), "");
      }
      const auto report = check_folder(folder, &files);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_TRUE(report->is_good()) << report->problems.front();
      EXPECT_EQ(bytes_of(manifest_of(folder)), bad);
      for (const auto& file : fs::directory_iterator(folder)) {
        const std::string name = file.path().filename().string();
        EXPECT_TRUE(name == "commit.mark" || name == "lock" || name == "index" || name == "extents") << name;
      }
      ++looked;
    }
  }
  EXPECT_GT(looked * kEach, 3u);
}

// A log whose unsynced end has a hole is used no further than the hole. What is written after that is in a new log, and both
// are there at a second loss of power.
TEST_F(Manifest, ASecondLossOfPowerFindsTheLogOfTheFirst) {
  const std::string data = folder_.path() + "/data";
  std::map<std::string, std::string> expected;
  {
    disk_model files(data, false);
    auto opened = engine::open(options(data, files));
    ASSERT_TRUE(opened) << opened.error().message;
    const auto pool = (*opened)->create_pool("pool", {});
    ASSERT_TRUE(pool);
    for (int turn = 0; turn < 30; ++turn) {
      const std::string key = "key" + std::to_string(turn), value = value_for(turn);
      const bool is_durable = turn < 10;
      ASSERT_TRUE(
          (*opened)->put(pool->id, key, as_bytes(value), {.level = is_durable ? durability::durable : durability::logged}));
      if (is_durable) expected[key] = value;
    }
    fs::copy(data, folder_.path() + "/first", fs::copy_options::recursive);
  }
  const std::string first = folder_.path() + "/first", second = folder_.path() + "/second";
  fs::path log;
  for (const auto& file : fs::directory_iterator(first + "/index"))
    if (file.path().extension() == ".log" && (log.empty() || file.file_size() > fs::file_size(log))) log = file.path();
  std::string bytes = bytes_of(log);
  ASSERT_GT(bytes.size(), 80'000u);
  std::fill(bytes.begin() + 51'200, bytes.begin() + 51'200 + 1024, '\0');  // behind the durable ones, before others
  write_bytes(log, bytes);
  {
    disk_model files(first, false);
    auto opened = engine::open(options(first, files));
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(missing(**opened, expected), "");
    const auto pool = (*opened)->find_pool("pool");
    ASSERT_TRUE(pool);
    for (int turn = 0; turn < 20; ++turn) {
      const std::string key = "later" + std::to_string(turn);
      ASSERT_TRUE((*opened)->put(pool->id, key, as_bytes(value_for(turn)), {.level = durability::durable}));
      expected[key] = value_for(turn);
    }
    fs::copy(first, second, fs::copy_options::recursive);
  }
  EXPECT_EQ(outcome(second, expected, nullptr), "");
}

// The seals of a clean stop are on the medium after everything that they say, the removal of logs included.
TEST_F(Manifest, PowerMayGoAtEachMomentOfAStop) {
  const std::string data = folder_.path() + "/data", image = folder_.path() + "/image";
  disk_model files(data, true);
  std::map<std::string, std::string> expected;
  auto opened = engine::open(options(data, files));
  ASSERT_TRUE(opened) << opened.error().message;
  const auto pool = (*opened)->create_pool("pool", {});
  ASSERT_TRUE(pool);
  for (int turn = 0; turn < 20; ++turn) {
    const std::string key = "key" + std::to_string(turn);
    ASSERT_TRUE((*opened)->put(pool->id, key, as_bytes(value_for(turn)), {.level = durability::durable}));
    expected[key] = value_for(turn);
  }
  const std::size_t first = files.events();
  opened->reset();
  std::mt19937 random(7);
  ASSERT_GT(files.events(), first + 10);
  for (std::size_t cut = first; cut <= files.events(); ++cut) {
    const int draws =
        cut + 6 < files.events() ? 1 : 40 / static_cast<int>(kEach);  // what the seals say and what is there meet at the end
    for (int draw = 0; draw < draws; ++draw) {
      write_image(files.crash(cut, random), image);
      ASSERT_EQ(outcome(image, expected, nullptr), "") << "power lost before event " << cut << " of " << files.events();
    }
  }
}

}  // namespace
}  // namespace pl::store
