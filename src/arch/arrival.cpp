// SPDX-License-Identifier: Apache-2.0
#include "arch/arrival.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// A device, or the simulated one, is on the other side of these accesses; no race detector can know that.
#define PL_BESIDE_A_DEVICE __attribute__((no_sanitize("thread")))

namespace pl::arch {
namespace {

using polled_word [[gnu::may_alias]] = std::uint64_t;
constexpr std::size_t kWordsOfLine = kArrivalLine / sizeof(polled_word);

PL_BESIDE_A_DEVICE inline polled_word load_polled(const polled_word* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

PL_BESIDE_A_DEVICE std::size_t take_portable(polled_word* target, polled_word* lines, std::size_t bytes,
                                             std::uint64_t sentinel) {
  std::size_t done = 0;
  for (; done < bytes; done += kArrivalLine, lines += kWordsOfLine) {
    polled_word line[kWordsOfLine];
    bool is_there = true;
    for (std::size_t i = 0; i < kWordsOfLine; ++i) is_there &= (line[i] = load_polled(lines + i)) != sentinel;
    if (!is_there) break;
    std::memcpy(reinterpret_cast<char*>(target) + done, line, sizeof line);
    for (std::size_t i = 0; i < kWordsOfLine; ++i) __atomic_store_n(lines + i, sentinel, __ATOMIC_RELAXED);
  }
  return done;
}

#if defined(__x86_64__)
// Four lines at once, so that their loads overlap; then those of the last group one by one.
__attribute__((target("avx512f"))) PL_BESIDE_A_DEVICE std::size_t take_avx512(char* target, char* lines, std::size_t bytes,
                                                                              std::uint64_t sentinel) {
  const __m512i mark = _mm512_set1_epi64(static_cast<long long>(sentinel));
  constexpr std::size_t kGroup = 4 * kArrivalLine;
  std::size_t done = 0;
  for (; done + kGroup <= bytes; done += kGroup) {
    const __m512i a = _mm512_load_si512(lines + done), b = _mm512_load_si512(lines + done + 64);
    const __m512i c = _mm512_load_si512(lines + done + 128), d = _mm512_load_si512(lines + done + 192);
    const int missing = _mm512_cmpeq_epi64_mask(a, mark) | _mm512_cmpeq_epi64_mask(b, mark) |
                        _mm512_cmpeq_epi64_mask(c, mark) | _mm512_cmpeq_epi64_mask(d, mark);
    if (missing != 0) break;
    _mm512_storeu_si512(target + done, a);
    _mm512_storeu_si512(target + done + 64, b);
    _mm512_storeu_si512(target + done + 128, c);
    _mm512_storeu_si512(target + done + 192, d);
    for (std::size_t i = 0; i < kGroup; i += kArrivalLine) _mm512_store_si512(lines + done + i, mark);
  }
  for (; done < bytes; done += kArrivalLine) {
    const __m512i line = _mm512_load_si512(lines + done);
    if (_mm512_cmpeq_epi64_mask(line, mark) != 0) break;
    _mm512_storeu_si512(target + done, line);
    _mm512_store_si512(lines + done, mark);
  }
  return done;
}

__attribute__((target("avx2"))) PL_BESIDE_A_DEVICE std::size_t take_avx2(char* target, char* lines, std::size_t bytes,
                                                                         std::uint64_t sentinel) {
  const __m256i mark = _mm256_set1_epi64x(static_cast<long long>(sentinel));
  std::size_t done = 0;
  for (; done < bytes; done += kArrivalLine) {
    auto* const low = reinterpret_cast<__m256i*>(lines + done);
    const __m256i a = _mm256_load_si256(low), b = _mm256_load_si256(low + 1);
    const __m256i missing = _mm256_or_si256(_mm256_cmpeq_epi64(a, mark), _mm256_cmpeq_epi64(b, mark));
    if (_mm256_testz_si256(missing, missing) == 0) break;
    auto* const out = reinterpret_cast<__m256i*>(target + done);
    _mm256_storeu_si256(out, a);
    _mm256_storeu_si256(out + 1, b);
    _mm256_store_si256(low, mark);
    _mm256_store_si256(low + 1, mark);
  }
  return done;
}

__attribute__((target("clflushopt"))) void flush_lines(const char* lines, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kArrivalLine) _mm_clflushopt(const_cast<char*>(lines) + i);
}
const bool kHasFlush = __builtin_cpu_supports("clflushopt");

enum class arrival_isa { portable, avx2, avx512 };
arrival_isa find_arrival_isa() {
  if (__builtin_cpu_supports("avx512f")) return arrival_isa::avx512;
  return __builtin_cpu_supports("avx2") ? arrival_isa::avx2 : arrival_isa::portable;
}
const arrival_isa kArrivalIsa = find_arrival_isa();
#endif

}  // namespace

PL_BESIDE_A_DEVICE void put_sentinel(void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept {
  auto* const words = static_cast<polled_word*>(lines);
  for (std::size_t i = 0; i < bytes / sizeof(polled_word); ++i) words[i] = sentinel;
}

std::size_t take_arrived(void* target, void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept {
  asm volatile("" ::: "memory");  // what was read before may have changed
#if defined(__x86_64__)
  if (kArrivalIsa == arrival_isa::avx512)
    return take_avx512(static_cast<char*>(target), static_cast<char*>(lines), bytes, sentinel);
  if (kArrivalIsa == arrival_isa::avx2)
    return take_avx2(static_cast<char*>(target), static_cast<char*>(lines), bytes, sentinel);
#endif
  return take_portable(static_cast<polled_word*>(target), static_cast<polled_word*>(lines), bytes, sentinel);
}

void evict_lines([[maybe_unused]] const void* lines, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (kHasFlush) flush_lines(static_cast<const char*>(lines), bytes);
#endif
}

PL_BESIDE_A_DEVICE bool take_part_of_line(void* target, void* line, std::size_t begin, std::size_t end,
                                          std::uint64_t sentinel) noexcept {
  auto* const words = static_cast<polled_word*>(line);
  polled_word taken[kWordsOfLine];
  for (std::size_t i = begin / sizeof(polled_word); i * sizeof(polled_word) < end; ++i)
    if ((taken[i] = load_polled(words + i)) == sentinel) return false;
  std::memcpy(target, reinterpret_cast<const char*>(taken) + begin, end - begin);
  for (std::size_t i = 0; i < kWordsOfLine; ++i) __atomic_store_n(words + i, sentinel, __ATOMIC_RELAXED);
  return true;
}

}  // namespace pl::arch
