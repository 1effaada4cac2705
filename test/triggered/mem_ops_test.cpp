// SPDX-License-Identifier: Apache-2.0
#include "triggered/mem_ops.hpp"

#include <gtest/gtest.h>

#include "test/support/sim_fixture.hpp"

namespace pl::triggered {
namespace {

struct mem_ops_test : testing::Test {
  mem_ops_test() { EXPECT_EQ(cuda.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0); }
  ~mem_ops_test() override { EXPECT_EQ(cuda.cuStreamDestroy_v2(stream), 0); }
  std::uint64_t word(std::size_t i) {
    std::uint64_t out = 0;
    EXPECT_EQ(cuda.cuMemcpyDtoH_v2(&out, words.pointer() + 8 * i, 8), 0);
    return out;
  }
  const cu::driver_table& cuda = test::simulated_cuda();
  test::current_device device;
  test::device_buffer words{8192};
  cu::stream_t stream = nullptr;
};

TEST_F(mem_ops_test, waits_let_writes_through_when_they_are_satisfied) {
  cu::stream_t other = nullptr;
  ASSERT_EQ(cuda.cuStreamCreate(&other, cu::stream_flag::non_blocking), 0);
  ASSERT_EQ(cuda.cuMemsetD8_v2(words.pointer(), 0, words.bytes()), 0);
  mem_ops waiting(cuda, stream);
  waiting.wait64(words.pointer(), 5).wait32(words.pointer() + 8, 7, wait_until::equal).write64(words.pointer() + 16, 9);
  EXPECT_EQ(waiting.size(), 3u);
  ASSERT_TRUE(waiting.submit());
  EXPECT_EQ(waiting.size(), 0u);
  EXPECT_EQ(word(2), 0u);
  ASSERT_TRUE(mem_ops(cuda, other).write64(words.pointer(), 6).flush().write32(words.pointer() + 8, 7).submit());
  ASSERT_EQ(cuda.cuStreamSynchronize(stream), 0);
  EXPECT_EQ(word(2), 9u);
  EXPECT_EQ(cuda.cuStreamDestroy_v2(other), 0);
}

TEST_F(mem_ops_test, a_list_longer_than_the_driver_takes_is_split) {
  mem_ops ops(cuda, stream);
  for (std::uint64_t i = 0; i < 1000; ++i) ops.write64(words.pointer() + 8 * i, i + 1);
  ASSERT_TRUE(ops.submit());
  ASSERT_EQ(cuda.cuStreamSynchronize(stream), 0);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(word(i), i + 1);
}

TEST_F(mem_ops_test, a_refused_list_is_empty_afterwards) {
  mem_ops ops(cuda, stream);
  const auto refused = ops.write64(words.pointer() + 1, 1).submit();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("cuStreamBatchMemOp"), std::string::npos);
  ops.write64(words.pointer(), 3);
  EXPECT_TRUE(ops.submit());
  // Also where the refused part was one of several.
  for (int i = 0; i < 300; ++i) ops.write64(words.pointer() + (i == 0 ? 1 : 0), 4);
  EXPECT_FALSE(ops.submit());
  EXPECT_TRUE(ops.submit());
}

TEST_F(mem_ops_test, nothing_is_nothing) { EXPECT_TRUE(mem_ops(cuda, stream).submit()); }

}  // namespace
}  // namespace pl::triggered
