// SPDX-License-Identifier: Apache-2.0
#include "tools/gdrcopy/stock_baseline.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pl::tools::baseline {

#if defined(__x86_64__)
namespace {

bool has_movdir64b() {
  static const bool yes = [] {
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (ecx >> 28 & 1u) != 0;
  }();
  return yes;
}
bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2") != 0;
  return yes;
}
bool has_sse41() {
  static const bool yes = __builtin_cpu_supports("sse4.1") != 0;
  return yes;
}

template <class Word>
void store_word(unsigned char* device, const unsigned char* host) {
  using word [[gnu::may_alias]] = Word;
  Word value;
  std::memcpy(&value, host, sizeof value);
  *reinterpret_cast<volatile word*>(device) = value;
}

template <class Word>
void load_word(unsigned char* host, const unsigned char* device) {
  using word [[gnu::may_alias]] = Word;
  const Word value = *reinterpret_cast<const volatile word*>(device);
  std::memcpy(host, &value, sizeof value);
}

// Width of the next small access: the lowest set bit of the device offset within 16, at most 8, shrunk to what is left.
std::size_t small_width(std::uintptr_t device, std::size_t left) {
  const std::uintptr_t offset = device & 15u;
  std::size_t width = offset == 0 ? 8 : static_cast<std::size_t>(offset & (~offset + 1));
  if (width > 8) width = 8;
  while (width > left) width /= 2;
  return width;
}

void store_small(unsigned char*& device, const unsigned char*& host, std::size_t bytes) {
  while (bytes != 0) {
    const std::size_t width = small_width(reinterpret_cast<std::uintptr_t>(device), bytes);
    if (width == 8) store_word<std::uint64_t>(device, host);
    else if (width == 4) store_word<std::uint32_t>(device, host);
    else if (width == 2) store_word<std::uint16_t>(device, host);
    else store_word<std::uint8_t>(device, host);
    device += width, host += width, bytes -= width;
  }
}

void load_small(unsigned char*& host, const unsigned char*& device, std::size_t bytes) {
  while (bytes != 0) {
    const std::size_t width = small_width(reinterpret_cast<std::uintptr_t>(device), bytes);
    if (width == 8) load_word<std::uint64_t>(host, device);
    else if (width == 4) load_word<std::uint32_t>(host, device);
    else if (width == 2) load_word<std::uint16_t>(host, device);
    else load_word<std::uint8_t>(host, device);
    device += width, host += width, bytes -= width;
  }
}

// ---- one vector access of each width, and the 4x unrolled bulk loops ---------------------------------------------------

void store_16(unsigned char* device, const unsigned char* host) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(device), _mm_loadu_si128(reinterpret_cast<const __m128i*>(host)));
}

__attribute__((target("sse4.1"))) __m128i stream_load_16(const unsigned char* device) {
  return _mm_stream_load_si128(reinterpret_cast<__m128i*>(const_cast<unsigned char*>(device)));
}

void load_16(unsigned char* host, const unsigned char* device) {
  const __m128i value = has_sse41() ? stream_load_16(device) : _mm_load_si128(reinterpret_cast<const __m128i*>(device));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(host), value);
}

__attribute__((target("avx2"))) void store_32(unsigned char* device, const unsigned char* host) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(device), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(host)));
}

__attribute__((target("avx2"))) __m256i stream_load_32(const unsigned char* device) {
  return _mm256_stream_load_si256(reinterpret_cast<const __m256i*>(device));
}

__attribute__((target("avx2"))) void load_32(unsigned char* host, const unsigned char* device) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(host), stream_load_32(device));
}

__attribute__((target("avx2"))) void store_bulk_32(unsigned char*& device, const unsigned char*& host, std::size_t bytes) {
  for (; bytes >= 128; bytes -= 128, device += 128, host += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(host);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1), c = _mm256_loadu_si256(source + 2),
                  d = _mm256_loadu_si256(source + 3);
    auto* destination = reinterpret_cast<__m256i*>(device);
    _mm256_stream_si256(destination, a), _mm256_stream_si256(destination + 1, b), _mm256_stream_si256(destination + 2, c),
        _mm256_stream_si256(destination + 3, d);
  }
  for (; bytes >= 32; bytes -= 32, device += 32, host += 32) store_32(device, host);
}

