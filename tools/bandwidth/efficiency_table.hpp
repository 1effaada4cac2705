// SPDX-License-Identifier: Apache-2.0
// Measured share of a link's rate that each executor reaches. The only place with such numbers; every line cites its source.
#pragma once

#include "tools/bandwidth/transfer_spec.hpp"

namespace pl::bandwidth {

enum class traffic { host_to_gpu, gpu_to_host, local_copy, peer_pcie, peer_nvlink };

struct efficiency_line {
  executor_kind kind;
  traffic route;
  unsigned generation;                                     // of PCIe or NVLink; 0: every one without a line of its own
  unsigned width;                                          // of the executor, at least
  enum class unit { of_payload, of_raw, gb_per_s } basis;  // share of the link's payload rate, of its raw rate, or a rate
  double value;
  const char* limited_by;  // what limits it other than the link; null: the link
  const char* source;
};

// The best line for this executor (width 0: all there is); null if there is no basis.
const efficiency_line* find_efficiency(const executor& executor, traffic route, unsigned generation, bool is_pageable);

// Time before the first byte moves, for a single copy, in microseconds. Copies in a row overlap part of it.
double start_up_us(executor_kind kind, traffic route);

struct latency_line {
  enum class access { host, l2, device_memory, peer_nvlink, bar_load, bar_store } kind;
  double usual_ns;  // upper end of what is usual
  const char* limited_by;
  const char* source;
};
const latency_line& find_latency(latency_line::access kind);

}  // namespace pl::bandwidth
