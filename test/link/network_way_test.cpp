// SPDX-License-Identifier: Apache-2.0
// Messages between host memories over TCP: their parts, and processes whose UCX is set differently.
#include "fabric.hpp"
#include "job.hpp"

namespace pl::link {
namespace {

constexpr std::uint64_t kMost = 500 << 10;

TEST(parts, is_the_message_where_ucx_does_well) {
  EXPECT_EQ(part_bytes(1, 0), 1u);
  EXPECT_EQ(part_bytes(1ull << 40, 0), 1ull << 40);
}

TEST(parts, are_two_at_least_of_a_large_message) {
  EXPECT_EQ(part_bytes(40 << 10, kMost), 64u << 10);
  EXPECT_EQ(part_bytes(128 << 10, kMost), 64u << 10);
  EXPECT_EQ(part_bytes(256 << 10, kMost), 128u << 10);
  EXPECT_EQ(part_bytes((256 << 10) + 1, kMost), 132u << 10);
  EXPECT_EQ(part_bytes(1ull << 40, kMost), kMost);
  for (std::uint64_t bytes = 1; bytes < (3u << 20); bytes += 997) {
    const auto part = part_bytes(bytes, kMost);
    ASSERT_TRUE(part > 0 && part <= kMost) << bytes;
    if (bytes > 64 << 10) { ASSERT_LT(part, bytes); }
  }
}

TEST(parts, fit_where_hardly_anything_does) { EXPECT_EQ(part_bytes(1 << 20, 1000), 1000u); }

// Messages of many sizes both ways, some of which come before their receive is posted.
int exchange(const place& at) {
  constexpr std::size_t kSizes[] = {1, 4095, 4096, 8192, 32768, 32769, 65536, 100'000, 131'073, 200'000, 600'000, 2'000'001};
  const int peer = 1 - at.rank;
  for (const std::size_t bytes : kSizes) {
    piece from(false, bytes), to(false, bytes);
    from.set(test::random_bytes(bytes, bytes * 2 + static_cast<unsigned>(at.rank)));
    auto received = bytes % 2 == 0 ? at.by->irecv(peer, to.all(), bytes) : request();
    auto sent = at.by->isend(peer, from.all(), bytes);
    for (int i = 0; i < 100; ++i) at.by->progress();
    if (bytes % 2 != 0) received = at.by->irecv(peer, to.all(), bytes);
    CHECK_OK(sent.wait(kPatience));
    CHECK_OK(received.wait(kPatience));
    CHECK(to.get(bytes) == test::random_bytes(bytes, bytes * 2 + static_cast<unsigned>(peer)));
  }
  CHECK_OK(at.by->barrier(kPatience));
  return 0;
}

int failures_over_tcp(const std::function<void(int rank)>& set) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  return run_job(2, gpus::none, options, exchange, -1, [&](int rank) {
    setenv("UCX_TLS", "tcp", 1);
    set(rank);
    return true;
  });
}

TEST(over_tcp, messages_of_every_size_arrive) {
  EXPECT_EQ(failures_over_tcp([](int) {}), 0);
}

// As where one host has an RDMA device and the other has none. UCX 1.13 aborts at a packet that its receiver has no room
// for.
TEST(over_tcp, one_side_sends_smaller_packets) {
  EXPECT_EQ(failures_over_tcp([](int rank) {
              if (rank == 0) return;
              setenv("UCX_TCP_TX_SEG_SIZE", "256k", 1);
              setenv("UCX_TCP_RX_SEG_SIZE", "512k", 1);
            }),
            0);
}

TEST(over_tcp, one_side_has_ucx_send_without_a_copy) {
  EXPECT_EQ(failures_over_tcp([](int rank) {
              if (rank == 1) setenv("UCX_ZCOPY_THRESH", "16k", 1);
            }),
            0);
}

}  // namespace
}  // namespace pl::link
