// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/cost_view.hpp"

#include <cstdio>

#include "base/text.hpp"
#include "copy/explain.hpp"

namespace pl::tools {

std::vector<copy_case> all_copy_cases() {
  return {
      {copy::direction::to_device, copy::other_side::pinned},   {copy::direction::to_device, copy::other_side::pageable},
      {copy::direction::to_host, copy::other_side::pinned},     {copy::direction::to_host, copy::other_side::pageable},
      {copy::direction::on_device, copy::other_side::same_gpu}, {copy::direction::on_device, copy::other_side::peer_gpu}};
}

void report_crossovers(const copy::cost_table& costs, const copy_case& test_case, const char* indent, result_file& file) {
  for (const auto present : {copy::executor::channel, copy::executor::kernel, copy::executor::none}) {
    const auto list = copy::crossovers(costs, test_case.way, test_case.side, present);
    std::printf("%swith %-12s %s\n", indent, format("%s:", copy::name_of(present)).c_str(), copy::to_text(list).c_str());
    for (const auto& one : list)
      file.add_row({{"kind", "crossover"},
                    {"direction", direction_label(test_case)},
                    {"memory", memory_label(test_case)},
                    {"executor", copy::name_of(present)},
                    {"engine_hot", present == copy::executor::kernel},
                    {"up_to_bytes", one.up_to_bytes == UINT64_MAX ? -1 : static_cast<std::int64_t>(one.up_to_bytes)},
                    {"method", copy::to_text(one.option)}});
  }
}

}  // namespace pl::tools
