// SPDX-License-Identifier: Apache-2.0
// A rank that lies to a set of rails: forged tags and numbers, acknowledgements of everything, pings whose answers it does
// not take. Its own messages may fail; the process that it talks to keeps its memory and goes on.
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "base/clock.hpp"
#include "messaging/transport/rail_kinds.hpp"
#include "messaging/transport/rail_set.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

struct victim_ears final : network::listener {
  void on_packet(const std::byte*, std::size_t bytes) override { packets.push_back(bytes); }
  void on_plain(const void*, std::size_t, const std::byte*, std::size_t) override {}
  void on_remote(const frame&, remote_data) override {}
  void on_lost(int, const char*) override { ++losses; }
  std::vector<std::size_t> packets;
  int losses = 0;
};

struct liar_ears final : network::listener {
  void on_packet(const std::byte*, std::size_t) override {}
  void on_plain(const void*, std::size_t, const std::byte*, std::size_t) override {}
  void on_remote(const frame&, remote_data) override {}
  void on_lost(int, const char*) override { ++losses; }
  void on_rail(const rail_head& head, const std::byte*, std::size_t) override { heads.push_back(head); }
  std::vector<rail_head> heads;
  int losses = 0;
};

struct forged : rail_message {
  forged(std::uint32_t kind, std::uint64_t number, const void* bytes_of_it = nullptr, std::size_t count = 0) {
    head = {1, kind, number};
    data = bytes_of_it;
    bytes = count;
    done = [](rail_message& sent) { static_cast<forged&>(sent).is_done = true; };
  }
  bool is_done = false;
};

struct counted_part : ucx_part {
  counted_part() {
    done = [](ucx_part& ended, int result, std::size_t) {
      auto& self = static_cast<counted_part&>(ended);
      ++self.ends;
      self.code = result;
    };
  }
  int ends = 0, code = -1;
};

struct kept_packet : packet {
  explicit kept_packet(std::size_t bytes) : bytes_of_it(bytes) {
    head = {.kind = frame_kind::eager, .source = 0, .bytes = bytes};
    payload = bytes;
    read = [](packet& outgoing, std::size_t offset, void* destination, std::size_t n) {
      std::memcpy(destination, static_cast<kept_packet&>(outgoing).bytes_of_it.data() + offset, n);
      return 0;
    };
    done = [](packet& outgoing, int) { static_cast<kept_packet&>(outgoing).is_done = true; };
  }
  byte_string bytes_of_it;
  bool is_done = false;
};

// Rank 0 is the rail set; rank 1 has a bare worker at the other end of each of its rails.
struct rig {
  explicit rig(unsigned rails = 2) {
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_TCP_SNDBUF", "64k", 1);  // so that little is held by the kernel
    setenv("UCX_TCP_RCVBUF", "64k", 1);
    auto made = rail_set::open({}, std::vector<std::string>(rails, "lo"), 2, 0, ears);
    if (!made) {
      refusal = made.error().message;
      return;
    }
    victim = *std::move(made);
    byte_string addresses;
    for (unsigned i = 0; i < rails; ++i) {
      ucx_fabric::options wanted;
      wanted.rails = "lo";
      auto one = ucx_fabric::open(wanted, 2, liars[i]);
      if (!one) {
        refusal = one.error().message;
        return;
      }
      const auto bytes = static_cast<std::uint32_t>((*one)->address().size());
      const auto* const first = reinterpret_cast<const std::byte*>(&bytes);
      addresses.insert(addresses.end(), first, first + sizeof bytes);
      addresses.insert(addresses.end(), (*one)->address().begin(), (*one)->address().end());
      workers.push_back(*std::move(one));
    }
    victim->set_peer(1, addresses, {});
    std::size_t offset = 0;
    for (auto& worker : workers) {
      std::uint32_t bytes = 0;
      std::memcpy(&bytes, victim->address().data() + offset, sizeof bytes);
      const auto first = victim->address().begin() + static_cast<std::ptrdiff_t>(offset + sizeof bytes);
      worker->set_peer(0, byte_string(first, first + bytes), {});
      offset += sizeof bytes + bytes;
    }
  }
  forged& say(unsigned rail, std::uint32_t kind, std::uint64_t number, const void* data = nullptr, std::size_t bytes = 0) {
    said.emplace_back(kind, number, data, bytes);
    workers[rail]->send_on_rail(0, said.back());
    return said.back();
  }
  void turn(bool does_liar_read = true) {
    victim->progress();
    if (does_liar_read)
      for (auto& worker : workers) worker->progress();
  }
  bool wait(const std::function<bool()>& condition, bool does_liar_read = true) {
    const auto limit = monotonic_ns() + 20'000'000'000;
    while (!condition()) {
      if (monotonic_ns() > limit) return false;
      turn(does_liar_read);
    }
    return true;
  }
  std::size_t heard(std::uint32_t kind) const {
    std::size_t count = 0;
    for (const auto& each : liars)
      for (const auto& head : each.heads) count += head.kind == kind ? 1 : 0;
    return count;
  }
  victim_ears ears;
  std::array<liar_ears, 3> liars;
  std::string refusal;
  std::deque<forged> said;  // behind whose use by UCX
  std::vector<std::unique_ptr<ucx_fabric>> workers;
  std::unique_ptr<rail_set> victim;
};

