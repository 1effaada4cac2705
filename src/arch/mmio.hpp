// SPDX-License-Identifier: Apache-2.0
// The ordering contract of GPU memory that the CPU sees through a mapping, and the fences that keep it.
//
// Two actors: this CPU thread, and "the device" (the GPU, with the memory behind its PCIe BAR or coherent link).
// What the thread executes and what the device receives differ in three ways, and every rule below names one of them:
// a store may wait in the CPU, several accesses may become one, and accesses may arrive in another order.
//
// What one operation becomes. "line" = an aligned block of 64 bytes; MWr = posted memory write; MRd = memory read, which
// is non-posted: the CPU waits for its completion, about a microsecond.
//
//  mapping    operation       what reaches the bus             may be combined / reordered         the caller adds
//  ---------  --------------  -------------------------------  ----------------------------------  -------------------
//  wc         plain store     nothing yet; a full line leaves  combined with stores to its line    publish_to_device:
//  x86 WC                     as one 64 B MWr, a partial one   (the youngest byte wins); lines     before it the data
//                             as several small MWr, when the   leave in any order, and a partial   may stay in the CPU
//                             CPU likes or at a fence          line may leave at any time          for ever
//             NT store        as a plain store: WC memory      the same                            the same
//                             decides, the hint adds nothing
//             MOVDIR64B       one 64 B MWr, not split          not with younger stores; older      the same: it is
//                                                              WC stores to its line may join it;  weakly ordered too
//                                                              reordered with all other lines
//             plain load      one MRd of the load's width      may be speculative; never cached    order_after_reads
//                             (16 B of a line: 1 of 4 MRd)                                         before what depends
//             streaming load  one 64 B MRd for a line, if its  reordered with all other loads; a   order_before_reads
//                             loads come together              line buffer may answer later loads  (or data may be old),
//                                                              and is not snooped                  order_after_reads
//             fence           sfence: the WC buffers leave. mfence: the same, and later loads are not answered early.
//                             lfence: later accesses start after the loads have their data. None is a TLP: nothing
//                             waits for the device to have *received* a posted write; only a read back does that.
//  wc         store           nothing yet; gathered up to the  gathered, reordered with all        publish_to_device
//  Arm        (any width)     interconnect's burst size        Normal accesses
//  Normal-NC  load            one or more reads; may be        gathered, speculative, reordered    both read fences
//                             wider than the load
//             fence           dmb: order. dsb: order, and earlier stores are complete as far as the interconnect.
//  cached     store           nothing: the line moves by the   not combined; x86 keeps stores in   publish_to_device
//  (coherent                  coherence protocol, whole, on    order, Arm does not
//  link)                      demand
//             NT, MOVDIR64B   the line is evicted and written  as on wc                            do not use
//             load            as to ordinary memory            x86 keeps loads in order, Arm not   order_after_reads
//  device     plain store     one MWr of exactly its width     never combined; same device: in     publish_to_device
//  x86 UC,                                                     program order                       towards other memory
//  Arm        MOVDIR64B (x86) one 64 B MWr                     weakly ordered even here            do not use
//  Device-    plain load      one MRd of exactly its width     never speculative, in order         order_after_reads
//  nGnRE      unaligned, 16 B x86: split; Arm: alignment fault                                     do not use
//
// Beyond the CPU, PCIe keeps posted writes of one requester in order and lets no read overtake them ("Transaction
// Ordering", without the relaxed ordering attribute). So two fences in the CPU are enough for data, then flag.
//
//     copy_to_unfenced(type, data, host, bytes);  publish_to_device(type);   // data left the CPU before the flag does
//     store 8 bytes to flag;                      publish_to_device(type);   // and the flag does not linger
//
// A device-side reader that finds the flag still needs its own acquire (docs/ordering.md).
//
// Path grade: hot. Every function is one or two instructions; no syscall, lock, allocation or log.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pl::arch {

// How the CPU maps the memory. The numbers are GDRCopy's (gdr_mapping_type_t): they cross the C ABI.
enum class mapping_type : int { none = 0, wc = 1, cached = 2, device = 3 };

static_assert(static_cast<int>(mapping_type::wc) == 1 && static_cast<int>(mapping_type::cached) == 2 &&
              static_cast<int>(mapping_type::device) == 3);

namespace detail {

// What release and acquire fences are on x86. Not std::atomic_thread_fence, which GCC refuses under ThreadSanitizer.
inline void compiler_only_fence() noexcept { asm volatile("" ::: "memory"); }

}  // namespace detail

// After writes. All earlier stores of this thread to the mapping leave the CPU now, and before any later store of this
// thread to any memory. Does not wait until the device has them.
//
// It is a release: earlier loads too are done before any later store (x86 never lets a store pass an older load). Costs as
// long as the write-combining buffers take to drain: about 0.1 us behind a BAR.
inline void publish_to_device(mapping_type type) noexcept {
#if defined(__x86_64__)
  // x86 keeps ordinary (cached) stores in order by itself, so that only the compiler must be told. UC stores do not
  // need the sfence either, but a mapping called "device" may have been written by MOVDIR64B, which ignores UC.
  if (type == mapping_type::cached) detail::compiler_only_fence();
  else asm volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
  // A dmb would order gathered Normal-NC stores but let the last of them linger; dsb completes them. "st" leaves loads
  // out, which the dmb makes up for more cheaply than a full dsb. The outer shareable domain below and not the inner one
  // of C++ fences: the GPU may lie outside the inner one.
  if (type == mapping_type::wc) asm volatile("dmb ld\n\tdsb st" ::: "memory");
  else asm volatile("dmb osh" ::: "memory");
#else
  (void)type;
  __sync_synchronize();
#endif
}

// Before reads that must see what this thread wrote through the mapping, or anything newer than its last read of the
// same line: earlier stores are on their way (a read cannot overtake them on PCIe), and no line buffer that an earlier
// streaming load filled answers the following loads.
inline void order_before_reads([[maybe_unused]] mapping_type type) noexcept {
  // The same for every type: keeping a store before a later load takes the full fence everywhere (x86 too lets a load
  // pass a store to ordinary memory). sfence would not do, it does not order loads; MFENCE is what the SDM names for
  // streaming loads (MOVNTDQA, "WC Streaming Load Hint").
#if defined(__x86_64__)
  asm volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("dmb sy" ::: "memory");
#else
  __sync_synchronize();
#endif
}

// After reads. Nothing later in this thread (loads of any memory, stores, clock readings on x86) happens before the
// loads above have their data. This is what makes "flag, then data" work for a CPU that polls a flag.
inline void order_after_reads(mapping_type type) noexcept {
#if defined(__x86_64__)
  // Streaming loads from WC memory are not ordered among themselves; all other x86 loads are.
  if (type == mapping_type::cached) detail::compiler_only_fence();
  else asm volatile("lfence" ::: "memory");
#elif defined(__aarch64__)
  if (type == mapping_type::cached) asm volatile("dmb oshld" ::: "memory");
  else asm volatile("dmb ld" ::: "memory");
#else
  (void)type;
  __sync_synchronize();
#endif
}

// Inside a polling loop: lets the sibling hardware thread run and saves power. No ordering.
inline void relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace pl::arch
