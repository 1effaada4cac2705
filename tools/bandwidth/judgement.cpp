// SPDX-License-Identifier: Apache-2.0
// judge(): compares a value with what the link should carry, and names the evidence that explains a difference. The reasons
// are tried in an order from "this link" to "this run"; the first that fits is reported, because the others may be its
// consequences.
#include "tools/bandwidth/judgement.hpp"

#include <algorithm>
#include <functional>

#include "base/text.hpp"
#include "cuda/nvml_abi.hpp"
#include "tools/bandwidth/expectation.hpp"
#include "tools/bandwidth/pcie_rate.hpp"

namespace pl::bandwidth {
namespace {

constexpr double kFasterThanLink = 1.15;
constexpr double kAnyLonger = 1.02;               // a value that much above a link's raw rate did not cross it
constexpr double kUnsteady = 0.05;                // coefficient of variation
constexpr double kStartUpMatters = 0.10;          // share of a copy's time
constexpr std::uint64_t kSmallBar1 = 1ull << 30;  // windows of less have to be moved about

struct case_at_hand {
  double value;
  const expectation& expected;
  const transfer_path& path;
  const measurement_context& known;
  std::optional<crossed_link> crossed;  // nothing for latencies that cross none
  std::vector<int> gpus;                // whose links and condition matter
  bool is_bandwidth() const { return path.measured_quantity == transfer_path::quantity::bandwidth; }
  // The state read right after the load, if any: an idle link trains down, which says nothing.
  const machine_links* now() const { return known.after != nullptr ? known.after : known.before; }
};

using slow_reason = std::optional<std::string>;

const gpu_link_facts* facts_of_known(const machine_links* links, int gpu) {
  return links != nullptr && gpu >= 0 && static_cast<std::size_t>(gpu) < links->gpus.size()
             ? &links->gpus[static_cast<std::size_t>(gpu)]
             : nullptr;
}

// The first GPU of the case for which `check` gives a reason.
slow_reason of_any_gpu(const case_at_hand& c, const std::function<slow_reason(int, const gpu_link_facts&)>& check) {
  for (const int gpu : c.gpus)
    if (const auto* facts = facts_of_known(c.now(), gpu))
      if (auto found = check(gpu, *facts)) return found;
  return std::nullopt;
}

bool crosses_pcie(const case_at_hand& c) { return c.crossed && is_pcie(c.crossed->kind); }

// Whether a link of that raw rate can carry this value.
bool could_cross(const case_at_hand& c, double raw) {
  if (!c.is_bandwidth()) return true;
  return c.value <= raw * kAnyLonger * (c.path.is_sum_of_both ? 2 : 1);
}

slow_reason trained_down(const case_at_hand& c) {
  if (!crosses_pcie(c)) return std::nullopt;
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& facts) -> slow_reason {
    const double now = pcie_raw_gb_per_s(facts.pcie_generation_now, facts.pcie_width_now);
    if (now <= 0 || now >= pcie_raw_gb_per_s(facts.pcie_generation_max, facts.pcie_width_max)) return std::nullopt;
    if (!could_cross(c, now)) return std::nullopt;
    return format(
        "link of GPU %d trained down: %s of %s, at most %.1f GB/s raw; reseat the board or its riser, compare the "
        "slot's setting in the firmware, look for PCIe errors (dmesg, lspci -vv)",
        gpu, pcie_text(facts.pcie_generation_now, facts.pcie_width_now).c_str(),
        pcie_text(facts.pcie_generation_max, facts.pcie_width_max).c_str(), now);
  });
}

slow_reason narrow_uplink(const case_at_hand& c) {
  if (!crosses_pcie(c)) return std::nullopt;
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& facts) -> slow_reason {
    const double uplink = pcie_raw_gb_per_s(facts.uplink_generation, facts.uplink_width);
    const double own = pcie_raw_gb_per_s(facts.pcie_generation_max, facts.pcie_width_max);
    if (uplink <= 0 || uplink >= own || !could_cross(c, uplink)) return std::nullopt;
    return format(
        "bridge %s above GPU %d has a narrower link, %s (%.1f GB/s raw): use a slot whose path to the CPU is as wide "
        "as the GPU's link, or expect this rate",
        facts.uplink_bus_id.c_str(), gpu, pcie_text(facts.uplink_generation, facts.uplink_width).c_str(), uplink);
  });
}

