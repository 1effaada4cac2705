// SPDX-License-Identifier: Apache-2.0
// A small store in a folder of its own, gone with the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "store/engine/engine.hpp"

namespace pl::store {

using bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Reproducible contents: another seed differs in every block.
inline bytes pattern_bytes(std::size_t size, std::uint64_t seed) {
  bytes made(size);
  std::mt19937_64 random(seed * 2654435761u + size);
  std::size_t offset = 0;
  for (; offset + 8 <= size; offset += 8) {
    const std::uint64_t word = random();
    std::memcpy(made.data() + offset, &word, 8);
  }
  for (; offset < size; ++offset) made[offset] = static_cast<std::byte>(random());
  return made;
}

// In the working folder, which is the build's: /tmp may be memory, where nothing of a disk can be tried.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = std::filesystem::current_path().string() + "/store-test-XXXXXX";
    path_ = ::mkdtemp(name.data()) != nullptr ? name : "";
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class StoreTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kSmall = 1000;
  static constexpr std::size_t kLarge = 100'000;

  virtual engine_options options() {
    engine_options made;
    made.directory = folder_.path() + "/data";
    made.arena_bytes = made.chunk_bytes = std::uint64_t{16} << 20;
    made.extent_file_bytes = std::uint64_t{4} << 20;
    made.disk_reserve_bytes = 0;
    return made;
  }
  void open() {
    auto opened = engine::open(options());
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }
  void reopen() {
    store_.reset();
    open();
  }
  void SetUp() override {
    ASSERT_FALSE(folder_.path().empty());
    open();
    pool_ = make_pool("pool", durability::durable);
  }
  pool_id make_pool(const std::string& name, durability level) {
    pool_options settings;
    settings.level = level;
    const auto made = store_->create_pool(name, settings);
    EXPECT_TRUE(made) << made.error().message;
    return made ? made->id : 0;
  }
  // The whole value, or the errno as text.
  static std::string read(engine& store, pool_id pool, std::string_view key) {
    const auto info = store.stat(pool, key);
    if (!info) return "errno " + std::to_string(info.error().code);
    std::string out(info->length_bytes, '?');
    const auto got = store.get(pool, key, std::as_writable_bytes(std::span(out)));
    if (!got) return "errno " + std::to_string(got.error().code);
    out.resize(got->copied_bytes);
    return out;
  }
  std::string read(std::string_view key) { return read(*store_, pool_, key); }
  static std::string text(const bytes& content) { return {reinterpret_cast<const char*>(content.data()), content.size()}; }
  int put(std::string_view key, std::string_view value, const put_options& settings = {}) {
    return store_->put(pool_, key, as_bytes(value), settings).code();
  }
  void expect_sound() {
    const auto report = store_->check(true);
    ASSERT_TRUE(report) << report.error().message;
    for (const std::string& problem : report->problems) ADD_FAILURE() << problem;
  }

  temporary_folder folder_;
  std::unique_ptr<engine> store_;
  pool_id pool_ = 0;
};

}  // namespace pl::store
