// SPDX-License-Identifier: Apache-2.0
#include "runner.hpp"

#include "bandwidth_fixture.hpp"
#include "text.hpp"

namespace pl::bandwidth::test {
namespace {

using enum executor_kind;

void expect_right(const set_outcome& outcome, std::size_t transfers, unsigned samples) {
  ASSERT_EQ(outcome.each.size(), transfers);
  EXPECT_EQ(outcome.total_gb_per_s.size(), samples);
  EXPECT_EQ(outcome.overlap.size(), samples);
  for (const auto& one : outcome.each) {
    EXPECT_EQ(one.wrong.bytes, 0u);
    ASSERT_EQ(one.own_gb_per_s.size(), samples);
    for (const double rate : one.own_gb_per_s) EXPECT_GT(rate, 0);
  }
}

TEST(runner, copy_engines_and_kernels_move_every_size_in_every_direction) {
  machine m;
  for (const executor_kind by : {ce, sm})
    for (const std::uint64_t bytes : {4u, 5u, 100u, 4096u, 65553u, 1u << 20})
      for (const auto& [from, to] : {std::pair{host_place(), gpu_place(0)}, std::pair{gpu_place(0), host_place()},
                                     std::pair{gpu_place(0), gpu_place(0)}, std::pair{gpu_place(1), gpu_place(0)},
                                     std::pair{gpu_place(0), gpu_place(1)}}) {
        SCOPED_TRACE(format("%s %s -> %s, %llu bytes", to_string(by), to_string(from).c_str(), to_string(to).c_str(),
                            static_cast<unsigned long long>(bytes)));
        const bound_transfer what = m.transfer(from, to, {by, 0, 0}, bytes);
        expect_right(must(m.run.run({&what, 1}, quick())), 1, 2);
      }
}

// Nothing that the machine has arrives wrong, so the data is spoilt on purpose: between the end of a sample and its check.
TEST(runner, every_wrong_byte_is_counted_and_told) {
  machine m;
  const bound_transfer what = m.transfer(gpu_place(0), host_place(), {ce, 0, 0}, 70001);
  run_hooks spoil;
  spoil.after_sample = [&]() -> status {
    what.destination.host[10] ^= std::byte{0x40};
    what.destination.host[70000] ^= std::byte{0x01};
    return {};
  };
  const auto found = must(m.run.run({&what, 1}, quick(), spoil)).each[0].wrong;
  EXPECT_EQ(found.bytes, 4u);  // in two samples
  EXPECT_EQ(found.first_offset, 10u);
  EXPECT_EQ(found.flipped_bits, (std::uint64_t{0x40} << 16) | 0x01);
  EXPECT_EQ(found.expected ^ found.found, std::uint64_t{0x40} << 16);
}

}  // namespace
}  // namespace pl::bandwidth::test
