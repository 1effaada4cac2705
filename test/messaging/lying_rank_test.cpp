// SPDX-License-Identifier: Apache-2.0
// A rank that has introduced itself well and then sends whatever frames it likes: wrong lengths, gaps, noise.
#include <cstring>
#include <deque>
#include <vector>

#include "base/clock.hpp"
#include "messaging/peer_handshake.hpp"
#include "messaging/rndv_frame.hpp"
#include "messaging/transport/ucx_fabric.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

struct no_ears final : network::listener {
  void on_packet(const std::byte*, std::size_t) override { ++packets; }
  void on_plain(const void*, std::size_t, const std::byte*, std::size_t) override { ++packets; }
  void on_remote(const frame&, remote_data) override {}
  void on_lost(int, const char*) override { is_lost = true; }
  std::size_t packets = 0;
  bool is_lost = false;
};

struct false_frame : packet {
  false_frame(const frame& said, std::size_t bytes) : data(bytes, std::byte{7}) {
    head = said;
    head.source = 1;
    payload = bytes;
    read = [](packet& outgoing, std::size_t offset, void* destination, std::size_t n) {
      std::memcpy(destination, static_cast<false_frame&>(outgoing).data.data() + offset, n);
      return 0;
    };
    done = [](packet& outgoing, int) { static_cast<false_frame&>(outgoing).is_done = true; };
  }
  byte_string data;
  bool is_done = false;
};

// Rank 1 of two, on another host as it seems: it says what a rank would say, and has a bare worker.
class liar final : public bootstrap {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override {
    byte_string own(mine.begin(), mine.end()), theirs = own;
    if (mine.empty()) return std::vector<byte_string>{own, theirs};
    peer_info said;
    std::memcpy(static_cast<void*>(&said), own.data(), sizeof said);
    said.node.pid_namespace += 1;
    said.rails = 1;
    if (said.is_ready != 0) {
      constexpr std::size_t kBeforeAddress = sizeof(peer_info) + 2;
      auto made = ucx_fabric::open({}, 2, ears);
      if (!made) return std::move(made).error();
      worker = *std::move(made);
      worker->set_peer(0, byte_string(own.begin() + kBeforeAddress, own.end()), said.ports);
      theirs.resize(kBeforeAddress);
      theirs.insert(theirs.end(), worker->address().begin(), worker->address().end());
    }
    std::memcpy(theirs.data(), &said, sizeof said);
    return std::vector<byte_string>{own, theirs};
  }
  void say(frame head, std::size_t bytes) { say_as_is(head, sequence++, bytes); }
  void say_as_is(frame head, std::uint32_t number, std::size_t bytes) {
    head.sequence = number;
    worker->send(0, said.emplace_back(head, bytes));
    while (!said.empty() && said.front().is_done) said.pop_front();
  }
  no_ears ears;
  std::deque<false_frame> said;
  std::uint32_t sequence = 0;
  std::unique_ptr<ucx_fabric> worker;
};

int beside_a_liar(const std::function<int(messenger&, liar&)>& body) {
  return fork_ranks(1, [&](int, fork_bootstrap&) {
    setenv("UCX_TLS", "tcp", 1);
    liar other;
    auto opened = messenger::open(nullptr, other, test_options());
    CHECK_OK(opened);
    const int outcome = body(**opened, other);
    opened->reset();
    return outcome;
  });
}

bool turn_until(messenger& messages, liar& other, const std::function<bool()>& condition) {
  const auto limit = monotonic_ns() + 20'000'000'000;
  while (!condition()) {
    if (monotonic_ns() > limit) return false;
    messages.progress();
    other.worker->progress();
  }
  return true;
}

// Who believed it would look for bytes behind the end of its buffer.
TEST(lying_rank, the_length_of_a_message_is_what_has_come) {
  EXPECT_EQ(beside_a_liar([](messenger& messages, liar& other) {
              const frame lie{.kind = frame_kind::eager, .tag = 5, .bytes = 1ull << 40};
              piece room(false, 64);
              auto posted = messages.irecv(1, room.all(), 5);
              other.say(lie, 8);
              CHECK(turn_until(messages, other, [&] { return posted.test(); }));
              CHECK_OK(posted.wait(kTimeout));
              CHECK(posted.info().bytes == 8);
              other.say(lie, 8);
              CHECK(turn_until(messages, other, [&] { return messages.counts().unexpected_bytes == 8; }));
              auto later = messages.irecv(1, room.all(), 5);
              CHECK_OK(later.wait(kTimeout));
              CHECK(later.info().bytes == 8);
              CHECK(messages.counts().unexpected_bytes == 0);
              return 0;
            }),
            0);
}