slow_reason wrong_numa_node(const case_at_hand& c) {
  const bool has_host = c.path.source.type == place::kind::host || c.path.destination.type == place::kind::host;
  if (!has_host || c.known.host_node < 0) return std::nullopt;
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& facts) -> slow_reason {
    if (facts.numa_node < 0 || facts.numa_node == c.known.host_node) return std::nullopt;
    return format(
        "wrong NUMA node: the host memory is on node %d, GPU %d is at node %d and the data crosses the socket "
        "interconnect; leave placement to the tool (no --disableAffinity) or allocate on node %d",
        c.known.host_node, gpu, facts.numa_node, facts.numa_node);
  });
}

slow_reason nvlinks_missing(const case_at_hand& c) {
  if (!c.crossed || c.crossed->kind != traffic::peer_nvlink) return std::nullopt;
  return of_any_gpu(c, [](int gpu, const gpu_link_facts& facts) -> slow_reason {
    if (facts.nvlinks_active >= facts.nvlinks_total || !facts.nvlinks_to_gpu.empty()) return std::nullopt;
    return format("NVLinks missing: GPU %d has %u of %u active; see nvidia-smi nvlink -s and the fabric manager's log", gpu,
                  facts.nvlinks_active, facts.nvlinks_total);
  });
}

std::string throttle_words(std::uint64_t bits) {
  namespace cause = nvml::throttle;
  if ((bits & (cause::hardware_thermal | cause::software_thermal)) != 0)
    return "too hot (thermal slowdown): check fans, air flow and nvidia-smi -q -d TEMPERATURE";
  if ((bits & cause::power_brake) != 0) return "the machine asserts power brake: check its power supplies";
  if ((bits & cause::hardware_slowdown) != 0) return "hardware slowdown (heat or power): nvidia-smi -q -d PERFORMANCE";
  if ((bits & cause::power_cap) != 0) return "power cap: nvidia-smi -q -d POWER, raise the limit with -pl";
  if ((bits & cause::sync_boost) != 0) return "held to another GPU's clocks (sync boost)";
  return "";
}

slow_reason clocks_throttled(const case_at_hand& c) {
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& facts) -> slow_reason {
    const std::string words = throttle_words(facts.throttle_reasons);
    if (!words.empty()) return format("clocks of GPU %d are throttled: %s", gpu, words.c_str());
    const bool uses_memory = c.crossed && c.crossed->kind == traffic::local_copy;
    if (uses_memory && facts.memory_clock_mhz != 0 && facts.memory_clock_mhz < facts.memory_clock_max_mhz)
      return format("memory of GPU %d runs at %u of %u MHz: nvidia-smi -q -d CLOCK, reset with nvidia-smi -rmc", gpu,
                    facts.memory_clock_mhz, facts.memory_clock_max_mhz);
    return std::nullopt;
  });
}

// Counters that rose between the two readings.
slow_reason errors_rose(const case_at_hand& c) {
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& after) -> slow_reason {
    const auto* before = facts_of_known(c.known.before, gpu);
    if (c.known.after == nullptr || before == nullptr) return std::nullopt;
    const auto rise = [](std::uint64_t now, std::uint64_t earlier) {
      return now > earlier ? static_cast<unsigned long long>(now - earlier) : 0ull;
    };
    if (const auto count = rise(after.pcie_replays, before->pcie_replays); count != 0 && crosses_pcie(c))
      return format("GPU %d sent %llu PCIe packets again (replay counter): a bad contact or riser; reseat the board", gpu,
                    count);
    if (const auto count = rise(after.pcie_corrected, before->pcie_corrected); count != 0 && crosses_pcie(c))
      return format("%llu corrected PCIe errors at GPU %d (AER): a bad contact or riser; see dmesg", count, gpu);
    if (const auto count = rise(after.ecc_uncorrected, before->ecc_uncorrected); count != 0)
      return format("%llu uncorrected memory errors (ECC) on GPU %d: nvidia-smi -q -d ECC; take it out of service", count,
                    gpu);
    return std::nullopt;
  });
}

