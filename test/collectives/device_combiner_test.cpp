// SPDX-License-Identifier: Apache-2.0
// The kernels that combine two blocks, against the CPU: every type and operation, on memory that begins and ends anywhere;
// and the memory that collectives borrow. In a process of its own: it loads the driver.
#include "collectives/device_combiner.hpp"

#include "test/collectives/element_values.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::collectives {
namespace {

class combiner : public testing::Test {
 protected:
  combiner() {
    const auto gpu = copy::find_context(test::simulated_cuda(), 0, nullptr);
    EXPECT_TRUE(gpu);
    auto opened = device_combiner::open(*gpu);
    EXPECT_TRUE(opened);
    combiner_ = *std::move(opened);
  }
  void wait(device_combiner::ticket begun) {
    for (;;) {
      const auto ended = combiner_->has_ended(begun);
      ASSERT_TRUE(ended) << ended.error().message;
      if (*ended) return;
    }
  }
  test::current_device device_{0};
  std::unique_ptr<device_combiner> combiner_;
};

TEST_F(combiner, does_as_the_cpu_does) {
  for (unsigned type = 0; type < kElements; ++type)
    for (unsigned op = 0; op < kReductions; ++op)
      for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{40001}}) {
        const summation terms{static_cast<element>(type), static_cast<reduction>(op)};
        const std::size_t bytes = terms.bytes(count), shift = count % 2 == 1 ? size_of(terms.type) : 0;
        auto first = contribution(terms, 0, count), second = contribution(terms, 1, count);
        std::vector<unsigned char> wanted(bytes);
        combine(terms.type, terms.op, first.data(), second.data(), wanted.data(), count);
        const test::device_buffer left(bytes + shift), right(bytes), out(bytes + 64);
        test::set_device_bytes(left.pointer() + shift, first);
        test::set_device_bytes(right.pointer(), second);
        test::set_device_bytes(out.pointer(), std::vector<unsigned char>(bytes + 64, 0x5a));
        const auto begun =
            combiner_->begin(terms.type, terms.op, left.pointer() + shift, right.pointer(), out.pointer(), count);
        ASSERT_TRUE(begun) << begun.error().message;
        wait(*begun);
        EXPECT_EQ(test::device_bytes(out.pointer(), bytes), wanted) << name_of(terms.type) << " " << op << " " << count;
        EXPECT_EQ(test::device_bytes(out.pointer() + bytes, 64), std::vector<unsigned char>(64, 0x5a));
      }
}

TEST_F(combiner, many_in_a_row_into_one_of_their_sources) {
  constexpr std::size_t kCount = 5000;
  constexpr summation kTerms{element::int32, reduction::sum};
  const test::device_buffer sum(kTerms.bytes(kCount)), ones(kTerms.bytes(kCount));
  const std::vector<int> one(kCount, 1), none(kCount, 0);
  ASSERT_EQ(test::simulated_cuda().cuMemcpyHtoD_v2(ones.pointer(), one.data(), kTerms.bytes(kCount)), 0);
  ASSERT_EQ(test::simulated_cuda().cuMemcpyHtoD_v2(sum.pointer(), none.data(), kTerms.bytes(kCount)), 0);
  std::vector<device_combiner::ticket> begun;
  for (int i = 0; i < 20; ++i) {
    const auto one_more = combiner_->begin(kTerms.type, kTerms.op, sum.pointer(), ones.pointer(), sum.pointer(), kCount);
    ASSERT_TRUE(one_more);
    begun.push_back(*one_more);
  }
  wait(begun.back());
  for (const auto each : begun) EXPECT_TRUE(*combiner_->has_ended(each));
  std::vector<int> got(kCount);
  ASSERT_EQ(test::simulated_cuda().cuMemcpyDtoH_v2(got.data(), sum.pointer(), kTerms.bytes(kCount)), 0);
  EXPECT_EQ(got, std::vector<int>(kCount, 20));
}

TEST_F(combiner, lends_memory_again) {
  const auto small = combiner_->take(1000), large = combiner_->take(1 << 20);
  ASSERT_TRUE(small && large);
  EXPECT_NE(*small, *large);
  combiner_->give_back(*small);
  EXPECT_EQ(*combiner_->take(900), *small);
  combiner_->give_back(*small);
  combiner_->give_back(*large);
  EXPECT_EQ(*combiner_->take(2000), *large) << "the smallest block that is long enough";
  const auto huge = combiner_->take(std::size_t{1} << 50);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, ENOMEM);
}

}  // namespace
}  // namespace pl::collectives
