// SPDX-License-Identifier: Apache-2.0
// Fast read-back: a result comes from GPU memory to the CPU, at once and beside other work; then two operations of which the
// first one that ends is taken.
//
//   c++ -std=c++20 -I../c read_back.cpp $(pkg-config --cflags --libs peerlane) -lcuda
#include <array>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <peerlane/copy.hpp>
#include <vector>

#include "gpu.h"

int main() try {
  using peerlane::value_or_throw;
  std::vector<float> values(65536);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto device = peerlane::device_buffer(gpu_memory(0, values.size() * sizeof(float)), values.size() * sizeof(float));
  const auto copier = value_or_throw(peerlane::copier::open());
  value_or_throw(copier.copy(device, values));

  // At once: the planner takes the method that costs least for 16 bytes.
  std::array<float, 4> first{};
  value_or_throw(copier.copy(first, device.part(0, sizeof first)));

  // Beside other work: one function is called at the end, from a thread of the library.
  std::vector<float> back(values.size());
  std::atomic<std::size_t> moved{0};
  auto later = value_or_throw(copier.begin({{back, device}}));
  value_or_throw(later.then([&](const peerlane::op_info& info) { moved = info.moved_bytes; }));
  later.wait_or_throw(std::chrono::seconds(10));

  // Whichever ends first.
  std::vector<float> half(values.size() / 2);
  std::array<peerlane::operation, 2> both{
      value_or_throw(copier.begin({{half, device.part(0, half.size() * sizeof(float))}})),
      value_or_throw(copier.begin({{back, device}}))};
  const std::size_t winner = value_or_throw(peerlane::wait_any(both, std::chrono::seconds(10)));
  value_or_throw(peerlane::wait_all(both));

  std::printf("read back %zu bytes; of two copies number %zu ended first\n", moved.load(), winner);
  return first[3] == 3.0f && back == values && half.back() == values[half.size() - 1] && moved == values.size() * 4 ? 0 : 1;
} catch (const peerlane::error& reason) { return std::fprintf(stderr, "%s\n", reason.what()), 1; }
