// SPDX-License-Identifier: Apache-2.0
// The C and C++ interface of transfers that kernels start.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <peerlane/device.hpp>
#include <string>

#include "test/device/session_fixture.hpp"

namespace {

using namespace pl::test;
using peerlane::device_rings;

class device_api : public device_session {
 protected:
  static device_rings open_rings(std::uint32_t rings = 1) {
    peerlane::device_options wanted;
    wanted.rings = rings;
    wanted.segments = 64;
    wanted.timeout = std::chrono::milliseconds(300);
    auto opened = device_rings::open(wanted);
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
  long long put(const peerlane::device_ring& ring, const peerlane::device_window& destination,
                const peerlane::device_window& source) {
    return run("put_once", 1, 1, ring, destination, std::uint64_t{0}, source, std::uint64_t{0}, std::uint64_t{4096},
               unsigned{PEERLANE_DEVICE_FLUSHED})[0];
  }
};

TEST_F(device_api, FromOpenToClose) {
  const auto sent = fill_device(device_, 5);
  const auto device = open_rings(2);
  const auto gpu = device.add_window(peerlane_device_buffer(device_, kWindowBytes));
  const auto host = device.add_window(peerlane_host_buffer(host_, kWindowBytes));
  ASSERT_TRUE(gpu) << gpu.error().message;
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_EQ(gpu->address, device_);
  for (std::uint32_t index = 0; index < 2; ++index) {
    std::memset(host_, 0, 8192);
    const auto ring = device.ring(index);
    ASSERT_TRUE(ring);
    EXPECT_EQ(put(*ring, *host, *gpu), 0);
    EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + 4096, host_));
    const auto now = device.state(index);
    ASSERT_TRUE(now);
    EXPECT_EQ(now->posted, 1u);
    EXPECT_EQ(now->completed, 1u);
    EXPECT_TRUE(now->outcome);
  }
  EXPECT_TRUE(device.release_window(*host));
  EXPECT_EQ(device.release_window(*host).code(), EINVAL);
  EXPECT_EQ(put(*device.ring(0), *host, *gpu), PEERLANE_DEVICE_EIO);
  const auto now = device.state(0);
  EXPECT_EQ(now->outcome.code(), EIO);
  EXPECT_NE(now->outcome.error().message.find("Xid"), std::string::npos);
  EXPECT_TRUE(device.state(1)->outcome);
}