slow_reason small_bar1(const case_at_hand& c) {
  if (c.path.executor.kind != executor_kind::bar) return std::nullopt;
  return of_any_gpu(c, [](int gpu, const gpu_link_facts& facts) -> slow_reason {
    if (facts.bar1_bytes == 0 || facts.bar1_bytes >= kSmallBar1) return std::nullopt;
    return format(
        "BAR1 of GPU %d is %s: only a part of its memory is mapped at a time; enable Resizable BAR and Above 4G "
        "Decoding in the firmware",
        gpu, format_size(facts.bar1_bytes).c_str());
  });
}

slow_reason translated(const case_at_hand& c) {
  if (!c.crossed || c.crossed->kind != traffic::peer_pcie) return std::nullopt;
  return of_any_gpu(c, [](int gpu, const gpu_link_facts& facts) -> slow_reason {
    if (facts.acs_redirect)
      return format(
          "ACS sends the packets of GPU %d up to the root complex and back: switch ACS off on the bridges above it, "
          "unless a virtual machine needs it",
          gpu);
    if (facts.behind_iommu) return format("the IOMMU translates what GPU %d sends to its peers: boot with iommu=pt", gpu);
    return std::nullopt;
  });
}

slow_reason others_there(const case_at_hand& c) {
  return of_any_gpu(c, [](int gpu, const gpu_link_facts& facts) -> slow_reason {
    if (facts.other_processes == 0) return std::nullopt;
    return format("%u other process%s on GPU %d: run again when it is idle (nvidia-smi)", facts.other_processes,
                  facts.other_processes == 1 ? "" : "es", gpu);
  });
}

// In the format of -b: "512K", "16M".
std::string option_size(std::uint64_t bytes) {
  const char* unit = "KMG";
  std::uint64_t count = std::max<std::uint64_t>(bytes >> 10, 1);
  while (count >= 1024 && count % 1024 == 0 && unit[1] != 0) count /= 1024, ++unit;
  return format("%llu%c", static_cast<unsigned long long>(count), *unit);
}

slow_reason small_buffer(const case_at_hand& c) {
  if (!c.is_bandwidth() || !c.crossed || c.path.bytes == 0 || c.expected.value <= 0) return std::nullopt;
  const double start_up = start_up_us(c.path.executor.kind, c.crossed->kind);
  const double moving_us = static_cast<double>(c.path.bytes) / c.expected.value / 1e3;
  if (start_up < kStartUpMatters * (start_up + moving_us)) return std::nullopt;
  const auto enough = enough_bytes(start_up, c.expected.value);
  return format("buffer of %s: start-up of %.3g us %s; use -b %s or more", format_size(c.path.bytes).c_str(), start_up,
                start_up > moving_us ? "dominates" : "counts", option_size(enough).c_str());
}

// Not a reason in the link: the machine's other work was measured too.
std::string varied_words(const measurement_context& known) {
  return format(
      "varied, host busy: samples vary by %.0f %%%s, so something else uses the machine; run again when it is idle, "
      "with more samples (-i)",
      known.coefficient_of_variation * 100,
      known.attempts > 1 ? format(" in the last of %u runs", known.attempts).c_str() : "");
}

slow_reason shared_uplink(const case_at_hand& c) {
  if (!crosses_pcie(c) || !c.is_bandwidth()) return std::nullopt;
  return of_any_gpu(c, [&](int gpu, const gpu_link_facts& facts) -> slow_reason {
    for (std::size_t other = 0; !facts.uplink_bus_id.empty() && other < c.now()->gpus.size(); ++other)
      if (static_cast<int>(other) != gpu && c.now()->gpus[other].uplink_bus_id == facts.uplink_bus_id)
        return format(
            "GPU %d shares the uplink %s with GPU %zu: together they have one link's rate; test them one at a time", gpu,
            facts.uplink_bus_id.c_str(), other);
    return std::nullopt;
  });
}

// Tried last: each link may be fine while the host cannot feed all of them.
slow_reason shared_host(const case_at_hand& c) {
  if (!crosses_pcie(c) || !c.is_bandwidth() || c.path.gpus_at_host < 2) return std::nullopt;
  return format(
      "%u GPUs use the host's memory at once, some %.0f GB/s together: memory, a switch or the link between sockets "
      "gives out before the GPUs' links do; compare the test with one GPU at a time",
      c.path.gpus_at_host, c.value * c.path.gpus_at_host);
}

