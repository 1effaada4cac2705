// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/settings.hpp"

#include <algorithm>

namespace pl::p2p {

const char* to_string(arm kind) {
  switch (kind) {
    case arm::ours:
      return "ours";
    case arm::ucx:
      return "ucx";
    case arm::mpi:
      return "mpi";
    case arm::shim:
      return "shim";
    case arm::nccl:
      return "nccl";
  }
  return "?";
}

namespace {

repetition default_repetition(benchmark kind, bool is_large) {
  if (is_collective(kind)) return is_large ? repetition{100, 10} : repetition{1000, 100};
  if (is_latency(kind)) return is_large ? repetition{1000, 10} : repetition{10000, 100};
  return is_large ? repetition{20, 2} : repetition{100, 10};
}

}  // namespace

repetition repetition_at(const settings& asked, std::size_t size_bytes) {
  // osu_mbw_mr alone keeps its iterations at every size.
  const bool large = size_bytes > kLargeMessageBytes && asked.kind != benchmark::multi_bandwidth;
  repetition out = default_repetition(asked.kind, large);
  out.iterations = asked.iterations.value_or(out.iterations);
  out.warm_up = asked.warm_up.value_or(out.warm_up);
  return out;
}

std::vector<std::size_t> sizes_of(const settings& asked) {
  // A message of no element has no datatype, so the newer versions start at 1; NCCL sends nothing then.
  const bool has_empty = asked.format == osu_format::v7_0 && !asked.asks_for(arm::nccl);
  if (asked.kind == benchmark::barrier) return {0};
  if (is_atomic(asked.kind)) return {sizeof(std::uint64_t)};
  const std::size_t least = has_elements(asked.kind) ? sizeof(float) : 1;
  const std::size_t smallest = is_collective(asked.kind)                                          ? least
                               : is_latency(asked.kind) && !is_one_sided(asked.kind) && has_empty ? 0
                                                                                                  : 1;
  std::vector<std::size_t> sizes;
  for (std::size_t size = asked.min_bytes.value_or(std::min(smallest, asked.max_bytes)); size <= asked.max_bytes;
       size = size == 0 ? 1 : size * 2)
    sizes.push_back(size);
  return sizes;
}

}  // namespace pl::p2p
