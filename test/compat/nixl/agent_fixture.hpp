// SPDX-License-Identifier: Apache-2.0
// Whole backends in one process, called as NIXL's agent calls them; and unauthenticated processes at their sockets.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "compat/nixl/backend.hpp"
#include "sim_fixture.hpp"

namespace pl::test {

using namespace std::chrono_literals;
namespace abi = nixl::abi;
using code = abi::status;

constexpr std::size_t kBlock = 4096, kCount = 300, kBytes = kBlock * kCount;

inline bool holds_soon(const std::function<bool()>& question) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!question()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline abi::transfer_list list_of(abi::memory_type type) { return {nullptr, type, {}}; }

// What NIXL's agent does around a backend.
struct agent {
  explicit agent(const std::string& name_wanted) : name(name_wanted) {
    abi::parameters none;
    abi::engine_options options;
    options.local_agent = name;
    options.type = "PEERLANE";
    options.custom = &none;
    engine = std::make_unique<nixl::backend>(options);
  }
  struct registered {
    abi::blob_descriptor described;
    abi::memory_type type = abi::memory_type::dram;
    abi::metadata* own = nullptr;
  };
  code add(std::uint64_t address, std::size_t size_bytes, abi::memory_type type, registered& out) const {
    out.type = type;
    out.described.address = address;
    out.described.size_bytes = size_bytes;
    const code added = engine->register_mem(out.described, type, out.own);
    if (added == code::success) { EXPECT_EQ(engine->get_public_data(out.own, out.described.blob), code::success); }
    return added;
  }
  code meet(const agent& other) const {
    std::string info;
    EXPECT_EQ(other.engine->get_conn_info(info), code::success);
    return engine->load_remote_conn_info(other.name, info);
  }
  abi::metadata* load(const agent& other, const registered& theirs) const {
    abi::metadata* out = nullptr;
    EXPECT_EQ(engine->load_remote_md(theirs.described, theirs.type, other.name, out), code::success);
    return out;
  }
  // Without a pause: what is looked at is what is there when the transfer says that it is done.
  code finish(abi::request_handle* handle, code now) const {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (now == code::in_progress && std::chrono::steady_clock::now() < end) now = engine->check_xfer(handle);
    return now;
  }
  // One transfer of all blocks, the remote side in reverse order.
  code move(abi::direction way, const registered& mine, const registered& theirs, abi::metadata* remote,
            const std::string& receiver, const std::string& note = "") const {
    auto local_list = list_of(mine.type), remote_list = list_of(theirs.type);
    for (std::size_t i = 0; i < kCount; ++i) {
      local_list.items.push_back({{mine.described.address + i * kBlock, kBlock, 0}, mine.own});
      remote_list.items.push_back({{theirs.described.address + (kCount - 1 - i) * kBlock, kBlock, 0}, remote});
    }
    abi::request_handle* handle = nullptr;
    abi::transfer_options options;
    options.has_notification = !note.empty();
    options.notification = note;
    const code prepared = engine->prep_xfer(way, local_list, remote_list, receiver, handle, &options);
    if (prepared != code::success) return prepared;
    const code ended = finish(handle, engine->post_xfer(way, local_list, remote_list, receiver, handle, &options));
    EXPECT_EQ(engine->release_req_h(handle), code::success);
    return ended;
  }
  abi::notifications heard() const {
    abi::notifications out;
    EXPECT_TRUE(holds_soon([&] { return engine->get_notifs(out) == code::success && !out.empty(); }));
    return out;
  }
  std::string name;
  std::unique_ptr<nixl::backend> engine;
};

class NixlBackend : public testing::Test {
 protected:
  NixlBackend() { simulated_cuda(); }
  static std::uint64_t address(const std::vector<unsigned char>& bytes) {
    return reinterpret_cast<std::uint64_t>(bytes.data());
  }
  current_device device_;
};

struct stranger {
  explicit stranger(const agent& listener) {
    std::string info;
    listener.engine->get_conn_info(info);
    target = *nixl::address::parse(info);
    socket = std::move(*nixl::connect_to(target.socket));
  }
  void say(nixl::message type, const std::string& payload, std::uint64_t id = 0, int number = 0) const {
    (void)nixl::send_message(socket.get(), type, id, number, {payload.data(), payload.size()});
  }
  bool is_cut_off() const {
    char byte = 0;
    return recv(socket.get(), &byte, 1, 0) <= 0;
  }
  nixl::address target;
  unique_fd socket;
};

}  // namespace pl::test
