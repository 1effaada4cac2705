// SPDX-License-Identifier: Apache-2.0
// Transfers between buffers of the simulated GPUs.
#pragma once

#include <gtest/gtest.h>

#include "test/support/sim_fixture.hpp"
#include "tools/bandwidth/buffer.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth::test {

template <class T>
T must(result<T> asked) {
  if (asked) return *std::move(asked);
  ADD_FAILURE() << asked.error().message;
  std::abort();
}

struct machine {
  explicit machine(const cu::driver_table& cuda = pl::test::simulated_cuda()) : gpus(must(gpu_set::open(cuda))) {}
  std::unique_ptr<gpu_set> gpus;
  buffer_pool pool{*gpus, {}};
  runner run{*gpus};

  bound_transfer transfer(const place& source, const place& destination, executor executor, std::uint64_t bytes,
                          unsigned pair = 0) {
    bound_transfer out;
    out.source = must(pool.get(source, bytes, 2 * pair, executor.gpu));
    out.destination = must(pool.get(destination, bytes, 2 * pair + 1, executor.gpu));
    out.executor = executor;
    out.bytes = bytes;
    return out;
  }
};

inline method quick() {
  method settings;
  settings.samples = 2;
  settings.copies = 4;
  settings.warm_up = 1;
  settings.min_sample_ns = 0;
  settings.timeout_s = 20;
  return settings;
}

}  // namespace pl::bandwidth::test
