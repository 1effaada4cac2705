// SPDX-License-Identifier: Apache-2.0
// Windows that other processes give: forged ones, some thousand at random, and those of a process that is killed while
// kernels write there; and segments that no kernel of ours has written. Each is refused or works; nothing is left behind,
// and the session's own windows go on.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <random>

#include "base/text.hpp"
#include "dma/commands.hpp"
#include "test/device/session_fixture.hpp"
#include "test/support/descriptor_count.hpp"

namespace {

using namespace pl;
using namespace pl::test;

constexpr const char* kSocketVariable = "PL_TEST_SOCKET";
constexpr std::uint64_t kPage = 4096, kGranule = 64u << 10, kMemfdBytes = 256u << 10;

// As dma/shared_region.cpp has it: a process of another release, or a hostile one, may send anything of this form.
struct region_message {
  std::uint32_t magic = 0x31524c50, memory = 1;
  std::uint32_t domain = 0, bus = 0, device = 0, pad = 0;
  std::uint64_t offset = 0, size_bytes = kGranule;
};

class forger {
 public:
  forger(unsigned seed, const dma::shared_region& real) : random_(seed), real_(real) {}

  // Sends something, and returns a description of it.
  std::string send(int socket) {
    region_message message;
    message.magic = random_() % 20 == 0 ? static_cast<std::uint32_t>(random_()) : message.magic;
    const std::uint32_t kinds[] = {1, 1, 2, 2, 0, 3, 0xffffffff};
    message.memory = kinds[random_() % std::size(kinds)];
    const bool names_gpu = random_() % 4 != 0;
    message.domain = names_gpu ? real_.gpu.domain : static_cast<std::uint32_t>(random_());
    message.bus = names_gpu ? real_.gpu.bus : static_cast<std::uint32_t>(random_() % 300);
    message.device = names_gpu ? real_.gpu.device : static_cast<std::uint32_t>(random_() % 40);
    const bool is_host = random_() % 16 == 0;  // and one that is as it should be
    if (is_host) message = region_message{.memory = 2, .offset = kPage, .size_bytes = kGranule};
    else message.offset = number(), message.size_bytes = number();
    std::vector<unique_fd> held;
    const std::size_t count = !is_host && random_() % 8 == 0 ? random_() % 12 : 1;
    std::string text = format("memory %u offset %llx size %llx:", message.memory, (unsigned long long)message.offset,
                              (unsigned long long)message.size_bytes);
    for (std::size_t i = 0; i < count; ++i) held.push_back(descriptor(is_host ? 3 : random_() % 12, text));
    const std::size_t bytes = !is_host && random_() % 10 == 0 ? random_() % sizeof message : sizeof message;
    send_bytes(socket, &message, bytes, held);
    return text + format(" in %zu bytes", bytes);
  }

