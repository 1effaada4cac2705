// SPDX-License-Identifier: Apache-2.0
// Ranks that look for a new process of rank 0, and what it learns from them. Whole jobs do it in
// collectives/rank_0_return_test.cpp.
#include "messaging/bootstrap/rank_0_finder.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "messaging/bootstrap/rejoin_requests.hpp"
#include "test/messaging/bootstrap_rig.hpp"

namespace pl::messaging {
namespace {

using namespace std::chrono_literals;
using opened = result<std::unique_ptr<bootstrap>>;

bootstrap_options elastic(int rank, const std::string& place, unsigned timeout_s = kLong) {
  auto out = options_of(rank, 3, place);
  out.is_elastic = true;
  out.timeout_s = timeout_s;
  return out;
}

// Three ranks that have met.
std::vector<std::unique_ptr<bootstrap>> meet_three(const std::string& place) {
  std::vector<std::future<opened>> all;
  for (int rank = 0; rank < 3; ++rank)
    all.push_back(std::async(std::launch::async, [rank, place] { return open_bootstrap(elastic(rank, place)); }));
  std::vector<std::unique_ptr<bootstrap>> out;
  for (auto& each : all) {
    auto made = each.get();
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    out.push_back(made ? *std::move(made) : nullptr);
  }
  return out;
}

std::optional<rank_0_event> next_event(bootstrap& group) {
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < end) {
    if (auto event = group.rank_0()->poll_rank_0()) return event;
    std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

// Answers each step of rank 0's return with its own rank. True: all four came.
bool answer_steps(bootstrap& group, std::size_t others) {
  for (std::uint64_t step = 1; step <= kReturnSteps; ++step) {
    const auto event = next_event(group);
    if (!event || event->type != rank_0_event::kind::step || event->number != step) return false;
    group.rank_0()->answer_rank_0(step, byte_string(others, static_cast<std::byte>(group.rank())));
  }
  return true;
}

std::vector<std::uint32_t> numbers_in(const byte_string& bytes) {
  std::vector<std::uint32_t> out(bytes.size() / sizeof(std::uint32_t));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(std::uint32_t));
  return out;
}

TEST(rank_0_finder, a_new_process_of_rank_0_learns_that_it_has_come_back) {
  const auto place = "127.0.0.1:" + free_port();
  auto all = meet_three(place);
  ASSERT_TRUE(all[0] && all[1] && all[2]);
  EXPECT_EQ(all[0]->rank_0(), nullptr);
  all[0].reset();
  for (int rank : {1, 2}) {
    auto& group = *all[static_cast<std::size_t>(rank)];
    const auto event = next_event(group);
    ASSERT_TRUE(event && event->type == rank_0_event::kind::gone);
    // One of them has heard of a fifth process of rank 0, the other one has come back itself.
    ASSERT_TRUE(group.rank_0()->find_rank_0({0, {{rank == 1 ? 5u : 1u, false}, {1, false}, {3, false}}}));
  }
  auto coming = std::async(std::launch::async, [&] { return open_bootstrap(elastic(0, place)); });
  std::vector<std::thread> survivors;
  std::atomic<int> served{0};
  for (int rank : {1, 2})
    survivors.emplace_back([&, rank] {
      auto& group = *all[static_cast<std::size_t>(rank)];
      const auto event = next_event(group);
      if (!event || event->type != rank_0_event::kind::found || event->number != 6) return;
      if (event->living != std::vector<std::uint32_t>{6, 1, 3}) return;
      served += answer_steps(group, 4) ? 1 : 0;
    });
  auto back = coming.get();
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ((*back)->incarnation(), 6u);
  EXPECT_EQ((*back)->returns()->last_incarnations(), (std::vector<std::uint32_t>{6, 1, 3}));
  const byte_string mine(9, std::byte{7});
  for (std::uint32_t step = 2; step <= kReturnSteps; ++step) {  // opening took the first
    const auto parts = (*back)->all_gather(mine);
    ASSERT_TRUE(parts) << parts.error().message;
    EXPECT_EQ(parts->at(1), byte_string(4, std::byte{1}));
    EXPECT_EQ(parts->at(2), byte_string(4, std::byte{2}));
    const bool is_last = step == kReturnSteps;
    EXPECT_EQ(numbers_in(parts->front()) == (std::vector<std::uint32_t>{6, 1, 3}), is_last);
  }
  for (auto& each : survivors) each.join();
  EXPECT_EQ(served, 2);
}

TEST(rank_0_finder, a_rank_lost_by_one_survivor_is_lost_to_all) {
  const auto place = "127.0.0.1:" + free_port();
  auto all = meet_three(place);
  ASSERT_TRUE(all[0] && all[1] && all[2]);
  all[0].reset();
  ASSERT_TRUE(all[2]->rank_0()->find_rank_0({0, {{1, false}, {1, false}, {1, false}}}));
  ASSERT_TRUE(all[1]->rank_0()->find_rank_0({0, {{1, false}, {1, false}, {1, true}}}));
  auto coming = std::async(std::launch::async, [&] { return open_bootstrap(elastic(0, place)); });
  auto event = next_event(*all[1]);
  while (event && event->type == rank_0_event::kind::gone) event = next_event(*all[1]);
  ASSERT_TRUE(event && event->type == rank_0_event::kind::found);
  EXPECT_EQ(event->living, (std::vector<std::uint32_t>{2, 1, 0}));
  const auto first = next_event(*all[1]);
  ASSERT_TRUE(first && first->type == rank_0_event::kind::step);
  all[1]->rank_0()->answer_rank_0(1, {std::byte{1}});
  auto back = coming.get();
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(all[2]->rank_0()->is_finding_rank_0());
}

// A survivor that leaves as it is welcomed lives: it is waited for once more, and not counted as gone.
TEST(rank_0_finder, a_rank_that_leaves_during_the_welcome_rejoins) {
  const auto place = "127.0.0.1:" + free_port();
  auto all = meet_three(place);
  ASSERT_TRUE(all[0] && all[1] && all[2]);
  all[0].reset();
  const auto come = [&](int rank, std::uint32_t last) {
    auto& group = *all[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(group.rank_0()->find_rank_0({0, {{last, false}, {1, false}, {1, false}}}));
  };
  const auto find = [&](int rank, std::uint32_t number) {
    auto event = next_event(*all[static_cast<std::size_t>(rank)]);
    while (event && event->type != rank_0_event::kind::found) event = next_event(*all[static_cast<std::size_t>(rank)]);
    return event && event->number == number && event->living == std::vector<std::uint32_t>{number, 1, 1};
  };
  come(1, 1);
  come(2, 1);
  auto coming = std::async(std::launch::async, [&] { return open_bootstrap(elastic(0, place)); });
  ASSERT_TRUE(find(1, 2) && find(2, 2));
  come(1, 2);  // drops the connection
  auto gone = next_event(*all[2]);
  while (gone && gone->type != rank_0_event::kind::gone) gone = next_event(*all[2]);
  ASSERT_TRUE(gone);
  come(2, 2);
  ASSERT_TRUE(find(1, 3) && find(2, 3));
  for (int rank : {1, 2}) all[static_cast<std::size_t>(rank)]->rank_0()->answer_rank_0(1, {std::byte{1}});
  auto back = coming.get();
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ((*back)->incarnation(), 3u);
}

// Nor does rank 0 hear of it as of a process that asks.
TEST(rank_0_finder, a_living_rank_0_rejects_survivor_claims) {
  const auto place = "127.0.0.1:" + free_port();
  auto all = meet_three(place);
  ASSERT_TRUE(all[0] && all[1] && all[2]);
  ASSERT_TRUE(all[1]->rank_0()->find_rank_0({0, {{1, false}, {1, false}, {1, false}}}));
  const auto end = std::chrono::steady_clock::now() + 500ms;
  bool is_noticed = false;
  while (std::chrono::steady_clock::now() < end || !is_noticed) {
    ASSERT_LT(std::chrono::steady_clock::now(), end + 30s);
    while (const auto event = all[0]->returns()->poll()) {
      EXPECT_EQ(event->type, return_event::kind::gone) << "it has closed its connection, and asks nothing";
      is_noticed = true;
    }
    EXPECT_FALSE(all[1]->rank_0()->poll_rank_0());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(all[1]->rank_0()->is_finding_rank_0());
  all[1]->rank_0()->stop_finding_rank_0();
  EXPECT_FALSE(all[1]->rank_0()->is_finding_rank_0());
}

TEST(rank_0_finder, a_new_rank_0_names_missing_ranks) {
  const auto place = "127.0.0.1:" + free_port();
  auto all = meet_three(place);
  ASSERT_TRUE(all[0] && all[1] && all[2]);
  all[0].reset();
  ASSERT_TRUE(all[1]->rank_0()->find_rank_0({0, {{1, false}, {1, false}, {1, false}}}));
  const auto back = open_bootstrap(elastic(0, place, 2));
  ASSERT_EQ(back.code(), ETIMEDOUT);
  EXPECT_NE(back.error().message.find("within 2 s: 2 (to take rank 0 back they call"), std::string::npos)
      << back.error().message;
}

TEST(survivor_claim, is_read_as_it_was_written_and_nothing_else_is_one) {
  const survivor_claim claim{77, {{1, false}, {9, true}, {0x7fffffff, false}}};
  const auto text = peer_info_of("node7", &claim);
  const auto [host, read] = parse_peer_info(text, 3);
  EXPECT_EQ(host, "node7");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->run, 77u);
  EXPECT_TRUE(read->ranks[1].is_gone && read->ranks[1].incarnation == 9);
  EXPECT_TRUE(!read->ranks[2].is_gone && read->ranks[2].incarnation == 0x7fffffff);
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_FALSE(parse_peer_info(text.substr(0, bytes), 3).second) << bytes;
  EXPECT_FALSE(parse_peer_info(text, 2).second);
  EXPECT_FALSE(parse_peer_info(text + "x", 3).second);
  EXPECT_FALSE(parse_peer_info(peer_info_of("node7", nullptr), 3).second);
}

}  // namespace
}  // namespace pl::messaging
