// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/copy_case.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/text.hpp"

namespace pl::tools {

using copy::direction;
using copy::other_side;

const char* direction_label(const copy_case& test_case) {
  if (test_case.way == direction::to_device) return "h2d";
  if (test_case.way == direction::to_host) return "d2h";
  return test_case.side == other_side::peer_gpu ? "p2p" : "d2d";
}

const char* memory_label(const copy_case& test_case) {
  return test_case.way == direction::on_device ? "device" : copy::name_of(test_case.side);
}

result<std::vector<copy_case>> parse_cases(const std::vector<std::string>& directions,
                                           const std::vector<std::string>& memories) {
  const auto has = [](const std::vector<std::string>& list, const char* name) {
    return list.empty() || std::find(list.begin(), list.end(), "all") != list.end() ||
           std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const auto& one : directions)
    if (one != "h2d" && one != "d2h" && one != "d2d" && one != "p2p" && one != "all")
      return failure{EINVAL, format("--direction: \"%s\" is not one of h2d, d2h, d2d, p2p, all", one.c_str())};
  for (const auto& one : memories)
    if (one != "pinned" && one != "pageable" && one != "all")
      return failure{EINVAL, format("--memory: \"%s\" is not one of pinned, pageable, all", one.c_str())};
  std::vector<copy_case> out;
  for (const auto way : {direction::to_device, direction::to_host})
    for (const auto side : {other_side::pinned, other_side::pageable})
      if (has(directions, way == direction::to_device ? "h2d" : "d2h") && has(memories, copy::name_of(side)))
        out.push_back({way, side});
  if (has(directions, "d2d")) out.push_back({direction::on_device, other_side::same_gpu});
  if (has(directions, "p2p")) out.push_back({direction::on_device, other_side::peer_gpu});
  return out;
}

std::vector<std::uint64_t> sweep_sizes(std::uint64_t least, std::uint64_t most, bool odd) {
  std::vector<std::uint64_t> out{least, most};
  for (std::uint64_t size = 1; size <= most; size *= 2) {
    out.push_back(size);
    if (size > most / 2) break;
  }
  // Not multiples of a cache line, around the ends of the short ways (960, 1000, 5000), and primes of each magnitude.
  if (odd)
    out.insert(out.end(),
               {3, 17, 100, 961, 1000, 3000, 5000, 12345, 40000, 100001, 300007, 1000003, 6000011, 40000003, 300000007});
  std::erase_if(out, [&](std::uint64_t size) { return size < least || size > most || size == 0; });
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool is_wanted(const std::vector<std::string>& wanted, const std::string& name) {
  const std::string method = name.substr(0, name.find(' '));
  return wanted.empty() ||
         std::any_of(wanted.begin(), wanted.end(), [&](const std::string& one) { return one == name || one == method; });
}

bool exceeds_envelope(double planner_ns, double best_ns) {
  return planner_ns - best_ns > std::max(kEnvelopeShare * best_ns, kEnvelopeNs);
}

std::optional<envelope_point> judge(std::span<const measured_method> all, const std::string& planner) {
  envelope_point out;
  bool has_planner = false;
  for (const auto& one : all) {
    if (one.name == planner) {
      out.planner_ns = one.p50_ns;
      has_planner = true;
      continue;
    }
    if (!one.is_single) continue;
    if (out.best_method.empty() || one.p50_ns < out.best_ns) {
      out.best_method = one.name;
      out.best_ns = one.p50_ns;
    }
    if (one.is_ours && (out.best_available.empty() || one.p50_ns < out.best_available_ns)) {
      out.best_available = one.name;
      out.best_available_ns = one.p50_ns;
    }
  }
  if (!has_planner || out.best_method.empty()) return std::nullopt;
  out.ratio = out.best_ns > 0 ? out.planner_ns / out.best_ns : 1;
  out.exceeds = exceeds_envelope(out.planner_ns, out.best_ns);
  return out;
}

interval median_interval(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  // The binomial's 2.5 % quantile, by the normal approximation, rounded outwards; with less than six values there is none.
  const auto from_end = static_cast<std::size_t>(std::max(0.0, std::floor(count / 2 - 0.98 * std::sqrt(count))));
  const std::size_t low = values.size() < 6 || from_end == 0 ? 0 : from_end - 1;
  return {values[low], values[(values.size() - 1) / 2], values[values.size() - 1 - low]};
}

paired_comparison compare_pairs(std::span<const sample_pair> pairs) {
  std::vector<double> planner, best, ratios, beyond;
  for (const auto& one : pairs) {
    planner.push_back(one.planner_ns);
    best.push_back(one.best_ns);
    ratios.push_back(one.best_ns > 0 ? one.planner_ns / one.best_ns : 1);
    beyond.push_back(one.planner_ns - one.best_ns - std::max(kEnvelopeShare * one.best_ns, kEnvelopeNs));
  }
  return {median_interval(planner).middle, median_interval(best).middle, median_interval(ratios),
          !pairs.empty() && median_interval(beyond).low > 0};
}

dominant_method max_taken(const std::uint64_t (&before)[copy::kMethods], const std::uint64_t (&after)[copy::kMethods],
                          const std::uint64_t (&forced)[copy::kMethods]) {
  std::uint64_t most = 0, sum = 0;
  dominant_method out;
  for (std::size_t i = 0; i < copy::kMethods; ++i) {
    const std::uint64_t made = after[i] - before[i];
    const std::uint64_t own = made > forced[i] ? made - forced[i] : 0;
    sum += own;
    if (own <= most) continue;
    most = own;
    out.method = static_cast<copy::method>(i);
  }
  out.share = sum != 0 ? static_cast<double>(most) / static_cast<double>(sum) : 0;
  return out;
}

std::string to_text(const dominant_method& taken, const copy::cost_table& costs, const copy_case& test_case,
                    std::uint64_t bytes) {
  if (taken.share == 0) return "-";
  std::string out = copy::name_of(taken.method);
  constexpr copy::executor kBestFirst[] = {copy::executor::both, copy::executor::channel, copy::executor::kernel,
                                           copy::executor::none};
  for (const auto present : kBestFirst) {
    if (test_case.way == direction::on_device) break;
    if (const auto without_query = costs.pick_without_query(test_case.way, present, bytes);
        without_query.width != 0 && without_query.kind == taken.method)
      return taken.share > 0.98 ? copy::to_text(without_query)
                                : format("%s %.0f %%", copy::to_text(without_query).c_str(), taken.share * 100);
  }
  for (const auto present : kBestFirst)
    if (const auto picked = costs.pick(test_case.way, test_case.side, present, bytes); picked.kind == taken.method) {
      out = copy::to_text(picked);
      break;
    }
  return taken.share > 0.98 ? out : format("%s %.0f %%", out.c_str(), taken.share * 100);
}

}  // namespace pl::tools
