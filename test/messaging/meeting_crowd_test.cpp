// SPDX-License-Identifier: Apache-2.0
// Strangers at the port where ranks meet: they take neither memory nor a rank's place.
#include <poll.h>

#include <deque>

#include "test/messaging/bootstrap_rig.hpp"

namespace pl::messaging {
namespace {

using meeting_crowd = environment;

// Headers that announce large bodies are rejected at once, and silent connections do not keep ranks out.
TEST_F(meeting_crowd, unauthenticated_connections_take_no_memory_and_no_rank) {
  const auto port = free_port();
  auto first =
      std::async(std::launch::async, be_rank, options_of(0, 2, "127.0.0.1:" + port), std::vector<std::size_t>{3, 4});
  std::vector<int> crowd;
  const auto visit = [&] { return crowd.emplace_back(connected_to(port)); };
  star_frame_head head;
  head.kind = star_frame_kind::hello;
  head.rank = 1;
  head.nodes = 2;
  head.length = 64u << 20;
  const int greedy = visit();
  ASSERT_EQ(send(greedy, &head, sizeof head, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof head));
  char byte = 0;
  EXPECT_EQ(recv(greedy, &byte, 1, 0), 0) << "it is not closed: what it claims is waited for";
  for (int i = 0; i < 100; ++i) visit();
  const int evicted = crowd[1];
  EXPECT_EQ(recv(evicted, &byte, 1, 0), 0) << "as many as like may wait at a time";
  EXPECT_EQ(be_rank(options_of(1, 2, "127.0.0.1:" + port), {3, 4}), "");
  EXPECT_EQ(first.get(), "");
  for (const int fd : crowd) close(fd);
}

// A challenged visitor that has not answered yet may well be a rank, and a job may have more of them than strangers may
// wait.
TEST_F(meeting_crowd, as_many_as_the_job_has_are_challenged_at_once) {
  const secret_file secret(kSecret);
  constexpr int kRanks = 150;
  const auto port = free_port();
  auto options = options_of(0, kRanks, "127.0.0.1:" + port);
  options.timeout_s = 3;
  auto first = std::async(std::launch::async, be_rank, options, std::vector<std::size_t>(kRanks, 1));
  std::deque<liar> visitors;
  for (int rank = 1; rank < kRanks; ++rank) {
    visitors.emplace_back(connected_to(port)).say(star_frame_kind::hello, static_cast<std::uint32_t>(rank), kNonce + 4);
    ASSERT_EQ(visitors.back().hear(), star_frame_kind::challenge) << rank;
  }
  visitors.front().say(star_frame_kind::proof, 1, kProof);
  EXPECT_EQ(visitors.front().hear(), star_frame_kind::refusal) << "it has kept its place until it answered";
  EXPECT_NE(first.get(), "");
}

// Any number of silent connections do not take its place.
TEST_F(meeting_crowd, a_challenged_process_keeps_its_place_among_silent_connections) {
  const secret_file secret(kSecret);
  const auto port = free_port();
  auto options = options_of(0, 2, "127.0.0.1:" + port);
  options.timeout_s = 3;
  auto first = std::async(std::launch::async, be_rank, options, std::vector<std::size_t>{3, 4});
  const int fd = connected_to(port);
  liar visitor(fd);
  visitor.say(star_frame_kind::hello, 1, kNonce + 4);
  ASSERT_EQ(visitor.hear(), star_frame_kind::challenge);
  std::vector<int> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(connected_to(port));
  char byte = 0;
  EXPECT_EQ(recv(crowd[50], &byte, 1, 0), 0) << "the crowd has not been seen";
  visitor.say(star_frame_kind::proof, 1, kProof);
  EXPECT_EQ(visitor.hear(), star_frame_kind::refusal);
  EXPECT_NE(first.get(), "");
  for (const int each : crowd) close(each);
}

// What comes from one end goes to the other, until one closes.
void forward(int one, int other) {
  pollfd ends[] = {{one, POLLIN, 0}, {other, POLLIN, 0}};
  char piece[4096];
  while (poll(ends, 2, 10'000) > 0)
    for (int i = 0; i < 2; ++i) {
      if (ends[i].revents == 0) continue;
      const ssize_t got = recv(ends[i].fd, piece, sizeof piece, 0);
      if (got <= 0 || send(ends[1 - i].fd, piece, static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) return;
    }
}

// A rank reconnects after rank 0 closed its connection, as it does under a flood of unauthenticated connections.
TEST_F(meeting_crowd, a_disconnected_rank_reconnects) {
  const secret_file secret(kSecret);
  const auto port = free_port(), front_port = free_port();
  const int front = socket(AF_INET, SOCK_STREAM, 0);
  const auto address = loopback(front_port);
  const int enabled = 1;
  setsockopt(front, SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof enabled);  // the port is reserved
  ASSERT_EQ(bind(front, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(front, 8), 0);
  const timeval patience{5, 0};
  setsockopt(front, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);  // of accept
  auto first =
      std::async(std::launch::async, be_rank, options_of(0, 2, "127.0.0.1:" + port), std::vector<std::size_t>{3, 4});
  auto second =
      std::async(std::launch::async, be_rank, options_of(1, 2, "127.0.0.1:" + front_port), std::vector<std::size_t>{3, 4});
  for (int i = 0; i < 3; ++i) close(accept(front, nullptr, nullptr));
  const int near_end = accept(front, nullptr, nullptr), far_end = connected_to(port);
  forward(near_end, far_end);
  for (const int each : {near_end, far_end, front}) close(each);
  EXPECT_EQ(second.get(), "");
  EXPECT_EQ(first.get(), "");
}

// Connections that say nothing do not keep their places while rank 0 waits for the others.
TEST_F(meeting_crowd, a_silent_connection_is_closed) {
  const auto port = free_port();
  auto first =
      std::async(std::launch::async, be_rank, options_of(0, 2, "127.0.0.1:" + port), std::vector<std::size_t>{3, 4});
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  const auto address = loopback(port);
  for (int i = 0; i < 200 && connect(silent, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0; ++i)
    usleep(20'000);
  const timeval patience{15, 0};
  setsockopt(silent, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char byte = 0;
  EXPECT_EQ(recv(silent, &byte, 1, 0), 0);
  EXPECT_EQ(be_rank(options_of(1, 2, "127.0.0.1:" + port), {3, 4}), "");
  EXPECT_EQ(first.get(), "");
  close(silent);
}

}  // namespace
}  // namespace pl::messaging
