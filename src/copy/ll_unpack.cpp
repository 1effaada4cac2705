// SPDX-License-Identifier: Apache-2.0
#include "copy/ll_unpack.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/env.hpp"

// ThreadSanitizer has no vector load that is atomic in parts.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define PL_LL_VECTORS 1
#include <immintrin.h>
#endif
#define PL_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace pl::copy {
namespace {

static_assert(std::endian::native == std::endian::little, "the flag is the upper half of a word");

using half_unit [[gnu::may_alias]] = std::uint64_t;
constexpr std::size_t kHalfData = 4;                           // data bytes of a half unit
constexpr std::size_t kHalfUnits = kLlBlockBytes / kHalfData;  // of a block

// The data comes with its flag, so no order is needed. A race detector needs one, because the memory that the GPU read
// is free again.
#if defined(__SANITIZE_THREAD__)
constexpr int kLoadOrder = __ATOMIC_ACQUIRE;
#else
constexpr int kLoadOrder = __ATOMIC_RELAXED;
#endif
PL_ALWAYS_INLINE std::uint64_t load_half(const char* lines, std::size_t data_offset) {
  return __atomic_load_n(reinterpret_cast<const half_unit*>(lines + 2 * data_offset), kLoadOrder);
}

PL_ALWAYS_INLINE std::uint32_t mismatch(std::uint64_t half, std::uint32_t flag) {
  return static_cast<std::uint32_t>(half >> 32) ^ flag;
}

// The last data bytes, less than a block: all of them or none. Loads twice rather than keep words on the stack: a word
// whose flag has been seen does not change any more, and nothing goes to `dst` before all flags have been seen.
bool unpack_tail(char* dst, const char* lines, std::uint32_t flag, std::size_t bytes) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < bytes; i += kHalfData) wrong |= mismatch(load_half(lines, i), flag);
  if (wrong != 0) return false;
  std::size_t i = 0;
  for (; bytes - i >= 2 * kHalfData; i += 2 * kHalfData) {
    const std::uint64_t unit = static_cast<std::uint32_t>(load_half(lines, i)) | load_half(lines, i + kHalfData) << 32;
    std::memcpy(dst + i, &unit, sizeof unit);
  }
  if (i == bytes) return true;
  std::uint64_t unit = static_cast<std::uint32_t>(load_half(lines, i));
  if (bytes - i > kHalfData) unit |= load_half(lines, i + kHalfData) << 32;
  std::memcpy(dst + i, &unit, bytes - i);
  return true;
}

// The operations of an instruction set: block() unpacks kLlBlockBytes or, if a flag is wrong, nothing. batch() does the
// same for kBatch bytes, with one branch for many lines.
struct scalar_steps {
  static constexpr std::size_t kBatch = kLlBlockBytes;
  PL_ALWAYS_INLINE static bool block(char* dst, const char* lines, std::uint32_t flag) {
    std::uint32_t data[kHalfUnits];
    std::uint32_t wrong = 0;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kHalfUnits; ++i) {
      const std::uint64_t half = load_half(lines, i * kHalfData);
      wrong |= mismatch(half, flag);
      data[i] = static_cast<std::uint32_t>(half);
    }
    if (wrong != 0) return false;
    std::memcpy(dst, data, sizeof data);
    return true;
  }
  PL_ALWAYS_INLINE static bool batch(char* dst, const char* lines, std::uint32_t flag) { return block(dst, lines, flag); }
};

// A macro instead of a template: a function can be inlined into another only if that has its target attribute, and an
// instance of a template has none of its own.
#define PL_LL_UNPACK_LOOP(steps)                                                                                           \
  char* const dst = static_cast<char*>(dst_pointer);                                                                       \
  const char* const lines = static_cast<const char*>(line_pointer);                                                        \
  /* Polling: mostly nothing is there, and each further line touched is one that the GPU must take */                      \
  /* back offset this CPU when it writes it. */                                                                            \
  if (offset >= bytes || mismatch(load_half(lines, offset), flag) != 0) return offset;                                     \
  while (bytes - offset >= steps::kBatch && steps::batch(dst + offset, lines + 2 * offset, flag)) offset += steps::kBatch; \
  while (bytes - offset >= kLlBlockBytes) {                                                                                \
    if (!steps::block(dst + offset, lines + 2 * offset, flag)) return offset;                                              \
    offset += kLlBlockBytes;                                                                                               \
  }                                                                                                                        \
  if (offset != bytes && unpack_tail(dst + offset, lines + 2 * offset, flag, bytes - offset)) offset = bytes;              \
  return offset;

