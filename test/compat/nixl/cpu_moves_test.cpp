// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/cpu_moves.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "sim_fixture.hpp"

namespace {

using namespace pl;
using namespace std::chrono_literals;
using bytes_t = std::vector<unsigned char>;

std::uint64_t address(const bytes_t& bytes, std::size_t offset = 0) {
  return reinterpret_cast<std::uint64_t>(bytes.data()) + offset;
}

status run(nixl::cpu_mover& mover, const nixl::cpu_list& list) {
  const auto started = std::make_shared<nixl::cpu_mover::run>();
  started->list = &list;
  mover.begin(started);
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!started->is_done.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() > end) return failure{ETIMEDOUT, "the moves do not end"};
    std::this_thread::yield();
  }
  return started->outcome;
}

// By memcpy, and by the kernel as if the sources, then the destinations were another process's.
struct route {
  pid_t peer;
  bool is_peer_written;
};
const route kRoutes[] = {{0, false}, {getpid(), false}, {getpid(), true}};

TEST(NixlCpuMoves, MoveListsOfAnyShape) {
  nixl::cpu_mover mover;
  const bytes_t source = test::random_bytes(9 << 20, 1);
  for (const route& way : kRoutes) {
    nixl::cpu_list list;
    list.peer = way.peer;
    list.is_peer_written = way.is_peer_written;
    bytes_t destination(source.size()), wanted(source.size());
    const auto add = [&](std::size_t written, std::size_t read, std::size_t size_bytes) {
      list.add(address(destination, written), address(source, read), size_bytes);
      std::copy_n(&source[read], size_bytes, &wanted[written]);
    };
    add(3, 5, (5 << 20) + 7);                                                               // parts of one
    for (std::size_t i = 0; i < 3000; ++i) add((6 << 20) + i * 64, (i * 7919) % 4000, 63);  // many in one call
    add(8 << 20, 1, 0);
    add((8 << 20) + 1, 2, 1);
    EXPECT_EQ(list.size_bytes, (5u << 20) + 7 + 3000 * 63 + 1);
    for (int again = 0; again < 2; ++again) {
      destination.assign(destination.size(), 0);
      ASSERT_TRUE(run(mover, list)) << way.peer;
      ASSERT_TRUE(destination == wanted) << way.peer << way.is_peer_written;
    }
  }
}

TEST(NixlCpuMoves, TellOfAProcessThatHasEnded) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  nixl::cpu_mover mover;
  bytes_t destination(8 << 20), source(8 << 20);
  for (const std::size_t size_bytes : {std::size_t{64}, source.size()}) {
    nixl::cpu_list list;
    list.peer = child;
    list.add(address(destination), address(source), size_bytes);
    EXPECT_EQ(run(mover, list).code(), ECONNRESET) << size_bytes;
  }
}

TEST(NixlCpuMoves, ReportUnmappedMemory) {
  nixl::cpu_mover mover;
  bytes_t destination(1 << 20);
  nixl::cpu_list list;
  list.peer = getpid();
  list.add(address(destination), 4096, destination.size());
  EXPECT_EQ(run(mover, list).code(), EFAULT);
}

TEST(NixlCpuMoves, EndWhenTheyAreCancelled) {
  nixl::cpu_mover mover;
  bytes_t destination(32 << 20), source(32 << 20, 1);
  nixl::cpu_list list;
  list.add(address(destination), address(source), source.size());
  const auto started = std::make_shared<nixl::cpu_mover::run>();
  started->list = &list;
  started->is_cancelled = true;
  mover.begin(started);
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!started->is_done.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_TRUE(started->is_done);
  EXPECT_EQ(destination.back(), 0) << "nothing was moved";
}

}  // namespace
