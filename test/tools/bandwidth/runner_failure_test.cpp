// SPDX-License-Identifier: Apache-2.0
// GPUs that fail or stop in the middle of a run.
#include <atomic>
#include <cstdlib>
#include <functional>

#include "test/copy/failing_cuda.hpp"
#include "test/tools/bandwidth/bandwidth_fixture.hpp"

namespace pl::bandwidth::test {
namespace {

using enum executor_kind;

class failing_driver : public pl::test::failing_cuda {
 public:
  failing_driver() {
    wrap<&cu::driver_table::cuStreamCreate, 1>();
    wrap<&cu::driver_table::cuMemHostAlloc, 1>();
    count<&cu::driver_table::cuMemFreeHost>();
    wrap<&cu::driver_table::cuStreamWaitValue32_v2>();
    wrap<&cu::driver_table::cuStreamSynchronize>();
    wrap<&cu::driver_table::cuEventElapsedTime>();
    wrap<&cu::driver_table::cuMemcpyHtoD_v2>();
    wrap<&cu::driver_table::cuMemcpyDtoH_v2>();
    wrap<&cu::driver_table::cuCtxEnablePeerAccess>();
    wrap<&cu::driver_table::cuDevicePrimaryCtxRetain>();
  }
};

method one_sample() {
  method settings = quick();
  settings.samples = 1;
  settings.copies = 1;
  settings.warm_up = 0;
  settings.balance = false;
  return settings;
}

// The buffers are made beforehand or fail too; then the runner runs twice, and the second time nothing fails.
void sweep_over(const std::function<result<std::vector<bound_transfer>>(buffer_pool&)>& transfers) {
  failing_driver driver;
  const int steps = driver.sweep([&] {
    bool worked = false;
    {
      machine m(driver.table());
      const auto set = transfers(m.pool);
      if (set) {
        worked = m.run.run(*set, one_sample()).ok();
        driver.stop_failing();
        const auto again = m.run.run(*set, one_sample());
        EXPECT_TRUE(again.ok()) << again.error().message;
        for (const auto& one : again ? again->each : std::vector<transfer_outcome>()) EXPECT_EQ(one.wrong.bytes, 0u);
      }
      driver.stop_failing();
    }
    EXPECT_EQ(driver.alive(), 0);
    return worked;
  });
  EXPECT_GT(steps, 20);
}

result<bound_transfer> bind(buffer_pool& pool, const place& source_place, const place& destination_place, executor executor,
                            unsigned pair) {
  auto source = pool.get(source_place, 4096, 2 * pair, executor.gpu);
  if (!source) return source.error();
  auto destination = pool.get(destination_place, 4096, 2 * pair + 1, executor.gpu);
  if (!destination) return destination.error();
  return bound_transfer{*source, *destination, executor, 4096, true, 0};
}

TEST(runner_failure, any_call_may_fail_while_gpus_copy) {
  sweep_over([](buffer_pool& pool) -> result<std::vector<bound_transfer>> {
    auto copy = bind(pool, host_place(), gpu_place(0), {ce, 0, 0}, 0);
    if (!copy) return copy.error();
    auto kernel = bind(pool, gpu_place(0), gpu_place(1), {sm, 1, 0}, 1);
    if (!kernel) return kernel.error();
    return std::vector{*copy, *kernel};
  });
}

TEST(runner_failure, any_call_may_fail_while_cpus_take_part) {
  sweep_over([](buffer_pool& pool) -> result<std::vector<bound_transfer>> {
    auto copy = bind(pool, host_place(host_kind::pageable), gpu_place(0), {ce, 0, 0}, 0);
    if (!copy) return copy.error();
    auto kernel = bind(pool, gpu_place(1), host_place(), {sm, 1, 0}, 1);
    if (!kernel) return kernel.error();
    return std::vector{*copy, *kernel};
  });
}

void lose_a_gpu() {
  machine m;
  const bound_transfer good = m.transfer(gpu_place(1), host_place(), {sm, 1, 0}, 4096);
  bound_transfer bad = m.transfer(host_place(), gpu_place(0), {sm, 0, 0}, 4096);
  const bound_transfer beside = m.transfer(host_place(), gpu_place(1), {ce, 1, 0}, 4096, 1);
  bad.destination.address = 0x1000;  // a kernel that writes there ends its context
  method settings = quick();
  settings.verify = false;
  const std::vector<bound_transfer> both{beside, bad};
  const auto failed = m.run.run(both, settings);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("GPU 0"), std::string::npos);
  EXPECT_FALSE(m.run.run({&bad, 1}, settings).ok());  // the context stays lost
  EXPECT_EQ(must(m.run.run({&good, 1}, quick())).each[0].wrong.bytes, 0u);
}

// In a process of its own: who kept the lost context alive (a planner does) would hand it to the next test.
TEST(runner_failure_DeathTest, a_gpu_that_is_lost_does_not_take_the_others_along) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        lose_a_gpu();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

std::atomic<bool> g_is_stuck{false};

cu::result_t query_of_stuck_gpu(cu::stream_t stream) {
  const auto& cuda = pl::test::simulated_cuda();
  cu::device_t device = -1;
  cuda.cuCtxGetDevice(&device);
  if (g_is_stuck && device == 0) return cu::error_code::not_ready;
  return cuda.cuStreamQuery(stream);
}

TEST(runner_failure, a_gpu_that_does_not_end_is_left_alone_until_it_does) {
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuStreamQuery = &query_of_stuck_gpu;
  machine m(table);
  const bound_transfer stuck = m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 4096);
  const bound_transfer other = m.transfer(host_place(), gpu_place(1), {ce, 1, 0}, 4096);
  method settings = quick();
  settings.timeout_s = 1;
  g_is_stuck = true;
  const auto late = m.run.run({&stuck, 1}, settings);
  ASSERT_EQ(late.code(), ETIMEDOUT);
  EXPECT_NE(late.error().message.find("GPU 0 did not end"), std::string::npos);
  EXPECT_EQ(m.run.run({&stuck, 1}, settings).code(), EIO);  // at once
  EXPECT_TRUE(m.run.run({&other, 1}, settings).ok());
  g_is_stuck = false;
  EXPECT_TRUE(m.run.run({&stuck, 1}, settings).ok());
}