std::size_t unpack_scalar(void* dst_pointer, const void* line_pointer, std::uint32_t flag, std::size_t offset,
                          std::size_t bytes) {
  PL_LL_UNPACK_LOOP(scalar_steps)
}

#if defined(PL_LL_VECTORS)
// Vector loads of lines. A load of 32 or 64 bytes may be done in parts, but no part is smaller than an aligned word of
// 8 bytes, which is all that data and flag need. Volatile, because flags and data must come from the same load, and the
// compiler could otherwise load again when it is short of registers, or split the load into two instructions.
#define PL_TARGET_AVX2 __attribute__((target("avx2"), always_inline))
#define PL_TARGET_AVX512 __attribute__((target("avx512f"), always_inline))

struct avx2_steps {
  static constexpr std::size_t kBatch = 128;  // 8 loads use all 16 registers

  template <std::size_t... Index>
  PL_TARGET_AVX2 static inline bool unpack(char* dst, const char* lines, std::uint32_t flag, std::index_sequence<Index...>) {
    const volatile __m256i_u* const source = reinterpret_cast<const volatile __m256i_u*>(lines);  // auto would drop the _u
    const __m256i wanted = _mm256_set1_epi32(static_cast<int>(flag));
    const __m256i flags_only = _mm256_set1_epi64x(static_cast<long long>(0xFFFF'FFFF'0000'0000u));
    const __m256i loaded[] = {__m256i(source[2 * Index])..., __m256i(source[2 * Index + 1])...};
    constexpr std::size_t kPairs = sizeof...(Index);
    __m256i wrong = _mm256_setzero_si256();
    ((wrong = _mm256_or_si256(wrong, _mm256_or_si256(_mm256_xor_si256(loaded[Index], wanted),
                                                     _mm256_xor_si256(loaded[kPairs + Index], wanted)))),
     ...);
    if (_mm256_testz_si256(wrong, flags_only) == 0) return false;
    (_mm256_storeu_si256(reinterpret_cast<__m256i*>(dst) + Index, data_of(loaded[Index], loaded[kPairs + Index])), ...);
    return true;
  }
  // The even words of two registers.
  PL_TARGET_AVX2 static inline __m256i data_of(__m256i low, __m256i high) {
    const __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), _MM_SHUFFLE(2, 0, 2, 0));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(even), _MM_SHUFFLE(3, 1, 2, 0));
  }
  PL_TARGET_AVX2 static inline bool block(char* dst, const char* lines, std::uint32_t flag) {
    return unpack(dst, lines, flag, std::make_index_sequence<kLlBlockBytes / 32>{});
  }
  PL_TARGET_AVX2 static inline bool batch(char* dst, const char* lines, std::uint32_t flag) {
    return unpack(dst, lines, flag, std::make_index_sequence<kBatch / 32>{});
  }
};

struct avx512_steps {
  static constexpr std::size_t kBatch = 256;

