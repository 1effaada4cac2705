// SPDX-License-Identifier: Apache-2.0
// Frames of random bytes, and damaged good frames: the decoder must stay inside its input, and what it takes must be what
// the encoder writes again. From a seeded generator in the test suite, or from libFuzzer (preset fuzz):
//   store_wire_fuzz -max_total_time=600
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "crc32c.hpp"
#include "wire.hpp"

namespace pl::store_wire {
namespace {

// What went wrong, empty if nothing. `taken` counts frames that were understood.
std::string replay(std::span<const std::uint8_t> input, int& taken) {
  if (input.size() < kHeadBytes) return {};
  // A block of exactly the input's size, so that a sanitizer sees a read past its end.
  std::vector<std::uint8_t> bytes(input.begin(), input.end());
  const auto what = decode_head(std::as_bytes(std::span(bytes)).first<kHeadBytes>());
  if (!what) return {};
  const std::size_t whole = kHeadBytes + what->key_bytes + what->tail_bytes;
  if (bytes.size() < whole) return {};
  bytes.resize(whole);
  // The right checksum lets the fields through, which random bytes would never have.
  std::uint32_t crc = arch::crc32c(bytes.data(), 60);
  crc = arch::crc32c(bytes.data() + kHeadBytes, whole - kHeadBytes, crc);
  std::memcpy(&bytes[60], &crc, sizeof crc);
  const auto rest = decode_rest(*what, std::as_bytes(std::span(bytes)));
  if (!rest) return rest.code() == EPROTO ? std::string() : "not EPROTO: " + rest.error().message;
  ++taken;
  const auto again = decode_tail(encode_tail(rest->fields));
  if (!again) return "what was decoded does not decode again: " + again.error().message;
  if (!(*again == rest->fields)) return "what was decoded changes when it is encoded";
  const std::string_view body = rest->key;
  (void)decode_keys(body).ok();
  (void)decode_pools(body).ok();
  return {};
}

}  // namespace
}  // namespace pl::store_wire

#ifdef PL_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int taken = 0;
  const std::string problem = pl::store_wire::replay({data, size}, taken);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}

#else

namespace pl::store_wire {
namespace {

TEST(store_wire_fuzz, SeededFrames) {
  int taken = 0;
  for (std::uint32_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937 generator(seed);
    const auto random = [&] { return static_cast<std::uint32_t>(generator()); };
    tail fields;
    if (random() % 2) fields.who = {random(), random()};
    if (random() % 2) fields.result = outcome{random(), random(), true, path::tcp, durability::durable, 1, 2, 3, 4, false};
    if (random() % 2) fields.extents.resize(random() % 5);
    if (random() % 2) fields.settings = pool_settings{};
    if (random() % 2) fields.text = std::string(random() % 40, 'x');
    std::string frame;
    ASSERT_TRUE(
        encode({static_cast<opcode>(1 + random() % 21), 0, random()}, std::string(random() % 30, 'k'), fields, frame));
    for (unsigned damage = random() % 6; damage > 0; --damage)
      frame[4 + random() % (frame.size() - 4)] = static_cast<char>(random());
    const auto* at = reinterpret_cast<const std::uint8_t*>(frame.data());
    ASSERT_EQ(replay({at, frame.size()}, taken), "") << "seed " << seed;
  }
  EXPECT_GT(taken, 5000) << "the frames must get through, or nothing was tried";
}

}  // namespace
}  // namespace pl::store_wire

#endif