// Not part of the sweeps: how often it is called depends on time.
TEST(runner_failure, a_query_that_fails_ends_the_run) {
  static std::atomic<int> queries_left{0};
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuStreamQuery = [](cu::stream_t stream) -> cu::result_t {
    return queries_left-- == 0 ? static_cast<cu::result_t>(cu::error_code::unknown)
                               : pl::test::simulated_cuda().cuStreamQuery(stream);
  };
  machine m(table);
  const std::vector<bound_transfer> both{m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 4096),
                                         m.transfer(host_place(), gpu_place(1), {sm, 1, 0}, 4096, 1)};
  for (int query = 0; query < 5; ++query) {  // there are at least two a window, and three windows
    queries_left = query;
    EXPECT_EQ(m.run.run(both, quick()).code(), EIO) << query;
    queries_left = -1;
    EXPECT_TRUE(m.run.run(both, quick()).ok());
  }
}

// The driver blocks while a stream is held, as one does whose launch queue is full: only opening the gate lets it go on.
cu::result_t blocking_copy(cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
  const auto& cuda = pl::test::simulated_cuda();
  const auto rc = cuda.cuMemcpyAsync(dst, src, bytes, stream);
  return rc == 0 && g_is_stuck ? cuda.cuStreamSynchronize(stream) : rc;
}

TEST(runner_failure, a_driver_that_blocks_behind_the_gate_does_not_hang_the_run) {
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuMemcpyAsync = &blocking_copy;
  machine m(table);
  const bound_transfer transfer = m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 4096);
  method settings = quick();
  settings.timeout_s = 1;
  g_is_stuck = true;
  const auto late = m.run.run({&transfer, 1}, settings);
  g_is_stuck = false;
  ASSERT_EQ(late.code(), ETIMEDOUT);
  EXPECT_NE(late.error().message.find("the driver blocked"), std::string::npos);
  EXPECT_TRUE(m.run.run({&transfer, 1}, settings).ok());
}

TEST(runner_failure, without_gpu_code_copy_engines_are_verified_by_the_cpu) {
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuModuleLoadData = [](cu::module_t*, const void*) -> cu::result_t { return cu::error_code::not_supported; };
  machine m(table);
  for (const auto& [source, destination] : {std::pair{host_place(), gpu_place(0)}, std::pair{gpu_place(0), host_place()},
                                            std::pair{gpu_place(0), gpu_place(1)}}) {
    const bound_transfer transfer = m.transfer(source, destination, {ce, 0, 0}, 9 << 20);
    run_hooks spoil;
    spoil.after_sample = [&]() -> status {
      std::uint32_t word = 0;
      pl::test::current_device device;
      const std::uint64_t offset = transfer.destination.address + (5 << 20);
      pl::test::simulated_cuda().cuMemcpyDtoH_v2(&word, offset, sizeof word);
      word = ~word;
      pl::test::simulated_cuda().cuMemcpyHtoD_v2(offset, &word, sizeof word);
      return {};
    };
    EXPECT_EQ(must(m.run.run({&transfer, 1}, one_sample())).each[0].wrong.bytes, 0u);
    const auto spoilt = must(m.run.run({&transfer, 1}, one_sample(), spoil)).each[0].wrong;
    EXPECT_EQ(spoilt.bytes, 4u);
    EXPECT_EQ(spoilt.first_offset, 5u << 20);
    EXPECT_EQ(spoilt.flipped_bits, 0xFFFFFFFFu);
  }
  const bound_transfer kernel = m.transfer(host_place(), gpu_place(0), {sm, 0, 0}, 4096);
  EXPECT_EQ(m.run.run({&kernel, 1}, one_sample()).code(), ENOTSUP);
}

}  // namespace
}  // namespace pl::bandwidth::test
