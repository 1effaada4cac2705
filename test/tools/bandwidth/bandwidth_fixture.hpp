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

  bound_transfer transfer(const place& from, const place& to, executor by, std::uint64_t bytes, unsigned pair = 0) {
    bound_transfer out;
    out.source = must(pool.get(from, bytes, 2 * pair, by.gpu));
    out.destination = must(pool.get(to, bytes, 2 * pair + 1, by.gpu));
    out.by = by;
    out.bytes = bytes;
    return out;
  }
};

inline method quick() {
  method how;
  how.samples = 2;
  how.copies = 4;
  how.warm_up = 1;
  how.min_sample_ns = 0;
  how.timeout_s = 20;
  return how;
}

}  // namespace pl::bandwidth::test
