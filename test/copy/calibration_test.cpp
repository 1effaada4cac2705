// SPDX-License-Identifier: Apache-2.0
// Measuring a cost table, keeping it, and not believing files that are damaged or of another machine.
#include "copy/calibration.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

class Calibration : public planner_fixture {
 protected:
  void SetUp() override {
    char name[] = "/tmp/peerlane-calibration-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    before_ = std::getenv("XDG_CACHE_HOME") != nullptr ? std::getenv("XDG_CACHE_HOME") : "";
    setenv("XDG_CACHE_HOME", name, 1);
    key_ = machine_key(cuda_, 0);
    path_ = calibration_path(key_);
  }
  void TearDown() override {
    if (before_.empty()) unsetenv("XDG_CACHE_HOME");
    else setenv("XDG_CACHE_HOME", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  static cost_table small_table() {
    return *cost_table::parse(header() + curve(direction::to_host, other_side::pinned, {method::cpu_load, 1}, 77));
  }
  bool is_built_in() {
    auto found = find_costs(cuda_, "");
    EXPECT_TRUE(found);
    return found && found->table.text() == cost_table::built_in().text() && found->origin.find("built in") == 0;
  }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string read() {
    std::stringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  std::string folder_, before_, key_, path_;
};

TEST_F(Calibration, MeasuresWhatWorksHere) {
  open();
  calibration_options wanted;
  wanted.budget_ms = 30;
  wanted.most_bytes = 256u << 10;
  std::size_t calls = 0, all = 0;
  wanted.progress = [&](const std::string& subject, std::size_t done, std::size_t total) {
    EXPECT_FALSE(subject.empty());
    EXPECT_EQ(done, calls++);
    all = total;
  };
  auto measured = calibrate(cuda_, *planner_, wanted);
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_EQ(calls, all);
  auto again = cost_table::parse(measured->text());
  ASSERT_TRUE(again) << again.error().message;
  const auto has = [&](direction way, other_side side, method kind) {
    for (const auto& one : measured->curves())
      if (one.way == way && one.side == side && one.option.kind == kind) return true;
    return false;
  };
  EXPECT_TRUE(has(direction::to_device, other_side::pinned, method::cpu_store));
  EXPECT_TRUE(has(direction::to_host, other_side::pageable, method::cpu_load));
  EXPECT_TRUE(has(direction::to_host, other_side::pageable, method::bounce));
  EXPECT_TRUE(has(direction::on_device, other_side::peer_gpu, method::copy_engine));
  EXPECT_TRUE(has(direction::on_device, other_side::same_gpu, method::cpu_relay));
  for (const auto& one : measured->curves())
    for (const auto& point : one.points) {
      const auto limits = limits_of(one.way, one.option);
      EXPECT_TRUE(point.bytes >= limits.least && point.bytes <= limits.most) << to_text(one.option);
    }
  // And a planner that believes it copies.
  planner::options believes;
  believes.costs = measured->text();
  auto copier = planner::open(cuda_, believes);
  ASSERT_TRUE(copier);
  for (const auto way : kDirections)
    for (const auto side : sides_of(way)) {
      const copy_case one(way, side, 30'000);
      ASSERT_TRUE((*copier)->copy(one.to_transfer()));
      ASSERT_TRUE(one.is_copied());
    }
}

TEST_F(Calibration, WithoutAMappingTheRestIsMeasured) {
  planner::options blind;
  blind.maps.backend = "gdrdrv";
  open("", blind);
  calibration_options wanted;
  wanted.budget_ms = 1;
  wanted.most_bytes = 64u << 10;
  auto measured = calibrate(cuda_, *planner_, wanted);
  ASSERT_TRUE(measured) << measured.error().message;
  for (const auto& one : measured->curves())
    EXPECT_TRUE(one.option.kind == method::copy_engine || one.option.kind == method::bounce);
  wanted.device_ordinal = 17;
  EXPECT_FALSE(calibrate(cuda_, *planner_, wanted));
}

TEST_F(Calibration, IsKeptForThisMachine) {
  EXPECT_FALSE(key_.empty());
  EXPECT_EQ(key_.find('\n'), std::string::npos);
  EXPECT_EQ(path_.find(folder_ + "/peerlane/calibration-"), 0u);
  EXPECT_NE(calibration_path(key_ + "x"), path_);
  EXPECT_TRUE(is_built_in());
  ASSERT_TRUE(save_costs(small_table(), key_, path_));
  auto found = find_costs(cuda_, "");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->origin, path_);
  EXPECT_EQ(found->table.text(), small_table().text());
  auto made = planner::open(cuda_, {});
  ASSERT_TRUE(made);
  EXPECT_EQ((*made)->costs_origin(), path_);
  // Saved again over it; nothing else is left in the folder.
  ASSERT_TRUE(save_costs(cost_table::built_in(), key_, path_));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/peerlane"), {}), 1);
  found = find_costs(cuda_, "");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->table.text(), cost_table::built_in().text());
  // What is given comes before the file.
  found = find_costs(cuda_, small_table().text());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->origin, "given");
  EXPECT_EQ(find_costs(cuda_, "what?").code(), EINVAL);
}

TEST_F(Calibration, DamagedAndForeignFilesAreIgnored) {
  ASSERT_TRUE(save_costs(small_table(), key_, path_));
  const auto whole = read();
  ASSERT_NE(whole.find("machine " + key_ + "\n"), std::string::npos);
  write("");
  EXPECT_TRUE(is_built_in());
  write(whole.substr(0, whole.size() / 2));
  EXPECT_TRUE(is_built_in());
  write(whole + "curve x\n");
  EXPECT_TRUE(is_built_in());
  write(small_table().text());
  EXPECT_TRUE(is_built_in()) << "it does not say whose it is";
  write(std::string(100'000, '\xff'));
  EXPECT_TRUE(is_built_in());
  ASSERT_TRUE(save_costs(small_table(), "gpu=another", path_));
  EXPECT_TRUE(is_built_in());
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_TRUE(is_built_in());
  EXPECT_FALSE(save_costs(small_table(), key_, path_)) << "a folder lies there";
  std::filesystem::remove(path_);
  write(whole);
  EXPECT_FALSE(is_built_in());
}

TEST_F(Calibration, SaysWhereItCannotWrite) {
  EXPECT_EQ(save_costs(small_table(), key_, "").code(), ENOENT);
  { std::ofstream(folder_ + "/file") << "x"; }
  auto refused = save_costs(small_table(), key_, folder_ + "/file/peerlane/c.txt");
  EXPECT_EQ(refused.code(), ENOTDIR);
  if (!refused) { EXPECT_NE(refused.error().message.find("XDG_CACHE_HOME"), std::string::npos) << refused.error().message; }
  auto readonly = save_costs(small_table(), key_, "/proc/peerlane/c.txt");
  EXPECT_FALSE(readonly);
  setenv("XDG_CACHE_HOME", "", 1);
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  setenv("HOME", folder_.c_str(), 1);
  EXPECT_EQ(calibration_path(key_).find(folder_ + "/.cache/peerlane/"), 0u);
  setenv("HOME", "", 1);
  EXPECT_EQ(calibration_path(key_), "");
  EXPECT_TRUE(is_built_in());
  setenv("HOME", home.c_str(), 1);
}

TEST_F(Calibration, ARelativeFolderIsIgnored) {
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  setenv("HOME", folder_.c_str(), 1);
  setenv("XDG_CACHE_HOME", "cache", 1);  // as its specification says
  EXPECT_EQ(calibration_path(key_).find(folder_ + "/.cache/peerlane/"), 0u);
  setenv("HOME", "home", 1);
  EXPECT_EQ(calibration_path(key_), "");
  setenv("HOME", home.c_str(), 1);
}

TEST_F(Calibration, OthersMayNotWriteItWhateverTheUmaskIs) {
  const auto mode_of = [](const std::string& path) {
    struct stat about {};
    return stat(path.c_str(), &about) == 0 ? about.st_mode & 0777u : 0u;
  };
  const mode_t before = umask(0);
  const std::string path = folder_ + "/cache/peerlane/c.txt";
  EXPECT_TRUE(save_costs(small_table(), key_, path));
  umask(before);
  EXPECT_EQ(mode_of(path), 0644u);
  EXPECT_EQ(mode_of(folder_ + "/cache/peerlane"), 0700u);
  EXPECT_EQ(mode_of(folder_ + "/cache"), 0700u);
}

// A service's home is often /nonexistent, which must stay so.
TEST_F(Calibration, AHomeThatIsNotThereIsNotMade) {
  EXPECT_EQ(save_costs(small_table(), key_, folder_ + "/nonexistent/.cache/peerlane/c.txt").code(), ENOENT);
  EXPECT_EQ(check_calibration_path(folder_ + "/nonexistent/.cache/peerlane/c.txt").code(), ENOENT);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/nonexistent"));
}

}  // namespace
}  // namespace pl::copy
