// SPDX-License-Identifier: Apache-2.0
// What Peerlane's kernels are written in: one source, compiled by nvcc for GPUs and by the host compiler for the
// simulated one. Global memory is touched only through these functions; on the CPU they translate the address.
//
//   PL_KERNEL void add(std::uint64_t out, std::uint64_t in, unsigned n) { ... }
//   PL_EXPORT_KERNEL(add)
//
// Parameters are passed by value; pointers as std::uint64_t or T*. Memory scope is always the system: another GPU, the
// CPU or a network card may be on the other side. Accesses must be naturally aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)

// ---- GPU ------------------------------------------------------------------------------------------------------------
#define PL_KERNEL extern "C" __global__
#define PL_BOUND_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)  // of blocks of at most so many
#define PL_EXPORT_KERNEL(name)
#define PL_DEVICE __device__ __forceinline__
#define PL_RARE_DEVICE __device__ __noinline__  // of rare cases, which need not be in the code of every caller
#define PL_NO_UNROLL _Pragma("unroll 1")        // before a loop

namespace pl::dev {

PL_DEVICE unsigned thread_x() { return threadIdx.x; }
PL_DEVICE unsigned block_x() { return blockIdx.x; }
PL_DEVICE unsigned block_dim_x() { return blockDim.x; }
PL_DEVICE unsigned grid_dim_x() { return gridDim.x; }
PL_DEVICE void sync_threads() { __syncthreads(); }
PL_DEVICE void fence_system() { __threadfence_system(); }
PL_DEVICE void fence_device() { __threadfence(); }
PL_DEVICE void pause(unsigned ns) { __nanosleep(ns); }
PL_DEVICE void let_others_run() {}  // in loops that poll with load_vec16; the GPU's threads run anyway
PL_DEVICE std::uint64_t clock_cycles() { return static_cast<std::uint64_t>(clock64()); }

PL_DEVICE std::uint64_t global_timer_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

// The block's dynamic shared memory, as large as the launch asked for.
PL_DEVICE void* shared_memory() {
  extern __shared__ unsigned long long pl_dynamic_shared[];
  return pl_dynamic_shared;
}

// PTX has no 8-bit register: bytes travel in 32-bit ones.
#define PL_PTX_LOAD(bits, type, wide, reg, order, suffix)     \
  PL_DEVICE void ptx_load_##suffix(const type* p, type& v) {  \
    wide out;                                                 \
    asm volatile("ld." order ".sys.global." bits " %0, [%1];" \
                 : "=" reg(out)                               \
                 : "l"(__cvta_generic_to_global(p))           \
                 : "memory");                                 \
    v = static_cast<type>(out);                               \
  }
#define PL_PTX_STORE(bits, type, wide, reg, order, suffix)                                                                  \
  PL_DEVICE void ptx_store_##suffix(type* p, type v) {                                                                      \
    asm volatile("st." order ".sys.global." bits " [%0], %1;" ::"l"(__cvta_generic_to_global(p)), reg(static_cast<wide>(v)) \
                 : "memory");                                                                                               \
  }
#define PL_PTX_BOTH(bits, type, wide, reg)                \
  PL_PTX_LOAD(bits, type, wide, reg, "relaxed", relaxed)  \
  PL_PTX_LOAD(bits, type, wide, reg, "acquire", acquire)  \
  PL_PTX_STORE(bits, type, wide, reg, "relaxed", relaxed) \
  PL_PTX_STORE(bits, type, wide, reg, "release", release)
PL_PTX_BOTH("u8", std::uint8_t, unsigned, "r")
PL_PTX_BOTH("u16", std::uint16_t, unsigned short, "h")
PL_PTX_BOTH("u32", std::uint32_t, unsigned, "r")
PL_PTX_BOTH("u64", std::uint64_t, unsigned long long, "l")
#undef PL_PTX_LOAD
#undef PL_PTX_STORE
#undef PL_PTX_BOTH

template <std::size_t kBytes>
struct word_of;
template <>
struct word_of<1> {
  using type = std::uint8_t;
};
template <>
struct word_of<2> {
  using type = std::uint16_t;
};
template <>
struct word_of<4> {
  using type = std::uint32_t;
};
template <>
struct word_of<8> {
  using type = std::uint64_t;
};

