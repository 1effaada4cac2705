// SPDX-License-Identifier: Apache-2.0
// A server in the test's own process on a directory of its own, and clients of it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store/client/client.hpp"
#include "store/server/server.hpp"

namespace pl::store_test {

using bytes_t = std::vector<unsigned char>;

// The principal that this process is for a server on the same machine.
inline std::string own_uid() { return "uid:" + std::to_string(geteuid()); }

inline bytes_t random_value(std::size_t bytes, std::uint64_t seed) {
  bytes_t out(bytes);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(&out[i], &word, std::min<std::size_t>(8, bytes - i));
  }
  return out;
}

inline store_client::memory memory_of(const bytes_t& bytes) {
  return {reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size(), std::nullopt};
}

class store_rig {
 public:
  store_rig() {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-store-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    config.data = directory_ + "/data";
    config.listen = "127.0.0.1:0";
    config.admins = {own_uid(), "uid:0", "tcp"};
    config.log = directory_ + "/log";
    config.log_level = "debug";
    config.arena_bytes = 64u << 20;
    config.chunk_bytes = 16u << 20;
    config.extent_file_bytes = 64u << 20;
    config.drain_timeout_s = 2;
  }
  ~store_rig() {
    stop();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  store_rig(const store_rig&) = delete;
  store_rig& operator=(const store_rig&) = delete;

  void start() {
    auto made = store_server::server::open(config);
    ASSERT_TRUE(made) << made.error().message;
    server_ = *std::move(made);
    thread_ = std::thread([this] { ended_ = server_->run(); });
    // The same port again after a restart.
    if (config.listen != "none") config.listen = server_->tcp_endpoint();
  }
  void stop() {
    if (!server_) return;
    server_->stop();
    thread_.join();
    EXPECT_TRUE(ended_) << ended_.error().message;
    server_.reset();
  }
  store_server::server& server() { return *server_; }
  const std::string& directory() const { return directory_; }

  store_client::client_options over_unix() const {
    store_client::client_options out;
    out.server.socket = config.data + "/store.sock";
    return out;
  }
  store_client::client_options over_tcp() const {
    store_client::client_options out;
    out.server.endpoint = config.listen;
    return out;
  }
  static std::unique_ptr<store_client::client> open(const store_client::client_options& options) {
    auto made = store_client::client::open(options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }

  store_server::server_config config;

 private:
  std::string directory_;
  std::unique_ptr<store_server::server> server_;
  std::thread thread_;
  status ended_;
};

inline store_client::reply put(store_client::client& connection, std::uint32_t pool, const std::string& key,
                               const bytes_t& value, const store_client::put_request& options = {}) {
  return connection.run(connection.make_put(pool, key, memory_of(value), options));
}

// The value, or a test failure.
inline bytes_t get(store_client::client& connection, std::uint32_t pool, const std::string& key, std::size_t room,
                   store_client::reply* answer = nullptr, const store_client::get_request& options = {}) {
  bytes_t out(room);
  const auto got = connection.run(connection.make_get(pool, key, memory_of(out), options));
  EXPECT_EQ(got.status, 0) << got.text;
  out.resize(got.moved_bytes);
  if (answer != nullptr) *answer = got;
  return out;
}

inline std::uint32_t make_pool(store_client::client& connection, const std::string& name,
                               store_protocol::pool_settings settings = {}) {
  const auto made = connection.create_pool(name, settings);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : 0;
}

inline store_client::put_request at_level(store_protocol::durability level) {
  store_client::put_request out;
  out.level = level;
  return out;
}

}  // namespace pl::store_test
