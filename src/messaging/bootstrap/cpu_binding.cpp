// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/cpu_binding.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

std::string item_of(const std::string& list, int rank) {
  const auto items = static_cast<std::size_t>(std::count(list.begin(), list.end(), ':')) + 1;
  std::size_t begin = 0;
  for (std::size_t skip = static_cast<std::size_t>(std::max(rank, 0)) % items; skip != 0; --skip)
    begin = list.find(':', begin) + 1;
  return list.substr(begin, list.find(':', begin) - begin);
}

std::string lower(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

}  // namespace

std::string cpu_policy_from_environment() {
  if (const auto own = env_read("PEERLANE_LINK_CPU"); own.is_set) return lower(own.text);
  if (const auto affinity = env_read("MV2_ENABLE_AFFINITY"); affinity.is_set && affinity.integer == 0) return "none";
  if (const auto mapping = env_read("MV2_CPU_MAPPING"); mapping.is_set) return mapping.text;
  const auto policy = env_read("MV2_CPU_BINDING_POLICY");
  if (!policy.is_set) return "";
  // MVAPICH2 ignores case in it. `hybrid` leaves cores for the threads of a rank, near its own part of the machine.
  const std::string word = lower(policy.text);
  return word == "hybrid" ? "near" : word;
}

result<cpu_numbers> cpus_of_policy(const std::string& policy, std::span<const unsigned> near_gpu,
                                   std::span<const unsigned> allowed, rank_on_node position) {
  const cpu_numbers all(allowed.begin(), allowed.end());
  if (policy.empty() || policy == "none" || all.empty()) return all;
  if (policy == "near") return near_gpu.empty() ? all : cpu_numbers(near_gpu.begin(), near_gpu.end());
  const auto rank = static_cast<std::size_t>(std::max(position.rank, 0));
  if (policy == "bunch") return cpu_numbers{all[rank % all.size()]};
  if (policy == "scatter") {
    const auto ranks = position.size > 0 ? static_cast<std::size_t>(position.size) : all.size();
    return cpu_numbers{all[(rank % ranks) * all.size() / ranks % all.size()]};
  }
  auto wanted = parse_cpu_list(item_of(policy, position.rank));
  if (!wanted)
    return failure{EINVAL, format("CPU binding \"%s\": write none, near, bunch, scatter, or CPUs as 0-3,8 (0-3:8-11 for an "
                                  "item each rank of the node)",
                                  policy.c_str())};
  cpu_numbers out;
  std::set_intersection(wanted->begin(), wanted->end(), all.begin(), all.end(), std::back_inserter(out));
  if (out.empty())
    return failure{EINVAL, format("CPU binding \"%s\": this process may only use CPUs %s", policy.c_str(),
                                  format_cpu_list(all).c_str())};
  return out;
}

result<std::string> bind_this_thread(const std::string& policy, std::span<const unsigned> near_gpu, rank_on_node position) {
  const auto allowed = cpus_of_this_thread();
  auto wanted = cpus_of_policy(policy, near_gpu, allowed, position);
  if (!wanted) return std::move(wanted).error();
  const bool is_bound = *wanted != allowed;
  if (is_bound)
    if (auto done = pin_this_thread(*wanted); !done) return std::move(done).error();
  const char* const reason = policy.empty() || policy == "none"     ? "not bound"
                             : policy == "near" && near_gpu.empty() ? "not bound: the machine names no CPUs near the GPU"
                             : policy == "near"                     ? "near the GPU"
                                                                    : policy.c_str();
  return format_cpu_list(*wanted) + " (" + reason + ")";
}

}  // namespace pl::messaging
