// SPDX-License-Identifier: Apache-2.0
// The simulated driver's table with failures to order and a count of what is alive, for sweeps and leak checks. One at a
// time; its calls may come from any thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>

#include "test/support/sim_fixture.hpp"

namespace pl::test {

class failing_cuda {
 public:
  failing_cuda() : table_(simulated_cuda()) {
    g_alive = 0;
    fail_at(-1);
    wrap<&cu::driver_table::cuCtxPushCurrent_v2>();
    wrap<&cu::driver_table::cuCtxGetStreamPriorityRange>();
    wrap<&cu::driver_table::cuStreamCreateWithPriority, 1>();
    wrap<&cu::driver_table::cuEventCreate, 1>();
    wrap<&cu::driver_table::cuMemHostRegister_v2, 1>();
    wrap<&cu::driver_table::cuMemHostGetDevicePointer_v2>();
    wrap<&cu::driver_table::cuStreamIsCapturing>();
    wrap<&cu::driver_table::cuEventRecord>();
    wrap<&cu::driver_table::cuStreamWaitEvent>();
    wrap<&cu::driver_table::cuMemcpyAsync>();
    wrap<&cu::driver_table::cuMemcpyBatchAsync_v2>();
    wrap<&cu::driver_table::cuMemcpy2DAsync_v2>();
    wrap<&cu::driver_table::cuMemsetD8Async>();
    wrap<&cu::driver_table::cuStreamWriteValue32_v2>();
    wrap<&cu::driver_table::cuMemAlloc_v2, 1>();
    wrap<&cu::driver_table::cuModuleLoadData, 1>();
    wrap<&cu::driver_table::cuModuleGetFunction>();
    wrap<&cu::driver_table::cuLaunchKernel>();
    count<&cu::driver_table::cuStreamDestroy_v2>();
    count<&cu::driver_table::cuEventDestroy_v2>();
    count<&cu::driver_table::cuMemHostUnregister>();
    count<&cu::driver_table::cuMemFree_v2>();
    count<&cu::driver_table::cuModuleUnload>();
  }
  failing_cuda(const failing_cuda&) = delete;
  failing_cuda& operator=(const failing_cuda&) = delete;

  cu::driver_table& table() { return table_; }
  // Call number `step` from now on (0: the next one) fails with `code`; -1: none does.
  void fail_at(int step, cu::result_t code = cu::error_code::unknown) {
    g_code = code;
    g_step = 0;
    g_has_fired = false;
    g_fail_at = step;
  }
  void stop_failing() { g_fail_at = -1; }  // cleaning up is not part of what is swept
  bool has_fired() const { return g_has_fired; }
  int alive() const { return g_alive; }  // streams + events + registrations + memory + modules

  // Runs `body` with step 0, 1, 2 ... failing until a run reaches no failing step; `body` says whether everything worked.
  template <class Body>
  int sweep(Body body) {
    constexpr int kMaxSteps = 200;
    for (int step = 0; step < kMaxSteps; ++step) {
      fail_at(step);
      const bool worked = body();
      const bool fired = has_fired();
      fail_at(-1);
      EXPECT_EQ(worked, !fired) << "step " << step;
      if (!fired || testing::Test::HasFatalFailure()) return step;
    }
    ADD_FAILURE() << "more steps than a sweep may have";
    return kMaxSteps;
  }

 protected:  // for tests of code that makes other calls too
  static bool must_fail() {
    if (g_step++ != g_fail_at) return false;
    g_has_fired = true;
    return true;
  }

  template <auto Member, int Born>
  struct wrapped {
    template <class... Arguments>
    static cu::result_t call(Arguments... arguments) {
      if (must_fail()) return g_code;
      const auto rc = (simulated_cuda().*Member)(arguments...);
      if (rc == 0) g_alive += Born;
      return rc;
    }
  };
  template <auto Member>
  struct counted {
    template <class... Arguments>
    static cu::result_t call(Arguments... arguments) {
      const auto rc = (simulated_cuda().*Member)(arguments...);
      if (rc == 0) --g_alive;
      return rc;
    }
  };
  template <auto Member, int Born = 0>
  void wrap() {
    table_.*Member = &wrapped<Member, Born>::call;
  }
  template <auto Member>
  void count() {
    table_.*Member = &counted<Member>::call;
  }

 private:
  static inline std::atomic<int> g_step{0}, g_fail_at{-1}, g_alive{0}, g_code{0};
  static inline std::atomic<bool> g_has_fired{false};
  cu::driver_table table_;
};

}  // namespace pl::test