int in_process(const std::function<int(rig&)>& body, unsigned rails = 2) {
  return fork_ranks(1, [&](int, fork_bootstrap&) {
    rig both(rails);
    if (!both.refusal.empty()) std::fprintf(stderr, "%s\n", both.refusal.c_str());
    CHECK(both.refusal.empty());
    return body(both);
  });
}

// The receiver of a message chooses the tags of its parts, so a liar can choose those of another one.
TEST(lying_rail, a_tag_under_way_is_not_sent_twice) {
  EXPECT_EQ(in_process([](rig& both) {
              const std::vector<std::byte> data(128u << 10);
              std::deque<counted_part> parts;
              for (int i = 0; i < 64; ++i) {
                parts.emplace_back();
                both.victim->send_tagged(1, 7, data.data(), data.size(), false, parts.back());
              }
              CHECK(parts[0].ends == 0);
              for (std::size_t i = 1; i < parts.size(); ++i) CHECK(parts[i].ends == 1 && parts[i].code == EPROTO);
              CHECK(both.wait([&] { return both.heard(kPart) == 1; }));
              both.say(0, kPartAcknowledged, 7);
              CHECK(both.wait([&] { return parts[0].ends == 1; }));
              CHECK(parts[0].code == 0);
              counted_part later;
              both.victim->send_tagged(1, 7, data.data(), data.size(), false, later);
              CHECK(both.wait([&] { return both.heard(kPart) == 2; }));
              both.say(1, kPartAcknowledged, 7);
              CHECK(both.wait([&] { return later.ends == 1; }));
              return later.code;
            }),
            0);
}

// What is acknowledged before UCX has sent it is still in memory.
TEST(lying_rail, acknowledgements_ahead_free_no_room) {
  EXPECT_EQ(in_process([](rig& both) {
              constexpr std::size_t kBytes = 64u << 10, kCount = 512;
              std::deque<kept_packet> packets;
              both.say(0, kPing, 0);
              CHECK(both.wait([&] { return both.heard(kPong) == 1; }));
              for (std::size_t i = 0; i < kCount; ++i) {
                packets.emplace_back(kBytes);
                both.victim->send(1, packets.back());
                both.say(0, kPacketsAcknowledged, ~0ull);
                for (int j = 0; j < 20; ++j) both.turn(false);
              }
              CHECK(both.victim->memory_held(1) > 4u << 20);  // so much does not fit the socket's buffers
              CHECK(both.victim->memory_held(1) <= (8u << 20) + 2 * kBytes);
              // A liar that goes on reading gets all of them.
              CHECK(both.wait([&] {
                both.say(0, kPacketsAcknowledged, ~0ull);
                return both.heard(kPacket) == kCount;
              }));
              for (const auto& each : packets) CHECK(each.is_done);
              return 0;
            }),
            0);
}