std::string unexplained(const case_at_hand& c) {
  std::string next = "run it alone and with a larger buffer, then compare another GPU and `peerlane doctor`";
  if (!c.is_bandwidth()) next = "run it again on an idle machine; compare another GPU";
  else if (!c.crossed || c.crossed->kind == traffic::local_copy)
    next = "compare another GPU, and nvidia-smi -q -d CLOCK,ECC";
  else if (c.crossed->kind == traffic::peer_nvlink) next = "see nvidia-smi nvlink -e for link errors; compare other pairs";
  else if (c.path.executor.kind == executor_kind::bar)
    next = "pin the thread near the GPU (--cpu); compare copy engines (ce)";
  return format(
      "unexplained: %s should give %s; %s", c.expected.limited_by.c_str(),
      c.is_bandwidth() ? format("%.3g GB/s", c.expected.value).c_str() : format("%.0f ns", c.expected.value).c_str(),
      next.c_str());
}

slow_reason find_reason(const case_at_hand& c) {
  constexpr slow_reason (*kAll[])(const case_at_hand&) = {
      trained_down, narrow_uplink, wrong_numa_node, nvlinks_missing, clocks_throttled, errors_rose,
      small_bar1,   translated,    others_there,    small_buffer,    shared_uplink,    shared_host,
  };
  for (const auto check : kAll)
    if (auto found = check(c)) return found;
  return std::nullopt;
}

std::string why_too_fast(const case_at_hand& c) {
  const auto* facts = c.crossed ? facts_of_known(c.now(), c.crossed->gpu) : nullptr;
  if (c.crossed && c.crossed->kind == traffic::local_copy && facts != nullptr && c.path.bytes <= facts->l2_bytes)
    return format("faster than the memory: %s fits the L2 cache (%s); use a larger buffer (-b)",
                  format_size(c.path.bytes).c_str(), format_size(facts->l2_bytes).c_str());
  return format(
      "faster than the link (%.3g GB/s raw): data did not cross it, or the link facts are wrong; compare lspci -vv "
      "and nvidia-smi -q",
      c.expected.limit);
}

std::vector<int> gpus_of(const transfer_path& path) {
  std::vector<int> out;
  for (const auto& end : {path.source, path.destination})
    if (end.type == place::kind::gpu && std::find(out.begin(), out.end(), end.index) == out.end()) out.push_back(end.index);
  if (std::find(out.begin(), out.end(), path.executor.gpu) == out.end()) out.push_back(path.executor.gpu);
  return out;
}

// A chase names one end; the loading side is the other.
std::optional<crossed_link> link_of(const machine_links& links, const transfer_path& path) {
  if (path.measured_quantity == transfer_path::quantity::bandwidth || path.executor.kind == executor_kind::bar)
    return find_crossed_link(links, path);
  transfer_path load = path;
  load.destination = gpu_place(path.executor.gpu);
  return find_crossed_link(links, load);
}

}  // namespace

const char* to_string(verdict_level level) {
  switch (level) {
    case verdict_level::good:
      return "good";
    case verdict_level::low:
      return "low";
    case verdict_level::suspicious:
      return "suspicious";
  }
  return "?";
}

verdict judge(double value, const expectation& expected, const transfer_path& path, const measurement_context& known,
              const thresholds& limits) {
  case_at_hand c{value, expected, path, known, std::nullopt, gpus_of(path)};
  if (c.now() != nullptr) c.crossed = link_of(*c.now(), path);
  verdict out;
  if (!(value > 0) || expected.value <= 0) {
    out.level = verdict_level::suspicious;
    out.reason = "no value: nothing was measured, or no time passed";
    return out;
  }
  out.ratio = c.is_bandwidth() ? value / expected.value : expected.value / value;
  if (c.is_bandwidth() && expected.limit > 0 && value > kFasterThanLink * expected.limit) {
    out.level = verdict_level::suspicious;
    out.reason = why_too_fast(c);
    return out;
  }
  if (out.ratio >= limits.good) return out;
  const auto found = find_reason(c);
  if (!found && c.is_bandwidth() && known.coefficient_of_variation > kUnsteady) {
    out.level = verdict_level::suspicious;
    out.is_varied = true;
    out.reason = varied_words(known);
    return out;
  }
  out.level = found || out.ratio >= limits.suspicious ? verdict_level::low : verdict_level::suspicious;
  out.reason = found ? *found : unexplained(c);
  return out;
}

}  // namespace pl::bandwidth
