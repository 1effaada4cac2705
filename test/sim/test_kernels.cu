// SPDX-License-Identifier: Apache-2.0
// Kernels of the simulator's tests.
#include "cuda/graph_condition.cuh"

using namespace pl::dev;

// out[i] = a[i] + b[n - 1 - i] within a block, by way of a block-wide exchange: wrong without a real barrier.
PL_KERNEL void add_reversed(std::uint64_t out, const std::uint32_t* a, const std::uint32_t* b, unsigned n) {
  auto* exchange = static_cast<std::uint32_t*>(shared_memory());
  const unsigned i = block_x() * block_dim_x() + thread_x();
  if (i < n) exchange[thread_x()] = load_relaxed(b + i);
  sync_threads();
  const std::uint32_t other = exchange[block_dim_x() - 1 - thread_x()];
  sync_threads();
  if (i < n) store_relaxed<std::uint32_t>(out + std::uint64_t{4} * i, load_relaxed(a + i) + other);
}
PL_EXPORT_KERNEL(add_reversed)

// Answers requests 1, 2, ... in `request` by writing request * 3 to `reply`, until it sees `last`.
PL_KERNEL void answer(std::uint64_t request, std::uint64_t reply, std::uint32_t last) {
  for (std::uint32_t wanted = 1; wanted <= last; ++wanted) {
    while (load_acquire<std::uint32_t>(request) != wanted) pause(100);
    store_release<std::uint32_t>(reply, wanted * 3);
  }
}
PL_EXPORT_KERNEL(answer)

PL_KERNEL void count_threads(std::uint64_t counter) { atomic_add<std::uint32_t>(counter, 1); }
PL_EXPORT_KERNEL(count_threads)

// Copies n vectors of 16 bytes.
PL_KERNEL void copy_vectors(void* destination, const void* source, std::uint64_t n) {
  const std::uint64_t step = std::uint64_t{grid_dim_x()} * block_dim_x();
  for (std::uint64_t i = block_x() * block_dim_x() + thread_x(); i < n; i += step)
    store_vec16(static_cast<char*>(destination) + 16 * i, load_vec16(static_cast<const char*>(source) + 16 * i));
  fence_system();
}
PL_EXPORT_KERNEL(copy_vectors)

// The sum of n words: many loads, one store.
PL_KERNEL void sum_words(std::uint64_t out, std::uint64_t words, std::uint64_t n) {
  std::uint32_t sum = 0;
  for (std::uint64_t i = thread_x(); i < n; i += block_dim_x()) sum += load_relaxed<std::uint32_t>(words + 4 * i);
  atomic_add<std::uint32_t>(out, sum);
}
PL_EXPORT_KERNEL(sum_words)

PL_KERNEL void write_word(std::uint64_t address, std::uint64_t value) { store_relaxed<std::uint64_t>(address, value); }
PL_EXPORT_KERNEL(write_word)

// Every width, and both clocks.
PL_KERNEL void widths(std::uint64_t destination, std::uint64_t source) {
  const std::uint64_t before = global_timer_ns();
  const std::uint64_t cycles = clock_cycles();
  store_release<std::uint8_t>(destination, load_acquire<std::uint8_t>(source));
  store_relaxed<std::uint16_t>(destination + 2, load_relaxed<std::uint16_t>(source + 2));
  store_release<std::uint32_t>(destination + 4, load_acquire<std::uint32_t>(source + 4));
  store_relaxed<double>(destination + 8, load_relaxed<double>(source + 8));
  fence_device();
  if (global_timer_ns() >= before && clock_cycles() >= cycles) atomic_add<std::uint64_t>(destination + 16, 1);
}
PL_EXPORT_KERNEL(widths)

PL_KERNEL void spin_for_ever(std::uint64_t flag) {
  while (load_acquire<std::uint32_t>(flag) == 0) pause(1000);
}
PL_EXPORT_KERNEL(spin_for_ever)

// Words and vectors to a multicast address.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
PL_KERNEL void store_everywhere(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t offset = 0; offset + 16 <= bytes; offset += 16)
    store_multicast_vec16(address + offset, {offset, ~offset});
  store_multicast(address, 0xfeedu);
}
PL_EXPORT_KERNEL(store_everywhere)
#endif
// Every thread stores `value` to its word of `data`, then thread 0 to `flag`. `how` leaves out what the order needs:
// 0 nothing; 1 the barrier; 2 the fence and the release; 3 only the fence (the release is enough); 4 the fence has the
// device's scope and the store is relaxed.
PL_KERNEL void publish(std::uint64_t data, std::uint64_t flag, std::uint64_t value, unsigned mode) {
  store_relaxed<std::uint64_t>(data + 8 * thread_x(), value);
  if (mode != 1) sync_threads();
  if (thread_x() != 0) return;
  if (mode < 2) fence_system();
  if (mode == 4) fence_device();
  if (mode == 2 || mode == 4) store_relaxed<std::uint64_t>(flag, value);
  else store_release<std::uint64_t>(flag, value);
}
PL_EXPORT_KERNEL(publish)

PL_KERNEL void add_ones(std::uint64_t word, unsigned times, unsigned is_atomic) {
  for (unsigned i = 0; i < times; ++i) {
    if (is_atomic != 0) atomic_add<std::uint64_t>(word, 1);
    else store_relaxed<std::uint64_t>(word, load_relaxed<std::uint64_t>(word) + 1);
  }
}
PL_EXPORT_KERNEL(add_ones)

#if !defined(__CUDACC__)
// The end of a pass of a graph's loop: adds `step` to `counter` and goes on until it has come to `last`.
PL_KERNEL void count_passes(std::uint64_t condition, std::uint64_t counter, std::uint64_t step, std::uint64_t last) {
  const std::uint64_t now = atomic_add<std::uint64_t>(counter, step) + step;
  set_graph_condition(condition, now < last ? 1 : 0);
}
PL_EXPORT_KERNEL(count_passes)
#endif
