// SPDX-License-Identifier: Apache-2.0
// Slot maps and etcd's answers from random and from damaged text: what is taken as a map comes back from its text, servers
// can plan with it, and what they make of it is a map again; an answer of any shape is a value or an error. From a seeded
// generator in the test suite, or from libFuzzer (preset fuzz):
//   store_map_fuzz -max_total_time=600
#include <gtest/gtest.h>

#include <random>

#include "store/cluster/etcd_answer.hpp"
#include "store/cluster/http_answer.hpp"
#include "store/cluster/plan.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store_cluster {
namespace {

using store_client::kPlacements;
using store_client::kUnits;

std::string comes_back(const cluster_map& map) {
  const auto again = store_client::read_cluster_map(to_text(map));
  if (!again) return "what was written is not read: " + again.error().message;
  const bool same = again->epoch == map.epoch && again->servers == map.servers && again->units == map.units;
  return same ? "" : "a map changes when it is written and read";
}

// As a server does that finds this map in etcd, when some servers are alive and one comes.
std::string replay_map(std::string_view text, int& taken) {
  auto map = store_client::read_cluster_map(text);
  if (!map) return map.code() == EPROTO ? "" : "refused, but not as EPROTO";
  ++taken;
  if (auto problem = comes_back(*map); !problem.empty()) return problem;
  for (unsigned copies = 0; copies <= store_client::kMaxCopies + 1; ++copies) {
    (void)map->endpoint_for(copies, text.substr(0, 8));
    (void)map->why_waiting(copies, text.substr(0, 8));
  }
  names_t alive = {"a"};
  for (const auto& [name, one] : map->servers)
    if (one.run % 2 == 0) alive.insert(name);
  forget_dead(*map, alive);
  enter(*map, "a", "a:1", 7, {"disk", true}, {true, true, true, true});
  place(*map, alive);
  retire(*map);
  for (const unsigned unit : {0u, kUnits, kPlacements - 1}) (void)successor_of(*map, unit, "a");
  if (left_behind(*map, "a") > kPlacements) return "more is left behind than there is";
  (void)accept_loss(*map, "a", alive);
  return comes_back(*map);
}

std::string replay_answer(std::string text, int& taken) {
  // In two parts, wherever it is cut, it is the same answer.
  const auto body_of = [&](std::size_t cut) -> result<std::string> {
    http_answer answer;
    const std::string_view whole(text);
    auto have = answer.take(whole.substr(0, cut));
    if (have && !*have) have = answer.take(whole.substr(cut));
    if (!have) return have.error();
    if (!*have) {
      if (auto ended = answer.end(); !ended) return ended.error();
    }
    if (!answer.is_ok()) return failure{EIO, answer.outcome()};
    return answer.body();
  };
  const auto body = body_of(text.size());
  if (!body && body.code() != EPROTO && body.code() != EIO && body.code() != EMSGSIZE) return "refused with another error";
  const auto parts = body_of(text.size() / 2);
  if (parts.code() != body.code() || (body && *parts != *body)) return "another answer in two parts";
  if (const auto list = etcd_answer::listed(body); list && !list->entries.empty()) ++taken;
  for (const int code : {etcd_answer::succeeded(body).code(), etcd_answer::lease_given(body).code(),
                         etcd_answer::seconds_left(body).code(), etcd_answer::done(body).code()})
    if (code != 0 && code != EPROTO && code != EIO && code != EMSGSIZE) return "a body refused with another error";
  return {};
}

// The error, empty if none. The first byte chooses how the others are read.
std::string replay(std::string_view input, int (&taken)[2]) {
  if (input.empty()) return {};
  const std::string text(input.substr(1));  // a block of its own, so that a sanitizer sees a read past its end
  return input[0] % 2 == 0 ? replay_map(text, taken[0]) : replay_answer(text, taken[1]);
}

std::string some_map(std::mt19937& random) {
  static constexpr const char* kNames[] = {"a", "b", "c", "b#0123", "a#unknown", "nobody"};
  const auto name = [&] { return std::string(kNames[random() % std::size(kNames)]); };
  cluster_map map;
  map.epoch = random();
  for (auto many = random() % 4; many > 0; --many) {
    auto& one = map.servers[name()];
    one = {"h:1", static_cast<cluster_server::role>(random() % 3), random() % 4 == 0, random(), "", random(), ""};
    if (random() % 2 == 0) one.socket = "/s";
    else one.instance = 0;  // is told with the socket
    if (random() % 2 == 0) one.folder = "0123";
  }
  placement now;
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    if (unit % kUnits == 0 || random() % 200 == 0) {
      now = {};
      for (auto many = random() % 3; many > 0; --many) now.copies.push_back(name());
      for (auto many = random() % 2; many > 0; --many) now.joining.push_back(name());
    }
    map.units[unit] = now;
  }
  return to_text(map);
}

std::string some_answer(std::mt19937& random) {
  static constexpr const char* kBodies[] = {
      R"({"header":{"revision":"12"},"kvs":[{"key":"L2E=","value":"e30=","mod_revision":"5","lease":"77"},{"key":"YQ=="}]})",
      R"({"header":{},"succeeded":true,"responses":[{"response_put":{}}]})", R"({"ID":"7587","TTL":"5"})",
      R"({"result":{"ID":"7587","TTL":"5"}})", R"({"error":"etcdserver: requested lease not found","code":5})"};
  const char* const state = random() % 4 == 0 ? "HTTP/1.0 404 Not Found" : "HTTP/1.1 200 OK";
  return std::string(state) + "\r\nContent-Type: application/json\r\n\r\n" + kBodies[random() % std::size(kBodies)];
}

std::string some_input(std::uint32_t seed) {
  std::mt19937 random(seed);
  return seed % 2 == 0 ? std::string(1, '\0') + some_map(random) : std::string(1, '\1') + some_answer(random);
}

}  // namespace
}  // namespace pl::store_cluster

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  int taken[2] = {};
  return store_cluster::replay({reinterpret_cast<const char*>(input.data()), input.size()}, taken);
}
std::string good_input(std::uint32_t seed) { return store_cluster::some_input(seed); }
}  // namespace pl::fuzz

#else

namespace pl::store_cluster {
namespace {

TEST(store_map_fuzz, SeededTexts) {
  int taken[2] = {};
  for (std::uint32_t seed = 1; seed <= 600; ++seed) {
    std::mt19937 random(seed);
    std::string text = some_input(seed);
    for (auto damage = random() % 4; damage > 0; --damage)
      text[1 + random() % (text.size() - 1)] = "0123\"{}[],:-aA9"[random() % 15];
    ASSERT_EQ(replay(text, taken), "") << "seed " << seed << ": " << text;
  }
  EXPECT_GT(taken[0], 60) << "maps must get through, or nothing was tried";
  EXPECT_GT(taken[1], 10) << "answers must get through, or nothing was tried";
}

}  // namespace
}  // namespace pl::store_cluster

#endif
