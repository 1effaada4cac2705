// SPDX-License-Identifier: Apache-2.0
// expect(): the raw rate of the narrowest link, the payload that its protocol leaves, and the executor's share of it.
#include "tools/bandwidth/expectation.hpp"

#include <algorithm>
#include <bit>

#include "base/text.hpp"
#include "tools/bandwidth/pcie_rate.hpp"

namespace pl::bandwidth {
namespace {

constexpr unsigned kStorePayloadBytes = 64;  // write combining buffers of a CPU
// Both directions of NVLink busy: requests and acknowledgements share them. docs/results/bandwidth/h200x2: 389-392 of
// 394-396 GB/s (copy engines), 338-366 of 370-376 (kernels).
constexpr double kNvlinkDuplex = 0.985;

bool is_gpu(const place& location) { return location.type == place::kind::gpu; }

const gpu_link_facts* facts_of(const machine_links& links, int gpu) {
  return gpu >= 0 && static_cast<std::size_t>(gpu) < links.gpus.size() ? &links.gpus[static_cast<std::size_t>(gpu)]
                                                                       : nullptr;
}

unsigned direct_links(const gpu_link_facts& source, int destination) {
  const auto found = source.nvlinks_to_gpu.find(destination);
  return found == source.nvlinks_to_gpu.end() ? 0 : found->second;
}

// A direct link; or both GPUs have links to an unknown device: a switch.
bool has_nvlink(const machine_links& links, int a, int b) {
  const auto& first = *facts_of(links, a);
  const auto& second = *facts_of(links, b);
  if (first.nvlinks_active == 0 || second.nvlinks_active == 0) return false;
  return direct_links(first, b) != 0 || (first.nvlinks_to_gpu.empty() && second.nvlinks_to_gpu.empty());
}

// The number of direct links is the number wired. Behind a switch all links of a board should be up.
unsigned nvlinks_between(const machine_links& links, int a, int b) {
  const auto& first = *facts_of(links, a);
  if (const unsigned direct = direct_links(first, b)) return direct;
  return std::min(first.nvlinks_total, facts_of(links, b)->nvlinks_total);
}

double memory_rate(const gpu_link_facts& gpu) {
  const unsigned mhz = std::max(gpu.memory_clock_max_mhz, gpu.memory_clock_mhz);
  return gpu.memory_bus_bits / 8.0 * mhz * 2 / 1000;  // two transfers a clock
}

double pcie_rate_of(const gpu_link_facts& gpu) { return pcie_raw_gb_per_s(gpu.pcie_generation_max, gpu.pcie_width_max); }

unsigned generation_of(const machine_links& links, const crossed_link& crossed) {
  const auto& gpu = *facts_of(links, crossed.gpu);
  if (crossed.kind == traffic::peer_nvlink) return gpu.nvlink_version;
  return is_pcie(crossed.kind) ? gpu.pcie_generation_max : 0;
}

// The part of the raw rate that the protocol leaves for payload.
double payload_rate(const machine_links& links, const crossed_link& crossed, executor_kind kind) {
  const double raw = raw_rate(links, crossed);
  const auto& gpu = *facts_of(links, crossed.gpu);
  const unsigned generation = gpu.pcie_generation_max;
  if (!is_pcie(crossed.kind)) return raw;
  if (kind == executor_kind::bar) return raw * pcie_write_efficiency(generation, kStorePayloadBytes);
  if (crossed.kind == traffic::host_to_gpu) return raw * pcie_completion_efficiency(generation, gpu.pcie_payload_bytes);
  return raw * pcie_write_efficiency(generation, gpu.pcie_payload_bytes);
}

double reached(const efficiency_line& line, double raw, double payload) {
  switch (line.basis) {
    case efficiency_line::unit::of_payload:
      return line.value * payload;
    case efficiency_line::unit::of_raw:
      return line.value * raw;
    case efficiency_line::unit::gb_per_s:
      return std::min(line.value, payload);
  }
  return 0;
}

struct one_direction {
  double value = 0;
  const efficiency_line* line = nullptr;
};

std::optional<one_direction> expect_direction(const machine_links& links, const crossed_link& crossed,
                                              const transfer_path& path) {
  const bool is_pageable = (!is_gpu(path.source) && path.source.host == host_kind::pageable) ||
                           (!is_gpu(path.destination) && path.destination.host == host_kind::pageable);
  const auto* line = find_efficiency(path.executor, crossed.kind, generation_of(links, crossed), is_pageable);
  if (line == nullptr) return std::nullopt;
  double value = reached(*line, raw_rate(links, crossed), payload_rate(links, crossed, path.executor.kind));
  if (crossed.kind == traffic::local_copy && line->basis != efficiency_line::unit::gb_per_s) value /= 2;  // read and written
  return one_direction{value, line};
}

std::optional<expectation> expect_latency(const machine_links& links, const transfer_path& path) {
  using access_kind = latency_line::access;
  std::optional<access_kind> memory_access;
  if (path.executor.kind == executor_kind::bar) {
    memory_access = is_gpu(path.source) ? access_kind::bar_load : access_kind::bar_store;
  } else if (path.executor.kind == executor_kind::sm && !is_gpu(path.source)) {
    memory_access = access_kind::host;
  } else if (path.executor.kind == executor_kind::sm && path.source.index != path.executor.gpu) {
    if (facts_of(links, path.source.index) && has_nvlink(links, path.executor.gpu, path.source.index))
      memory_access = access_kind::peer_nvlink;
  } else if (path.executor.kind == executor_kind::sm) {
    const auto l2_bytes = facts_of(links, path.executor.gpu)->l2_bytes;
    if (l2_bytes != 0) memory_access = path.bytes <= l2_bytes / 2 ? access_kind::l2 : access_kind::device_memory;
  }
  if (!memory_access) return std::nullopt;
  const auto& line = find_latency(*memory_access);
  return expectation{line.usual_ns, 0, line.limited_by, line.source};
}

std::optional<expectation> expect_bandwidth(const machine_links& links, const transfer_path& path) {
  const auto crossed = find_crossed_link(links, path);
  if (!crossed) return std::nullopt;
  // NVLink-C2C is not PCIe, and no measurement covers it.
  if (is_pcie(crossed->kind) && crossed->peer < 0 && facts_of(links, crossed->gpu)->coherent_host) return std::nullopt;
  // A root complex divides its rate freely between busy directions (seen: 35 one way, 51 the other), so the sum is judged.
  if (is_pcie(crossed->kind) && path.opposite_too && !path.is_sum_of_both) return std::nullopt;
  const double raw = raw_rate(links, *crossed);
  const auto expected = expect_direction(links, *crossed, path);
  if (raw <= 0 || !expected) return std::nullopt;
  expectation out;
  out.value = expected->value;
  out.limit = crossed->kind == traffic::local_copy ? raw / 2 : raw;
  out.limited_by = expected->line->limited_by != nullptr ? expected->line->limited_by : describe_link(links, *crossed);
  out.source = expected->line->source;
  if (path.opposite_too || path.is_sum_of_both) out.value *= duplex_factor(links, *crossed, path.executor.kind);
  if (path.is_sum_of_both) {
    transfer_path back = path;
    std::swap(back.source, back.destination);
    const auto other = find_crossed_link(links, back);
    const auto other_direction = other ? expect_direction(links, *other, back) : std::nullopt;
    if (!other_direction) return std::nullopt;
    out.value += other_direction->value * duplex_factor(links, *other, path.executor.kind);
    out.limit *= 2;
  }
  const double sharers = std::max(path.same_direction, 1u);
  out.value /= sharers;
  out.limit /= sharers;
  return out;
}

}  // namespace

bool is_pcie(traffic kind) {
  return kind == traffic::host_to_gpu || kind == traffic::gpu_to_host || kind == traffic::peer_pcie;
}

std::optional<crossed_link> find_crossed_link(const machine_links& links, const transfer_path& path) {
  const bool from_gpu = is_gpu(path.source), to_gpu = is_gpu(path.destination);
  if (!from_gpu && !to_gpu) return std::nullopt;
  const int sender = path.source.index, receiver = path.destination.index;
  if ((from_gpu && !facts_of(links, sender)) || (to_gpu && !facts_of(links, receiver))) return std::nullopt;
  if (!from_gpu) return crossed_link{traffic::host_to_gpu, receiver, -1};
  if (!to_gpu) return crossed_link{traffic::gpu_to_host, sender, -1};
  if (sender == receiver || path.is_local_copy) return crossed_link{traffic::local_copy, sender, -1};
  if (has_nvlink(links, sender, receiver)) return crossed_link{traffic::peer_nvlink, sender, receiver};
  // PCIe: the GPU with the narrower link decides.
  const bool receiver_is_narrower = pcie_rate_of(*facts_of(links, receiver)) < pcie_rate_of(*facts_of(links, sender));
  return receiver_is_narrower ? crossed_link{traffic::peer_pcie, receiver, sender}
                              : crossed_link{traffic::peer_pcie, sender, receiver};
}

// Only the direction that carries the other's requests loses to them. Kernels' loads and stores also wait for each other:
// docs/results/bandwidth, 77.5 of 99 GB/s on H100 and H200; copy engines reached 101.7 of 107 on H200, 89-96 on H100.
double duplex_factor(const machine_links& links, const crossed_link& crossed, executor_kind kind) {
  constexpr double kKernelsBothWays = 0.79, kCopyEnginesBothWays = 0.94;
  if (crossed.kind == traffic::peer_nvlink) return kNvlinkDuplex;
  if (!is_pcie(crossed.kind)) return 1;
  const double left = kind == executor_kind::sm ? kKernelsBothWays : kCopyEnginesBothWays;
  if (crossed.kind != traffic::gpu_to_host) return left;
  return left * (1 - pcie_request_overhead(facts_of(links, crossed.gpu)->pcie_generation_max));
}

double raw_rate(const machine_links& links, const crossed_link& crossed) {
  const auto& gpu = *facts_of(links, crossed.gpu);
  if (crossed.kind == traffic::local_copy) return memory_rate(gpu);
  if (crossed.kind == traffic::peer_nvlink)
    return nvlinks_between(links, crossed.gpu, crossed.peer) * (gpu.nvlink_mbps_each / 1000.0);
  return pcie_rate_of(gpu);
}

std::string describe_link(const machine_links& links, const crossed_link& crossed) {
  const auto& gpu = *facts_of(links, crossed.gpu);
  if (crossed.kind == traffic::local_copy) {
    const unsigned mhz = std::max(gpu.memory_clock_max_mhz, gpu.memory_clock_mhz);
    return format("%s %u bit %u MHz", gpu.memory_bus_bits >= 1024 ? "HBM" : "GDDR", gpu.memory_bus_bits, mhz);
  }
  if (crossed.kind == traffic::peer_nvlink)
    return format("NVLink %u x %u", gpu.nvlink_version, nvlinks_between(links, crossed.gpu, crossed.peer));
  return pcie_text(gpu.pcie_generation_max, gpu.pcie_width_max);
}

std::uint64_t enough_bytes(double start_up, double rate) {
  constexpr double kShare = 0.03;
  const double bytes = start_up * 1e3 * rate / kShare;  // us * GB/s = 1000 bytes
  return std::bit_ceil(static_cast<std::uint64_t>(std::clamp(bytes, 1.0, 1e15)));
}

std::optional<expectation> expect(const machine_links& links, const transfer_path& path) {
  if (!links.has_rates || facts_of(links, path.executor.gpu) == nullptr) return std::nullopt;
  return path.measured_quantity == transfer_path::quantity::latency ? expect_latency(links, path)
                                                                    : expect_bandwidth(links, path);
}

}  // namespace pl::bandwidth
