// SPDX-License-Identifier: Apache-2.0
#include "arch/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pl::arch {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

// Product of two polynomials modulo the checksum's, bits reflected: bit 31 is x^0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * 2^i) modulo the polynomial.
constexpr std::array<std::uint32_t, 64> kSquares = [] {
  std::array<std::uint32_t, 64> out{};
  std::uint32_t square = 1u << 23;  // x^8
  for (auto& one : out) one = square, square = multiply(square, square);
  return out;
}();

// x^(8 bytes) modulo the polynomial: multiplying by it appends that many zero bytes.
constexpr std::uint32_t zeros_operator(std::uint64_t bytes) {
  std::uint32_t power = 1u << 31;  // x^0
  for (unsigned bit = 0; bytes != 0; bytes >>= 1, ++bit)
    if (bytes & 1) power = multiply(power, kSquares[bit]);
  return power;
}

constexpr std::array<std::uint32_t, 256> kByteTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}();

using shift_table = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr shift_table make_shift(std::uint64_t bytes) {
  shift_table table{};
  const std::uint32_t factor = zeros_operator(bytes);
  for (unsigned place = 0; place < 4; ++place)
    for (std::uint32_t i = 0; i < 256; ++i) table[place][i] = multiply(i << (8 * place), factor);
  return table;
}

constexpr shift_table kPageShift = make_shift(kCrcPageBytes);

std::uint32_t shift(const shift_table& table, std::uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

#if defined(__x86_64__)
// Three streams hide the instruction's latency of three cycles. Long blocks for long data, short ones for the rest.
constexpr std::size_t kLongBlock = 4096, kShortBlock = 256;
static_assert(kLongBlock == kCrcPageBytes);
constexpr shift_table kShortShift = make_shift(kShortBlock);

std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

template <std::size_t Block>
__attribute__((target("sse4.2"))) std::uint32_t three_streams(const unsigned char*& data, std::size_t& bytes,
                                                              std::uint32_t crc, const shift_table& by_block) {
  for (; bytes >= 3 * Block; bytes -= 3 * Block, data += 3 * Block) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t i = 0; i < Block; i += 8) {
      a = _mm_crc32_u64(a, word_at(data + i));
      b = _mm_crc32_u64(b, word_at(data + Block + i));
      c = _mm_crc32_u64(c, word_at(data + 2 * Block + i));
    }
    crc = shift(by_block, static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    crc = shift(by_block, crc) ^ static_cast<std::uint32_t>(c);
  }
  return crc;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const unsigned char* data, std::size_t bytes,
                                                               std::uint32_t crc) {
  crc = ~crc;
  crc = three_streams<kLongBlock>(data, bytes, crc, kPageShift);
  crc = three_streams<kShortBlock>(data, bytes, crc, kShortShift);
  std::uint64_t wide = crc;
  for (; bytes >= 8; bytes -= 8, data += 8) wide = _mm_crc32_u64(wide, word_at(data));
  crc = static_cast<std::uint32_t>(wide);
  for (; bytes != 0; --bytes) crc = _mm_crc32_u8(crc, *data++);
  return ~crc;
}

// Carry-less multiplication moves 128 bits of a message over a distance: the result has the checksum that they had in
// their old place. The low half is 32 bits further from there than the product's end, the high half 32 bits nearer.
struct shift_by {
  std::uint64_t low, high;
};
constexpr shift_by move_over(std::uint64_t bytes) {
  return {std::uint64_t{zeros_operator(bytes + 4)} << 1, std::uint64_t{zeros_operator(bytes - 4)} << 1};
}
constexpr std::size_t kFoldBytes = 256;  // four registers side by side hide the multiplication's latency
constexpr std::size_t kMinFolded = 2 * kFoldBytes;
constexpr shift_by kOverFold = move_over(kFoldBytes), kOverRegister = move_over(64), kOverLane = move_over(16);

#define PL_FOLDING __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"), always_inline)) inline

