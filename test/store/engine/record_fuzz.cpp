// SPDX-License-Identifier: Apache-2.0
// The index's records from random and from damaged bytes: decoders stay inside their input, and take nothing but what the
// encoder would write for it. From a seeded generator in the test suite, or from libFuzzer (preset fuzz):
//   store_record_fuzz -max_total_time=600
#include <gtest/gtest.h>

#include <random>

#include "store/engine/record.hpp"
#ifdef PL_LIBFUZZER
#include "test/support/fuzz.hpp"
#endif

namespace pl::store {
namespace {

constexpr unsigned kKinds = 6;
constexpr std::size_t kGroupAt = 1 + 8 + 1;  // in a request's outcome: behind layout, sequence and durability
constexpr char kOutcomeOfOldReleases = 1;    // the layout without a group

// Earlier releases accepted an undefined level; a record of it is read, and written again as `today`.
constexpr char kReplicated = 4;
std::string with_level(std::string_view bytes, std::size_t offset, durability today) {
  std::string out(bytes);
  if (offset < out.size() && out[offset] == kReplicated) out[offset] = static_cast<char>(today);
  return out;
}

// Encoding a decoded record must give the same bytes.
template <class Record, class Encode>
std::string same(const std::optional<Record>& got, const Encode& again, std::string_view bytes, int& taken) {
  if (!got) return {};
  ++taken;
  return again(*got) == bytes ? "" : "what was decoded is encoded as other bytes";
}

// The error, empty if none. The first byte chooses the kind of record for the others.
std::string replay(std::span<const std::uint8_t> input, int& taken) {
  if (input.empty()) return {};
  // A block of exactly the input's size, so that a sanitizer sees a read past its end.
  const std::vector<char> block(input.begin() + 1, input.end());
  const std::string_view bytes(block.data(), block.size());
  switch (input[0] % kKinds) {
    case 0: {
      const auto got = decode_value(bytes);
      if (got && got->large() && !got->small_value.empty()) return "a record both large and small";
      if (got && got->extents.size() > kMaxSegments) return "more extents than a value may have";
      return same(
          got, [](const value_record& one) { return encode(one); }, with_level(bytes, 1, durability::logged), taken);
    }
    case 1:
      return same(
          decode_extents(bytes), [](const std::vector<segment>& one) { return encode_extents(one); }, bytes, taken);
    case 2: {
      const auto got = decode_pool(bytes);
      const std::size_t level_at = got ? 1 + 4 + 4 + got->name.size() : 0;
      return same(
          got, [](const pool_info& one) { return encode(one); }, with_level(bytes, level_at, durability::durable), taken);
    }
    case 3:
      return same(
          decode_counts(bytes), [](const pool_counts& one) { return encode(one); }, bytes, taken);
    case 4:
      return same(
          decode_format(bytes), [](const store_format& one) { return encode(one); }, bytes, taken);
    default: {
      const auto got = decode_outcome(bytes);
      const std::string same_level = with_level(bytes, 1 + 8, durability::logged);
      if (!got || encode(*got).size() == bytes.size())
        return same(
            got, [](const request_outcome& one) { return encode(one); }, same_level, taken);
      // A record of a release without groups: two bytes shorter, with the same meaning as the present form.
      std::string today = encode(*got);
      const auto again = decode_outcome(today);
      if (got->group != kAnyGroup || !again || encode(*again) != today) return "an older record is not read as what it was";
      ++taken;
      return today.erase(kGroupAt, sizeof got->group).substr(1) == same_level.substr(1) ? "" : "an older record has changed";
    }
  }
}

// A good record of each kind, with random contents.
std::string some_record(unsigned kind, std::mt19937& random) {
  const auto word = [&] { return static_cast<std::uint32_t>(random()); };
  const auto number = [&] { return (std::uint64_t{random()} << 32 | random()) >> (random() % 64); };
  std::vector<segment> pieces(1 + random() % 4);
  for (segment& one : pieces) one = {number() / kBlockBytes * kBlockBytes, (1 + random() % 100) * kBlockBytes};
  const std::string text(random() % 40, static_cast<char>(random()));
  switch (kind) {
    case 0: {
      value_record one{number(), 0, word(), word(), 5, durability::logged, random() % 2 == 0 ? word() : 0, {}, {}};
      if (random() % 2 == 0) one.small_value = text, one.length_bytes = text.size();
      else one.extents = pieces, one.length_bytes = 1 + random() % 4000;
      for (std::size_t i = 1; i < one.extents.size(); ++i) one.length_bytes += one.extents[i - 1].size_bytes;
      return encode(one);
    }
    case 1:
      return encode_extents(pieces);
    case 2: {
      pool_info one;
      one.id = word();
      one.name = "p" + text;
      one.options = {durability::durable, number(), number(), random() % 2 == 0, text};
      return encode(one);
    }
    case 3:
      return encode(pool_counts{number(), number()});
    case 4:
      return encode(store_format{1, (1 + random() % 100) * kBlockBytes, number(), number()});
    default: {
      request_outcome one{number(), durability::durable, static_cast<std::uint16_t>(random()), {}, random() % 2 == 0};
      one.items.resize(random() % 4, {EEXIST, number(), word()});
      std::string record = encode(one);
      if (random() % 4 == 0) record.erase(kGroupAt, sizeof one.group)[0] = kOutcomeOfOldReleases;
      return record;
    }
  }
}

}  // namespace
}  // namespace pl::store

#ifdef PL_LIBFUZZER

namespace pl::fuzz {
std::string problem_with(std::span<const std::uint8_t> input) {
  int taken = 0;
  return store::replay(input, taken);
}
std::string good_input(std::uint32_t seed) {
  std::mt19937 random(seed);
  const unsigned kind = seed % store::kKinds;
  return static_cast<char>(kind) + store::some_record(kind, random);
}
}  // namespace pl::fuzz

#else

namespace pl::store {
namespace {

TEST(store_record_fuzz, SeededRecords) {
  int taken[kKinds] = {};
  for (std::uint32_t seed = 1; seed <= 30000; ++seed) {
    std::mt19937 random(seed);
    const unsigned kind = seed % kKinds;
    std::string bytes = some_record(kind, random);
    for (unsigned damage = random() % 4; damage > 0 && !bytes.empty(); --damage) {
      const std::size_t offset = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[offset] = static_cast<char>(random());
          break;
        case 1:
          bytes.resize(offset);
          break;
        default:
          bytes.insert(offset, 1 + random() % 9, static_cast<char>(random()));
      }
    }
    bytes.insert(0, 1, static_cast<char>(kind));
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    ASSERT_EQ(replay({data, bytes.size()}, taken[kind]), "") << "seed " << seed;
  }
  for (unsigned kind = 0; kind < kKinds; ++kind)
    EXPECT_GT(taken[kind], 500) << "kind " << kind << ": records must get through, or nothing was tried";
}

}  // namespace
}  // namespace pl::store

#endif
