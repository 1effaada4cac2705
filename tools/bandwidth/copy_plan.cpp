// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/copy_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kMostCopies = 1'000'000;  // of one sample, however short a copy is
constexpr std::uint64_t kLongCopyBytes = 64u << 20;

std::uint64_t wanted(const bound_transfer& what, const method& how) {
  return std::max(1u, what.copies != 0 ? what.copies : how.copies);
}

bool is_fixed(const bound_transfer& what, const method& how) {
  return what.copies != 0 || (how.min_sample_ns == 0 && !how.balance);
}

}  // namespace

std::vector<std::uint64_t> wanted_copies(std::span<const bound_transfer> transfers, const method& how) {
  std::vector<std::uint64_t> out;
  for (const auto& one : transfers) out.push_back(wanted(one, how));
  return out;
}

bool needs_probe(std::span<const bound_transfer> transfers, const method& how) {
  const bool is_raised = how.min_sample_ns != 0;
  const bool is_balanced = how.balance && transfers.size() > 1;
  return (is_raised || is_balanced) &&
         std::any_of(transfers.begin(), transfers.end(), [&](const auto& one) { return !is_fixed(one, how); });
}

std::uint64_t probe_copies(const bound_transfer& what, const method& how) {
  const std::uint64_t most = what.bytes >= kLongCopyBytes ? 2 : 16;
  return std::min(most, wanted(what, how));
}

std::vector<std::uint64_t> balanced_copies(std::span<const bound_transfer> transfers, const method& how,
                                           std::span<const double> copy_ns) {
  auto out = wanted_copies(transfers, how);
  double sample_ns = 0;  // as long as the slowest transfer needs for what was asked
  for (std::size_t i = 0; i < out.size(); ++i)
    if (transfers[i].measured || transfers.size() == 1)
      sample_ns = std::max(sample_ns, copy_ns[i] * static_cast<double>(out[i]));
  const double least_ns = static_cast<double>(how.min_sample_ns);
  const double raise = sample_ns > 0 && sample_ns < least_ns ? least_ns / sample_ns : 1;
  sample_ns = std::max(sample_ns, least_ns);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (is_fixed(transfers[i], how) || copy_ns[i] <= 0) continue;
    double copies = static_cast<double>(out[i]) * raise;
    // Interference must not end before what it disturbs.
    if (how.balance && transfers.size() > 1)
      copies = transfers[i].measured ? std::round(sample_ns / copy_ns[i]) : std::ceil(sample_ns / copy_ns[i]);
    else copies = std::ceil(copies);
    out[i] = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::min(copies, 1e15)), 1, kMostCopies);
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

std::uint64_t windows_for(std::span<const bound_transfer> transfers, const method& how,
                          std::span<const std::uint64_t> copies) {
  const std::uint64_t room = std::max<std::uint64_t>(1, kMostQueued - std::min<std::uint64_t>(how.warm_up, kMostQueued - 1));
  std::uint64_t windows = 1;
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (transfers[i].by.what == executor_kind::ce) windows = std::max(windows, (copies[i] + room - 1) / room);
  return windows;
}

}  // namespace pl::bandwidth
