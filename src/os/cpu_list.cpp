// SPDX-License-Identifier: Apache-2.0
#include "os/cpu_list.hpp"

#include <sched.h>

#include <algorithm>
#include <memory>

#include "base/text.hpp"

namespace pl {
namespace {

constexpr unsigned kMaxCpuNumber = 65535;  // far above any machine; keeps "0-4000000000" from filling memory

}  // namespace

std::string format_cpu_list(std::span<const unsigned> cpus) {
  if (cpus.empty()) return "none";
  std::string out;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? format("%u", cpus[i]) : format("%u-%u", cpus[i], cpus[last]);
    i = last + 1;
  }
  return out;
}

result<cpu_numbers> parse_cpu_list(std::string_view text) {
  cpu_numbers out;
  const std::string whole(text);
  const auto refuse = [&](std::string_view part) {
    return failure{EINVAL, format("CPU list \"%s\": \"%s\" is not a CPU number or range; write for example 0-15,32",
                                  whole.c_str(), std::string(part).c_str())};
  };
  if (text.empty()) return refuse(text);
  while (true) {
    const auto comma = text.find(',');
    const auto part = text.substr(0, comma);
    const auto dash = part.find('-');
    const auto low = parse_integer(part.substr(0, dash));
    const auto high = dash == std::string_view::npos ? low : parse_integer(part.substr(dash + 1));
    if (!low || !high || *low < 0 || *high < *low || *high > kMaxCpuNumber) return refuse(part);
    for (auto cpu = *low; cpu <= *high; ++cpu) out.push_back(static_cast<unsigned>(cpu));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

status pin_this_thread(std::span<const unsigned> cpus) {
  if (cpus.empty()) return failure{EINVAL, "no CPU to pin the thread to: the list is empty"};
  const unsigned highest = *std::max_element(cpus.begin(), cpus.end());
  if (highest > kMaxCpuNumber) return failure{EINVAL, format("CPU %u does not exist", highest)};
  const std::size_t bytes = CPU_ALLOC_SIZE(highest + 1);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(highest + 1), [](cpu_set_t* p) { CPU_FREE(p); });
  CPU_ZERO_S(bytes, set.get());
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, bytes, set.get());
  if (sched_setaffinity(0, bytes, set.get()) != 0) {
    const int code = errno;
    return failure{code, format("cannot pin the thread to CPUs %s: %s; choose among those of `peerlane info` or use "
                                "--cpu none",
                                format_cpu_list(cpus).c_str(), errno_text(code).c_str())};
  }
  return {};
}

cpu_numbers cpus_of_this_thread() {
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpuNumber + 1);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxCpuNumber + 1),
                                                             [](cpu_set_t* p) { CPU_FREE(p); });
  CPU_ZERO_S(bytes, set.get());
  cpu_numbers out;
  if (sched_getaffinity(0, bytes, set.get()) != 0) return out;
  for (unsigned cpu = 0; cpu <= kMaxCpuNumber; ++cpu)
    if (CPU_ISSET_S(cpu, bytes, set.get())) out.push_back(cpu);
  return out;
}

}  // namespace pl
