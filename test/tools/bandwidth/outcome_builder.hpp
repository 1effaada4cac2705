// SPDX-License-Identifier: Apache-2.0
// Outcomes by hand, for tests of what is made of them.
#pragma once

#include <string>
#include <vector>

#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {

constexpr double kNone = -1;  // a cell without a value

inline cell cell_with(double value) {
  cell one;
  if (value < 0) {
    one.reason = "no peer access";
    return one;
  }
  one.state = cell_state::measured;
  one.value = value;
  one.samples = {value - 0.25, value, value + 0.25};
  one.path.bytes = 65536;
  return one;
}

inline matrix matrix_with(std::string part, std::string title, const std::vector<std::vector<double>>& values) {
  matrix out = make_matrix(std::move(part), std::move(title), gpu_labels(static_cast<int>(values.size())),
                           gpu_labels(static_cast<int>(values[0].size())));
  for (std::size_t row = 0; row < values.size(); ++row)
    for (std::size_t column = 0; column < values[row].size(); ++column) {
      out.cells[row][column] = cell_with(values[row][column]);
      out.cells[row][column].path.source = gpu_place(static_cast<int>(row));
      out.cells[row][column].path.destination = gpu_place(static_cast<int>(column));
      if (values.size() == 1) out.cells[row][column].path.source = host_place();
    }
  return out;
}

inline test_outcome outcome_with(int index, std::string key, std::vector<matrix> matrices) {
  test_outcome out;
  out.index = index;
  out.key = std::move(key);
  out.matrices = std::move(matrices);
  return out;
}

inline test_outcome outcome_in(int index, std::string key, test_state state, std::string reason) {
  test_outcome out = outcome_with(index, std::move(key), {});
  out.state = state;
  out.reason = std::move(reason);
  return out;
}

// What a machine with two GPUs may show: a host test, a bidirectional test of three matrices, a latency, one waived, one
// wrong.
inline std::vector<test_outcome> outcomes_of_two_gpus() {
  std::vector<test_outcome> out;
  out.push_back(outcome_with(0, "host_to_device_memcpy_ce",
                             {matrix_with("", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", {{55.6349, 55.125}}),
                              matrix_with("total", "total of all GPUs", {{110}})}));
  out[0].matrices[1].is_native_only = true;
  out.push_back(outcome_with(
      6, "device_to_device_bidirectional_memcpy_read_ce",
      {matrix_with("read1", "memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)", {{kNone, 276.07}, {275.5, kNone}}),
       matrix_with("read2", "memcpy CE GPU(row) <-> GPU(column) Read2 bandwidth (GB/s)", {{kNone, 274.5}, {276.25, kNone}}),
       matrix_with("total", "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
                   {{kNone, 550.57}, {551.75, kNone}})}));
  out.push_back(outcome_with(32, "host_device_latency_sm",
                             {matrix_with("", "memory latency SM CPU(row) <-> GPU(column) (ns)", {{772.58, 1301}})}));
  out[2].matrices[0].unit = "ns";
  out.push_back(outcome_in(12, "all_to_one_write_ce", test_state::waived, "no peer access"));
  out.push_back(outcome_with(1, "device_to_host_memcpy_ce",
                             {matrix_with("", "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)", {{52.5, 52.25}})}));
  cell& wrong = out[4].matrices[0].cells[0][1];
  wrong.state = cell_state::mismatch;
  wrong.reason = "8 of 65536 bytes from G1 to H by CE arrived wrong";
  wrong.wrong.bytes = 8;
  wrong.wrong.first_offset = 4096;
  conclude(out[4], false);
  return out;
}

}  // namespace pl::bandwidth
