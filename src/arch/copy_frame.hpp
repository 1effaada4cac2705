// SPDX-License-Identifier: Apache-2.0
// The shape that all copy routines share; an instruction set fills in how a line is stored and loaded.
//
//   write:   |..host data of any alignment..|
//   device   .1248----16------32|----------64----------|----------64----------|------32----16--8421
//            ascending pieces      whole lines                                  descending pieces
//
//   read:    the aligned units (a 64-byte line, or 16 bytes) that hold the data are loaded whole, many before the first
//            is used; the first and the last are stored to the host in part.
//
// Everything is in an unnamed namespace on purpose: each including file is compiled for another CPU, and a function
// with external linkage would be merged by the linker into one copy, possibly one that the running CPU cannot execute.
// For the same reason only templates without state come from the standard library here (test/arch checks the objects).
//
// Path grade: hot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#define PL_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace pl::arch {
namespace {  // NOLINT(google-build-namespaces): see above

constexpr std::size_t kLine = 64;

// Keeps the compiler from moving or merging accesses to the mapping: across a call that it inlines (LTO), and between
// the parts of a line, so that they reach the CPU in ascending order. No instruction.
PL_ALWAYS_INLINE void compiler_barrier() { asm volatile("" ::: "memory"); }

template <class T>
PL_ALWAYS_INLINE T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Placed between the branches that choose a path and the first load from the mapping. A load on a mispredicted path is
// a real bus read that nobody waits for; the correct path's load of the same line then starts only when that one is
// complete, and the copy takes two round trips instead of one (H100 behind a Sapphire Rapids: 2.2 us instead of 1.07
// for half of the reads when sizes and callers alternate). LFENCE keeps later instructions from starting before the
// branches are decided; about 5 ns.
PL_ALWAYS_INLINE void stop_speculation() {
#if defined(__x86_64__)
  asm volatile("lfence" ::: "memory");
#endif
}

// ---- Single words ----------------------------------------------------------------------------------------------------
template <std::size_t Bytes>
struct word;
template <>
struct word<1> {
  using type [[gnu::may_alias]] = std::uint8_t;
};
template <>
struct word<2> {
  using type [[gnu::may_alias]] = std::uint16_t;
};
template <>
struct word<4> {
  using type [[gnu::may_alias]] = std::uint32_t;
};
template <>
struct word<8> {
  using type [[gnu::may_alias]] = std::uint64_t;
};

// One store and one load of exactly this width: an aligned relaxed atomic is how the language expresses that, and it
// keeps race detectors quiet about flags that another thread polls.
template <std::size_t Bytes>
PL_ALWAYS_INLINE void store_word(std::uintptr_t device, std::uintptr_t host) {
  typename word<Bytes>::type value;
  __builtin_memcpy(&value, pointer<const void>(host), Bytes);
  __atomic_store_n(pointer<volatile typename word<Bytes>::type>(device), value, __ATOMIC_RELAXED);
}

template <std::size_t Bytes>
PL_ALWAYS_INLINE void load_word(std::uintptr_t host, std::uintptr_t device) {
  const typename word<Bytes>::type value =
      __atomic_load_n(pointer<const volatile typename word<Bytes>::type>(device), __ATOMIC_RELAXED);
  __builtin_memcpy(pointer<void>(host), &value, Bytes);
}

PL_ALWAYS_INLINE bool is_natural_word(std::uintptr_t device, std::size_t bytes) {
  return bytes <= 8 && bytes != 0 && (bytes & (bytes - 1)) == 0 && (device & (bytes - 1)) == 0;
}

PL_ALWAYS_INLINE void store_natural_word(std::uintptr_t device, std::uintptr_t host, std::size_t bytes) {
  switch (bytes) {
    case 1:
      return store_word<1>(device, host);
    case 2:
      return store_word<2>(device, host);
    case 4:
      return store_word<4>(device, host);
    default:
      return store_word<8>(device, host);
  }
}

PL_ALWAYS_INLINE void load_natural_word(std::uintptr_t host, std::uintptr_t device, std::size_t bytes) {
  switch (bytes) {
    case 1:
      stop_speculation();
      return load_word<1>(host, device);
    case 2:
      stop_speculation();
      return load_word<2>(host, device);
    case 4:
      stop_speculation();
      return load_word<4>(host, device);
    default:
      stop_speculation();
      return load_word<8>(host, device);
  }
}

// ---- Writes ----------------------------------------------------------------------------------------------------------
// The source of a write: ordinary memory that advances with the device address ...
struct host_source {
  std::uintptr_t host_minus_device;
  PL_ALWAYS_INLINE std::uintptr_t for_device(std::uintptr_t device) const { return device + host_minus_device; }
};

// ... or one line that contains the pattern eight times: a naturally aligned piece finds its bytes at its offset in the
// line.
struct pattern_source {
  std::uintptr_t line;
  PL_ALWAYS_INLINE std::uintptr_t for_device(std::uintptr_t device) const { return line + (device & (kLine - 1)); }
};

// One naturally aligned piece of 1 to 32 bytes: a vector store if the instruction set has one that wide.
template <class Isa, std::size_t Bytes>
PL_ALWAYS_INLINE void store_piece(std::uintptr_t device, std::uintptr_t source) {
  if constexpr (Bytes <= 8) {
    store_word<Bytes>(device, source);
  } else if constexpr (Bytes <= Isa::kWidestPiece) {
    Isa::template store_wide<Bytes>(device, source);
  } else {
    store_piece<Isa, Bytes / 2>(device, source);
    store_piece<Isa, Bytes / 2>(device + Bytes / 2, source + Bytes / 2);
  }
}

// From an address that is a multiple of Bytes: writes one piece if its bit is set in the size.
template <class Isa, std::size_t Bytes, class Source>
PL_ALWAYS_INLINE void store_descending(std::uintptr_t& device, const Source& source, std::size_t bytes) {
  if ((bytes & Bytes) != 0) {
    store_piece<Isa, Bytes>(device, source.for_device(device));
    device += Bytes;
  }
  if constexpr (Bytes > 1) store_descending<Isa, Bytes / 2>(device, source, bytes);
}

// Writes pieces up to the next line boundary, or as many as fit in `bytes`. Afterwards the address is a multiple of
// every power of two up to the largest one in the remaining size, or of a line.
template <class Isa, std::size_t Bytes, class Source>
PL_ALWAYS_INLINE void store_ascending(std::uintptr_t& device, const Source& source, std::size_t& bytes) {
  if ((device & Bytes) != 0) {
    if (bytes < Bytes) return;
    store_piece<Isa, Bytes>(device, source.for_device(device));
    device += Bytes;
    bytes -= Bytes;
  }
  if constexpr (Bytes < kLine / 2) store_ascending<Isa, Bytes * 2>(device, source, bytes);
}

template <class Isa, class Source>
PL_ALWAYS_INLINE void write_frame(std::uintptr_t device, const Source& source, std::size_t bytes) {
  compiler_barrier();
  // A naturally aligned word needs no case of its own: it takes exactly one branch of the pieces below.
  if ((device & (kLine - 1)) != 0) store_ascending<Isa, 1>(device, source, bytes);
  for (; bytes >= kLine; bytes -= kLine, device += kLine) Isa::store_line(device, source.for_device(device));
  if (bytes != 0) store_descending<Isa, kLine / 2>(device, source, bytes);
  compiler_barrier();
}

template <class Isa>
PL_ALWAYS_INLINE void write_routine(void* device, const void* host, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  write_frame<Isa>(address, host_source{reinterpret_cast<std::uintptr_t>(host) - address}, bytes);
}

struct alignas(kLine) pattern_line {
  std::uint64_t words[kLine / 8];
  explicit pattern_line(std::uint64_t pattern) {
    for (std::uint64_t& entry : words) entry = pattern;
  }
};

template <class Isa>
PL_ALWAYS_INLINE void fill_routine(void* device, std::uint64_t pattern, std::size_t bytes) {
  const pattern_line line(pattern);
  write_frame<Isa>(reinterpret_cast<std::uintptr_t>(device), pattern_source{reinterpret_cast<std::uintptr_t>(line.words)},
                   bytes);
}

// ---- Reads -----------------------------------------------------------------------------------------------------------
// Isa::unit is what Isa::load_unit takes from an aligned block of Isa::kUnit bytes; Isa::kGroup units fit in registers.

// Stores bytes [begin, end) of a unit where they belong; `host` is where the unit's byte 0 would go.
template <class Isa>
PL_ALWAYS_INLINE void store_part(std::uintptr_t host, const typename Isa::unit& value, std::size_t begin, std::size_t end) {
  if (end - begin == Isa::kUnit) {
    Isa::store_unit(host, value);
  } else {
    // Through the stack, because the host buffer may begin or end anywhere. Negligible beside a microsecond of bus.
    alignas(kLine) unsigned char line[Isa::kUnit];
    Isa::store_unit(reinterpret_cast<std::uintptr_t>(line), value);
    __builtin_memcpy(pointer<void>(host + begin), line + begin, end - begin);
  }
}

// In program order: the compiler would otherwise schedule the last lines of a group first.
template <class Isa>
PL_ALWAYS_INLINE typename Isa::unit load_in_order(std::uintptr_t device) {
  const typename Isa::unit value = Isa::load_unit(device);
  compiler_barrier();
  return value;
}

// Reads units [device, device + Count * kUnit): all loads are issued before the first store needs one of them. Of the
// first unit, the bytes from `begin` on are wanted; of the last one, those below `end`.
template <class Isa, std::size_t... Index>
PL_ALWAYS_INLINE void read_units(std::uintptr_t host, std::uintptr_t device, std::size_t begin, std::size_t end,
                                 std::index_sequence<Index...>) {
  constexpr std::size_t kLast = sizeof...(Index) - 1;
  const typename Isa::unit values[] = {load_in_order<Isa>(device + Index * Isa::kUnit)...};
  if constexpr (kLast == 0) {
    store_part<Isa>(host, values[0], begin, end);
  } else {
    // The middle first: the partial units may call memcpy, which spills what is still in registers.
    ((Index != 0 && Index != kLast ? Isa::store_unit(host + Index * Isa::kUnit, values[Index]) : void()), ...);
    store_part<Isa>(host, values[0], begin, Isa::kUnit);
    store_part<Isa>(host + kLast * Isa::kUnit, values[kLast], 0, end);
  }
}

// Alone: the group is the whole read, so the branches that led here may still be mispredicted. After other groups,
// stopping does not pay, because it would wait for the lines in flight (a round trip: 9.2 us instead of 8.2 for 8 KiB).
enum class group_place { alone, behind_others };

template <class Isa, group_place Place, std::size_t Count>
void read_group(std::uintptr_t host, std::uintptr_t device, std::size_t begin, std::size_t end) {
  if constexpr (Place == group_place::alone) stop_speculation();
  read_units<Isa>(host, device, begin, end, std::make_index_sequence<Count>{});
}

using read_group_function = void (*)(std::uintptr_t, std::uintptr_t, std::size_t, std::size_t);

template <class Isa, group_place Place, std::size_t... Index>
PL_ALWAYS_INLINE void read_last_group(std::size_t count, std::uintptr_t host, std::uintptr_t device, std::size_t begin,
                                      std::size_t end, std::index_sequence<Index...>) {
  static constexpr read_group_function kBySize[] = {read_group<Isa, Place, Index + 1>...};
  kBySize[count - 1](host, device, begin, end);
}

template <class Isa>
PL_ALWAYS_INLINE void read_routine(void* host_pointer, const void* device_pointer, std::size_t bytes) {
  auto host = reinterpret_cast<std::uintptr_t>(host_pointer);
  auto device = reinterpret_cast<std::uintptr_t>(device_pointer);
  if (bytes == 0) return;
  compiler_barrier();
  if (is_natural_word(device, bytes)) {
    load_natural_word(host, device, bytes);
  } else {
    std::size_t begin = device % Isa::kUnit;
    std::size_t count = (begin + bytes + Isa::kUnit - 1) / Isa::kUnit;
    const std::size_t end = (begin + bytes - 1) % Isa::kUnit + 1;
    device -= begin;
    host -= begin;
    // Groups need no gap between them: the stores of one wait for its data, and meanwhile the out-of-order window
    // issues the loads of the next. The number of fill buffers limits the lines in flight (16 on Sapphire Rapids, 10 to
    // 12 before), so a group is large enough to occupy them.
    constexpr std::make_index_sequence<Isa::kGroup> kSizes{};
    if (count <= Isa::kGroup) {
      read_last_group<Isa, group_place::alone>(count, host, device, begin, end, kSizes);
    } else {
      stop_speculation();
      for (; count > Isa::kGroup; count -= Isa::kBulkGroup) {
        read_units<Isa>(host, device, begin, Isa::kUnit, std::make_index_sequence<Isa::kBulkGroup>{});
        begin = 0;
        device += Isa::kBulkGroup * Isa::kUnit;
        host += Isa::kBulkGroup * Isa::kUnit;
      }
      read_last_group<Isa, group_place::behind_others>(count, host, device, begin, end, kSizes);
    }
  }
  compiler_barrier();
}

}  // namespace
}  // namespace pl::arch
