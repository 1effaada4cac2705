// SPDX-License-Identifier: Apache-2.0
// out[i] = first[i] op second[i], for collectives that the CPU drives. `out` may be one of the two.
#include "collectives/kernels/element_numbers.cuh"

using namespace pl::dev;
using namespace pl::collectives;

namespace {

template <class Numbers>
PL_DEVICE void combine_all(unsigned op, std::uint64_t first, std::uint64_t second, std::uint64_t out, std::uint64_t bytes) {
  using bits = typename Numbers::bits;
  constexpr unsigned kTogether = sizeof(bits) == 1 ? 2 : 4;  // vectors of a thread whose loads are under way at once
  const bool is_aligned = (first | second | out) % 16 == 0;
  const std::uint64_t stride = std::uint64_t{block_dim_x()} * grid_dim_x() * 16;
  PL_NO_UNROLL
  for (std::uint64_t begin = (std::uint64_t{block_x()} * block_dim_x() + thread_x()) * 16; begin < bytes;
       begin += kTogether * stride) {
    vec16 left[kTogether] = {}, right[kTogether] = {};
    for (unsigned u = 0; u < kTogether; ++u) {
      const std::uint64_t offset = begin + u * stride;
      if (offset >= bytes) continue;
      left[u] = load_part<bits>(is_aligned, first, offset, bytes);
      right[u] = load_part<bits>(is_aligned, second, offset, bytes);
    }
    for (unsigned u = 0; u < kTogether; ++u) {
      const std::uint64_t offset = begin + u * stride;
      if (offset >= bytes) continue;
      vector_values<Numbers> values;
      values.set(left[u]);
      values.combine(op, right[u]);
      store_part<bits>(is_aligned, out, offset, bytes, values.vector());
    }
  }
}

}  // namespace

#define PL_COMBINATION(type)                                                                                            \
  PL_BOUND_KERNEL(512)                                                                                                  \
  combine_##type(std::uint32_t op, std::uint64_t first, std::uint64_t second, std::uint64_t out, std::uint64_t bytes) { \
    combine_all<type##_numbers>(op, first, second, out, bytes);                                                         \
  }                                                                                                                     \
  PL_EXPORT_KERNEL(combine_##type)
PL_FOR_EACH_ELEMENT(PL_COMBINATION)
#undef PL_COMBINATION
