// SPDX-License-Identifier: Apache-2.0
// Speed of unpacking low-latency lines, by size and instruction set: GB/s of data (median of the samples), each call over
// lines that are all there. "cached": again and again the same ones. "flushed": none of them in any cache of the CPU, which
// is worse than what a GPU leaves behind where the bus writes into the last-level cache.
//
//     ll_unpack_bench [samples]
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "copy/ll_unpack.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace pl;

constexpr std::uint32_t kFlag = 7;
constexpr std::size_t kMaxBytes = 4u << 20;

unsigned char* pages(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<unsigned char*>(memory);
}

void flush([[maybe_unused]] const unsigned char* lines, [[maybe_unused]] std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) _mm_clflush(lines + i);
  _mm_mfence();
#endif
}

double median_ns(const copy::ll_unpack_variant& variant, unsigned char* dst, const unsigned char* lines, std::size_t bytes,
                 bool is_flushed, std::size_t samples) {
  // Short calls in batches: the clock takes longer than they do. A flushed line can be read only once.
  const std::size_t calls = is_flushed ? 1 : 1 + 20'000 / bytes;
  std::vector<double> all;
  for (std::size_t i = 0; i < samples; ++i) {
    if (is_flushed) flush(lines, copy::ll_line_bytes(bytes));
    const std::uint64_t begin = ticks_ordered();
    for (std::size_t call = 0; call < calls; ++call)
      if (variant.unpack(dst, lines, kFlag, 0, bytes) != bytes) std::abort();
    all.push_back(ticks_to_ns(ticks_ordered() - begin) / static_cast<double>(calls));
  }
  return summarize(all).p50;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t samples = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 300;
  unsigned char* const lines = pages(copy::ll_line_bytes(kMaxBytes));
  unsigned char* const dst = pages(kMaxBytes);
  for (std::size_t half = 0; half < copy::ll_line_bytes(kMaxBytes) / 8; ++half)
    std::memcpy(lines + half * 8 + 4, &kFlag, sizeof kFlag);
  for (const bool is_flushed : {false, true}) {
    std::printf("\n%s (GB/s of data, ns per call)\n%8s", is_flushed ? "flushed" : "cached", "bytes");
    for (const auto& variant : copy::supported_ll_unpacks()) std::printf(" %20s", variant.name);
    std::printf("\n");
    for (const std::size_t bytes : {8u, 64u, 256u, 1024u, 4096u, 16384u, 65536u, 262144u, 1u << 20, 4u << 20}) {
      std::printf("%8zu", bytes);
      for (const auto& variant : copy::supported_ll_unpacks()) {
        const double ns = median_ns(variant, dst, lines, bytes, is_flushed, samples);
        std::printf(" %8.2f %11.1f", static_cast<double>(bytes) / ns, ns);
      }
      std::printf("\n");
    }
  }
  return 0;
}