TEST_F(device_api, AWindowForAnotherProcess) {
  const auto sent = fill_device(device_, 70);
  const auto owner = open_rings(), user = open_rings();
  int sockets[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  EXPECT_EQ(user.receive_window(sockets[1], std::chrono::milliseconds(1)).code(), ETIMEDOUT);
  const auto shown = owner.add_window(peerlane_device_buffer(device_ + kWindowBytes, kWindowBytes));
  ASSERT_TRUE(owner.send_window(*shown, sockets[0]));
  const auto window = user.receive_window(sockets[1], std::chrono::seconds(10));
  ASSERT_TRUE(window) << window.error().message;
  EXPECT_EQ(window->size_bytes, kWindowBytes);
  const auto gpu = user.add_window(peerlane_device_buffer(device_, kWindowBytes));
  EXPECT_EQ(put(*user.ring(), *window, *gpu), 0);
  const auto got = read_device(device_ + kWindowBytes, 4096);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
  close(sockets[0]);
  close(sockets[1]);
}

TEST_F(device_api, WrongArguments) {
  peerlane_device_options options{};
  peerlane_device_t device = nullptr;
  EXPECT_EQ(peerlane_device_open(&options, &device), EINVAL);  // no struct_bytes
  options.struct_bytes = sizeof options;
  EXPECT_EQ(peerlane_device_open(&options, nullptr), EINVAL);
  options.device_ordinal = 7;
  EXPECT_NE(peerlane_device_open(&options, &device), 0);
  options.device_ordinal = -1;
  EXPECT_EQ(peerlane_device_open(&options, &device), EINVAL);
  options.device_ordinal = 0;
  options.segments = 65;
  EXPECT_EQ(peerlane_device_open(&options, &device), EINVAL);
  EXPECT_NE(std::string(peerlane_last_error()).find("power of two"), std::string::npos) << peerlane_last_error();
  options.segments = 0;
  options.reserved = 1;
  EXPECT_EQ(peerlane_device_open(&options, &device), EINVAL);
  EXPECT_EQ(peerlane_device_close(nullptr), EINVAL);

  const auto rings = open_rings();
  peerlane_device_window window{};
  peerlane_device_ring ring{};
  peerlane_device_ring_state state{};
  EXPECT_EQ(peerlane_device_get_ring(rings.get(), 1, &ring), EINVAL);
  EXPECT_EQ(peerlane_device_get_ring(rings.get(), 0, nullptr), EINVAL);
  EXPECT_EQ(peerlane_device_get_ring_state(rings.get(), 0, &state, nullptr, 0), EINVAL);  // no struct_bytes
  EXPECT_EQ(peerlane_device_add_window(rings.get(), peerlane_host_buffer(nullptr, 64), &window), EINVAL);
  const auto device_as_host = peerlane_host_buffer(reinterpret_cast<const void*>(device_), 4096);
  EXPECT_EQ(peerlane_device_add_window(rings.get(), device_as_host, &window), EINVAL);
  EXPECT_EQ(
      peerlane_device_add_window(rings.get(), peerlane_device_buffer(reinterpret_cast<std::uint64_t>(host_), 64), &window),
      EINVAL);
  EXPECT_EQ(peerlane_device_release_window(rings.get(), &window), EINVAL);
  EXPECT_EQ(peerlane_device_send_window(rings.get(), &window, -1), EINVAL);
}

TEST_F(device_api, ClosedRingsAnswerEinval) {
  peerlane_device_t device = nullptr;
  ASSERT_EQ(peerlane_device_open(nullptr, &device), 0) << peerlane_last_error();
  ASSERT_EQ(peerlane_device_close(device), 0);
  peerlane_device_ring ring{};
  EXPECT_EQ(peerlane_device_get_ring(device, 0, &ring), EINVAL);
  EXPECT_EQ(peerlane_device_close(device), EINVAL);
}

// A child that was forked with open rings and windows of both kinds: each call is refused, its end leaves the parent's
// alone, and so does what it does with its copy of the memory.
TEST_F(device_api, AForkedChildUsesNothingOfIt) {
  const auto sent = fill_device(device_, 50);
  const auto device = open_rings();
  std::vector<std::byte> pages(64 << 10, std::byte{1});
  const auto gpu = device.add_window(peerlane_device_buffer(device_, kWindowBytes));
  const auto host = device.add_window(peerlane_host_buffer(pages.data(), pages.size()));
  ASSERT_TRUE(gpu && host);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    peerlane_device_ring ring{};
    peerlane_device_window window{};
    peerlane_device_ring_state state{};
    state.struct_bytes = sizeof state;
    std::memset(pages.data(), 9, pages.size());
    const int codes[] = {peerlane_device_get_ring(device.get(), 0, &ring),
                         peerlane_device_add_window(device.get(), peerlane_host_buffer(pages.data(), 64), &window),
                         peerlane_device_release_window(device.get(), &*host),
                         peerlane_device_send_window(device.get(), &*gpu, 1),
                         peerlane_device_receive_window(device.get(), 1, 0, &window),
                         peerlane_device_get_ring_state(device.get(), 0, &state, nullptr, 0),
                         peerlane_device_close(device.get())};
    const bool is_right = std::all_of(std::begin(codes), std::end(codes), [](int code) { return code == EACCES; });
#if defined(__SANITIZE_ADDRESS__)
    _exit(is_right ? 0 : 1);  // to the leak checker, memory of the parent's threads is nobody's here
#else
    std::exit(is_right ? 0 : 1);
#endif
  }
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(put(*device.ring(0), *host, *gpu), 0);
  EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + 4096, pages.begin()));
  EXPECT_EQ(pages[5000], std::byte{1});
  EXPECT_TRUE(device.release_window(*host));
}

}  // namespace
