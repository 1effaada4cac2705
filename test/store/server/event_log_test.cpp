// SPDX-License-Identifier: Apache-2.0
#include "store/server/event_log.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace pl::store_test {
namespace {

TEST(event_log, NamesAreJsonStringsOfTheirCharacters) {
  for (const std::string name : {"plain", "a\"b\\c",
                                 "gr\xc3\xb6\xc3\x9f"
                                 "e",
                                 "\xf0\x9f\x98\x80", ""})
    EXPECT_EQ(nlohmann::json::parse(store_server::json_quoted(name)).get<std::string>(), name);
  EXPECT_EQ(store_server::json_quoted("a\n\x7f\xff"), "\"a\\u000a\\u007f\\u00ff\"");
  EXPECT_EQ(store_server::json_quoted("\xc3("), "\"\\u00c3(\"") << "cut off";
}

class EventLogFile : public ::testing::Test {
 protected:
  using log = store_server::event_log;

  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "event-log-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/log"; }

  // Writes a line of which the file takes only the first bytes, as a disk does that becomes full.
  void write_cut_off(log& events) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const std::uint64_t limit = std::filesystem::file_size(path()) + 20;
    const rlimit now{limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
    events.write(log::level::info, "cut_off", {});
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_EQ(std::filesystem::file_size(path()), limit);
  }

  // The events of the lines in the file; "" for a line that is not JSON.
  std::vector<std::string> events_of(const std::string& path) const {
    std::vector<std::string> out;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto parsed = nlohmann::json::parse(line, nullptr, false);
      out.push_back(parsed.is_discarded() ? "" : parsed["event"].get<std::string>());
    }
    return out;
  }

  std::string folder_;
};

TEST_F(EventLogFile, ALineThatAFullDiskCutsOffDoesNotTakeTheNextWithIt) {
  auto opened = log::open(path(), log::level::info);
  ASSERT_TRUE(opened.ok());
  opened->write(log::level::info, "one", {});
  write_cut_off(*opened);
  opened->write(log::level::info, "two", {});
  opened->write(log::level::info, "three", {});
  EXPECT_EQ(events_of(path()), (std::vector<std::string>{"one", "", "two", "three"}));
}

TEST_F(EventLogFile, ALineCutOffEndsBeforeTheFirstOneAfterARestart) {
  {
    auto opened = log::open(path(), log::level::info);
    ASSERT_TRUE(opened.ok());
    write_cut_off(*opened);
  }
  auto opened = log::open(path(), log::level::info);
  ASSERT_TRUE(opened.ok());
  opened->write(log::level::info, "two", {});
  EXPECT_EQ(events_of(path()), (std::vector<std::string>{"", "two"}));
}

TEST_F(EventLogFile, AFileAfterRotationBeginsWithALine) {
  auto opened = log::open(path(), log::level::info);
  ASSERT_TRUE(opened.ok());
  write_cut_off(*opened);
  std::filesystem::rename(path(), path() + ".1");
  ASSERT_TRUE(opened->reopen());
  opened->write(log::level::info, "two", {});
  EXPECT_EQ(events_of(path()), (std::vector<std::string>{"two"}));
  write_cut_off(*opened);
  ASSERT_TRUE(opened->reopen());  // without a rotation
  opened->write(log::level::info, "three", {});
  EXPECT_EQ(events_of(path()), (std::vector<std::string>{"two", "", "three"}));
}

}  // namespace
}  // namespace pl::store_test
