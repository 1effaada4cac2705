// SPDX-License-Identifier: Apache-2.0
// Rings of bytes: all bytes arrive in order, whatever the sizes; waiters are woken; invalid positions from the other end are
// found.
#include "store/protocol/byte_ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pl::store_protocol {
namespace {

constexpr std::size_t kRing = byte_rings::kRingBytes;

struct both_ends : testing::Test {
  void SetUp() override {
    auto made = byte_rings::make();
    ASSERT_TRUE(made) << made.error().message;
    server = *std::move(made);
    auto mapped = byte_rings::map(dup(server->fd()));
    ASSERT_TRUE(mapped) << mapped.error().message;
    client = *std::move(mapped);
  }
  static std::size_t write(byte_rings& rings, std::string_view content) {
    const iovec one{const_cast<char*>(content.data()), content.size()};
    const auto taken = rings.write({&one, 1});
    EXPECT_TRUE(taken) << taken.error().message;
    return taken ? *taken : 0;
  }
  static std::string read(byte_rings& rings, std::size_t max_bytes) {
    std::string out(max_bytes, '\0');
    std::size_t have = 0;
    for (std::size_t more = 1; more > 0; have += more) {
      const auto got = rings.read(out.data() + have, max_bytes - have);
      EXPECT_TRUE(got) << got.error().message;
      more = got ? *got : 0;
    }
    out.resize(have);
    return out;
  }
  std::unique_ptr<byte_rings> server, client;
};

TEST_F(both_ends, AreTwoDirections) {
  EXPECT_EQ(read(*server, 10), "");
  EXPECT_EQ(write(*client, "question"), 8u);
  EXPECT_EQ(write(*server, "answer"), 6u);
  EXPECT_EQ(read(*client, 3), "ans");
  EXPECT_EQ(read(*server, 100), "question");
  EXPECT_EQ(read(*client, 100), "wer");
  EXPECT_EQ(read(*client, 100), "");
}

TEST_F(both_ends, AcceptOnlyWhatFits) {
  const std::string much(kRing + 1000, 'x');
  EXPECT_EQ(write(*client, much), kRing);
  EXPECT_EQ(write(*client, much), 0u);
  EXPECT_EQ(read(*server, 10), std::string(10, 'x'));
  EXPECT_EQ(write(*client, "0123456789abc"), 10u);
  const std::string rest = read(*server, kRing * 2);
  ASSERT_EQ(rest.size(), kRing);
  EXPECT_EQ(rest.find_first_not_of('x'), kRing - 10);
  EXPECT_EQ(rest.substr(kRing - 10), "0123456789");
}

// From a thread to another, in pieces of all sizes, both sleeping in between: a byte that is lost or late is a test that
// hangs.
TEST_F(both_ends, BytesComeInOrderAndWaitersAreWoken) {
  constexpr std::size_t kBytes = 3'000'000;
  int sockets[2];
  ASSERT_EQ(pipe(sockets), 0);
  int room[2];
  ASSERT_EQ(pipe(room), 0);
  const auto ring = [](byte_rings& rings, int fd) {
    if (rings.take_wakeup_request()) { EXPECT_EQ(::write(fd, "b", 1), 1); }
  };
  const auto sleep = [](byte_rings& rings, int fd) {
    char wakeup = 0;
    EXPECT_EQ(::read(fd, &wakeup, 1), 1);
    EXPECT_TRUE(rings.disarm());
  };
  std::thread writer([&] {
    std::mt19937 random(7);
    std::vector<unsigned char> piece;
    std::size_t offset = 0;
    while (offset < kBytes) {
      piece.resize(std::min<std::size_t>(1 + random() % (random() % 50 == 0 ? 2 * kRing : 3000), kBytes - offset));
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<unsigned char>((offset + i) * 2654435761u >> 24);
      for (std::size_t done = 0; done < piece.size();) {
        const std::size_t half = done + (piece.size() - done) / 2;
        const iovec parts[2] = {{&piece[done], half - done}, {piece.data() + half, piece.size() - half}};
        const auto taken = client->write(parts);
        ASSERT_TRUE(taken);
        ring(*client, sockets[1]);
        done += *taken;
        if (*taken == 0 && client->arm(false, true)) sleep(*client, room[0]);
      }
      offset += piece.size();
    }
  });
  std::mt19937 random(8);
  std::vector<unsigned char> got(5000);
  std::size_t wrong = 0;
  for (std::size_t offset = 0; offset < kBytes;) {
    const auto bytes = server->read(got.data(), 1 + random() % got.size());
    ASSERT_TRUE(bytes);
    ring(*server, room[1]);
    for (std::size_t i = 0; i < *bytes; ++i) wrong += got[i] != static_cast<unsigned char>((offset + i) * 2654435761u >> 24);
    offset += *bytes;
    if (*bytes == 0 && server->arm(true, false)) sleep(*server, sockets[0]);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
  for (const int fd : {sockets[0], sockets[1], room[0], room[1]}) close(fd);
}

TEST_F(both_ends, ArmingFailsWhileThereIsDataOrSpace) {
  EXPECT_TRUE(server->arm(true, true) == false) << "there is room to write";
  EXPECT_TRUE(server->arm(true, false));
  EXPECT_EQ(write(*client, "x"), 1u);
  EXPECT_TRUE(client->take_wakeup_request());
  EXPECT_FALSE(client->take_wakeup_request()) << "one wakeup is enough";
  EXPECT_TRUE(server->disarm());
  EXPECT_FALSE(server->disarm());
  EXPECT_FALSE(server->arm(true, false));
  EXPECT_EQ(write(*client, "y"), 1u);
  EXPECT_FALSE(client->take_wakeup_request()) << "nobody sleeps";
}

// A client that lies about where it is: the words lie at the beginning, a line each (written, read, sleeping reader,
// writer).
TEST_F(both_ends, PositionsThatCannotBeAreFound) {
  auto* const words = static_cast<std::uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, server->fd(), 0));
  ASSERT_NE(words, MAP_FAILED);
  char room[16];
  words[0] = kRing + 1;  // more than the ring holds
  EXPECT_EQ(server->read(room, sizeof room).code(), EPROTO);
  EXPECT_EQ(write(*server, std::string(kRing, 'x')), kRing);
  words[40] = kRing + 1;  // of the other direction: read more than was written
  const iovec one{room, 1};
  EXPECT_EQ(server->write({&one, 1}).code(), EPROTO);
  munmap(words, 4096);
}

TEST_F(both_ends, TheClientCannotTakeTheMemoryAway) {
  EXPECT_NE(ftruncate(server->fd(), 0), 0);
  const int other = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(other, 4096), 0);
  EXPECT_EQ(byte_rings::map(other).code(), EPROTO);
  EXPECT_EQ(fcntl(other, F_GETFD), -1) << "the descriptor was taken";
}

}  // namespace
}  // namespace pl::store_protocol