PL_FOLDING __m512i moved(__m512i block, __m512i distance, __m512i addend) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(block, distance, 0x00),
                                   _mm512_clmulepi64_epi128(block, distance, 0x11), addend,
                                   0x96);  // the exclusive or of all three
}
PL_FOLDING __m128i moved(__m128i block, __m128i distance, __m128i addend) {
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(block, distance, 0x00), _mm_clmulepi64_si128(block, distance, 0x11)), addend);
}
PL_FOLDING __m512i four_times(const shift_by& distance) {
  const auto low = static_cast<long long>(distance.low), high = static_cast<long long>(distance.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

// Whether the summed bytes are also stored.
enum class storing { none, cached, non_temporal };
template <storing How>
PL_FOLDING __m512i taken(const unsigned char* source, unsigned char* destination, std::size_t offset) {
  const __m512i block = _mm512_loadu_si512(source + offset);
  if constexpr (How == storing::cached) _mm512_storeu_si512(destination + offset, block);
  if constexpr (How == storing::non_temporal) _mm512_stream_si512(reinterpret_cast<__m512i*>(destination + offset), block);
  return block;
}

// Takes whole kFoldBytes off the front. Precondition: bytes >= kFoldBytes; non_temporal: `destination` is a multiple of
// 64. `crc` is complemented, in the argument and in the result.
template <storing How>
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) std::uint32_t by_folding(const unsigned char*& data,
                                                                                     std::size_t& bytes, std::uint32_t crc,
                                                                                     unsigned char* destination) {
  __m512i a = taken<How>(data, destination, 0), b = taken<How>(data, destination, 64),
          c = taken<How>(data, destination, 128), d = taken<How>(data, destination, 192);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  const __m512i over_fold = four_times(kOverFold);
  std::size_t done = kFoldBytes;
  for (; done + kFoldBytes <= bytes; done += kFoldBytes) {
    a = moved(a, over_fold, taken<How>(data, destination, done));
    b = moved(b, over_fold, taken<How>(data, destination, done + 64));
    c = moved(c, over_fold, taken<How>(data, destination, done + 128));
    d = moved(d, over_fold, taken<How>(data, destination, done + 192));
  }
  data += done, bytes -= done;
  if constexpr (How == storing::non_temporal) _mm_sfence();
  const __m512i over_register = four_times(kOverRegister);
  d = moved(moved(moved(a, over_register, b), over_register, c), over_register, d);
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, d);
  const __m128i over_lane = _mm_set_epi64x(static_cast<long long>(kOverLane.high), static_cast<long long>(kOverLane.low));
  const __m128i last = moved(moved(moved(lanes[0], over_lane, lanes[1]), over_lane, lanes[2]), over_lane, lanes[3]);
  const std::uint64_t half = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(last)));
  return static_cast<std::uint32_t>(_mm_crc32_u64(half, static_cast<std::uint64_t>(_mm_extract_epi64(last, 1))));
}

#undef PL_FOLDING

const bool kHasInstruction = __builtin_cpu_supports("sse4.2");
const bool kCanFold = kHasInstruction && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("pclmul") &&
                      __builtin_cpu_supports("vpclmulqdq");
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t before) noexcept {
  std::uint32_t crc = ~before;
  for (auto source = static_cast<const unsigned char*>(data); bytes != 0; --bytes)
    crc = (crc >> 8) ^ kByteTable[(crc ^ *source++) & 0xff];
  return ~crc;
}

std::uint32_t crc32c_streams(const void* data, std::size_t bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  if (kHasInstruction) [[likely]]
    return by_instruction(static_cast<const unsigned char*>(data), bytes, before);
#endif
  return crc32c_portable(data, bytes, before);
}

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  if (kCanFold && bytes >= kMinFolded) {
    auto source = static_cast<const unsigned char*>(data);
    const std::uint32_t folded = ~by_folding<storing::none>(source, bytes, ~before, nullptr);
    return by_instruction(source, bytes, folded);
  }
#endif
  return crc32c_streams(data, bytes, before);
}

namespace {

constexpr std::size_t kCopyPiece = 16 << 10;  // stays in a core's L1 cache

std::uint32_t copy_in_pieces(unsigned char* destination, const unsigned char* source, std::size_t bytes, std::uint32_t crc) {
  for (; bytes != 0;) {
    const std::size_t piece = bytes < kCopyPiece ? bytes : kCopyPiece;
    std::memcpy(destination, source, piece);
    crc = crc32c(destination, piece, crc);
    destination += piece, source += piece, bytes -= piece;
  }
  return crc;
}

}  // namespace

std::uint32_t crc32c_copy(void* to_any, const void* from_any, std::size_t bytes, std::uint32_t crc,
                          bool non_temporal) noexcept {
  auto destination = static_cast<unsigned char*>(to_any);
  auto source = static_cast<const unsigned char*>(from_any);
#if defined(__x86_64__)
  if (kCanFold && bytes >= kMinFolded) {
    if (const std::size_t head = -reinterpret_cast<std::uintptr_t>(destination) % 64; non_temporal && head != 0) {
      crc = copy_in_pieces(destination, source, head, crc);
      destination += head, source += head, bytes -= head;
    }
    const std::size_t whole = bytes;
    crc = non_temporal ? ~by_folding<storing::non_temporal>(source, bytes, ~crc, destination)
                       : ~by_folding<storing::cached>(source, bytes, ~crc, destination);
    destination += whole - bytes;
  }
#endif
  return copy_in_pieces(destination, source, bytes, crc);
}

std::uint32_t crc32c_join_pages(std::span<const std::uint32_t> pages, std::size_t last_bytes) noexcept {
  if (pages.empty()) return 0;
  std::uint32_t crc = ~0u;
  for (const std::uint32_t page : pages.first(pages.size() - 1)) crc = shift(kPageShift, crc) ^ page;
  return ~(multiply(crc, zeros_operator(last_bytes)) ^ pages.back());
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) noexcept {
  return multiply(first, zeros_operator(second_bytes)) ^ second;
}

}  // namespace pl::arch