 private:
  std::uint64_t number() {
    const std::uint64_t edges[] = {0,
                                   1,
                                   kPage,
                                   kGranule,
                                   kMemfdBytes,
                                   kWindowBytes,
                                   2 * kWindowBytes,
                                   real_.offset,
                                   std::uint64_t{1} << 40,
                                   std::uint64_t{1} << 63,
                                   ~std::uint64_t{0} - kPage + 1};
    const std::uint64_t edge = edges[random_() % std::size(edges)];
    return random_() % 3 == 0 ? edge - kPage * (random_() % 3) : edge;
  }
  unique_fd own(int fd) { return {real_device_io(), fd}; }
  unique_fd memfd(unsigned flags, std::uint64_t bytes, int seals) {
    const int fd = memfd_create("forged", MFD_CLOEXEC | flags);
    (void)!ftruncate(fd, static_cast<off_t>(bytes));
    if (seals != 0) fcntl(fd, F_ADD_SEALS, seals);
    return own(fd);
  }
  unique_fd descriptor(std::uint64_t kind, std::string& text) {
    int ends[2] = {-1, -1};
    switch (kind) {
      case 0:
        return text += " open memfd", memfd(MFD_ALLOW_SEALING, kMemfdBytes, 0);
      case 1:
        return text += " memfd that cannot be sealed", memfd(0, kMemfdBytes, 0);
      case 2:
        return text += " empty sealed memfd", memfd(MFD_ALLOW_SEALING, 0, F_SEAL_SHRINK);
      case 3:
        return text += " sealed memfd", memfd(MFD_ALLOW_SEALING, kMemfdBytes, F_SEAL_SHRINK | F_SEAL_GROW);
      case 4:
        return text += " memfd sealed for writing", memfd(MFD_ALLOW_SEALING, kMemfdBytes, F_SEAL_SHRINK | F_SEAL_WRITE);
      case 5: {
        const auto sealed = memfd(MFD_ALLOW_SEALING, kMemfdBytes, F_SEAL_SHRINK);
        return text += " read-only memfd",
               own(::open(format("/proc/self/fd/%d", sealed.get()).c_str(), O_RDONLY | O_CLOEXEC));
      }
      case 6:
        (void)!pipe2(ends, O_CLOEXEC), close(ends[1]);
        return text += " pipe", own(ends[0]);
      case 7:
        return text += " socket", own(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      case 8:
        return text += " folder", own(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      case 9:
        return text += " /dev/zero", own(::open("/dev/zero", O_RDWR | O_CLOEXEC));
      case 10:
        return text += " eventfd", own(eventfd(0, EFD_CLOEXEC));
      default:
        return text += " GPU memory", own(fcntl(real_.fd.get(), F_DUPFD_CLOEXEC, 0));
    }
  }
  void send_bytes(int socket, const void* bytes, std::size_t size, const std::vector<unique_fd>& held) {
    iovec piece{const_cast<void*>(bytes), size};
    alignas(cmsghdr) char room[CMSG_SPACE(12 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (!held.empty()) {
      message.msg_control = room;
      message.msg_controllen = CMSG_SPACE(held.size() * sizeof(int));
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(held.size() * sizeof(int));
      for (std::size_t i = 0; i < held.size(); ++i) {
        const int fd = held[i].get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    (void)sendmsg(socket, &message, MSG_NOSIGNAL);
  }

  std::mt19937_64 random_;
  const dma::shared_region& real_;
};

class hostile_window : public device_session {
 protected:
  std::vector<long long> put(const peerlane_device_window& destination, std::uint64_t offset, std::uint64_t bytes) {
    return run("put_once", 1, 1, ring(), destination, offset, gpu_, std::uint64_t{0}, bytes,
               unsigned{PEERLANE_DEVICE_FLUSHED});
  }
};

INSTANTIATE_TEST_SUITE_P(backends, hostile_window, kRingBackends, name_of_backend);

TEST_P(hostile_window, WhatIsForgedIsRefusedOrIsMemory) {
  open();
  // Real GPU memory to forge with, of a session that has channels in any case.
  device::session_options with_channels;
  with_channels.backend = device::ring_backend::channels;
  const auto owner = device::session::open(cuda(), with_channels);
  ASSERT_TRUE(owner) << owner.error().message;
  const auto shown = (*owner)->add_window(device_ + kWindowBytes, kWindowBytes);
  ASSERT_TRUE(shown);
  const auto real = (*owner)->share(*shown);
  ASSERT_TRUE(real) << real.error().message;
  const char* const given = std::getenv("PL_FORGER_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 1;
  const char* const rounds_given = std::getenv("PL_FORGER_ROUNDS");
  const int rounds = rounds_given != nullptr ? std::atoi(rounds_given) : 1500;
  forger stranger(seed, *real);
  const auto before = test::open_descriptor_count();
  int taken = 0, refused = 0;
  for (int i = 0; i < rounds; ++i) {
    int sockets[2] = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    const std::string sent = stranger.send(sockets[1]);
    close(sockets[1]);
    const auto came = dma::receive_region(sockets[0], 1000);
    close(sockets[0]);
    if (!came) {
      EXPECT_TRUE(came.code() == EPROTO || came.code() == EPIPE) << sent << ": " << came.error().message;
      ++refused;
      continue;
    }
    const auto window = session_->add_shared(*came);
    if (!window) {
      EXPECT_FALSE(window.error().message.empty()) << sent;
      ++refused;
      continue;
    }
    ++taken;
    EXPECT_TRUE(are_all(put(*window, 0, 64), 0)) << sent;
    EXPECT_TRUE(are_all(put(*window, window->size_bytes - 64, 64), 0)) << sent;
    EXPECT_TRUE(are_all(put(*window, window->size_bytes - 63, 64), PEERLANE_DEVICE_ERANGE)) << sent;
    EXPECT_TRUE(session_->remove_window(*window)) << sent;
    if (HasFailure()) break;
  }
  EXPECT_EQ(test::open_descriptor_count(), before) << "descriptors of strangers stay open";
  EXPECT_GT(refused, rounds / 2);
  EXPECT_GT(taken, 0);
  EXPECT_TRUE(are_all(put(far_, 0, 64), 0));
}

// By the proxy, which reads what lies in segments on the CPU. On a GPU the engine refuses what is none.
class hostile_segments : public hostile_window {
 protected:
  // As the first one of ring 0.
  void post(const std::uint32_t* words) {
    const std::uint64_t place = ring().segments + PEERLANE_DEVICE_SEGMENT_BYTES;
    const std::uint32_t ticket = 1;
    must(cuda().cuMemcpyHtoD_v2(place, words, PEERLANE_DEVICE_MARK_AT));
    must(cuda().cuMemcpyHtoD_v2(place + PEERLANE_DEVICE_MARK_AT, &ticket, sizeof ticket));
    session_->ring(0).refill();  // unless the session's thread was first
  }
  // What a kernel gone astray may leave: methods, some of them with sense, and noise.
  void forge(std::mt19937_64& random, std::uint32_t* words, std::uint64_t guard) {
    using namespace dma::method;
    const std::uint64_t places[] = {guard, gpu_.dma, far_.dma + kWindowBytes - 8, ring().control,
                                    0,     8,        ~std::uint64_t{0} - 3};
    std::size_t i = 0;
    const auto add = [&](std::uint32_t word) {
      if (i < PEERLANE_DEVICE_SEGMENT_WORDS) words[i++] = word;
    };
    while (i < PEERLANE_DEVICE_SEGMENT_WORDS) {
      const std::uint64_t source = places[random() % std::size(places)], destination = places[random() % std::size(places)];
      switch (random() % 5) {
        case 0:  // a value for a register that there is not
          add(4u << 29 | static_cast<std::uint32_t>(random() % 8192) << 16 |
              static_cast<std::uint32_t>(0x400 + random() % 0xc00));
          break;
        case 1:
          add(1u << 29 | static_cast<std::uint32_t>(random() % 8192) << 16 | static_cast<std::uint32_t>(random() % 0x1000));
          break;
        case 2:
          add(dma::method_header(kCopySubchannel, kSourceHigh, 4));
          for (const std::uint64_t each : {source, destination}) {
            add(static_cast<std::uint32_t>(each >> 32));
            add(static_cast<std::uint32_t>(each));
          }
          add(dma::immediate(kCopySubchannel, kLineLength, static_cast<std::uint32_t>(random() % 200)));
          add(dma::immediate(kCopySubchannel, kLaunch, static_cast<std::uint32_t>(random() % 8192)));
          break;
        case 3:
          add(dma::method_header(kCopySubchannel, kSemaphoreAddressHigh, 3));
          add(static_cast<std::uint32_t>(destination >> 32));
          add(static_cast<std::uint32_t>(destination));
          add(static_cast<std::uint32_t>(random()));
          add(dma::immediate(kCopySubchannel, kLaunch, dma::launch::kReleaseWord));
          break;
        default:
          add(static_cast<std::uint32_t>(random()));
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(backends, hostile_segments, testing::Values(device::ring_backend::proxy), name_of_backend);

// Each word is a method with its value, and one of them is for a register behind the last one.
TEST_P(hostile_segments, ARegisterThatThereIsNotEndsTheRing) {
  using namespace dma::method;
  open(kShortTimeoutNs, 64);
  std::uint32_t words[PEERLANE_DEVICE_SEGMENT_BYTES / 4];
  std::fill(std::begin(words), std::end(words), dma::immediate(kCopySubchannel, kLineLength, 1));
  words[3] = dma::immediate(kCopySubchannel, 0, 7) | 0xfff;
  post(words);
  const auto now = session_->ring(0).read();
  ASSERT_TRUE(now.reason);
  EXPECT_EQ(now.reason->code, EIO);
  EXPECT_NE(now.reason->message.find("an invalid segment"), std::string::npos) << now.reason->message;
}

TEST_P(hostile_segments, ChangeNothingOutsideOfTheWindows) {
  const char* const seed = std::getenv("PL_FORGER_SEED");
  const char* const rounds = std::getenv("PL_SEGMENT_ROUNDS");
  std::mt19937_64 random(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 1);
  cu::device_ptr guard = 0;
  must(cuda().cuMemAlloc_v2(&guard, kGranule));
  must(cuda().cuMemsetD8_v2(guard, 0x5a, kGranule));
  int ended = 0;
  const int wanted = rounds != nullptr ? std::atoi(rounds) : 60;
  for (int round = 0; round < wanted; ++round) {
    open(kLongTimeoutNs, 64, 2);
    std::uint32_t words[PEERLANE_DEVICE_SEGMENT_BYTES / 4] = {};
    forge(random, words, guard);
    post(words);
    ended += session_->ring(0).read().reason ? 1 : 0;
    const auto got = read_device(guard, kGranule);
    ASSERT_TRUE(std::all_of(got.begin(), got.end(), [](std::byte byte) { return byte == std::byte{0x5a}; })) << round;
    ASSERT_TRUE(are_all(run("put_once", 1, 1, ring(1), far_, std::uint64_t{0}, gpu_, std::uint64_t{0}, std::uint64_t{64},
                            unsigned{PEERLANE_DEVICE_FLUSHED}),
                        0));
    session_.reset();
  }
  EXPECT_GT(ended, wanted / 2);
  must(cuda().cuMemFree_v2(guard));
}

// The other process of the test below: gives a window of its GPU memory, and lives until it is killed.
TEST(hostile_window_owner, LivesUntilItIsKilled) {
  const char* const given = std::getenv(kSocketVariable);
  if (given == nullptr) return;  // nobody has started it for that
  const auto& cuda = **cu::driver();
  ASSERT_EQ(cuda.cuInit(0), cu::error_code::success);
  cu::context_t context = nullptr;
  ASSERT_EQ(cuda.cuDevicePrimaryCtxRetain(&context, 0), cu::error_code::success);
  ASSERT_EQ(cuda.cuCtxSetCurrent(context), cu::error_code::success);
  cu::device_ptr memory = 0;
  ASSERT_EQ(cuda.cuMemAlloc_v2(&memory, kWindowBytes), cu::error_code::success);
  device::session_options wanted;
  wanted.backend = device::ring_backend::channels;
  const auto session = device::session::open(cuda, wanted);
  ASSERT_TRUE(session) << session.error().message;
  const auto window = (*session)->add_window(memory, kWindowBytes);
  ASSERT_TRUE(window);
  const auto shared = (*session)->share(*window);
  ASSERT_TRUE(shared);
  ASSERT_TRUE(dma::send_region(std::atoi(given), *shared));
  for (;;) pause();
}

// By channels: the proxy takes no GPU memory of other processes.
class dying_owner : public hostile_window {};
INSTANTIATE_TEST_SUITE_P(backends, dying_owner, testing::Values(device::ring_backend::channels), name_of_backend);

TEST_P(dying_owner, PutsIntoItsMemoryEnd) {
  open(kLongTimeoutNs, 64);
  int sockets[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    fcntl(sockets[1], F_SETFD, 0);
    setenv(kSocketVariable, std::to_string(sockets[1]).c_str(), 1);
    execl("/proc/self/exe", "owner", "--gtest_filter=hostile_window_owner.*", nullptr);
    _exit(99);
  }
  close(sockets[1]);
  const auto came = dma::receive_region(sockets[0], 30'000);
  const auto window = came ? session_->add_shared(*came) : result<peerlane_device_window>(came.error());
  if (window) {
    launch("put_pieces", 2, 8, nullptr, ring(), *window, gpu_, std::uint64_t{200'000}, std::uint64_t{64},
           std::uint64_t{answers_});
  }
  kill(owner, SIGKILL);
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);
  close(sockets[0]);
  ASSERT_TRUE(came) << came.error().message;
  ASSERT_TRUE(window) << window.error().message;
  EXPECT_TRUE(are_all(answers_of(16), 0)) << "its memory lives as long as the window";
  EXPECT_TRUE(are_all(put(*window, 0, 4096), 0));
  EXPECT_TRUE(session_->remove_window(*window));
  EXPECT_TRUE(are_all(put(far_, 0, 64), 0));
}

}  // namespace
