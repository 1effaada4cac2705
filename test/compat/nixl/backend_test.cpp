// SPDX-License-Identifier: Apache-2.0
// Whole backends in one process; and unauthenticated processes at their sockets.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rm/simulated_device_io.hpp"
#include "test/compat/nixl/agent_fixture.hpp"

namespace {

using namespace pl;
using namespace pl::test;
namespace abi = nixl::abi;  // not the compiler's, which gtest brings

std::vector<unsigned char> reversed(const std::vector<unsigned char>& bytes) {
  std::vector<unsigned char> out(bytes.size());
  for (std::size_t i = 0; i < kCount; ++i) std::copy_n(&bytes[i * kBlock], kBlock, &out[(kCount - 1 - i) * kBlock]);
  return out;
}

TEST_F(NixlBackend, MovesBetweenAgentsOfOneProcess) {
  const agent one("one"), two("two");
  const device_buffer mine(kBytes), theirs(kBytes);
  agent::registered own, other;
  ASSERT_EQ(one.add(mine.pointer(), kBytes, abi::memory_type::vram, own), code::success);
  ASSERT_EQ(two.add(theirs.pointer(), kBytes, abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one.meet(two), code::success);
  EXPECT_EQ(one.engine->connect("two"), code::success);
  abi::metadata* const remote = one.load(two, other);
  const auto bytes = test::random_bytes(kBytes, 1);
  test::set_device_bytes(mine.pointer(), bytes);
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two", "moved"), code::success);
  EXPECT_EQ(two.heard(), (abi::notifications{{"one", "moved"}}));
  EXPECT_EQ(test::device_bytes(theirs.pointer(), kBytes), reversed(bytes));

  std::vector<unsigned char> pages(kBytes + 100), far(kBytes + 100);  // not at the begin of a page
  agent::registered host, far_host;
  ASSERT_EQ(one.add(address(pages) + 36, kBytes, abi::memory_type::dram, host), code::success);
  ASSERT_EQ(two.add(address(far) + 20, kBytes, abi::memory_type::dram, far_host), code::success);
  abi::metadata* const remote_host = one.load(two, far_host);
  EXPECT_EQ(one.move(abi::direction::read, host, other, remote, "two"), code::success);
  EXPECT_EQ(std::vector<unsigned char>(pages.begin() + 36, pages.begin() + 36 + kBytes), bytes);
  EXPECT_EQ(one.move(abi::direction::write, own, far_host, remote_host, "two"), code::success);
  EXPECT_EQ(std::vector<unsigned char>(far.begin() + 20, far.begin() + 20 + kBytes), reversed(bytes));
  far.assign(far.size(), 0);
  EXPECT_EQ(one.move(abi::direction::write, host, far_host, remote_host, "two"), code::success);
  EXPECT_EQ(std::vector<unsigned char>(far.begin() + 20, far.begin() + 20 + kBytes), reversed(bytes));
  for (abi::metadata* known : {remote, remote_host}) EXPECT_EQ(one.engine->unload_md(known), code::success);
  for (abi::metadata* known : {own.own, host.own}) EXPECT_EQ(one.engine->deregister_mem(known), code::success);
  for (abi::metadata* known : {other.own, far_host.own}) EXPECT_EQ(two.engine->deregister_mem(known), code::success);
}

// With a seed (nixl_late_bytes) the simulated engine's words overtake bytes that are not flushed.
TEST_F(NixlBackend, CompletedTransfersHaveAllTheirBytes) {
  const agent one("one");
  const device_buffer first(kBytes), second(kBytes);
  std::vector<unsigned char> host(kBytes);
  agent::registered own, others[2];
  ASSERT_EQ(one.add(address(host), kBytes, abi::memory_type::dram, own), code::success);
  ASSERT_EQ(one.add(first.pointer(), kBytes, abi::memory_type::vram, others[0]), code::success);
  ASSERT_EQ(one.add(second.pointer(), kBytes, abi::memory_type::vram, others[1]), code::success);
  const std::vector<unsigned char> data[] = {test::random_bytes(kBytes, 21), test::random_bytes(kBytes, 22)};
  test::set_device_bytes(first.pointer(), data[0]);
  test::set_device_bytes(second.pointer(), data[1]);
  const std::vector<unsigned char> wanted[] = {reversed(data[0]), reversed(data[1])};
  unsigned late = 0;
  for (unsigned round = 0; round < 200; ++round) {
    const agent::registered& other = others[round % 2];
    ASSERT_EQ(one.move(abi::direction::read, own, other, other.own, "one"), code::success);
    late += std::memcmp(host.data(), wanted[round % 2].data(), kBytes) != 0 ? 1 : 0;
  }
  EXPECT_EQ(late, 0u);
  for (abi::metadata* known : {own.own, others[0].own, others[1].own}) one.engine->deregister_mem(known);
}

TEST_F(NixlBackend, MemoryOfSeveralDriverObjectsIsHandedOverWhole) {
  const agent one("one"), two("two");
  constexpr std::size_t kPiece = 2u << 20;
  const test::vmm_buffer theirs({kPiece, kPiece, 2 * kPiece});
  std::vector<unsigned char> bytes = test::random_bytes(theirs.bytes(), 5), back(theirs.bytes());
  agent::registered own, other;
  ASSERT_EQ(one.add(address(bytes), bytes.size(), abi::memory_type::dram, own), code::success);
  ASSERT_EQ(two.add(theirs.pointer(), theirs.bytes(), abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one.meet(two), code::success);
  abi::metadata* const remote = one.load(two, other);
  // One descriptor over all of it, which begins in the middle of the first piece.
  auto local_list = list_of(own.type), remote_list = list_of(other.type);
  local_list.items.push_back({{own.described.address + 4100, bytes.size() - 4100, 0}, own.own});
  remote_list.items.push_back({{other.described.address + 4100, bytes.size() - 4100, 0}, remote});
  abi::request_handle* handle = nullptr;
  ASSERT_EQ(one.engine->prep_xfer(abi::direction::write, local_list, remote_list, "two", handle, nullptr), code::success);
  for (int round = 0; round < 3; ++round)  // a handle is posted again
    EXPECT_EQ(
        one.finish(handle, one.engine->post_xfer(abi::direction::write, local_list, remote_list, "two", handle, nullptr)),
        code::success);
  one.engine->release_req_h(handle);
  const auto got = test::device_bytes(theirs.pointer() + 4100, theirs.bytes() - 4100);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin() + 4100));
  // Beyond the end of what was registered.
  remote_list.items[0].size_bytes = local_list.items[0].size_bytes = bytes.size();
  EXPECT_EQ(one.engine->prep_xfer(abi::direction::write, local_list, remote_list, "two", handle, nullptr),
            code::invalid_param);
  one.engine->unload_md(remote);
  one.engine->deregister_mem(own.own);
  two.engine->deregister_mem(other.own);
}

TEST_F(NixlBackend, ShortWritesChangeTheirBytesAlone) {
  const agent one("one"), two("two");
  constexpr std::size_t kLarge = 3u << 20;  // several windows
  const device_buffer mine(kLarge), theirs(kLarge);
  std::vector<unsigned char> host = test::random_bytes(8192, 31);
  agent::registered own, same, other;
  ASSERT_EQ(one.add(address(host), host.size(), abi::memory_type::dram, own), code::success);
  ASSERT_EQ(one.add(mine.pointer(), kLarge, abi::memory_type::vram, same), code::success);
  ASSERT_EQ(two.add(theirs.pointer(), kLarge, abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one.meet(two), code::success);
  abi::metadata* const remote = one.load(two, other);
  const struct {
    std::uint64_t pointer, base;
    abi::metadata* known;
    std::string agent;
  } targets[] = {{mine.pointer(), mine.pointer(), same.own, "one"}, {theirs.pointer(), theirs.pointer(), remote, "two"}};
  for (const auto& target : targets) {
    std::vector<unsigned char> wanted(kLarge, 9);
    test::set_device_bytes(target.pointer, wanted);
    for (const std::size_t offset : {std::size_t{0}, std::size_t{33}, std::size_t{2u << 20} - 20, std::size_t{2u << 20} + 8})
      for (const std::size_t size_bytes : {1u, 8u, 64u, 100u, 2048u, 2049u, 0u}) {
        auto local_list = list_of(abi::memory_type::dram), remote_list = list_of(abi::memory_type::vram);
        local_list.items.push_back({{own.described.address + 7, size_bytes, 0}, own.own});
        remote_list.items.push_back({{target.base + offset, size_bytes, 0}, target.known});
        abi::request_handle* handle = nullptr;
        ASSERT_EQ(one.engine->prep_xfer(abi::direction::write, local_list, remote_list, target.agent, handle, nullptr),
                  code::success);
        for (int again = 0; again < 2; ++again)
          EXPECT_EQ(one.finish(handle, one.engine->post_xfer(abi::direction::write, local_list, remote_list, target.agent,
                                                             handle, nullptr)),
                    code::success);
        one.engine->release_req_h(handle);
        std::copy_n(&host[7], size_bytes, &wanted[offset]);
        ASSERT_EQ(test::device_bytes(target.pointer, kLarge), wanted) << target.agent << " " << offset << " " << size_bytes;
      }
  }
  one.engine->unload_md(remote);
  one.engine->deregister_mem(own.own);
  one.engine->deregister_mem(same.own);
  two.engine->deregister_mem(other.own);
}

TEST_F(NixlBackend, DeregistrationReleasesEverything) {
  const agent one("one");
  const device_buffer device(kBytes);
  std::vector<unsigned char> host(kBytes);
  const auto space = *rm_space::get(*rm::simulated_device_io(test::simulated_cuda()));
  const auto use = [&] {
    agent::registered own, other;
    ASSERT_EQ(one.add(address(host), kBytes, abi::memory_type::dram, own), code::success);
    ASSERT_EQ(one.add(device.pointer(), kBytes, abi::memory_type::vram, other), code::success);
    EXPECT_EQ(one.move(abi::direction::write, own, other, other.own, "one"), code::success);
    auto local_list = list_of(own.type), remote_list = list_of(other.type);  // stored through a mapping
    local_list.items.push_back({{own.described.address, 64, 0}, own.own});
    remote_list.items.push_back({{device.pointer(), 64, 0}, other.own});
    abi::request_handle* handle = nullptr;
    ASSERT_EQ(one.engine->prep_xfer(abi::direction::write, local_list, remote_list, "one", handle, nullptr), code::success);
    EXPECT_EQ(one.engine->post_xfer(abi::direction::write, local_list, remote_list, "one", handle, nullptr), code::success);
    one.engine->release_req_h(handle);
    one.engine->deregister_mem(own.own);
    one.engine->deregister_mem(other.own);
  };
  use();  // opens the channels, which stay
  const int objects = space->client().live_objects();
  for (int round = 0; round < 3; ++round) use();
  EXPECT_EQ(space->client().live_objects(), objects);
}

TEST_F(NixlBackend, ATransferOfDeregisteredMemoryIsRefused) {
  const agent one("one");
  const device_buffer device(kBytes);
  std::vector<unsigned char> host(kBytes);
  for (const bool is_local : {true, false}) {
    agent::registered own, other;
    ASSERT_EQ(one.add(address(host), kBytes, abi::memory_type::dram, own), code::success);
    ASSERT_EQ(one.add(device.pointer(), kBytes, abi::memory_type::vram, other), code::success);
    abi::metadata* loaded = nullptr;
    ASSERT_EQ(one.engine->load_local_md(other.own, loaded), code::success);
    auto local_list = list_of(own.type), remote_list = list_of(other.type);
    local_list.items.push_back({{own.described.address, kBlock, 0}, own.own});
    remote_list.items.push_back({{device.pointer(), kBlock, 0}, loaded});
    abi::request_handle* handle = nullptr;
    ASSERT_EQ(one.engine->prep_xfer(abi::direction::write, local_list, remote_list, "one", handle, nullptr), code::success);
    const auto post = [&] {
      return one.finish(handle,
                        one.engine->post_xfer(abi::direction::write, local_list, remote_list, "one", handle, nullptr));
    };
    EXPECT_EQ(post(), code::success);
    one.engine->deregister_mem(is_local ? own.own : other.own);
    EXPECT_EQ(post(), code::invalid_param);
    one.engine->release_req_h(handle);
    one.engine->unload_md(loaded);
    one.engine->deregister_mem(is_local ? other.own : own.own);
  }
}

TEST_F(NixlBackend, ManyThreadsUseTwoAgents) {
  const agent one("one"), two("two");
  ASSERT_EQ(one.meet(two), code::success);
  constexpr int kThreads = 4, kRounds = 12;
  const auto work = [&](int index) {
    const test::current_device current;
    const device_buffer device(kBytes);
    std::vector<unsigned char> host(kBytes);
    const auto bytes = test::random_bytes(kBytes, static_cast<std::uint64_t>(index));
    for (int round = 0; round < kRounds; ++round) {
      agent::registered own, other;
      ASSERT_EQ(one.add(address(host), kBytes, abi::memory_type::dram, own), code::success);
      ASSERT_EQ(two.add(device.pointer(), kBytes, abi::memory_type::vram, other), code::success);
      abi::metadata* const remote = one.load(two, other);
      host = bytes;
      EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two", "round"), code::success);
      host.assign(kBytes, 0);
      EXPECT_EQ(one.move(abi::direction::read, own, other, remote, "two"), code::success);
      EXPECT_EQ(host, bytes);
      EXPECT_EQ(one.engine->unload_md(remote), code::success);
      EXPECT_EQ(one.engine->deregister_mem(own.own), code::success);
      EXPECT_EQ(two.engine->deregister_mem(other.own), code::success);
    }
  };
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) threads.emplace_back(work, index);
  for (auto& thread : threads) thread.join();
  abi::notifications heard;
  EXPECT_TRUE(holds_soon([&] {
    two.engine->get_notifs(heard);
    return heard.size() == kThreads * kRounds;
  })) << heard.size();
}

TEST_F(NixlBackend, MemoryOfAnotherKindIsRefused) {
  const agent one("one");
  const std::vector<unsigned char> host(kBytes);
  const device_buffer device(kBytes);
  agent::registered out;
  EXPECT_EQ(one.add(address(host), kBytes, abi::memory_type::vram, out), code::invalid_param);
  EXPECT_EQ(one.add(device.pointer(), kBytes + (64u << 20), abi::memory_type::vram, out), code::invalid_param);
  EXPECT_EQ(one.add(0, kBytes, abi::memory_type::vram, out), code::invalid_param);
  EXPECT_EQ(one.add(address(host), kBytes, abi::memory_type::file, out), code::not_supported);
  EXPECT_EQ(one.add(device.pointer(), kBytes, abi::memory_type::dram, out), code::invalid_param);
}

TEST_F(NixlBackend, RangesThatAreNoMemoryAreRefused) {
  const agent one("one");
  agent::registered out;
  for (const auto type : {abi::memory_type::dram, abi::memory_type::vram}) {
    EXPECT_EQ(one.add(0, kBytes, type, out), code::invalid_param);
    EXPECT_EQ(one.add(UINTPTR_MAX - 4095, 8192, type, out), code::invalid_param);
    EXPECT_EQ(one.add(4096, SIZE_MAX, type, out), code::invalid_param);
  }
}

// Own memory of two GPUs, and another agent's memory of another GPU than ours: both ways, every byte.
TEST_F(NixlBackend, TwoGpusMoveBetweenTheirMemories) {
  const agent one("one"), two("two");
  ASSERT_EQ(one.meet(two), code::success);
  const device_buffer first(kBytes);
  const test::current_device second_device(1);
  const device_buffer second(kBytes), third(kBytes);
  agent::registered near, far, theirs;
  ASSERT_EQ(one.add(first.pointer(), kBytes, abi::memory_type::vram, near), code::success);
  ASSERT_EQ(one.add(second.pointer(), kBytes, abi::memory_type::vram, far), code::success);
  ASSERT_EQ(two.add(third.pointer(), kBytes, abi::memory_type::vram, theirs), code::success);
  abi::metadata* const remote = one.load(two, theirs);
  const auto in_reverse = [](const std::vector<unsigned char>& bytes) {
    std::vector<unsigned char> out;
    for (std::size_t i = kCount; i-- > 0;)
      out.insert(out.end(), bytes.begin() + static_cast<long>(i * kBlock),
                 bytes.begin() + static_cast<long>((i + 1) * kBlock));
    return out;
  };
  const auto bytes = test::random_bytes(kBytes, 3), others = test::random_bytes(kBytes, 4);
  test::set_device_bytes(first.pointer(), bytes);
  EXPECT_EQ(one.move(abi::direction::write, near, far, far.own, "one"), code::success);
  EXPECT_EQ(test::device_bytes(second.pointer(), kBytes), in_reverse(bytes));
  EXPECT_EQ(one.move(abi::direction::write, near, theirs, remote, "two"), code::success);
  EXPECT_EQ(test::device_bytes(third.pointer(), kBytes), in_reverse(bytes));
  test::set_device_bytes(third.pointer(), others);
  EXPECT_EQ(one.move(abi::direction::read, near, theirs, remote, "two"), code::success);
  EXPECT_EQ(test::device_bytes(first.pointer(), kBytes), in_reverse(others));
  EXPECT_EQ(one.engine->unload_md(remote), code::success);
  two.engine->deregister_mem(theirs.own);
  one.engine->deregister_mem(near.own);
  one.engine->deregister_mem(far.own);
}

TEST_F(NixlBackend, TwoGpusWithoutALinkAreNotJoined) {
  ASSERT_EQ(setenv("PEERLANE_SIM_MODE", "no_peers", 1), 0);
  {
    const agent one("one");
    const device_buffer first(kBytes);
    const test::current_device second_device(1);
    const device_buffer second(kBytes);
    agent::registered own, other;
    ASSERT_EQ(one.add(first.pointer(), kBytes, abi::memory_type::vram, own), code::success);
    ASSERT_EQ(one.add(second.pointer(), kBytes, abi::memory_type::vram, other), code::success);
    EXPECT_EQ(one.move(abi::direction::write, own, other, other.own, "one"), code::not_supported);
    one.engine->deregister_mem(own.own);
    one.engine->deregister_mem(other.own);
  }
  unsetenv("PEERLANE_SIM_MODE");
}

TEST_F(NixlBackend, AnAgentOfAnotherHostIsLeftToOtherBackends) {
  const agent one("one"), two("two");
  std::string info;
  two.engine->get_conn_info(info);
  auto elsewhere = *nixl::address::parse(info);
  elsewhere.host = "another/1";
  EXPECT_EQ(one.engine->load_remote_conn_info("two", elsewhere.text()), code::not_supported);
  EXPECT_EQ(one.engine->load_remote_conn_info("two", "something of a later version"), code::not_supported);
  EXPECT_EQ(one.engine->connect("two"), code::not_found);
  const device_buffer theirs(kBytes), mine(kBytes);
  agent::registered other, own;
  ASSERT_EQ(two.add(theirs.pointer(), kBytes, abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one.add(mine.pointer(), kBytes, abi::memory_type::vram, own), code::success);
  abi::metadata* const remote = one.load(two, other);  // NIXL loads all of an agent's memory, or nothing of it
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two"), code::not_supported);
  EXPECT_EQ(one.engine->gen_notif("two", "x"), code::not_found);
  one.engine->unload_md(remote);
  one.engine->deregister_mem(own.own);
  two.engine->deregister_mem(other.own);
}

TEST_F(NixlBackend, AnAgentThatEndsIsAnError) {
  const agent one("one");
  auto two = std::make_unique<agent>("two");
  const device_buffer theirs(kBytes);
  std::vector<unsigned char> bytes(kBytes);
  agent::registered own, other;
  ASSERT_EQ(one.add(address(bytes), kBytes, abi::memory_type::dram, own), code::success);
  ASSERT_EQ(two->add(theirs.pointer(), kBytes, abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one.meet(*two), code::success);
  abi::metadata* const remote = one.load(*two, other);
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two"), code::success);
  std::string info;
  two->engine->get_conn_info(info);
  two->engine->deregister_mem(other.own);
  two.reset();
  EXPECT_TRUE(holds_soon([&] { return one.engine->connect("two") == code::remote_disconnect; }));
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two"), code::remote_disconnect);
  EXPECT_EQ(one.engine->gen_notif("two", "x"), code::remote_disconnect);
  EXPECT_EQ(one.engine->disconnect("two"), code::success);
  EXPECT_EQ(one.engine->load_remote_conn_info("two", info), code::remote_disconnect);
  one.engine->unload_md(remote);
  one.engine->deregister_mem(own.own);
}

// ---- Strangers

TEST_F(NixlBackend, UnauthenticatedProcessesGetNothing) {
  const agent one("one");
  const device_buffer device(kBytes);
  agent::registered own;
  ASSERT_EQ(one.add(device.pointer(), kBytes, abi::memory_type::vram, own), code::success);
  const auto id = static_cast<std::uint64_t>(std::stoull(own.described.blob));
  const stranger silent(one);  // does not keep the others waiting
  {
    const stranger in_handshake(one);
    in_handshake.say(nixl::message::want_memory, "", id);
    EXPECT_TRUE(in_handshake.is_cut_off());
  }
  {
    const stranger guessing(one);
    guessing.say(nixl::message::hello, "00000000000000000000000000000000two");
    EXPECT_TRUE(guessing.is_cut_off());
  }
  {
    const stranger garbage(one);
    const std::string bytes(64, 'x');
    ASSERT_EQ(write(garbage.socket.get(), bytes.data(), bytes.size()), 64);
    EXPECT_TRUE(garbage.is_cut_off());
  }
  {
    const stranger huge(one);
    nixl::frame head{0x314e4c50, nixl::message::hello, 0, 0, 0, std::uint64_t{1} << 29};
    ASSERT_EQ(write(huge.socket.get(), &head, sizeof head), static_cast<ssize_t>(sizeof head));
    EXPECT_TRUE(huge.is_cut_off());
  }
  {
    const stranger half(one);
    ASSERT_EQ(write(half.socket.get(), "PLN", 3), 3);
  }
  {
    const stranger greeted(one);  // and so one more
    greeted.say(nixl::message::hello, greeted.target.secret + "two");
    greeted.say(nixl::message::notify, "good day");
    EXPECT_EQ(one.heard(), (abi::notifications{{"two", "good day"}}));
    greeted.say(nixl::message::copied, "", 1);
    EXPECT_TRUE(greeted.is_cut_off());
  }
  one.engine->deregister_mem(own.own);
}

// An incomplete handshake, and a thousand connections without one, delay no other agent.
TEST_F(NixlBackend, UnauthenticatedConnectionsDelayNothing) {
  const agent one("one");
  std::vector<std::unique_ptr<stranger>> many;
  for (std::size_t i = 0; i < 100; ++i) many.push_back(std::make_unique<stranger>(one));
  EXPECT_EQ(write(many[0]->socket.get(), "PLN", 3), 3);
  EXPECT_TRUE(many.back()->is_cut_off()) << "the ones after the 64th are closed at once";
  EXPECT_TRUE(many[3]->is_cut_off()) << "the others when their time is over";
  const auto began = std::chrono::steady_clock::now();
  const stranger half(one);
  EXPECT_EQ(write(half.socket.get(), "PLN", 3), 3);
  const stranger greeted(one);
  greeted.say(nixl::message::hello, greeted.target.secret + "two");
  greeted.say(nixl::message::notify, "good day");
  EXPECT_EQ(one.heard(), (abi::notifications{{"two", "good day"}}));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 4s);
}

// An agent's metadata names its process: an unauthenticated process may name this one.
TEST_F(NixlBackend, HostMemoryOfTheSameProcessIsConfirmedByTheKernel) {
  const agent one("one");
  std::string info;
  one.engine->get_conn_info(info);
  auto target = *nixl::address::parse(info);
  target.socket = "peerlane-nixl-test-" + nixl::random_text();
  int ready[2] = {-1, -1};
  ASSERT_EQ(pipe(ready), 0);
  const pid_t other = fork();
  if (other == 0) {
    const auto listener = nixl::listen_at(target.socket);
    (void)!write(ready[1], "r", 1);
    if (listener) (void)accept(listener->get(), nullptr, nullptr);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(one.engine->load_remote_conn_info("two", target.text()), code::success);
  std::vector<unsigned char> bytes(kBytes, 1), theirs(kBytes, 2);
  agent::registered own, described;
  ASSERT_EQ(one.add(address(bytes), kBytes, abi::memory_type::dram, own), code::success);
  described.described.address = address(theirs);
  described.described.size_bytes = kBytes;
  described.described.blob = "1";
  abi::metadata* remote = nullptr;
  if (one.engine->load_remote_md(described.described, abi::memory_type::dram, "two", remote) == code::success) {
    (void)one.move(abi::direction::write, own, described, remote, "two");  // into the child's memory, if it may
    one.engine->unload_md(remote);
  }
  EXPECT_EQ(theirs, std::vector<unsigned char>(kBytes, 2)) << "a stranger had this process write its own memory";
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  close(ready[0]), close(ready[1]);
  one.engine->deregister_mem(own.own);
}

// Memory of an agent that has ended is not taken for memory of the next one of its name.
TEST_F(NixlBackend, MemoryOfAnEarlierAgentOfTheNameIsRefused) {
  const agent one("one");
  auto two = std::make_unique<agent>("two");
  std::vector<unsigned char> bytes(kBytes, 1), theirs(kBytes, 2);
  agent::registered own, other;
  ASSERT_EQ(one.add(address(bytes), kBytes, abi::memory_type::dram, own), code::success);
  ASSERT_EQ(two->add(address(theirs), kBytes, abi::memory_type::dram, other), code::success);
  ASSERT_EQ(one.meet(*two), code::success);
  abi::metadata* const remote = one.load(*two, other);
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two"), code::success);
  two->engine->deregister_mem(other.own);
  two = std::make_unique<agent>("two");
  ASSERT_EQ(one.meet(*two), code::success);
  theirs.assign(kBytes, 3);
  EXPECT_EQ(one.move(abi::direction::write, own, other, remote, "two"), code::remote_disconnect);
  EXPECT_EQ(theirs, std::vector<unsigned char>(kBytes, 3));
  one.engine->unload_md(remote);
  one.engine->deregister_mem(own.own);
}

// GCC 12's AddressSanitizer does not release its locks in a child, and a thread of the agents may hold one at that moment.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kForks = 4;
#else
constexpr int kForks = 1;
#endif

TEST_F(NixlBackend, AForkedChildEndsAndUsesNothingOfIt) {
  auto one = std::make_unique<agent>("one");
  const agent two("two");
  const device_buffer mine(kBytes), theirs(kBytes);
  agent::registered own, other;
  ASSERT_EQ(one->add(mine.pointer(), kBytes, abi::memory_type::vram, own), code::success);
  ASSERT_EQ(two.add(theirs.pointer(), kBytes, abi::memory_type::vram, other), code::success);
  ASSERT_EQ(one->meet(two), code::success);
  abi::metadata* const remote = one->load(two, other);
  int ended = -1;
  for (int left = kForks; left > 0 && ended != 0 && (ended == -1 || ended == SIGALRM); --left) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      const bool refused = one->move(abi::direction::write, own, other, remote, "two") == code::not_allowed &&
                           one->engine->gen_notif("two", "x") == code::not_allowed &&
                           one->engine->deregister_mem(own.own) == code::not_allowed;
      one.reset();
      _exit(refused ? 0 : 1);
    }
    ASSERT_EQ(waitpid(child, &ended, 0), child);
  }
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(one->engine->connect("two"), code::success) << "the child has ended the parent's connection";
  EXPECT_EQ(one->move(abi::direction::write, own, other, remote, "two", "moved"), code::success);
  EXPECT_EQ(two.heard(), (abi::notifications{{"one", "moved"}}));
  one->engine->unload_md(remote);
  one->engine->deregister_mem(own.own);
  two.engine->deregister_mem(other.own);
}

TEST_F(NixlBackend, AnAgentReachesOnlyRegisteredMemory) {
  const agent one("one");
  std::vector<unsigned char> bytes(kBytes, 7);
  agent::registered own;
  ASSERT_EQ(one.add(address(bytes), kBytes, abi::memory_type::dram, own), code::success);
  const auto id = static_cast<std::uint64_t>(std::stoull(own.described.blob));
  const stranger peer(one);
  peer.say(nixl::message::hello, peer.target.secret + "two");
  const auto answer = [&] {
    auto got = nixl::receive_message(peer.socket.get());
    EXPECT_TRUE(got);
    return got ? got->head.code : -1;
  };
  peer.say(nixl::message::want_memory, "", id);
  EXPECT_EQ(answer(), ENOENT) << "host memory is not handed over";
  peer.say(nixl::message::want_memory, "", id + 1000);
  EXPECT_EQ(answer(), ENOENT);
  const nixl::copy_block block{5, 4096, id, own.described.address, 4096};
  const std::string one_block(reinterpret_cast<const char*>(&block), sizeof block);
  peer.say(nixl::message::copy, one_block, 1, 1);
  EXPECT_EQ(answer(), ENOTSUP) << "nothing was offered";
  peer.say(nixl::message::copy, one_block.substr(1), 1, 1);
  EXPECT_EQ(answer(), EPROTO);
  // Memory that is the peer's, into host memory beyond what is registered.
  const device_buffer device(kBytes);
  nixl::gpu_table gpus;
  const auto offered = *nixl::memory::make_device(gpus, device.pointer(), kBytes);
  const auto pieces = offered->pieces();
  const auto shared = *offered->share();
  peer.say(nixl::message::offer_memory, {nixl::bytes_of(pieces).data(), nixl::bytes_of(pieces).size()}, 5);
  for (const auto& each : shared) ASSERT_TRUE(dma::send_region(peer.socket.get(), each));
  const auto ask = [&](std::uint64_t device_address, std::uint64_t host_address, std::uint64_t size_bytes) {
    const nixl::copy_block wanted{5, device_address, id, host_address, size_bytes};
    peer.say(nixl::message::copy, std::string(reinterpret_cast<const char*>(&wanted), sizeof wanted), 2, 1);
    return answer();
  };
  EXPECT_EQ(ask(device.pointer(), own.described.address, kBytes), 0);
  EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes)) << "the simulated GPU's fresh memory is zero";
  EXPECT_EQ(ask(device.pointer(), own.described.address + kBlock, kBytes), EINVAL);
  EXPECT_EQ(ask(device.pointer(), own.described.address - kBlock, kBlock), EINVAL);
  EXPECT_EQ(ask(device.pointer() + kBytes, own.described.address, kBlock), EINVAL);
  EXPECT_EQ(ask(device.pointer(), own.described.address, UINT64_MAX - 5), EINVAL);
  peer.say(nixl::message::drop_memory, "", 5);
  EXPECT_EQ(ask(device.pointer(), own.described.address, kBlock), ENOTSUP);
  one.engine->deregister_mem(own.own);
}

}  // namespace
