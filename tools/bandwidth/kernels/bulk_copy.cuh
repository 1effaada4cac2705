// SPDX-License-Identifier: Apache-2.0
// Bulk copies between global and shared memory by the tensor memory accelerator (compute capability 9.0 and up). One thread
// starts them and waits for them; addresses and sizes are multiples of 16. On the simulated GPU a bulk copy is done when it
// has been started.
#pragma once

#include "cuda/kernel_device.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace pl::dev {

#if defined(__CUDACC__)

PL_DEVICE unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// `barrier`: 8 bytes of shared memory; counts one arrival and the bytes of one load at a time.
PL_DEVICE void bulk_open(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

PL_DEVICE void bulk_load(void* target, std::uint64_t source, unsigned bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(source))), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// `phase`: 0 for the first load that uses the barrier, then 1, 0, 1, ...
PL_DEVICE void bulk_wait(std::uint64_t* barrier, unsigned phase) {
  unsigned done = 0;
  while (done == 0)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
}

PL_DEVICE void bulk_store(std::uint64_t destination, const void* staged, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(reinterpret_cast<void*>(destination))),
               "r"(shared_address(staged)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// All stores but the last one have read their shared memory, which may be used again.
PL_DEVICE void bulk_stores_have_read_but_one() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
// All stores have been made.
PL_DEVICE void bulk_stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#else

PL_DEVICE void bulk_open(std::uint64_t*) {}
PL_DEVICE void bulk_load(void* target, std::uint64_t source, unsigned bytes, std::uint64_t*) {
  auto* const vectors = static_cast<vec16*>(target);
  for (unsigned i = 0; i < bytes / 16; ++i) vectors[i] = load_stream_vec16(source + std::uint64_t{16} * i);
}
PL_DEVICE void bulk_wait(std::uint64_t*, unsigned) {}
PL_DEVICE void bulk_store(std::uint64_t destination, const void* staged, unsigned bytes) {
  const auto* const vectors = static_cast<const vec16*>(staged);
  for (unsigned i = 0; i < bytes / 16; ++i) store_stream_vec16(destination + std::uint64_t{16} * i, vectors[i]);
}
PL_DEVICE void bulk_stores_have_read_but_one() {}
PL_DEVICE void bulk_stores_are_done() {}

#endif

}  // namespace pl::dev

#endif