template <class T>
PL_DEVICE T from_word(typename word_of<sizeof(T)>::type word) {
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
PL_DEVICE typename word_of<sizeof(T)>::type to_word(T value) {
  typename word_of<sizeof(T)>::type word;
  memcpy(&word, &value, sizeof word);
  return word;
}

template <class T>
PL_DEVICE T load_relaxed(const T* p) {
  typename word_of<sizeof(T)>::type word;
  ptx_load_relaxed(reinterpret_cast<const typename word_of<sizeof(T)>::type*>(p), word);
  return from_word<T>(word);
}
template <class T>
PL_DEVICE T load_acquire(const T* p) {
  typename word_of<sizeof(T)>::type word;
  ptx_load_acquire(reinterpret_cast<const typename word_of<sizeof(T)>::type*>(p), word);
  return from_word<T>(word);
}
template <class T>
PL_DEVICE void store_relaxed(T* p, T value) {
  ptx_store_relaxed(reinterpret_cast<typename word_of<sizeof(T)>::type*>(p), to_word(value));
}
template <class T>
PL_DEVICE void store_release(T* p, T value) {
  ptx_store_release(reinterpret_cast<typename word_of<sizeof(T)>::type*>(p), to_word(value));
}

// Sixteen aligned bytes in one access; volatile, no ordering.
struct alignas(16) vec16 {
  std::uint64_t low, high;
};
PL_DEVICE vec16 load_vec16(const void* p) {
  vec16 v;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.low), "=l"(v.high)
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  return v;
}
PL_DEVICE void store_vec16(void* p, vec16 v) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "l"(v.low), "l"(v.high)
               : "memory");
}

// The same for copying in bulk: not volatile, so that the hardware may merge accesses; past the L1, which would answer the
// second read of the same memory. The program's order among these is kept, so several loads before a store are in flight.
PL_DEVICE vec16 load_stream_vec16(const void* p) {
  vec16 v;
  asm volatile("ld.global.cg.v2.u64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(__cvta_generic_to_global(p)));
  return v;
}
PL_DEVICE void store_stream_vec16(void* p, vec16 v) {
  asm volatile("st.global.cg.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "l"(v.low), "l"(v.high));
}

// A relaxed load of data that no loop polls for: on the simulated GPU it lets no other thread run.
PL_DEVICE std::uint64_t load_data64(std::uint64_t address) {
  return load_relaxed(reinterpret_cast<const std::uint64_t*>(address));
}

// To a multicast address: the switch stores into the memory that each device has bound there. Other accesses of such an
// address are undefined. Compute capability 9.0 and up; kernels that call it are compiled for those only.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
PL_DEVICE void store_multicast(std::uint64_t address, std::uint32_t value) {
  asm volatile(
      "multimem.st.relaxed.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(reinterpret_cast<void*>(address))),
      "r"(value)
      : "memory");
}
// The instruction moves sixteen bytes only as floats; a store leaves their bits alone.
PL_DEVICE void store_multicast_vec16(std::uint64_t address, vec16 v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(reinterpret_cast<void*>(address))),
               "r"(static_cast<unsigned>(v.low)), "r"(static_cast<unsigned>(v.low >> 32)),
               "r"(static_cast<unsigned>(v.high)), "r"(static_cast<unsigned>(v.high >> 32))
               : "memory");
}
#endif

