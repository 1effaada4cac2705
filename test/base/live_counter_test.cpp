// SPDX-License-Identifier: Apache-2.0
// Counters that another process may read: nothing without being asked, the documented layout, every count, nothing left
// behind.
#include "base/live_counter.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;

pl::live_counter g_things{"test.things", pl::live_kind::level};
pl::live_pair g_copies{"test.copies.count", "test.copies.bytes"};

struct folder {
  folder() : path(fs::temp_directory_path() / ("live_counter_test." + std::to_string(::getpid()))) {
    fs::create_directory(path);
  }
  ~folder() { fs::remove_all(path); }
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& one : fs::directory_iterator(path)) out.push_back(one.path());
    return out;
  }
  fs::path path;
};

// The environment is read once a process, so each case is a child; its exit code is what `body` returns.
int in_a_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) std::exit(body());
  int exit_status = 0;
  EXPECT_EQ(::waitpid(child, &exit_status, 0), child);
  return WIFEXITED(exit_status) ? WEXITSTATUS(exit_status) : -1;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
T read_at(const std::string& bytes, std::size_t offset) {
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

std::map<std::string, std::uint64_t> entries_of(const std::string& bytes) {
  std::map<std::string, std::uint64_t> out;
  for (std::uint32_t i = 0; i < read_at<std::uint32_t>(bytes, 20); ++i) {
    const std::size_t entry = read_at<std::uint32_t>(bytes, 12) + i * read_at<std::uint32_t>(bytes, 16);
    std::uint64_t& value = out[bytes.c_str() + entry + 16] = read_at<std::uint64_t>(bytes, entry);
    for (std::uint32_t b = 0; b < read_at<std::uint32_t>(bytes, 120); ++b)
      value +=
          read_at<std::uint64_t>(bytes, read_at<std::uint32_t>(bytes, 124) + b * read_at<std::uint32_t>(bytes, 128) + i * 8);
  }
  return out;
}

void ask_for_it(const folder& directory) {
  ::setenv("PEERLANE_STATISTICS", "1", 1);
  ::setenv("PEERLANE_STATISTICS_FOLDER", directory.path.c_str(), 1);
}

TEST(LiveCounter, NothingIsMadeUnasked) {
  folder directory;
  EXPECT_EQ(in_a_child([&] {
              ::unsetenv("PEERLANE_STATISTICS");
              ::setenv("PEERLANE_STATISTICS_FOLDER", directory.path.c_str(), 1);
              g_things.add();
              if (pl::publish_live_counters()) return 1;
              g_things.add();
              return directory.files().empty() ? 0 : 2;
            }),
            0);
}

TEST(LiveCounter, TheLayoutIsTheDocumentedOne) {
  folder directory;
  EXPECT_EQ(
      in_a_child([&] {
        ask_for_it(directory);
        if (!pl::publish_live_counters() || directory.files().size() != 1) return 1;
        g_things.add(5);
        g_things.add(-2);
        g_copies.add(4096);
        g_copies.add(1);
        const std::string bytes = read_file(directory.files()[0]);
        if (bytes.substr(0, 8) != "PEERLANE" || read_at<std::uint32_t>(bytes, 8) != 1) return 2;
        if (read_at<std::uint32_t>(bytes, 24) != static_cast<std::uint32_t>(::getpid())) return 3;
        if (read_at<std::uint64_t>(bytes, 32) == 0 || read_at<std::uint64_t>(bytes, 40) == 0 ||
            read_at<std::uint64_t>(bytes, 48) == 0)
          return 4;
        if (std::string(bytes.c_str() + 56).empty()) return 5;
        auto values = entries_of(bytes);
        if (values.at("test.things") != 3 || values.at("test.copies.count") != 2 || values.at("test.copies.bytes") != 4097)
          return 6;
        if ((fs::status(directory.files()[0]).permissions() & (fs::perms::group_all | fs::perms::others_all)) !=
            fs::perms::none)
          return 7;
        return 0;
      }),
      0);
  EXPECT_TRUE(directory.files().empty()) << "the file goes with the process";
}

TEST(LiveCounter, ThreadsLoseNoCount) {
  folder directory;
  EXPECT_EQ(in_a_child([&] {
              ask_for_it(directory);
              if (!pl::publish_live_counters()) return 1;
              std::vector<std::thread> threads;
              for (int i = 0; i < 4; ++i)
                threads.emplace_back([] {
                  for (int k = 0; k < 20000; ++k) g_copies.add(2);
                });
              for (auto& one : threads) one.join();
              auto values = entries_of(read_file(directory.files()[0]));
              return values.at("test.copies.count") == 80000 && values.at("test.copies.bytes") == 160000 ? 0 : 2;
            }),
            0);
}

TEST(LiveCounter, MoreThreadsThanBlocksAndThreadsThatEnd) {
  folder directory;
  EXPECT_EQ(in_a_child([&] {
              ask_for_it(directory);
              if (!pl::publish_live_counters()) return 1;
              for (int turn = 0; turn < 3; ++turn) {
                std::barrier all(100);  // 100 at once: some have no block of their own
                std::vector<std::thread> threads;
                for (int i = 0; i < 100; ++i)
                  threads.emplace_back([&] {
                    g_copies.add(1);
                    all.arrive_and_wait();
                    g_copies.add(1);
                  });
                for (auto& one : threads) one.join();
              }
              auto values = entries_of(read_file(directory.files()[0]));
              return values.at("test.copies.count") == 600 && values.at("test.copies.bytes") == 600 ? 0 : 2;
            }),
            0);
}

TEST(LiveCounter, AChildCountsForItself) {
  folder directory;
  EXPECT_EQ(
      in_a_child([&] {
        ask_for_it(directory);
        if (!pl::publish_live_counters()) return 1;
        g_things.add();
        const std::string mine = directory.files().at(0);
        const int inner = in_a_child([&] {
          g_things.add(100);  // into no file: neither the parent's nor its own
          if (entries_of(read_file(mine)).at("test.things") != 1) return 1;
          if (!pl::publish_live_counters() || directory.files().size() != 2) return 2;
          g_things.add(7);
          for (const auto& file : directory.files())
            if (file != mine && entries_of(read_file(file)).at("test.things") == 7) return 0;
          return 3;
        });
        if (inner != 0) return 10 + inner;
        return directory.files() == std::vector<std::string>{mine} && entries_of(read_file(mine)).at("test.things") == 1 ? 0
                                                                                                                         : 2;
      }),
      0);
}

TEST(LiveCounter, TheFileGoesAlsoWhenTheProgramHasChangedItsFolder) {
  folder directory;
  EXPECT_EQ(in_a_child([&] {
              if (::chdir(directory.path.parent_path().c_str()) != 0) return 1;
              ask_for_it(directory);
              ::setenv("PEERLANE_STATISTICS_FOLDER", directory.path.filename().c_str(), 1);
              if (!pl::publish_live_counters() || directory.files().size() != 1) return 2;
              return ::chdir("/") == 0 ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(directory.files().empty());
}

TEST(LiveCounter, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(in_a_child([] {
              ::setenv("PEERLANE_STATISTICS", "1", 1);
              ::setenv("PEERLANE_STATISTICS_FOLDER", "/nonexistent", 1);
              const bool made = pl::publish_live_counters();
              g_things.add();  // harmless
              return made ? 1 : 0;
            }),
            0);
}

}  // namespace
