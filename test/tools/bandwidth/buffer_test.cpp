// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include "bandwidth_fixture.hpp"
#include "numa.hpp"

namespace pl::bandwidth::test {
namespace {

TEST(buffer, the_same_arguments_give_the_same_memory) {
  machine m;
  const auto first = must(m.pool.get(host_place(), 1000, 0, 0));
  EXPECT_EQ(must(m.pool.get(host_place(), 1000, 0, 0)).address, first.address);
  EXPECT_NE(must(m.pool.get(host_place(), 1000, 1, 0)).address, first.address);
  const auto device = must(m.pool.get(gpu_place(1), 1000, 0, 0));
  EXPECT_EQ(must(m.pool.get(gpu_place(1), 1000, 0, 1)).address, device.address);
  EXPECT_EQ(device.host, nullptr);
}

}  // namespace
}  // namespace pl::bandwidth::test