  template <std::size_t... Index>
  PL_TARGET_AVX512 static inline bool unpack(char* dst, const char* lines, std::uint32_t flag,
                                             std::index_sequence<Index...>) {
    const volatile __m512i_u* const source = reinterpret_cast<const volatile __m512i_u*>(lines);
    const __m512i wanted = _mm512_set1_epi32(static_cast<int>(flag));
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i loaded[] = {__m512i(source[2 * Index])..., __m512i(source[2 * Index + 1])...};
    constexpr std::size_t kPairs = sizeof...(Index);
    constexpr int kOrXor = 0xF6;  // a | (b ^ c)
    __m512i wrong = _mm512_setzero_si512();
    ((wrong = _mm512_ternarylogic_epi32(wrong, loaded[Index], wanted, kOrXor),
      wrong = _mm512_ternarylogic_epi32(wrong, loaded[kPairs + Index], wanted, kOrXor)),
     ...);
    constexpr __mmask16 kFlags = 0xAAAA;
    if (_mm512_mask_test_epi32_mask(kFlags, wrong, wrong) != 0) return false;
    (_mm512_storeu_si512(dst + 64 * Index, _mm512_permutex2var_epi32(loaded[Index], even, loaded[kPairs + Index])), ...);
    return true;
  }
  PL_TARGET_AVX512 static inline bool block(char* dst, const char* lines, std::uint32_t flag) {
    return unpack(dst, lines, flag, std::make_index_sequence<1>{});
  }
  PL_TARGET_AVX512 static inline bool batch(char* dst, const char* lines, std::uint32_t flag) {
    return unpack(dst, lines, flag, std::make_index_sequence<kBatch / 64>{});
  }
};

__attribute__((target("avx2"))) std::size_t unpack_avx2(void* dst_pointer, const void* line_pointer, std::uint32_t flag,
                                                        std::size_t offset, std::size_t bytes) {
  PL_LL_UNPACK_LOOP(avx2_steps)
}

__attribute__((target("avx512f"))) std::size_t unpack_avx512(void* dst_pointer, const void* line_pointer, std::uint32_t flag,
                                                             std::size_t offset, std::size_t bytes) {
  PL_LL_UNPACK_LOOP(avx512_steps)
}
#endif

struct implementation {
  ll_unpack_variant variant;
  arch::copy_isa isa;
  bool arch::cpu_features::*needs;  // null: runs everywhere
};

constexpr implementation kImplementations[] = {
    {{"scalar", unpack_scalar}, arch::copy_isa::portable, nullptr},
#if defined(PL_LL_VECTORS)
    {{"avx2", unpack_avx2}, arch::copy_isa::avx2, &arch::cpu_features::avx2},
    {{"avx512", unpack_avx512}, arch::copy_isa::avx512, &arch::cpu_features::avx512},
#endif
};

using unpack_function = decltype(ll_unpack_variant::unpack);
std::size_t unpack_first_time(void* dst, const void* lines, std::uint32_t flag, std::size_t offset, std::size_t bytes);
std::atomic<unpack_function> g_active{unpack_first_time};

// PEERLANE_COPY_ISA limits this too: a process that excludes AVX-512 excludes it here as well.
unpack_function choose() {
  const auto cap = arch::parse_copy_isa(env_read("PEERLANE_COPY_ISA").text);
  const arch::cpu_features features = arch::detect_cpu_features();
  const arch::copy_isa highest = arch::choose_copy_isas(features, cap).read;
  unpack_function best = unpack_scalar;
  for (const auto& entry : kImplementations)
    if (entry.isa <= highest && (entry.needs == nullptr || features.*entry.needs)) best = entry.variant.unpack;
  return best;
}

std::size_t unpack_first_time(void* dst, const void* lines, std::uint32_t flag, std::size_t offset, std::size_t bytes) {
  const unpack_function chosen = choose();  // evaluated twice if two threads arrive at once, with the same result
  g_active.store(chosen, std::memory_order_relaxed);
  return chosen(dst, lines, flag, offset, bytes);
}

std::vector<ll_unpack_variant> list_supported() {
  const arch::cpu_features features = arch::detect_cpu_features();
  std::vector<ll_unpack_variant> list;
  for (const auto& entry : kImplementations)
    if (entry.needs == nullptr || features.*entry.needs) list.push_back(entry.variant);
  return list;
}

}  // namespace

std::size_t ll_unpack(void* dst, const void* lines, std::uint32_t flag, std::size_t offset, std::size_t bytes) {
  return g_active.load(std::memory_order_relaxed)(dst, lines, flag, offset, bytes);
}

std::span<const ll_unpack_variant> supported_ll_unpacks() {
  static const std::vector<ll_unpack_variant> list = list_supported();
  return list;
}

}  // namespace pl::copy
