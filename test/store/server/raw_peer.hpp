// SPDX-License-Identifier: Apache-2.0
// A connection that sends what it likes, and what the tests' process holds meanwhile.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "store/protocol/byte_channel.hpp"
#include "store/protocol/handshake.hpp"
#include "test/store/server/store_rig.hpp"
#include "test/support/descriptor_count.hpp"

namespace pl::store_test {

class raw_peer {
 public:
  explicit raw_peer(const store_client::client_options& options) {
    auto made = store_client::connect(options.server, 5000);
    EXPECT_TRUE(made) << made.error().message;
    if (made) wire_ = *std::move(made);
  }
  // Says hello and opens this pool.
  raw_peer(const store_client::client_options& options, std::uint32_t pool, const std::string& name, bool attach = false,
           int* device_link = nullptr)
      : raw_peer(options) {
    store_client::handshake_request request;
    request.attach = attach;
    request.rings = false;
    request.device = device_link != nullptr;
    request.pools[pool] = name;
    if (!wire_) return;
    const auto hello = store_client::do_handshake(*wire_, request, 5000);
    EXPECT_TRUE(hello) << hello.error().message;
    if (hello && hello->arena_fd >= 0) close(hello->arena_fd);
    if (hello && device_link != nullptr) *device_link = hello->device_fd;
  }
  // As much as goes without waiting.
  std::size_t send(std::string_view bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const iovec one{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
      const auto done = wire_->write({&one, 1});
      if (!done || *done == 0) break;
      sent += *done;
    }
    return sent;
  }
  void ask(store_protocol::head header, const std::string& key, const store_protocol::tail& fields = {}) {
    std::string bytes;
    ASSERT_TRUE(store_protocol::encode(header, key, fields, bytes));
    send(bytes);
  }
  // A put whose bytes shall follow.
  void send_put_header(std::uint32_t pool, std::uint64_t id, const std::string& key, std::uint64_t bytes) {
    store_protocol::head header;
    header.op = store_protocol::opcode::put;
    header.flags = store_protocol::flag::streamed;
    header.request_id = id;
    header.pool_id = pool;
    header.value_bytes = bytes;
    ask(header, key);
  }
  // The next answer's head. Nothing if the connection ended, or it took too long.
  std::optional<store_protocol::head> answer(unsigned timeout_ms = 10'000) {
    std::string bytes = read(store_protocol::kHeadBytes, timeout_ms);
    if (bytes.size() < store_protocol::kHeadBytes) return std::nullopt;
    const auto got = store_protocol::decode_head(std::as_bytes(std::span(bytes)).first<store_protocol::kHeadBytes>());
    if (!got) return std::nullopt;
    last_text_.clear();
    last_body_.clear();
    const std::string rest = read(got->key_bytes + got->tail_bytes + got->body_bytes, timeout_ms);
    if (auto parts =
            store_protocol::decode_rest(*got, std::as_bytes(std::span(bytes += rest)).first(bytes.size() - got->body_bytes)))
      last_text_ = parts->fields.text.value_or(std::string()), last_token_ = parts->fields.token.value_or(0);
    if (bytes.size() >= got->body_bytes) last_body_ = bytes.substr(bytes.size() - got->body_bytes);
    return *got;
  }
  const std::string& text() const { return last_text_; }
  const std::string& body() const { return last_body_; }
  std::uint64_t token() const { return last_token_; }
  bool is_cut_off(unsigned timeout_ms) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    char piece[4096];
    while (std::chrono::steady_clock::now() < deadline) {
      (void)store_client::wait_for(wire_->fd(), false, 50);
      if (!wire_->read(piece, sizeof piece)) return true;
    }
    return false;
  }
  void leave() { wire_.reset(); }

 private:
  std::string read(std::size_t bytes, unsigned timeout_ms) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    std::string out(bytes, '\0');
    std::size_t have = 0;
    while (have < bytes && std::chrono::steady_clock::now() < deadline) {
      const auto got = wire_->read(out.data() + have, bytes - have);
      if (!got) break;
      have += *got;
      if (*got == 0) (void)store_client::wait_for(wire_->fd(), false, 50);
    }
    out.resize(have);
    return out;
  }
  std::unique_ptr<store_client::byte_channel> wire_;
  std::string last_text_, last_body_;
  std::uint64_t last_token_ = 0;
};

template <class Condition>
bool soon(const Condition& condition, int seconds = 15) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// What a scrape of the server's metrics brings, with HTTP's head.
inline std::string scraped(const std::string& endpoint) {
  auto wire = store_client::connect({{}, endpoint, {}, {}, {}}, 5000);
  EXPECT_TRUE(wire);
  if (!wire) return {};
  char question[] = "GET /metrics HTTP/1.0\r\n\r\n";
  const iovec one{question, sizeof question - 1};
  EXPECT_TRUE((*wire)->write({&one, 1}));
  std::string text;
  for (char piece[4096];;) {
    (void)store_client::wait_for((*wire)->fd(), false, 1000);
    const auto got = (*wire)->read(piece, sizeof piece);
    if (!got) return text;
    text.append(piece, *got);
  }
}

// A number of such a text, by its name with labels; 0 if it is not there.
inline std::uint64_t scraped_number(const std::string& text, const std::string& name) {
  const auto line = text.find("\n" + name + " ");
  return line == std::string::npos ? 0 : std::strtoull(text.c_str() + line + name.size() + 2, nullptr, 10);
}

// Of this process, the server in it included.
inline std::uint64_t resident_bytes() {
  unsigned long long whole = 0, resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(file, "%llu %llu", &whole, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace pl::store_test
