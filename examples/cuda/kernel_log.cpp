// SPDX-License-Identifier: Apache-2.0
// The host's side of kernel_log.cu: prints what the kernel logs, while it runs.
//
//   c++ -std=c++20 -I../c kernel_log.cpp $(pkg-config --cflags --libs peerlane) -lcuda && ./a.out kernel_log.fatbin
#include "kernel_log.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <peerlane/device.hpp>

#include "kernel_gpu.h"

namespace {
alignas(4096) log_record host_log[kSteps];
alignas(64) std::atomic<unsigned> host_count;
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: kernel_log FILE_WITH_KERNELS\n"), 2;
  const unsigned long long memory = gpu_memory(0, 65536), answer = memory + 32768;
  const auto device = demand(peerlane::device_rings::open());
  auto ring = demand(device.ring());
  auto records = demand(device.add_window(peerlane::device_buffer(memory, sizeof host_log)));
  auto log = demand(device.add_window(host_log));
  auto count = demand(device.add_window(peerlane_host_buffer(&host_count, sizeof host_count)));

  unsigned steps = kSteps;
  unsigned long long answer_at = answer;
  void* parameters[] = {&ring, &records, &log, &count, &steps, &answer_at};
  void* const stream = launch_kernel(argv[1], "compute_and_log", parameters);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (unsigned seen = 0; seen < kSteps && std::chrono::steady_clock::now() < end;)
    for (const unsigned written = host_count.load(std::memory_order_acquire); seen < written; ++seen)
      std::printf("step %2llu: pi is about %.6f\n", host_log[seen].step,
                  static_cast<double>(host_log[seen].pi_times_1e9) / 1e9);
  long long code = -1;
  const auto state = device.state();
  const std::string reason = state && !state->outcome ? state->outcome.error().message : "";
  if (cuStreamSynchronize(stream) != 0 || cuMemcpyDtoH_v2(&code, answer, sizeof code) != 0 || code < 0)
    return std::fprintf(stderr, "the kernel's puts failed: %lld, %s\n", code, reason.c_str()), 1;
  const double last = static_cast<double>(host_log[kSteps - 1].pi_times_1e9) / 1e9;
  return std::fabs(last - 3.14159265) < 1e-3 ? 0 : 1;
}