// What overtakes a frame waits for it here; one that never comes must not cost all memory.
TEST(lying_rank, frames_behind_a_gap_are_bounded) {
  EXPECT_EQ(beside_a_liar([](messenger& messages, liar& other) {
              for (std::uint32_t i = 0; i < 6000 && messages.peer_state(1); ++i) {
                other.say_as_is({.kind = frame_kind::eager, .tag = i}, i + 1, 60'000);
                CHECK(turn_until(messages, other, [&] {
                  return other.said.empty() || other.said.back().is_done || !messages.peer_state(1);
                }));
              }
              CHECK(messages.peer_state(1).code() == ECONNRESET);
              CHECK(messages.peer_state(1).error().message.find("not the one before them") != std::string::npos);
              return 0;
            }),
            0);
}

// A sender that does not wait for credit must not fill the receiver's memory.
TEST(lying_rank, messages_without_credit_are_bounded) {
  EXPECT_EQ(beside_a_liar([](messenger& messages, liar& other) {
              constexpr std::size_t kBytes = 60'000;
              std::size_t held = 0;
              for (std::uint32_t i = 0; i < 1000 && messages.peer_state(1); ++i) {
                other.say({.kind = frame_kind::eager, .tag = i}, kBytes);
                CHECK(turn_until(messages, other, [&] {
                  held = std::max<std::size_t>(held, messages.counts().unexpected_bytes);
                  return other.said.empty() || other.said.back().is_done || !messages.peer_state(1);
                }));
              }
              CHECK(turn_until(messages, other, [&] { return !messages.peer_state(1); }));
              CHECK(messages.peer_state(1).error().message.find("may wait for a receive here") != std::string::npos);
              CHECK(held > 4u << 20 && held <= 8u << 20);
              return 0;
            }),
            0);
}

TEST(lying_rank, random_frames_do_no_harm) {
  EXPECT_EQ(
      beside_a_liar([](messenger& messages, liar& other) {
        std::uint64_t state = 88172645463325252ull;
        const auto next = [&] {
          state ^= state << 13, state ^= state >> 7, state ^= state << 17;
          return state;
        };
        piece room(false, 100'000), shared(false, 4096);
        auto window_here = messages.expose({shared.address(), 4096});
        CHECK_OK(window_here);
        std::deque<request> requests;
        for (int i = 0; i < 20'000 && messages.peer_state(1); ++i) {
          const std::uint64_t words[] = {next() % 8, next() % 5000, next(), ~0ull, ~0ull - next() % 4096, 1ull << 63};
          const auto word = [&] { return words[next() % std::size(words)]; };
          const std::int32_t codes[] = {0, kBehindPut, static_cast<std::int32_t>(next())};
          frame noise{.code = codes[next() % std::size(codes)],
                      .tag = word(),
                      .bytes = word(),
                      .credit = next() % 2 == 0 ? 0 : word(),
                      .op = word(),
                      .peer_op = word()};
          noise.kind = static_cast<frame_kind>(next() % 22);
          if (noise.kind == frame_kind::bye || noise.kind == frame_kind::barrier) continue;  // these end it
          noise.space = next() % 2;
          noise.gpu = static_cast<std::uint16_t>(next());
          const std::size_t sizes[] = {0, 8, 40, 56, 64, sizeof(rts_body), sizeof(rtr_body), next() % 9000};
          other.say(noise, sizes[next() % std::size(sizes)]);
          if (i % 8 == 0) requests.push_back(messages.irecv(1, room.part(0, next() % 100'000), next() % 8));
          if (i % 8 == 4) requests.push_back(messages.isend(1, room.part(0, next() % 100'000), next() % 8));
          if (i % 64 == 7)
            requests.push_back(messages.get({1, static_cast<std::uint32_t>(next() % 4), next()}, 0, room.part(0, 100)));
          for (int j = 0; j < 2; ++j) messages.progress(), other.worker->progress();
        }
        for (int i = 0; i < 1000; ++i) messages.progress(), other.worker->progress();
        CHECK(other.sequence > 15'000);
        return 0;
      }),
      0);
}

}  // namespace
}  // namespace pl::messaging