// On memory of this GPU only: PCIe has no such atomics.
PL_DEVICE void atomic_min64(std::uint64_t address, std::uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
PL_DEVICE void atomic_or64(std::uint64_t address, std::uint64_t value) {
  atomicOr(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}

// Returns the value before. System scope; T is a 4 or 8 byte integer.
template <class T>
PL_DEVICE T atomic_add(T* p, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomic_add takes 4 or 8 byte integers");
  if constexpr (sizeof(T) == 4)
    return static_cast<T>(atomicAdd_system(reinterpret_cast<unsigned*>(p), static_cast<unsigned>(value)));
  else
    return static_cast<T>(
        atomicAdd_system(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(value)));
}

}  // namespace pl::dev

#else

// ---- simulated GPU --------------------------------------------------------------------------------------------------
#include <time.h>

#include <type_traits>
#include <utility>

#include "cuda/kernel_host.hpp"

#define PL_KERNEL static
#define PL_BOUND_KERNEL(threads) static void
#define PL_DEVICE inline
#define PL_RARE_DEVICE inline
#define PL_NO_UNROLL

namespace pl::dev {

// ThreadSanitizer does not know fences, so a fence followed by a relaxed store would look like a race: under it every
// access carries the order itself.
#if defined(__SANITIZE_THREAD__)
constexpr int kRelaxedLoad = __ATOMIC_ACQUIRE;
constexpr int kRelaxedStore = __ATOMIC_RELEASE;
#else
constexpr int kRelaxedLoad = __ATOMIC_RELAXED;
constexpr int kRelaxedStore = __ATOMIC_RELAXED;
#endif

// One a kernel image; the simulator fills it in. Hidden: every image has its own.
inline const sim_abi::kernel_services* g_services = nullptr;

PL_DEVICE unsigned thread_x() { return g_services->self()->thread[0]; }
PL_DEVICE unsigned block_x() { return g_services->self()->block[0]; }
PL_DEVICE unsigned block_dim_x() { return g_services->self()->block_dim[0]; }
PL_DEVICE unsigned grid_dim_x() { return g_services->self()->grid_dim[0]; }
PL_DEVICE void* shared_memory() { return g_services->self()->shared; }
PL_DEVICE void sync_threads() { g_services->sync_threads(); }
PL_DEVICE bool stores_are_delayed() { return __atomic_load_n(g_services->store_delay, __ATOMIC_RELAXED) != 0; }
PL_DEVICE void fence_system() {
  if (stores_are_delayed()) g_services->fence_system();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
PL_DEVICE void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
PL_DEVICE void pause(unsigned ns) { g_services->pause_ns(ns); }
PL_DEVICE void let_others_run() { g_services->yield(); }

PL_DEVICE std::uint64_t global_timer_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}
PL_DEVICE std::uint64_t clock_cycles() { return global_timer_ns(); }  // one cycle a nanosecond

template <class T>
T* reach(const T* p, bool is_write) {
  return static_cast<T*>(g_services->translate(reinterpret_cast<std::uint64_t>(p), sizeof(T), is_write));
}

template <class T>
bool is_taken(T* p, const T& value, bool is_release) {
  return stores_are_delayed() && g_services->take_store(reinterpret_cast<std::uint64_t>(p), &value, sizeof(T), is_release);
}

// Loads yield: a kernel that polls must not keep those from running for which it waits.
template <class T>
PL_DEVICE T load_relaxed(const T* p) {
  g_services->yield();
  T value;
  __atomic_load(reach(p, false), &value, kRelaxedLoad);
  return value;
}
template <class T>
PL_DEVICE T load_acquire(const T* p) {
  g_services->yield();
  T value;
  __atomic_load(reach(p, false), &value, __ATOMIC_ACQUIRE);
  return value;
}
template <class T>
PL_DEVICE void store_relaxed(T* p, T value) {
  if (is_taken(p, value, false)) return;
  __atomic_store(reach(p, true), &value, kRelaxedStore);
}
template <class T>
PL_DEVICE void store_release(T* p, T value) {
  if (is_taken(p, value, true)) return;
  __atomic_store(reach(p, true), &value, __ATOMIC_RELEASE);
}

struct alignas(16) vec16 {
  std::uint64_t low, high;
};
// A GPU reads the sixteen bytes at once. Here the upper half is read first and the lower half stored first, so that a mark
// in the upper half vouches for the lower one.
PL_DEVICE vec16 load_vec16(const void* p) {
  const vec16* target = reach(static_cast<const vec16*>(p), false);
  const std::uint64_t high = __atomic_load_n(&target->high, __ATOMIC_ACQUIRE);
  return {__atomic_load_n(&target->low, kRelaxedLoad), high};
}
PL_DEVICE void store_vec16(void* p, vec16 v) {
  if (is_taken(static_cast<vec16*>(p), v, false)) return;
  vec16* target = reach(static_cast<const vec16*>(p), true);
  __atomic_store_n(&target->low, v.low, kRelaxedStore);
  __atomic_store_n(&target->high, v.high, __ATOMIC_RELEASE);
}

PL_DEVICE vec16 load_stream_vec16(const void* p) {
  const vec16* target = reach(static_cast<const vec16*>(p), false);
  return {__atomic_load_n(&target->low, kRelaxedLoad), __atomic_load_n(&target->high, kRelaxedLoad)};
}
PL_DEVICE void store_stream_vec16(void* p, vec16 v) {
  if (is_taken(static_cast<vec16*>(p), v, false)) return;
  vec16* target = reach(static_cast<vec16*>(p), true);
  __atomic_store_n(&target->low, v.low, kRelaxedStore);
  __atomic_store_n(&target->high, v.high, kRelaxedStore);
}

PL_DEVICE std::uint64_t load_data64(std::uint64_t address) {
  return __atomic_load_n(reach(reinterpret_cast<const std::uint64_t*>(address), false), kRelaxedLoad);
}

template <class T>
PL_DEVICE void store_to_all(std::uint64_t address, T value) {
  void* replicas[sim_abi::max_multicast_devices];
  const unsigned count = g_services->multicast(address, sizeof(T), replicas);
  for (unsigned i = 0; i < count; ++i) __atomic_store_n(static_cast<T*>(replicas[i]), value, kRelaxedStore);
}
PL_DEVICE void store_multicast(std::uint64_t address, std::uint32_t value) { store_to_all(address, value); }
PL_DEVICE void store_multicast_vec16(std::uint64_t address, vec16 v) {
  if (address % 16 != 0) g_services->translate(address, 16, true);  // faults, as the GPU does
  store_to_all(address, v.low);
  store_to_all(address + 8, v.high);
}

PL_DEVICE void atomic_min64(std::uint64_t address, std::uint64_t value) {
  auto* const target = reach(reinterpret_cast<std::uint64_t*>(address), true);
  std::uint64_t seen = __atomic_load_n(target, kRelaxedLoad);
  while (value < seen && !__atomic_compare_exchange_n(target, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
PL_DEVICE void atomic_or64(std::uint64_t address, std::uint64_t value) {
  __atomic_fetch_or(reach(reinterpret_cast<std::uint64_t*>(address), true), value, __ATOMIC_RELAXED);
}

template <class T>
PL_DEVICE T atomic_add(T* p, T value) {
  static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "atomic_add takes 4 or 8 byte integers");
  return __atomic_fetch_add(reach(p, true), value, __ATOMIC_RELAXED);
}

// Unpacks a launch's parameter block for a kernel function, by its type.
template <auto kKernel>
struct kernel_export;
template <class... Args, void (*kKernel)(Args...)>
struct kernel_export<kKernel> {
  static constexpr std::uint32_t parameter_bytes[] = {static_cast<std::uint32_t>(sizeof(Args))..., 0};
  template <std::size_t... kIndex>
  static void call(void* const* parameters, std::index_sequence<kIndex...>) {
    kKernel(*static_cast<std::remove_cv_t<Args>*>(parameters[kIndex])...);
  }
  static void invoke([[maybe_unused]] void* const* parameters) { call(parameters, std::index_sequence_for<Args...>{}); }
  static constexpr sim_abi::kernel_descriptor describe() {
    return {sim_abi::kernel_abi_version, sizeof...(Args), parameter_bytes, &invoke, &g_services};
  }
};

}  // namespace pl::dev

#define PL_EXPORT_KERNEL(name)                                                                                  \
  extern "C" __attribute__((visibility("default"))) const ::pl::sim_abi::kernel_descriptor plsim_kernel_##name; \
  const ::pl::sim_abi::kernel_descriptor plsim_kernel_##name = ::pl::dev::kernel_export<&name>::describe();

#endif

// Both: the same accesses by a 64-bit device address.
namespace pl::dev {

template <class T>
PL_DEVICE T load_relaxed(std::uint64_t address) {
  return load_relaxed(reinterpret_cast<const T*>(address));
}
template <class T>
PL_DEVICE T load_acquire(std::uint64_t address) {
  return load_acquire(reinterpret_cast<const T*>(address));
}
template <class T>
PL_DEVICE void store_relaxed(std::uint64_t address, T value) {
  store_relaxed(reinterpret_cast<T*>(address), value);
}
template <class T>
PL_DEVICE void store_release(std::uint64_t address, T value) {
  store_release(reinterpret_cast<T*>(address), value);
}
template <class T>
PL_DEVICE T atomic_add(std::uint64_t address, T value) {
  return atomic_add(reinterpret_cast<T*>(address), value);
}
PL_DEVICE vec16 load_vec16(std::uint64_t address) { return load_vec16(reinterpret_cast<const void*>(address)); }
PL_DEVICE void store_vec16(std::uint64_t address, vec16 v) { store_vec16(reinterpret_cast<void*>(address), v); }
PL_DEVICE vec16 load_stream_vec16(std::uint64_t address) {
  return load_stream_vec16(reinterpret_cast<const void*>(address));
}
PL_DEVICE void store_stream_vec16(std::uint64_t address, vec16 v) {
  store_stream_vec16(reinterpret_cast<void*>(address), v);
}

}  // namespace pl::dev
