// SPDX-License-Identifier: Apache-2.0
// Frames of random bytes, and damaged good frames: the decoder must stay inside its input, and what it takes must be what
// the encoder writes again. From a seeded generator in the test suite, or from libFuzzer (preset fuzz):
//   store_wire_fuzz -max_total_time=600
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "arch/crc32c.hpp"
#include "store/protocol/wire.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store_protocol {
namespace {

// The error in a body's lists, each of which must encode to the same bytes.
std::string replay_lists(std::string_view body) {
  const auto encoded = [](const auto& list) {
    std::string out;
    for (const auto& one : list) append(out, one);
    return out;
  };
  if (const auto keys = decode_keys(body); keys && encoded(*keys) != body) return "a list of keys is encoded as other bytes";
  const auto pools = decode_pools(body);
  if (!pools) return {};
  const auto again = decode_pools(encoded(*pools));
  return again && *again == *pools ? "" : "a list of pools changes when it is encoded";
}

// The error, empty if none. `taken` counts frames that were understood.
std::string replay(std::span<const std::uint8_t> input, int& taken) {
  if (input.size() < kHeadBytes) return {};
  // A block of exactly the input's size, so that a sanitizer sees a read past its end.
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  const auto header = decode_head(std::as_bytes(std::span(bytes)).first<kHeadBytes>());
  if (!header) return {};
  const std::size_t whole = kHeadBytes + header->key_bytes + header->tail_bytes;
  if (bytes.size() < whole) return {};
  bytes.resize(whole);
  // The right checksum lets the fields through, which random bytes would never have.
  std::uint32_t crc = arch::crc32c(bytes.data(), 60);
  crc = arch::crc32c(bytes.data() + kHeadBytes, whole - kHeadBytes, crc);
  std::memcpy(&bytes[60], &crc, sizeof crc);
  const auto rest = decode_rest(*header, std::as_bytes(std::span(bytes)));
  if (!rest) return rest.code() == EPROTO ? std::string() : "not EPROTO: " + rest.error().message;
  ++taken;
  const auto again = decode_tail(encode_tail(rest->fields));
  if (!again) return "what was decoded does not decode again: " + again.error().message;
  if (!(*again == rest->fields)) return "what was decoded changes when it is encoded";
  return replay_lists(rest->key);
}

// A good frame with fields of all kinds, drawn by `seed`.
std::string some_frame(std::uint32_t seed) {
  std::mt19937 generator(seed);
  const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
  const auto one_in_three = [&] { return random() % 3 == 0; };
  const auto text = [&](char letter) { return std::string(random() % 40, letter); };
  const auto level = [&] { return static_cast<durability>(random() % 5); };
  tail fields;
  if (one_in_three()) fields.request_number = {random(), random()};
  if (one_in_three()) fields.only = {static_cast<condition>(random() % 4), random()};
  if (one_in_three()) fields.level = level();
  if (one_in_three()) fields.result = outcome{random(), random(), true, path::tcp, level(), 1, 2, 3, 4, false};
  if (one_in_three()) fields.text = text('x');
  if (one_in_three()) fields.token = random();
  if (one_in_three()) fields.extents.resize(random() % 5, {random(), random()});
  if (one_in_three()) fields.unpin.resize(random() % 5, random());
  if (one_in_three()) fields.crc = random();
  if (one_in_three()) fields.user_flags = random();
  if (one_in_three()) fields.settings = pool_settings{random(), random(), level(), true, false, text('a'), 2};
  if (one_in_three()) fields.handshake = hello{1, 1, random(), random(), random(), text('h')};
  if (one_in_three()) fields.prefix = text('p');
  if (one_in_three()) fields.regex = text('r');
  if (one_in_three()) fields.after = text('f');
  if (one_in_three()) fields.memory = arena{random(), random(), true};
  if (one_in_three()) fields.epoch = random();
  if (one_in_three()) fields.copy = copy_terms{random(), random(), random(), random()};
  if (one_in_three()) fields.ucx = ucx_offer{1, 13, {random(), random()}, true, text('l'), text('t')};
  if (one_in_three()) fields.ucx_transports = text('n');
  if (one_in_three()) fields.owner = text('o');
  if (one_in_three()) fields.listed = text('l');
  std::string key(random() % 30, 'k');
  for (unsigned many = random() % 9; many > 5; --many) append(key, key_entry{text('e'), random(), random()});
  if (random() % 4 == 0) {
    key.clear();
    append(key, pool_entry{text('o'), random(), random(), pool_settings{1, 2, level(), false, true, text('s'), 1}});
  }
  std::string frame;
  const auto op = static_cast<opcode>(1 + random() % static_cast<unsigned>(opcode::last));
  (void)encode({op, static_cast<std::uint16_t>(random() & flag::known), random()}, key, fields, frame);
  return frame;
}

}  // namespace
}  // namespace pl::store_protocol

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  int taken = 0;
  return store_protocol::replay(input, taken);
}
std::string good_input(std::uint32_t seed) { return store_protocol::some_frame(seed); }
}  // namespace pl::fuzz

#else

namespace pl::store_protocol {
namespace {

TEST(store_wire_fuzz, SeededFrames) {
  int taken = 0;
  for (std::uint32_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937 generator(seed);
    const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
    std::string frame = some_frame(seed);
    ASSERT_FALSE(frame.empty());
    for (unsigned damage = random() % 6; damage > 0; --damage)
      frame[4 + random() % (frame.size() - 4)] = static_cast<char>(random());
    const auto* data = reinterpret_cast<const std::uint8_t*>(frame.data());
    ASSERT_EQ(replay({data, frame.size()}, taken), "") << "seed " << seed;
  }
  EXPECT_GT(taken, 5000) << "the frames must get through, or nothing was tried";
}

}  // namespace
}  // namespace pl::store_protocol

#endif
