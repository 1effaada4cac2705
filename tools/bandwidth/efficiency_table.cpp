// SPDX-License-Identifier: Apache-2.0
// "envelope", "foundation" and "bandwidth" are folders of docs/results: this project's runs on one H100 and two H200,
// PCIe 5 x16, NVLink 4 x 18. "nvbandwidth #n" is an issue of github.com/NVIDIA/nvbandwidth. "assumed" is no measurement.
#include "tools/bandwidth/efficiency_table.hpp"

#include <climits>

namespace pl::bandwidth {
namespace {

using enum executor_kind;
using enum traffic;
using unit = efficiency_line::unit;
using access = latency_line::access;

constexpr efficiency_line kLines[] = {
    // Copy engines. 55.1 (H100) and 55.4 (H200) of 58.4 GB/s payload to the device, 55.1 and 55.4 of 57.6 back.
    {ce, host_to_gpu, 5, 1, unit::of_payload, 0.94, nullptr, "envelope copy_h2d, 1 GiB: 54.9-55.5 GB/s"},
    {ce, gpu_to_host, 5, 1, unit::of_payload, 0.955, nullptr, "envelope copy_d2h, 1 GiB: 55.1-55.4 GB/s"},
    {ce, host_to_gpu, 4, 1, unit::of_payload, 0.87, nullptr, "nvbandwidth #11, #53: A100 25.1-26 GB/s"},
    {ce, gpu_to_host, 4, 1, unit::of_payload, 0.89, nullptr, "assumed: as to the device, nvbandwidth #11, #53"},
    {ce, host_to_gpu, 0, 1, unit::of_payload, 0.87, nullptr, "assumed: as PCIe 4"},
    {ce, gpu_to_host, 0, 1, unit::of_payload, 0.87, nullptr, "assumed: as PCIe 4"},
    {ce, peer_pcie, 0, 1, unit::of_payload, 0.87, nullptr, "assumed: as to the host, PCIe 4"},
    {ce, peer_nvlink, 4, 1, unit::of_raw, 0.826, nullptr, "envelope h200x2/copy_p2p, 1 GiB: 395 GB/s"},
    {ce, peer_nvlink, 3, 1, unit::of_raw, 0.89, nullptr, "nvbandwidth README: 8 x A100, 276 GB/s"},
    {ce, peer_nvlink, 0, 1, unit::of_raw, 0.82, nullptr, "assumed: as NVLink 4"},
    {ce, local_copy, 0, 1, unit::of_raw, 0.86, nullptr,
     "envelope copy_d2d, 1 GiB: 1480 (H100), 2060 GB/s (H200), counted once"},

    // Copy kernels. Reads of host memory wait for tags and credits; writes are posted.
    {sm, host_to_gpu, 5, 8, unit::of_raw, 0.81, nullptr, "bandwidth h200x2: 51.3-51.4 of 63 GB/s"},
    {sm, gpu_to_host, 5, 8, unit::of_raw, 0.83, nullptr, "bandwidth h200x2: 52.2-52.6 of 63 GB/s"},
    {sm, host_to_gpu, 0, 8, unit::of_raw, 0.79, nullptr, "nvbandwidth #42: A100 25.1 of 31.5 GB/s at 1 GiB"},
    {sm, gpu_to_host, 0, 8, unit::of_raw, 0.79, nullptr, "assumed: as to the device, nvbandwidth #42"},
    {sm, peer_nvlink, 0, UINT_MAX, unit::of_raw, 0.78, nullptr, "bandwidth h200x2: 370 written, 376 GB/s read"},
    {sm, local_copy, 0, UINT_MAX, unit::of_raw, 0.82, nullptr, "bandwidth h200x2: 1990 GB/s, counted once"},

    // The resident engine: one worker is one block.
    {engine, host_to_gpu, 0, 1, unit::gb_per_s, 12.0, "one worker's outstanding reads",
     "envelope copy_h2d, 16 MiB: 12.0-12.4 GB/s"},
    {engine, host_to_gpu, 0, 4, unit::gb_per_s, 39.0, "four workers' outstanding reads",
     "bandwidth, 16 MiB one after the other: 37.6-39.7 GB/s; envelope, alone: 45.1-45.5"},
    {engine, host_to_gpu, 0, 8, unit::gb_per_s, 50.3, nullptr, "envelope copy_h2d, 16 MiB: 50.3-50.6 GB/s"},
    {engine, gpu_to_host, 0, 1, unit::gb_per_s, 41.4, "one worker's stores", "envelope copy_d2h, 16 MiB: 41.3-41.6 GB/s"},
    {engine, gpu_to_host, 0, 2, unit::gb_per_s, 51.5, nullptr, "envelope copy_d2h, 16 MiB: 51.6 GB/s"},
    {engine, local_copy, 0, 1, unit::gb_per_s, 35.0, "one worker", "envelope copy_d2d, 16 MiB: 33-35 GB/s"},
    {engine, local_copy, 0, 8, unit::gb_per_s, 245.0, "eight workers", "envelope copy_d2d, 16 MiB: 239-257 GB/s"},

    // The CPU through BAR1. Write combining gives packets of 64 bytes.
    {bar, host_to_gpu, 0, 1, unit::gb_per_s, 8.0, "one CPU thread's stores",
     "foundation copybw: 12.5 (H100), 15.8 GB/s (H200); bandwidth on busier hosts: 8.4-10.4 (H100), 7.9-10.3 (four H200)"},
    {bar, host_to_gpu, 0, 2, unit::gb_per_s, 17.0, "two CPU threads' stores", "envelope copy_h2d: 15-33 GB/s by size"},
    {bar, host_to_gpu, 0, 4, unit::gb_per_s, 32.5, "the CPU's stores over PCIe",
     "envelope copy_h2d, from 1 MiB: 29-33.6 GB/s"},
    {bar, gpu_to_host, 0, 1, unit::gb_per_s, 0.8, "one CPU thread's loads",
     "foundation copybw: 0.74 (H100), 0.89 GB/s (H200)"},
};

// The driver stages pageable memory through buffers of its own: the CPU's copy is the limit.
constexpr efficiency_line kPageable[] = {
    {ce, host_to_gpu, 0, 1, unit::gb_per_s, 10.0, "the driver's staging of pageable memory",
     "envelope copy_h2d, pageable: 9.5-18 GB/s"},
    {ce, gpu_to_host, 0, 1, unit::gb_per_s, 9.0, "the driver's staging of pageable memory",
     "envelope copy_d2h, pageable: 8.3-18 GB/s"},
};

// Usual ranges; those without a run of this project are public microbenchmarks' of A100 and H100, taken wide.
constexpr latency_line kLatencies[] = {
    {access::host, 1200, "round trip over PCIe", "bandwidth h200x2: 1187-1206 ns"},
    {access::l2, 150, "L2 cache", "bandwidth h200x2: 144 ns"},
    {access::device_memory, 400, "device memory", "bandwidth h200x2: 340 ns at 256 MiB"},
    {access::peer_nvlink, 900, "round trip over NVLink", "bandwidth h200x2: 852 ns"},
    {access::bar_load, 1300, "round trip over PCIe", "foundation copylat_alignments: 1020-1120 ns for 4 bytes"},
    {access::bar_store, 200, "the CPU's store until its fence", "foundation copylat: 111-140 ns for 1 byte"},
};

bool fits(const efficiency_line& line, const executor& executor, traffic route, unsigned generation) {
  const unsigned width = executor.width != 0 ? executor.width : executor.kind == executor_kind::sm ? UINT_MAX : 1;
  return line.kind == executor.kind && line.route == route && (line.generation == 0 || line.generation == generation) &&
         line.width <= width;
}

// Loads scale unlike stores, and no measurement says how: the line holds for one thread.
bool has_basis(const executor& executor, traffic route) {
  return executor.kind != bar || route == host_to_gpu || executor.width <= 1;
}

}  // namespace

const efficiency_line* find_efficiency(const executor& executor, traffic route, unsigned generation, bool is_pageable) {
  if (!has_basis(executor, route)) return nullptr;
  // Pinning does not change the CPU's own accesses.
  if (is_pageable && executor.kind != bar) {
    for (const auto& line : kPageable)
      if (fits(line, executor, route, generation)) return &line;
    return nullptr;
  }
  const efficiency_line* best = nullptr;
  for (const auto& line : kLines) {
    if (!fits(line, executor, route, generation)) continue;
    if (best == nullptr || line.generation > best->generation ||
        (line.generation == best->generation && line.width > best->width))
      best = &line;
  }
  return best;
}

// Fixed cost of a copy: envelope, 64 B to 4 KiB.
double start_up_us(executor_kind kind, traffic route) {
  switch (kind) {
    case ce:
      return route == peer_nvlink ? 7.6 : route == local_copy ? 9.3 : 7.0;
    case sm:
    case tma:
    case sm_read:
    case sm_write:
      return 5.0;  // a kernel launch; not measured alone
    case engine:
      return route == gpu_to_host ? 3.8 : 4.7;
    case dma:
      return route == gpu_to_host ? 3.5 : 5.3;  // docs/results/dma, calibration
    case bar:
      return route == host_to_gpu ? 0.14 : 1.1;
  }
  return 0;
}

const latency_line& find_latency(latency_line::access kind) {
  for (const auto& line : kLatencies)
    if (line.kind == kind) return line;
  return kLatencies[0];
}

}  // namespace pl::bandwidth
