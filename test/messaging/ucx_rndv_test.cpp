// SPDX-License-Identifier: Apache-2.0
// Messages between host memories over TCP: their parts, and processes whose UCX is set differently.
#include <array>
#include <set>

#include "messaging/transport/ucx_fabric.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kMax = 500 << 10;

TEST(parts, is_the_message_where_ucx_does_well) {
  EXPECT_EQ(part_bytes(1, 0), 1u);
  EXPECT_EQ(part_bytes(1ull << 40, 0), 1ull << 40);
}

TEST(parts, are_two_at_least_of_a_large_message) {
  EXPECT_EQ(part_bytes(40 << 10, kMax), 64u << 10);
  EXPECT_EQ(part_bytes(128 << 10, kMax), 64u << 10);
  EXPECT_EQ(part_bytes(256 << 10, kMax), 128u << 10);
  EXPECT_EQ(part_bytes((256 << 10) + 1, kMax), 132u << 10);
  EXPECT_EQ(part_bytes(1ull << 40, kMax), kMax);
  for (std::uint64_t bytes = 1; bytes < (3u << 20); bytes += 997) {
    const auto part = part_bytes(bytes, kMax);
    ASSERT_TRUE(part > 0 && part <= kMax) << bytes;
    if (bytes > 64 << 10) { ASSERT_LT(part, bytes); }
  }
}

TEST(parts, fit_where_hardly_anything_does) { EXPECT_EQ(part_bytes(1 << 20, 1000), 1000u); }

// A process outside the job that could guess the tag of the next part could send one.
TEST(parts, have_tags_that_nobody_can_guess) {
  std::set<std::uint64_t> tags, steps;
  std::uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto tag = fresh_part_tag();
    tags.insert(tag);
    steps.insert(tag - last);
    last = tag;
  }
  EXPECT_EQ(tags.size(), 1000u);
  EXPECT_EQ(steps.size(), 1000u);
}

// Messages of many sizes both ways, some of which come before their receive is posted.
int exchange(const rank_context& ctx) {
  constexpr std::size_t kSizes[] = {1, 4095, 4096, 8192, 32768, 32769, 65536, 100'000, 131'073, 200'000, 600'000, 2'000'001};
  const int peer = 1 - ctx.rank;
  for (const std::size_t bytes : kSizes) {
    piece source(false, bytes), destination(false, bytes);
    source.set(test::random_bytes(bytes, bytes * 2 + static_cast<unsigned>(ctx.rank)));
    auto received = bytes % 2 == 0 ? ctx.messenger->irecv(peer, destination.all(), bytes) : request();
    auto sent = ctx.messenger->isend(peer, source.all(), bytes);
    for (int i = 0; i < 100; ++i) ctx.messenger->progress();
    if (bytes % 2 != 0) received = ctx.messenger->irecv(peer, destination.all(), bytes);
    CHECK_OK(sent.wait(kTimeout));
    CHECK_OK(received.wait(kTimeout));
    CHECK(destination.get(bytes) == test::random_bytes(bytes, bytes * 2 + static_cast<unsigned>(peer)));
  }
  CHECK_OK(ctx.messenger->barrier(kTimeout));
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

// ---- Who sent a frame

struct heard final : ucx_fabric::listener {
  void on_packet(const std::byte* whole, std::size_t bytes) override {
    frame head;
    if (bytes >= frame_bytes(frame_kind::eager))
      std::memcpy(static_cast<void*>(&head), whole, frame_bytes(frame_kind::eager));
    sources.push_back(head.source);
  }
  void on_plain(const void* head, std::size_t, const std::byte*, std::size_t) override {
    frame seen;
    std::memcpy(static_cast<void*>(&seen), head, frame_bytes(frame_kind::eager));
    sources.push_back(seen.source);
  }
  void on_remote(const frame& head, remote_data) override { sources.push_back(head.source); }
  void on_lost(int, const char*) override {}
  std::vector<std::uint32_t> sources;
};

struct sent_frame : packet {
  sent_frame(std::uint32_t source, std::size_t bytes, bool is_in_place) : data(bytes) {
    head = {.kind = is_in_place ? frame_kind::rts : frame_kind::eager, .source = source, .bytes = bytes};
    payload = is_in_place ? 0 : bytes;
    plain = data.data();
    is_plain = true;
    if (is_in_place) in_place = data.data(), in_place_bytes = bytes;
    read = [](packet& outgoing, std::size_t offset, void* destination, std::size_t n) {
      std::memcpy(destination, static_cast<sent_frame&>(outgoing).data.data() + offset, n);
      return 0;
    };
    done = [](packet& outgoing, int) { static_cast<sent_frame&>(outgoing).is_done = true; };
  }
  byte_string data;
  bool is_done = false;
};

// Rank 2 says that it is rank 1, before and after rank 1 has said anything, by each kind of packet.
TEST(over_tcp, a_frame_counts_only_by_the_endpoint_of_its_sender) {
  EXPECT_EQ(fork_ranks(1,
                       [](int, fork_bootstrap&) {
                         setenv("UCX_TLS", "tcp", 1);
                         std::array<heard, 3> ears;
                         std::vector<std::unique_ptr<ucx_fabric>> ranks;
                         for (auto& each : ears) {
                           auto made = ucx_fabric::open({}, 3, each);
                           CHECK_OK(made);
                           ranks.push_back(*std::move(made));
                         }
                         for (auto& each : ranks)
                           for (int i = 0; i < 3; ++i) each->set_peer(i, ranks[static_cast<std::size_t>(i)]->address(), {});
                         std::vector<std::unique_ptr<sent_frame>> frames;
                         const auto send = [&](std::size_t real_source, std::uint32_t source, std::size_t bytes,
                                               bool in_place) {
                           frames.push_back(std::make_unique<sent_frame>(source, bytes, in_place));
                           ranks[real_source]->send(0, *frames.back());
                         };
                         const auto progress = [&] {
                           for (int i = 0; i < 3000; ++i)
                             for (auto& each : ranks) each->progress();
                         };
                         const auto forge = [&] {
                           send(2, 1, 8, false);
                           send(2, 1, 8000, false);
                           send(2, 1, 100'000, true);
                           send(2, 7, 8, false);
                           progress();
                         };
                         forge();
                         CHECK(ears[0].sources.empty());
                         send(1, 1, 8, false);
                         send(1, 1, 8000, false);
                         send(1, 1, 100'000, true);
                         progress();
                         CHECK(ears[0].sources == std::vector<std::uint32_t>({1, 1, 1}));
                         forge();
                         CHECK(ears[0].sources.size() == 3);
                         send(2, 2, 8, false);
                         progress();
                         CHECK(ears[0].sources.size() == 4 && ears[0].sources.back() == 2);
                         return 0;
                       }),
            0);
}

}  // namespace
}  // namespace pl::messaging
