// SPDX-License-Identifier: Apache-2.0
// CPU copies between host memory and a CPU mapping of GPU memory: the table that callers use, chosen once.
//
// Writes prefer MOVDIR64B > AVX-512 > AVX2 > SSE2, reads AVX-512 > AVX2 > SSE4.1 > SSE2; Arm has NEON. The environment
// variable PEERLANE_COPY_ISA caps both: "avx2" means the best write and the best read up to AVX2.
//
// Path grade: hot, except for supported_copy_ops() and the first call of the others, which query the CPU and the
// environment. Thread-safe. copy_routines.hpp specifies each routine, mmio.hpp the fences.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "arch/cpu_features.hpp"
#include "arch/mmio.hpp"

namespace pl::arch {

struct copy_ops {
  const char* name;
  void (*write)(void* device, const void* host, std::size_t bytes);
  void (*read)(void* host, const void* device, std::size_t bytes);
  void (*fill)(void* device, std::uint64_t pattern8, std::size_t bytes);
};

// Ascending by CPU requirements (x86 first, then Arm); a cap admits its own level and all levels below.
enum class copy_isa { portable, sse2, sse41, avx2, avx512, movdir64b, neon };

const char* name_of(copy_isa isa);

struct copy_choice {
  copy_isa write = copy_isa::portable;
  copy_isa read = copy_isa::portable;
  // The cap itself was not available on this CPU or architecture, and was ignored.
  bool cap_unavailable = false;

  bool operator==(const copy_choice&) const = default;
};

// Pure: the best routines for a CPU with these features, none above `cap`. Independent of the CPU it runs on.
copy_choice choose_copy_isas(const cpu_features& features, std::optional<copy_isa> cap);

// The cap that PEERLANE_COPY_ISA requests; none for "auto" and for an unknown name.
std::optional<copy_isa> parse_copy_isa(std::string_view text);

// Every implementation that this CPU can run, slowest first, each with all three routines (one without a read of its
// own has that of the entry before it). For tests and benchmarks; ignores PEERLANE_COPY_ISA.
std::span<const copy_ops> supported_copy_ops();

// The routines chosen for write-combining mappings.
const char* write_isa_name();
const char* read_isa_name();

// Writes commands into memory from which a device fetches them, with the best instructions for every kind of mapping
// and size: MOVDIR64B, unlike wider stores, is fast there for long lists too (docs/results/blocks/h200/engines.json).
// No fence.
void write_commands_unfenced(void* device, const void* host, std::size_t bytes) noexcept;

namespace detail {
extern std::atomic<const copy_ops*> active_ops[4];
const copy_ops& resolve_copy_ops(mapping_type type);
}  // namespace detail

// The routines for a mapping. mapping_type::none gets those of device memory, which are correct everywhere.
inline const copy_ops& copy_ops_for(mapping_type type) {
  const copy_ops* ops = detail::active_ops[static_cast<unsigned>(type) & 3u].load(std::memory_order_acquire);
  if (ops == nullptr) [[unlikely]]
    return detail::resolve_copy_ops(type);
  return *ops;
}

namespace detail {

template <class Word>
[[gnu::always_inline]] inline void store_one(void* device, const void* host) {
  using word [[gnu::may_alias]] = Word;
  Word value;
  __builtin_memcpy(&value, host, sizeof value);
  __atomic_store_n(static_cast<volatile word*>(device), value, __ATOMIC_RELAXED);
}

template <class Word>
[[gnu::always_inline]] inline void load_one(void* host, const void* device) {
  using word [[gnu::may_alias]] = Word;
#if defined(__x86_64__)
  asm volatile("lfence" ::: "memory");  // no load on a mispredicted path: stop_speculation() in copy_frame.hpp
#endif
  const Word value = __atomic_load_n(static_cast<const volatile word*>(device), __ATOMIC_RELAXED);
  __builtin_memcpy(host, &value, sizeof value);
}

// Flags and counters avoid the indirect call. Returns false if it is not a naturally aligned word.
[[gnu::always_inline]] inline bool write_word(void* device, const void* host, std::size_t bytes) {
  if (bytes > 8 || (reinterpret_cast<std::uintptr_t>(device) & (bytes - 1)) != 0) return false;
  switch (bytes) {
    case 1:
      return store_one<std::uint8_t>(device, host), true;
    case 2:
      return store_one<std::uint16_t>(device, host), true;
    case 4:
      return store_one<std::uint32_t>(device, host), true;
    case 8:
      return store_one<std::uint64_t>(device, host), true;
    default:
      return false;
  }
}

[[gnu::always_inline]] inline bool read_word(void* host, const void* device, std::size_t bytes) {
  if (bytes > 8 || (reinterpret_cast<std::uintptr_t>(device) & (bytes - 1)) != 0) return false;
  switch (bytes) {
    case 1:
      return load_one<std::uint8_t>(host, device), true;
    case 2:
      return load_one<std::uint16_t>(host, device), true;
    case 4:
      return load_one<std::uint32_t>(host, device), true;
    case 8:
      return load_one<std::uint64_t>(host, device), true;
    default:
      return false;
  }
}

}  // namespace detail

// Host to device. The data may still be in the CPU when this returns, and may arrive in any order: for several pieces
// followed by one publish_to_device().
inline void copy_to_unfenced(mapping_type type, void* device, const void* host, std::size_t bytes) {
  if (detail::write_word(device, host, bytes)) return;
  copy_ops_for(type).write(device, host, bytes);
}

// Host to device; the data has left the CPU before anything that this thread stores later. Does not wait for its
// arrival.
inline void copy_to(mapping_type type, void* device, const void* host, std::size_t bytes) {
  copy_to_unfenced(type, device, host, bytes);
  publish_to_device(type);
}

// As copy_to_unfenced and copy_to, with an 8-byte pattern aligned to device addresses (copy_routines.hpp).
inline void fill_to_unfenced(mapping_type type, void* device, std::uint64_t pattern8, std::size_t bytes) {
  copy_ops_for(type).fill(device, pattern8, bytes);
}
inline void fill_to(mapping_type type, void* device, std::uint64_t pattern8, std::size_t bytes) {
  fill_to_unfenced(type, device, pattern8, bytes);
  publish_to_device(type);
}

// Device to host: sees this thread's earlier writes to the mapping and nothing older than the call; nothing this thread
// does later happens before the data is there. Waits for the bus, about a microsecond for up to 1 KiB.
inline void copy_from(mapping_type type, void* host, const void* device, std::size_t bytes) {
  order_before_reads(type);
  if (!detail::read_word(host, device, bytes)) copy_ops_for(type).read(host, device, bytes);
  order_after_reads(type);
}

}  // namespace pl::arch
