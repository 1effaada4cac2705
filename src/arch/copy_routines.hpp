// SPDX-License-Identifier: Apache-2.0
// The copy routines, one namespace for each instruction set. Callers go through copy_dispatch.hpp; tests and benchmarks
// may call any routine that the CPU supports.
//
// write: host -> device mapping. Never writes a byte outside [device, device + bytes). 1, 2, 4 and 8 bytes at a naturally
//        aligned device address are exactly one store of that width. No device line is stored to twice, and all stores to a
//        line are adjacent.
// fill:  as write, with an 8-byte pattern instead of host data: the byte at device address a becomes byte a % 8 of the
//        pattern (least significant first), so that a 4-byte value goes in twice and a byte eight times.
// read:  device mapping -> host. May read more than was asked for, but only within the aligned 64-byte lines that hold
//        the requested bytes (a mapping consists of pages). 1, 2, 4 and 8 naturally aligned bytes are one plain load.
//
// Any alignment on both sides, any size including 0. No fence inside: mmio.hpp says which ones belong around. The two
// ranges must not overlap. Path grade: hot (no syscall, lock, allocation or log).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::arch {

// Only naturally aligned accesses of 1 to 8 bytes, without over-reading: the one that is correct for Arm device memory.
namespace portable {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace portable

// For coherent mappings: libc, except that naturally aligned words remain single stores.
namespace cached {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace cached

#if defined(__x86_64__)
namespace sse2 {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace sse2

namespace sse41 {
void read(void* host, const void* device, std::size_t bytes);
}  // namespace sse41

namespace avx2 {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace avx2

namespace avx512 {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
// A candidate to be measured on hardware: the first and last partial line are one byte-masked 64-byte store each
// instead of up to six naturally aligned pieces. Naturally aligned words are still one plain store.
void write_masked(void* device, const void* host, std::size_t bytes);
void fill_masked(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace avx512

namespace movdir64b {
void write(void* device, const void* host, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace movdir64b
#endif

#if defined(__aarch64__)
namespace neon {
void write(void* device, const void* host, std::size_t bytes);
void read(void* host, const void* device, std::size_t bytes);
void fill(void* device, std::uint64_t pattern8, std::size_t bytes);
}  // namespace neon
#endif

}  // namespace pl::arch
