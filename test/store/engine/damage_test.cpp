// SPDX-License-Identifier: Apache-2.0
// A stopped store's files are changed: bits flip, files are cut off and go. What was acknowledged is there or the store says
// what is not; a value that was erased or replaced never comes back in silence.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "arch/crc32c.hpp"
#include "store/engine/commit_mark.hpp"
#include "store/engine/index_log.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class Damage : public StoreTest {
 protected:
  static constexpr int kKeys = 50;
  using oracle = std::map<std::string, std::string>;

  std::string data() const { return folder_.path() + "/data"; }
  std::vector<std::string> files(const std::string& suffix) const {
    std::vector<std::string> out;
    for (const auto& one : fs::recursive_directory_iterator(data()))
      if (one.is_regular_file() && one.path().string().ends_with(suffix)) out.push_back(one.path().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  // The log that is written to; the one of before is empty.
  std::string live_log() const {
    std::string out;
    for (const std::string& one : files(".log"))
      if (out.empty() || fs::file_size(one) > fs::file_size(out)) out = one;
    return out;
  }

  // Durable puts, of which some are erased and some replaced.
  static std::string value_for(int key, int turn) {
    const std::size_t size =
        key % 5 == 0 ? kLarge + static_cast<std::size_t>(key) : 300 + static_cast<std::size_t>(key) * 30;
    const bytes made = pattern_bytes(size, static_cast<std::uint64_t>(turn * 1000 + key));
    return text(made);
  }
  oracle live(engine& store, pool_id pool) {
    oracle expected;
    const auto put_one = [&](int key, int turn) {
      const std::string name = "key" + std::to_string(key);
      EXPECT_TRUE(store.put(pool, name, as_bytes(value_for(key, turn))));
      expected[name] = value_for(key, turn);
    };
    for (int key = 0; key < kKeys; ++key) put_one(key, 1);
    for (int key = 0; key < kKeys; key += 3) {
      EXPECT_TRUE(store.erase(pool, "key" + std::to_string(key)));
      expected.erase("key" + std::to_string(key));
    }
    for (int key = 1; key < kKeys; key += 4) put_one(key, 2);
    return expected;
  }

  // Runs in a process that is killed with the store open.
  oracle live_and_die() {
    store_.reset();
    const pid_t child = ::fork();
    if (child == 0) {
      auto opened = engine::open(options());
      if (opened) live(**opened, pool_);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    // What it did is known.
    oracle expected;
    for (int key = 0; key < kKeys; ++key) {
      const int turn = (key - 1) % 4 == 0 && key >= 1 ? 2 : 1;
      if (key % 3 == 0 && turn == 1) continue;
      expected["key" + std::to_string(key)] = value_for(key, turn);
    }
    return expected;
  }

  // The errors that the store did not report; empty: all values are right, or the store has named the lost ones.
  std::string silent_loss(const oracle& expected, bool& refused, int& reported) {
    refused = false, reported = 0;
    auto opened = engine::open(options());
    if (!opened) {
      refused = true;
      return opened.error().message.find(data()) == std::string::npos &&
                     opened.error().message.find("key") == std::string::npos
                 ? "the refusal names nothing: " + opened.error().message
                 : "";
    }
    engine& store = **opened;
    const auto pool = store.find_pool("pool");
    if (!pool) return "the pool is gone";
    for (int key = 0; key < kKeys; ++key) {
      const std::string name = "key" + std::to_string(key);
      const auto wanted = expected.find(name);
      const std::string got = read(store, pool->id, name);
      if (got == "errno " + std::to_string(EBADMSG) || got == "errno " + std::to_string(EUCLEAN) ||
          got == "errno " + std::to_string(EIO)) {
        ++reported;
      } else if (got == "errno 2") {
        if (wanted != expected.end()) return name + " is gone";
      } else if (wanted == expected.end()) {
        return name + " is back";
      } else if (got != wanted->second) {
        return name + " has another value: " + got.substr(0, 20);
      }
    }
    if (reported == 0) return {};
    const auto report = store.check(true);
    return !report || !report->problems.empty() ? "" : "check() finds nothing";
  }
};

TEST_F(Damage, ABitOfTheLogAfterACleanStopLosesNothing) {
  const oracle expected = live(*store_, pool_);
  store_.reset();
  for (const std::string& path : files(".log")) {
    std::string bytes = bytes_of(path);
    if (bytes.empty()) continue;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_bytes(path, bytes);
  }
  bool refused = false;
  int reported = 0;
  EXPECT_EQ(silent_loss(expected, refused, reported), "");
  EXPECT_FALSE(refused) << "a clean stop leaves nothing in the log";
  EXPECT_EQ(reported, 0);
}

TEST_F(Damage, ACleanStopLeavesTheLogEmpty) {
  live(*store_, pool_);
  store_.reset();
  for (const std::string& path : files(".log")) EXPECT_EQ(fs::file_size(path), 0u) << path;
}

TEST_F(Damage, ABitOfTheLogAfterAKillIsNeverSilent) {
  const oracle expected = live_and_die();
  const std::string log = live_log();
  const std::string good = bytes_of(log);
  ASSERT_GT(good.size(), 10'000u);
  const fs::path copy = folder_.path() + "/copy";
  fs::copy(data(), copy, fs::copy_options::recursive);
  std::mt19937 random(5);
  int refusals = 0;
  for (int turn = 0; turn < 40; ++turn) {
    fs::remove_all(data());
    fs::copy(copy, data(), fs::copy_options::recursive);
    std::string bad = good;
    const std::size_t offset = turn == 0 ? bad.size() - 1 : random() % bad.size();  // the last record, too
    if (turn % 4 == 3) bad.resize(offset);
    else bad[offset] = static_cast<char>(bad[offset] ^ (1 << random() % 8));
    write_bytes(log, bad);
    bool refused = false;
    int reported = 0;
    EXPECT_EQ(silent_loss(expected, refused, reported), "") << "turn " << turn << " at " << offset;
    refusals += refused;
    if (refused) { EXPECT_EQ(bytes_of(log), bad) << "a refusal changes nothing"; }
  }
  EXPECT_GT(refusals, 35);
  fs::remove_all(data());
  fs::rename(copy, data());
  bool refused = false;
  int reported = 0;
  EXPECT_EQ(silent_loss(expected, refused, reported), "");
  EXPECT_FALSE(refused);
}

// As after loss of power: the mark says less than was written, and what later batches say convicts the damage.
TEST_F(Damage, WithoutTheMarkLaterBatchesTellOfADamageBeforeThem) {
  const oracle expected = live_and_die();
  const std::string log = live_log();
  std::string bytes = bytes_of(log);
  bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 1);
  write_bytes(log, bytes);
  fs::remove(data() + "/commit.mark");
  const auto opened = engine::open(options());
  ASSERT_EQ(opened.code(), EUCLEAN);
  EXPECT_NE(opened.error().message.find(fs::path(log).filename().string()), std::string::npos) << opened.error().message;
  EXPECT_NE(opened.error().message.find("acknowledged and are lost"), std::string::npos) << opened.error().message;
}

// As after loss of power: what was written does not count, but what was synced does. The log's end is missing, and no later
// batch tells of it.
TEST_F(Damage, AfterLossOfPowerTheMarkRequiresWhatWasSynced) {
  live_and_die();
  const std::string path = data() + "/commit.mark";
  auto mark = commit_mark::read(path);
  ASSERT_TRUE(mark);
  mark->boot = "an earlier start of the machine";
  std::string slots(2 * commit_mark::kSlotBytes, '\0');
  for (const std::size_t slot : {std::size_t{0}, commit_mark::kSlotBytes})
    slots.replace(slot, encode(*mark).size(), encode(*mark));
  write_bytes(path, slots);
  const std::string log = live_log(), bytes = bytes_of(log);
  write_bytes(log, bytes.substr(0, bytes.size() * 3 / 4));
  const auto opened = engine::open(options());
  ASSERT_EQ(opened.code(), EUCLEAN);
  EXPECT_NE(opened.error().message.find("acknowledged and are lost"), std::string::npos) << opened.error().message;
}

// The last record of a manifest says that it is longer than the file: RocksDB takes it for one that was never finished.
TEST_F(Damage, ALengthInTheManifestOfACleanStopIsNotBelieved) {
  live(*store_, pool_);
  store_.reset();
  const auto manifests = files("");
  const auto found =
      std::find_if(manifests.begin(), manifests.end(), [](const auto& one) { return one.find("/MANIFEST-") != one.npos; });
  ASSERT_NE(found, manifests.end());
  std::string bytes = bytes_of(*found);
  std::size_t last = 0;
  for (std::size_t offset = 0; offset + 7 < bytes.size();) {
    last = offset;
    offset += 7 + (static_cast<unsigned char>(bytes[offset + 4]) | static_cast<unsigned char>(bytes[offset + 5]) << 8);
  }
  ASSERT_LT(bytes.size(), 32768u) << "records of more than one block";
  bytes[last + 5] = static_cast<char>(bytes[last + 5] | 0x40);
  write_bytes(*found, bytes);
  const auto opened = engine::open(options());
  ASSERT_EQ(opened.code(), EUCLEAN);
  EXPECT_NE(opened.error().message.find("other bytes"), std::string::npos) << opened.error().message;
}

// ---- Zeros in the log

constexpr std::size_t kLogBlock = 32768, kFragmentHead = 7;

std::size_t length_of_fragment(const std::string& log, std::size_t offset) {
  return static_cast<unsigned char>(log[offset + 4]) | static_cast<std::size_t>(static_cast<unsigned char>(log[offset + 5]))
                                                           << 8;
}

std::vector<std::string> records_of(const std::string& log) {
  std::vector<std::string> out;
  std::string record;
  for (std::size_t offset = 0; offset + kFragmentHead <= log.size();) {
    const std::size_t left = kLogBlock - offset % kLogBlock, bytes = length_of_fragment(log, offset);
    const char type = log[offset + 6];  // 1: whole; 2, 3, 4: first, middle and last part; 0: nothing up to the block's end
    if (left < kFragmentHead || type == 0) {
      offset += left;
      continue;
    }
    record += log.substr(offset + kFragmentHead, bytes);
    offset += kFragmentHead + bytes;
    if (type == 1 || type == 4) out.push_back(std::exchange(record, {}));
  }
  return out;
}

// A log of these records, each at the beginning of a block of its own; an empty one is a block of zeros.
std::string log_of(const std::vector<std::string>& records) {
  std::string out;
  for (const std::string& record : records) {
    const std::string typed = std::string(1, 1) + record;
    const std::uint32_t crc = arch::crc32c(typed.data(), typed.size()), masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    const auto length = static_cast<std::uint16_t>(record.size());
    std::string block;
    if (!record.empty()) {
      block.append(reinterpret_cast<const char*>(&masked), sizeof masked);
      block.append(reinterpret_cast<const char*>(&length), sizeof length);
      block += typed;
    }
    EXPECT_LE(block.size(), kLogBlock);
    block.resize(kLogBlock, '\0');
    out += block;
  }
  return out;
}

// RocksDB skips zeros up to a block's end without a word, and goes on behind them where a record begins there.
TEST_F(Damage, ARecordOfZerosIsALoss) {
  const oracle expected = live_and_die();
  const std::string log = live_log();
  auto records = records_of(bytes_of(log));
  ASSERT_GT(records.size(), 40u);
  const fs::path copy = folder_.path() + "/copy";
  fs::copy(data(), copy, fs::copy_options::recursive);
  write_bytes(log, log_of(records));
  bool refused = false;
  int reported = 0;
  EXPECT_EQ(silent_loss(expected, refused, reported), "");
  EXPECT_FALSE(refused) << "the same records, only with room between them";
  fs::remove_all(data());
  fs::rename(copy, data());
  records[records.size() / 2].clear();
  write_bytes(log, log_of(records));
  EXPECT_EQ(silent_loss(expected, refused, reported), "");
  EXPECT_TRUE(refused);
}

TEST_F(Damage, ZerosInTheMiddleOfTheLogAreALoss) {
  const oracle expected = live_and_die();
  const std::string log = live_log();
  std::string bytes = bytes_of(log);
  std::vector<std::size_t> ends;  // of records
  const std::size_t block = 32768;
  for (std::size_t offset = 0; offset + 7 < std::min(bytes.size(), block);) {
    offset += 7 + (static_cast<unsigned char>(bytes[offset + 4]) | static_cast<unsigned char>(bytes[offset + 5]) << 8);
    ends.push_back(offset);
  }
  ASSERT_GT(bytes.size(), block + 10'000);
  ASSERT_GT(ends.size(), 8u);
  const std::size_t first = ends[ends.size() - 3];
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(first), bytes.begin() + static_cast<std::ptrdiff_t>(block), '\0');
  write_bytes(log, bytes);
  bool refused = false;
  int reported = 0;
  EXPECT_EQ(silent_loss(expected, refused, reported), "");
  EXPECT_TRUE(refused);
}

// Every file of a cleanly stopped store: all values right, or a refusal or report that names the loss.
TEST_F(Damage, NoDamageOfAnyFileIsSilent) {
  const oracle expected = live(*store_, pool_);
  store_.reset();
  const std::string copy = folder_.path() + "/copy";
  fs::copy(data(), copy, fs::copy_options::recursive);
  const auto names = files("");
  const char* given = std::getenv("PL_DAMAGE_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 1;
  std::mt19937 random(seed);
  std::map<std::string, int> outcomes;
  for (const std::string& name : names) {
    const std::string good = bytes_of(name);
    for (int turn = 0; turn < 8; ++turn) {
      if (good.empty() && turn > 1) break;
      fs::remove_all(data());
      fs::copy(copy, data(), fs::copy_options::recursive);
      std::string bad = good;
      const std::size_t offset = good.empty() ? 0 : random() % good.size();
      std::string damage = "deleted";
      if (turn == 0) {
        fs::remove(name);
      } else if (turn == 1 && good.empty()) {
        damage = "no longer empty", write_bytes(name, std::string(100, 'x'));
      } else if (turn == 1 || turn == 2) {
        damage = "cut off at " + std::to_string(turn == 1 ? 0 : offset);
        write_bytes(name, bad.substr(0, turn == 1 ? 0 : offset));
      } else {
        damage = "flipped at " + std::to_string(offset);
        bad[offset] = static_cast<char>(bad[offset] ^ (1 << random() % 8));
        write_bytes(name, bad);
      }
      bool refused = false;
      int reported = 0;
      EXPECT_EQ(silent_loss(expected, refused, reported), "") << name << " " << damage << ", seed " << seed;
      ++outcomes[refused ? "refused" : reported > 0 ? "told" : "right"];
    }
  }
  EXPECT_GT(outcomes["refused"], 5);
  EXPECT_GT(outcomes["told"], 1);
  EXPECT_GT(outcomes["right"], 5);
}

// ---- Extent files ------------------------------------------------------------------------------------------------------

class LostExtents : public Damage {
 protected:
  engine_options options() override {
    engine_options made = Damage::options();
    made.extent_file_bytes = std::uint64_t{1} << 20;  // several files
    return made;
  }
};

TEST_F(LostExtents, AMissingFileCostsItsValuesAlone) {
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(store_->put(pool_, "key" + std::to_string(i), pattern_bytes(kLarge, static_cast<unsigned>(i))));
  store_.reset();
  ASSERT_GE(files(".extents").size(), 3u);
  fs::remove(data() + "/extents/000001.extents");
  open();
  std::vector<std::string> lost;
  for (int i = 0; i < 30; ++i) {
    const std::string key = "key" + std::to_string(i);
    bytes out(kLarge);
    const auto got = store_->get(pool_, key, out);
    if (got) {
      EXPECT_TRUE(out == pattern_bytes(kLarge, static_cast<unsigned>(i))) << key;
      continue;
    }
    EXPECT_EQ(got.code(), EBADMSG) << got.error().message;
    EXPECT_NE(got.error().message.find("000001.extents is missing"), std::string::npos) << got.error().message;
    EXPECT_NE(got.error().message.find(key), std::string::npos) << got.error().message;
    lost.push_back(key);
  }
  ASSERT_GT(lost.size(), 5u);
  ASSERT_LT(lost.size(), 15u);
  for (const bool values : {true, false}) {
    const auto report = store_->check(values);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->problems.size(), lost.size());
    for (std::size_t i = 0; i < lost.size(); ++i)
      EXPECT_TRUE(std::any_of(report->problems.begin(), report->problems.end(), [&](const std::string& one) {
        return one.find("'" + lost[i] + "'") != std::string::npos && one.find("is missing") != std::string::npos;
      })) << lost[i];
  }
  // New values lie elsewhere, the lost ones can be put again or erased, and then its number is used again.
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(store_->put(pool_, "new" + std::to_string(i), pattern_bytes(kLarge, static_cast<unsigned>(100 + i))));
  EXPECT_FALSE(fs::exists(data() + "/extents/000001.extents"));
  ASSERT_TRUE(store_->put(pool_, lost[0], pattern_bytes(kLarge, 77)));
  for (std::size_t i = 1; i < lost.size(); ++i) ASSERT_TRUE(store_->erase(pool_, lost[i]));
  expect_sound();
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(store_->put(pool_, "more" + std::to_string(i), pattern_bytes(kLarge, static_cast<unsigned>(200 + i))));
  EXPECT_TRUE(fs::exists(data() + "/extents/000001.extents"));
  reopen();
  EXPECT_TRUE(read(lost[0]) == text(pattern_bytes(kLarge, 77)));
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(read("new" + std::to_string(i)) == text(pattern_bytes(kLarge, static_cast<unsigned>(100 + i))));
  expect_sound();
}

TEST_F(LostExtents, AFileThatIsCutOffCostsWhatWasBehindTheCut) {
  for (int i = 0; i < 8; ++i)
    ASSERT_TRUE(store_->put(pool_, "key" + std::to_string(i), bytes(kLarge)));  // zeros, as a cut leaves
  store_.reset();
  fs::resize_file(data() + "/extents/000000.extents", 300'000);
  for (int turn = 0; turn < 2; ++turn) {
    open();
    EXPECT_TRUE(read("key0") == text(bytes(kLarge)));
    if (turn == 0) {
      bytes out(kLarge);
      const auto got = store_->get(pool_, "key5", out);
      ASSERT_EQ(got.code(), EBADMSG);
      EXPECT_NE(got.error().message.find("was cut off at 300000 bytes"), std::string::npos) << got.error().message;
      EXPECT_TRUE(store_->put(pool_, "key5", pattern_bytes(kLarge, 5)));
    }
    EXPECT_TRUE(read("key5") == text(pattern_bytes(kLarge, 5)));
    store_.reset();
  }
}

}  // namespace
}  // namespace pl::store