TEST(lying_rail, unread_acknowledgements_are_bounded) {
  EXPECT_EQ(in_process([](rig& both) {
              constexpr std::size_t kPings = 60'000;
              both.say(0, kPing, 0);
              CHECK(both.wait([&] { return both.heard(kPong) == 1; }));
              for (std::size_t i = 0; i < kPings; ++i) {
                both.say(0, kPing, i);
                for (int j = 0; j < 3; ++j) both.turn(false);
              }
              CHECK(both.victim->memory_held(1) > 1u << 20);
              CHECK(both.victim->memory_held(1) < 3u << 20);
              CHECK(both.wait([&] { return both.heard(kPong) > 10'000 && both.victim->memory_held(1) < 64u << 10; }));
              both.say(0, kPing, 1);
              const auto before = both.heard(kPong);
              CHECK(both.wait([&] { return both.heard(kPong) > before; }));
              return 0;
            }),
            0);
}

// Two rails answer pings of different times, the later one first.
TEST(rail_peer, an_answer_to_an_earlier_ping_is_not_ages_apart) {
  silence quiet;
  EXPECT_FALSE(quiet.note_answer(2000, 500));
  EXPECT_FALSE(quiet.note_answer(1900, 500));
  EXPECT_FALSE(quiet.note_answer(2400, 500));
  EXPECT_TRUE(quiet.note_answer(2500, 500));
}

TEST(rail_peer, numbers_far_ahead_are_refused) {
  arrivals seen;
  EXPECT_TRUE(seen.accept(0));
  EXPECT_FALSE(seen.accept(~0ull));
  EXPECT_FALSE(seen.accept(1ull << 40));
  EXPECT_TRUE(seen.accept(1 + kMaxPacketsAhead));
  EXPECT_FALSE(seen.accept(2 + kMaxPacketsAhead));
  EXPECT_TRUE(seen.accept(1));
  EXPECT_EQ(seen.next(), 2u);
}

// Every kind, with numbers of every size, more bytes than it has and fewer, twice and in any order.
TEST(lying_rail, whatever_it_says_the_process_goes_on) {
  EXPECT_EQ(in_process([](rig& both) {
              std::uint64_t state = 88172645463325252ull;
              const auto next = [&] {
                state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                return state;
              };
              const std::vector<std::byte> noise(300u << 10);
              std::vector<std::byte> room(64u << 10);
              std::deque<counted_part> parts;
              std::deque<kept_packet> packets;
              for (int i = 0; i < 20'000; ++i) {
                const auto kind = static_cast<std::uint32_t>(next() % 9);
                if (kind == kRailDown) continue;
                const std::uint64_t numbers[] = {next() % 16, next(), ~0ull, ~0ull - next() % 8, 1ull << 63};
                const std::size_t sizes[] = {0, 1, 43, 44, 60, next() % 70'000};
                both.say(static_cast<unsigned>(next() % 2), kind, numbers[next() % 5], noise.data(), sizes[next() % 6]);
                if (i % 16 == 0) {
                  parts.emplace_back();
                  both.victim->receive_tagged(1, next() % 16, room.data(), room.size(), false, parts.back());
                }
                if (i % 16 == 8) {
                  parts.emplace_back();
                  both.victim->send_tagged(1, next() % 16, room.data(), room.size(), false, parts.back());
                }
                if (i % 64 == 1) both.victim->send(1, packets.emplace_back(next() % 9000));
                if (i % 64 == 2 && !parts.empty()) both.victim->cancel_tagged(parts[next() % parts.size()]);
                if (i % 4 == 0) both.turn();
              }
              CHECK(both.wait([&] { return both.said.back().is_done; }));
              for (const auto& each : parts) CHECK(each.ends <= 1);
              both.victim->close(1, true);
              for (int i = 0; i < 1000; ++i) both.turn();
              for (const auto& each : packets) CHECK(each.is_done);
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace pl::messaging
