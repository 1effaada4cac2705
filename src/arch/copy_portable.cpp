// SPDX-License-Identifier: Apache-2.0
// Copies by naturally aligned accesses of at most 8 bytes and nothing else. Correct for every mapping type (Arm device
// memory faults on anything wider or unaligned), but slow from write-combining memory, where each load is a bus read.
// Over-reading would only add such reads, so this one reads exactly the requested bytes. Also has the routines for
// coherent mappings. Path grade: hot.
#include <cstring>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct portable_isa {
  static constexpr std::size_t kWidestPiece = 8;

  PL_ALWAYS_INLINE static void store_line(std::uintptr_t device, std::uintptr_t source) {
    store_piece<portable_isa, 32>(device, source);
    store_piece<portable_isa, 32>(device + 32, source + 32);
  }
};

template <std::size_t Bytes>
PL_ALWAYS_INLINE void load_piece(std::uintptr_t& host, std::uintptr_t& device, std::size_t& bytes) {
  load_word<Bytes>(host, device);
  host += Bytes;
  device += Bytes;
  bytes -= Bytes;
}

}  // namespace

namespace portable {

void write(void* device, const void* host, std::size_t bytes) { write_routine<portable_isa>(device, host, bytes); }

void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<portable_isa>(device, pattern8, bytes); }

void read(void* host_pointer, const void* device_pointer, std::size_t bytes) {
  auto host = reinterpret_cast<std::uintptr_t>(host_pointer);
  auto device = reinterpret_cast<std::uintptr_t>(device_pointer);
  compiler_barrier();
  if ((device & 1) != 0 && bytes >= 1) load_piece<1>(host, device, bytes);
  if ((device & 2) != 0 && bytes >= 2) load_piece<2>(host, device, bytes);
  if ((device & 4) != 0 && bytes >= 4) load_piece<4>(host, device, bytes);
  // If a piece above did not fit, fewer bytes than it remain, so the address is aligned for all that follow.
  while (bytes >= 8) load_piece<8>(host, device, bytes);
  if ((bytes & 4) != 0) load_piece<4>(host, device, bytes);
  if ((bytes & 2) != 0) load_piece<2>(host, device, bytes);
  if ((bytes & 1) != 0) load_piece<1>(host, device, bytes);
  compiler_barrier();
}

}  // namespace portable

namespace cached {

// libc copies 4 to 8 bytes as two overlapping words: fine for data, but a poller of a flag would see a torn value.
void write(void* device, const void* host, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  compiler_barrier();
  if (is_natural_word(address, bytes)) store_natural_word(address, reinterpret_cast<std::uintptr_t>(host), bytes);
  else if (bytes != 0) std::memcpy(device, host, bytes);
  compiler_barrier();
}

void read(void* host, const void* device, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  compiler_barrier();
  if (is_natural_word(address, bytes)) load_natural_word(reinterpret_cast<std::uintptr_t>(host), address, bytes);
  else if (bytes != 0) std::memcpy(host, device, bytes);
  compiler_barrier();
}

void fill(void* device, std::uint64_t pattern8, std::size_t bytes) {
  constexpr std::uint64_t kEveryByte = 0x0101010101010101u;
  if (bytes > 8 && pattern8 == (pattern8 & 0xff) * kEveryByte) std::memset(device, static_cast<int>(pattern8 & 0xff), bytes);
  else portable::fill(device, pattern8, bytes);
}

}  // namespace cached
}  // namespace pl::arch