__attribute__((target("avx2"))) void load_bulk_32(unsigned char*& host, const unsigned char*& device, std::size_t bytes) {
  for (; bytes >= 128; bytes -= 128, device += 128, host += 128) {
    const __m256i a = stream_load_32(device), b = stream_load_32(device + 32), c = stream_load_32(device + 64),
                  d = stream_load_32(device + 96);
    auto* destination = reinterpret_cast<__m256i*>(host);
    _mm256_storeu_si256(destination, a), _mm256_storeu_si256(destination + 1, b), _mm256_storeu_si256(destination + 2, c),
        _mm256_storeu_si256(destination + 3, d);
  }
  for (; bytes >= 32; bytes -= 32, device += 32, host += 32) load_32(host, device);
}

__attribute__((target("movdir64b"))) void store_bulk_64(unsigned char*& device, const unsigned char*& host,
                                                        std::size_t bytes) {
  for (; bytes >= 64; bytes -= 64, device += 64, host += 64) _movdir64b(device, host);
}

std::size_t distance_to(std::uintptr_t address, std::size_t alignment) {
  return (alignment - address % alignment) % alignment;
}

}  // namespace

void copy_to_mapping(void* device_ptr, const void* host_ptr, std::size_t bytes) {
  auto* device = static_cast<unsigned char*>(device_ptr);
  const auto* host = static_cast<const unsigned char*>(host_ptr);
  const auto address = [&] { return reinterpret_cast<std::uintptr_t>(device); };
  const auto* const end = device + bytes;
  const auto left = [&] { return static_cast<std::size_t>(end - device); };
  if (bytes >= 16) {
    store_small(device, host, distance_to(address(), 16));
    if (address() % 32 != 0 && left() >= 16) store_16(device, host), device += 16, host += 16;
    if (has_avx2()) {
      if (address() % 64 != 0 && left() >= 32) store_32(device, host), device += 32, host += 32;
      if (has_movdir64b() && address() % 64 == 0) store_bulk_64(device, host, left() / 64 * 64);
      store_bulk_32(device, host, left() / 32 * 32);
    }
    for (; left() >= 16; device += 16, host += 16) store_16(device, host);
  }
  store_small(device, host, left());
  _mm_sfence();
}

void copy_from_mapping(void* host_ptr, const void* device_ptr, std::size_t bytes) {
  const auto* device = static_cast<const unsigned char*>(device_ptr);
  auto* host = static_cast<unsigned char*>(host_ptr);
  const auto address = [&] { return reinterpret_cast<std::uintptr_t>(device); };
  const auto* const end = device + bytes;
  const auto left = [&] { return static_cast<std::size_t>(end - device); };
  if (bytes >= 16) {
    load_small(host, device, distance_to(address(), 16));
    if (address() % 32 != 0 && left() >= 16) load_16(host, device), device += 16, host += 16;
    if (has_avx2()) load_bulk_32(host, device, left() / 32 * 32);
    for (; left() >= 16; device += 16, host += 16) load_16(host, device);
  }
  load_small(host, device, left());
  _mm_sfence();
}

const char* write_routine_name() { return !has_avx2() ? "sse" : has_movdir64b() ? "movdir64b" : "avx2"; }
const char* read_routine_name() { return has_avx2() ? "avx2" : has_sse41() ? "sse41" : "sse"; }

#else  // other architectures: the baseline is described for x86-64 only; plain memcpy keeps the comparison running

void copy_to_mapping(void* device, const void* host, std::size_t bytes) { std::memcpy(device, host, bytes); }
void copy_from_mapping(void* host, const void* device, std::size_t bytes) { std::memcpy(host, device, bytes); }
const char* write_routine_name() { return "memcpy"; }
const char* read_routine_name() { return "memcpy"; }

#endif

}  // namespace pl::tools::baseline
