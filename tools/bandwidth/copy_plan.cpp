// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/copy_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMaxCopies = 1'000'000;  // of one sample, however short a copy is
constexpr std::uint64_t kLongCopyBytes = 64u << 20;

std::uint64_t wanted(const bound_transfer& transfer, const method& settings) {
  return std::max(1u, transfer.copies != 0 ? transfer.copies : settings.copies);
}

bool is_fixed(const bound_transfer& transfer, const method& settings) {
  return transfer.copies != 0 || (settings.min_sample_ns == 0 && !settings.balance);
}

}  // namespace

std::vector<std::uint64_t> wanted_copies(std::span<const bound_transfer> transfers, const method& settings) {
  std::vector<std::uint64_t> out;
  for (const auto& one : transfers) out.push_back(wanted(one, settings));
  return out;
}

bool needs_probe(std::span<const bound_transfer> transfers, const method& settings) {
  const bool is_raised = settings.min_sample_ns != 0;
  const bool is_balanced = settings.balance && transfers.size() > 1;
  return (is_raised || is_balanced) &&
         std::any_of(transfers.begin(), transfers.end(), [&](const auto& one) { return !is_fixed(one, settings); });
}

std::uint64_t probe_copies(const bound_transfer& transfer, const method& settings) {
  const std::uint64_t most = transfer.bytes >= kLongCopyBytes ? 2 : 16;
  return std::min(most, wanted(transfer, settings));
}

std::vector<std::uint64_t> balanced_copies(std::span<const bound_transfer> transfers, const method& settings,
                                           std::span<const double> copy_ns) {
  auto out = wanted_copies(transfers, settings);
  double sample_ns = 0;  // as long as the slowest transfer needs for what was asked
  for (std::size_t i = 0; i < out.size(); ++i)
    if (transfers[i].measured || transfers.size() == 1)
      sample_ns = std::max(sample_ns, copy_ns[i] * static_cast<double>(out[i]));
  const double least_ns = static_cast<double>(settings.min_sample_ns);
  const double raise = sample_ns > 0 && sample_ns < least_ns ? least_ns / sample_ns : 1;
  sample_ns = std::max(sample_ns, least_ns);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (is_fixed(transfers[i], settings) || copy_ns[i] <= 0) continue;
    double copies = static_cast<double>(out[i]) * raise;
    // Interference must last as long as the transfer that it disturbs.
    if (settings.balance && transfers.size() > 1)
      copies = transfers[i].measured ? std::round(sample_ns / copy_ns[i]) : std::ceil(sample_ns / copy_ns[i]);
    else copies = std::ceil(copies);
    out[i] = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::min(copies, 1e15)), 1, kMaxCopies);
  }
  return out;
}

double copies_until(std::span<const double> ended_ns, std::uint64_t step, std::uint64_t copies, double ns) {
  double before_ns = 0;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < ended_ns.size(); ++i) {
    const std::uint64_t now = i + 1 == ended_ns.size() ? copies : (i + 1) * step;
    if (ended_ns[i] > ns)
      return static_cast<double>(before) + static_cast<double>(now - before) * (ns - before_ns) / (ended_ns[i] - before_ns);
    before = now;
    before_ns = ended_ns[i];
  }
  return static_cast<double>(copies);
}

time_span common_span(std::span<const double> start_ns, std::span<const double> own_ns) {
  time_span out{0, std::numeric_limits<double>::infinity()};
  for (std::size_t i = 0; i < start_ns.size(); ++i) {
    out.from_ns = std::max(out.from_ns, start_ns[i]);
    out.to_ns = std::min(out.to_ns, start_ns[i] + own_ns[i]);
  }
  return out;
}

std::uint64_t windows_for(std::span<const bound_transfer> transfers, const method& settings,
                          std::span<const std::uint64_t> copies) {
  const std::uint64_t room =
      std::max<std::uint64_t>(1, kMaxQueued - std::min<std::uint64_t>(settings.warm_up, kMaxQueued - 1));
  std::uint64_t windows = 1;
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (transfers[i].executor.kind == executor_kind::ce) windows = std::max(windows, (copies[i] + room - 1) / room);
  return windows;
}

}  // namespace pl::bandwidth
