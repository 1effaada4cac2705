// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/hmac.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace pl::messaging {
namespace {

constexpr std::size_t kBlock = 64;

constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using words = std::array<std::uint32_t, 8>;

void add_block(words& state, const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = std::to_integer<std::uint32_t>(block[4 * i]) << 24 | std::to_integer<std::uint32_t>(block[4 * i + 1]) << 16 |
           std::to_integer<std::uint32_t>(block[4 * i + 2]) << 8 | std::to_integer<std::uint32_t>(block[4 * i + 3]);
  for (std::size_t i = 16; i < 64; ++i) {
    const auto s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const auto s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const auto first = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const auto second = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const words added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

digest sha256(std::span<const std::byte> data) {
  words state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::size_t done = 0;
  for (; data.size() - done >= kBlock; done += kBlock) add_block(state, data.data() + done);
  std::array<std::byte, 2 * kBlock> end{};
  const std::size_t rest = data.size() - done;
  if (rest != 0) std::memcpy(end.data(), data.data() + done, rest);
  end[rest] = std::byte{0x80};
  const std::size_t whole = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  const std::uint64_t bits = std::uint64_t{data.size()} * 8;
  for (std::size_t i = 0; i < 8; ++i) end[whole - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  for (std::size_t offset = 0; offset < whole; offset += kBlock) add_block(state, end.data() + offset);
  digest out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

digest hmac_sha256(std::string_view key, std::span<const std::byte> data) {
  const std::span raw(reinterpret_cast<const std::byte*>(key.data()), key.size());
  std::array<std::byte, kBlock> block{};
  if (raw.size() > kBlock) {
    const digest shorter = sha256(raw);
    std::memcpy(block.data(), shorter.data(), shorter.size());
  } else if (!raw.empty()) {
    std::memcpy(block.data(), raw.data(), raw.size());
  }
  const auto hash_behind = [&](std::byte pad, std::span<const std::byte> bytes) {
    std::vector<std::byte> whole;
    for (const std::byte each : block) whole.push_back(each ^ pad);
    whole.insert(whole.end(), bytes.begin(), bytes.end());
    return sha256(whole);
  };
  return hash_behind(std::byte{0x5c}, hash_behind(std::byte{0x36}, data));
}

bool is_equal(const digest& one, const digest& other) noexcept {
  std::byte differs{0};
  for (std::size_t i = 0; i < one.size(); ++i) differs |= one[i] ^ other[i];
  return differs == std::byte{0};
}

}  // namespace pl::messaging
