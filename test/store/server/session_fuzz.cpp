// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes on a connection: a server gets frames that were damaged or put together at random, with valid checksums
// so that they pass the first check. It must answer only frames, end the connection soon after the client's end, hold
// nothing for it afterwards, and serve the next one. Inputs come from a seeded generator in the test suite, or from
// libFuzzer (preset fuzz), where one server gets all inputs, so a finding may need the ones before it:
//   store_session_fuzz -max_total_time=600
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "arch/crc32c.hpp"
#include "store/protocol/byte_channel.hpp"
#include "store/protocol/byte_order.hpp"
#include "store/protocol/wire.hpp"
#include "test/store/server/store_rig.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store_test {
namespace {

using namespace store_protocol;

constexpr int kMaxWaitMs = 20'000;

// A frame of `bytes` with the checksums that it should have; all of what is left, if that is less than its lengths say.
std::string next_frame(std::string_view& bytes) {
  std::string out(bytes.substr(0, kHeadBytes));
  if (out.size() < kHeadBytes) return bytes = {}, out;
  auto* const head = reinterpret_cast<std::byte*>(out.data());
  const std::size_t front = kHeadBytes + get_le<std::uint16_t>(head + 20) + get_le<std::uint16_t>(head + 22);
  const std::size_t body = get_le<std::uint32_t>(head + 40);
  out = bytes.substr(0, front + body);
  bytes.remove_prefix(out.size());
  if (out.size() < front + body) return out;
  auto* const data = reinterpret_cast<std::byte*>(out.data());
  put_le(data + 44, arch::crc32c(data + front, body));
  put_le(data + 60, arch::crc32c(data + kHeadBytes, front - kHeadBytes, arch::crc32c(data, 60)));
  return out;
}

// Takes whole frames off the front of `answers`. Returns the error in them, empty if none.
std::string check_answers(std::string& answers) {
  while (answers.size() >= kHeadBytes) {
    const auto bytes = std::as_bytes(std::span(answers));
    const auto header = decode_head(bytes.first<kHeadBytes>());
    if (!header) return "an answer is no frame: " + header.error().message;
    if ((header->flags & flag::reply) == 0) return "an answer is not marked as one";
    const std::size_t front = kHeadBytes + header->key_bytes + header->tail_bytes;
    if (answers.size() < front + header->body_bytes) return {};
    if (const auto rest = decode_rest(*header, bytes.first(front)); !rest) return "an answer: " + rest.error().message;
    if (header->body_crc != arch::crc32c(answers.data() + front, header->body_bytes)) return "an answer's body is damaged";
    answers.erase(0, front + header->body_bytes);
  }
  return {};
}

class stranger {
 public:
  explicit stranger(store_rig& rig) : rig_(rig) {}
  // The first byte's lowest bit: without a handshake. What went wrong, empty if nothing.
  std::string says(std::string_view input) {
    if (input.empty()) return {};
    auto made = store_client::connect(rig_.over_tcp().server, 5000);
    if (!made) return "the server takes no connection: " + made.error().message;
    std::string all, answers;
    tail handshake;
    handshake.handshake = hello{};
    if (input[0] % 2 == 0) (void)encode({opcode::hello, 0, 1}, {}, handshake, all);
    for (input.remove_prefix(1); !input.empty();) all += next_frame(input);
    const int fd = (*made)->fd();
    const auto end = store_client::clock::now() + std::chrono::milliseconds(kMaxWaitMs);
    std::size_t sent = 0;
    bool reported_end = false;
    while (store_client::clock::now() < end) {
      if (sent < all.size()) {
        const auto count = ::send(fd, all.data() + sent, all.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) sent += static_cast<std::size_t>(count);
        else if (errno != EAGAIN) sent = all.size();  // it was cut off, as it may be
      }
      if (sent == all.size() && !std::exchange(reported_end, true)) ::shutdown(fd, SHUT_WR);
      pollfd ready{fd, static_cast<short>(sent < all.size() ? POLLIN | POLLOUT : POLLIN), 0};
      poll(&ready, 1, 1000);
      char some[65536];
      const auto got = ::recv(fd, some, sizeof some, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return afterwards();
      if (got > 0) answers.append(some, static_cast<std::size_t>(got));
      if (auto problem = check_answers(answers); !problem.empty()) return problem;
    }
    return "the connection did not end";
  }

 private:
  std::string afterwards() {
    const auto end = store_client::clock::now() + std::chrono::milliseconds(kMaxWaitMs);
    for (;;) {
      const auto now = rig_.server().engine().stats();
      if (now.grants == 0 && now.pins == 0) return {};
      if (store_client::clock::now() > end) return "the connection has gone, and something is still held for it";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  store_rig& rig_;
};

void settle_rig(store_rig& rig) {
  rig.config.log_level = "error";
  rig.config.socket = "none";
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.config.extent_file_bytes = 16u << 20;
  rig.config.disk_limit_bytes = 256u << 20;
  rig.start();
}

// A conversation of good requests about few keys of one pool.
std::string some_talk(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(1, '\0');
  std::uint64_t id = 2;
  const auto add = [&](opcode op, std::string_view key, const tail& fields, std::string_view body = {},
                       std::uint64_t value = 0, std::uint16_t flags = 0) {
    head header{op, flags, id++, 1};
    header.value_bytes = value;
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    if (random() % 3 == 0) header.deadline_us = static_cast<std::uint32_t>(random() % 5000);
    (void)encode(header, key, fields, out);
    out += body;
  };
  tail settings;
  settings.settings = pool_settings{};
  settings.settings->level = durability::volatile_;
  add(random() % 2 == 0 ? opcode::pool_create : opcode::pool_open, "p", settings);
  for (auto many = random() % 6; many > 0; --many) {
    const std::string key(1, static_cast<char>('a' + random() % 4));
    const std::string value(random() % 200, 'v');
    tail fields;
    if (random() % 3 == 0) fields.request_number = {1 + random() % 3, random() % 8};
    if (random() % 3 == 0) fields.only = {static_cast<condition>(random() % 4), random() % 8};
    if (random() % 4 == 0) fields.level = static_cast<durability>(random() % 5);
    if (random() % 4 == 0) fields.crc = arch::crc32c(value.data(), value.size());
    if (random() % 4 == 0) fields.user_flags = 7;
    switch (random() % 12) {
      case 0:
      case 1:
        add(opcode::put, key, fields, value, value.size());
        break;
      case 2: {  // in pieces
        const auto mine = id;
        add(opcode::put, key, fields, {}, 2 * value.size(), flag::streamed);
        for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{value.size()}}) {
          head header{opcode::data, static_cast<std::uint16_t>(offset == 0 ? flag::more : 0), mine, 1};
          header.offset = offset;
          header.body_bytes = static_cast<std::uint32_t>(value.size());
          (void)encode(header, {}, {}, out);
          out += value;
        }
        break;
      }
      case 3:
        add(opcode::get, key, fields, {}, 1u << 20, random() % 2 == 0 ? flag::verify : std::uint16_t{0});
        break;
      case 4:
        add(opcode::erase, key, fields);
        break;
      case 5:
        add(opcode::stat, key, {});
        break;
      case 6:
        fields.regex = "^[a-c]$";
        fields.prefix = "";
        add(opcode::find, {}, fields, {}, random() % 4);
        break;
      case 7:
        add(opcode::alloc, key, fields, {}, 30'000, random() % 2 == 0 ? flag::patch : std::uint16_t{0});
        break;
      case 8:
        fields.token = random() % 4;
        add(random() % 2 == 0 ? opcode::commit : opcode::abort, key, fields);
        break;
      case 9:
        add(opcode::lookup, key, fields);
        break;
      case 10:
        fields.unpin = {1, 2};
        add(opcode::unpin, {}, fields);
        break;
      default: {
        static constexpr opcode kPlain[] = {opcode::ping,        opcode::pool_list, opcode::sync,
                                            opcode::attach,      opcode::stats,     opcode::pool_set,
                                            opcode::cluster_map, opcode::sync_keys, opcode::pool_open};
        add(kPlain[random() % std::size(kPlain)], random() % 2 == 0 ? "p" : "", settings);
      }
    }
  }
  return out;
}

}  // namespace
}  // namespace pl::store_test

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  static store_test::store_rig* const rig = [] {
    auto* const made = new store_test::store_rig;  // for as long as the program runs
    store_test::settle_rig(*made);
    return made;
  }();
  return store_test::stranger(*rig).says({reinterpret_cast<const char*>(input.data()), input.size()});
}
std::string good_input(std::uint32_t seed) { return store_test::some_talk(seed); }
}  // namespace pl::fuzz

#else

namespace pl::store_test {
namespace {

TEST(store_session_fuzz, SeededTalks) {
  store_rig rig;
  settle_rig(rig);
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    std::string talk = some_talk(seed);
    for (auto damage = random() % 5; damage > 0; --damage) {
      const std::size_t position = random() % talk.size();
      if (random() % 4 == 0) talk.erase(position, random() % 20);
      else talk[position] = static_cast<char>(random());
      if (talk.empty()) break;
    }
    ASSERT_EQ(stranger(rig).says(talk), "") << "seed " << seed;
  }
  // Most talks must get past the handshake, or nothing was tried.
  const auto store = store_rig::open(rig.over_tcp());
  const auto pool = store->open_pool("p");
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_GT(rig.server().engine().stats().puts, 40u);
}

}  // namespace
}  // namespace pl::store_test

#endif
