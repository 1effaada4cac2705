// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/runner.hpp"

#include "base/text.hpp"
#include "test/tools/bandwidth/bandwidth_fixture.hpp"

namespace pl::bandwidth::test {
namespace {

using enum executor_kind;

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kMiddle = 4113, kLarge = 20'000;  // the simulated GPU's kernels are some 30 times slower there
#else
constexpr std::uint64_t kMiddle = 65553, kLarge = 1 << 20;
#endif

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
  for (const executor_kind kind : {ce, sm})
    for (const std::uint64_t bytes :
         {std::uint64_t{4}, std::uint64_t{5}, std::uint64_t{100}, std::uint64_t{4096}, kMiddle, kLarge})
      for (const auto& [source, destination] : {std::pair{host_place(), gpu_place(0)}, std::pair{gpu_place(0), host_place()},
                                                std::pair{gpu_place(0), gpu_place(0)}, std::pair{gpu_place(1), gpu_place(0)},
                                                std::pair{gpu_place(0), gpu_place(1)}}) {
        SCOPED_TRACE(format("%s %s -> %s, %llu bytes", to_string(kind), to_string(source).c_str(),
                            to_string(destination).c_str(), static_cast<unsigned long long>(bytes)));
        const bound_transfer transfer = m.transfer(source, destination, {kind, 0, 0}, bytes);
        expect_right(must(m.run.run({&transfer, 1}, quick())), 1, 2);
      }
}

TEST(runner, bulk_copies_and_kernels_that_only_read_or_write_move_every_size) {
  machine m;
  for (const executor_kind kind : {tma, sm_read, sm_write})
    for (const std::uint64_t bytes :
         {std::uint64_t{4}, std::uint64_t{23}, std::uint64_t{4096}, std::uint64_t{8192 * 5 + 16}, kMiddle, kLarge}) {
      SCOPED_TRACE(format("%s, %llu bytes", to_string(kind), static_cast<unsigned long long>(bytes)));
      bound_transfer transfer = m.transfer(gpu_place(1), gpu_place(1), {kind, 1, 0}, std::max<std::uint64_t>(bytes, 8192));
      transfer.bytes = bytes;
      expect_right(must(m.run.run({&transfer, 1}, quick())), 1, 2);
    }
  const bound_transfer peer = m.transfer(gpu_place(0), gpu_place(1), {tma, 0, 3}, kMiddle, 1);
  expect_right(must(m.run.run({&peer, 1}, quick())), 1, 2);
  const bound_transfer host = m.transfer(host_place(), gpu_place(0), {tma, 0, 0}, 4096, 2);
  EXPECT_EQ(m.run.run({&host, 1}, quick()).code(), EINVAL);
}

// A bit of the memory turns: what is read differs from then on, what was written differs from what should have been.
TEST(runner, kernels_that_only_read_or_write_are_verified) {
  machine m;
  const auto turn_bit = [&](std::uint64_t address) {
    std::uint8_t byte = 0;
    EXPECT_EQ(m.gpus->cuda().cuMemcpyDtoH_v2(&byte, address, 1), cu::error_code::success);
    byte ^= 0x10;
    EXPECT_EQ(m.gpus->cuda().cuMemcpyHtoD_v2(address, &byte, 1), cu::error_code::success);
    return status();
  };
  for (const executor_kind kind : {tma, sm_read, sm_write})
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{12345}, kMiddle - 1}) {
      SCOPED_TRACE(format("%s, byte %llu", to_string(kind), static_cast<unsigned long long>(offset)));
      const bound_transfer transfer =
          m.transfer(gpu_place(0), gpu_place(0), {kind, 0, 0}, std::max<std::uint64_t>(kMiddle, 16384));
      method once = quick();
      once.samples = 1;
      run_hooks spoil;
      const std::uint64_t address = (kind == sm_read ? transfer.source.address : transfer.destination.address) + offset;
      if (kind == sm_read) spoil.before_release = [&] { return turn_bit(address); };
      else spoil.after_sample = [&] { return turn_bit(address); };
      const auto outcome = must(m.run.run({&transfer, 1}, once, spoil));
      EXPECT_NE(outcome.each[0].wrong.bytes, 0u);
      if (kind != sm_read) {
        EXPECT_EQ(outcome.each[0].wrong.first_offset, offset);
        EXPECT_EQ(outcome.each[0].wrong.flipped_bits, std::uint64_t{0x10} << (8 * (offset % 8)));
      }
    }
}

// Nothing that the machine has arrives wrong, so the data is spoilt on purpose: between the end of a sample and its check.
TEST(runner, every_wrong_byte_is_counted_and_told) {
  machine m;
  const bound_transfer transfer = m.transfer(gpu_place(0), host_place(), {ce, 0, 0}, 70001);
  run_hooks spoil;
  spoil.after_sample = [&]() -> status {
    transfer.destination.host[10] ^= std::byte{0x40};
    transfer.destination.host[70000] ^= std::byte{0x01};
    return {};
  };
  const auto found = must(m.run.run({&transfer, 1}, quick(), spoil)).each[0].wrong;
  EXPECT_EQ(found.bytes, 4u);  // in two samples
  EXPECT_EQ(found.first_offset, 10u);
  EXPECT_EQ(found.flipped_bits, (std::uint64_t{0x40} << 16) | 0x01);
  EXPECT_EQ(found.expected ^ found.found, std::uint64_t{0x40} << 16);
}

// However the work is divided: the total is the sum of what ran at the same time.
TEST(runner, copy_engines_together_count_what_they_moved_while_all_ran) {
  machine m;
  std::vector<bound_transfer> both{m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, kLarge, 0),
                                   m.transfer(gpu_place(1), host_place(), {ce, 1, 0}, kLarge, 1)};
  both[0].copies = 3;
  both[1].copies = 100;  // more than traces
  const auto outcome = must(m.run.run(both, quick()));
  for (std::size_t sample = 0; sample < 2; ++sample) {
    const double sum = outcome.each[0].own_gb_per_s[sample] + outcome.each[1].own_gb_per_s[sample];
    EXPECT_NEAR(outcome.total_gb_per_s[sample], sum, 1e-6 * sum);
    EXPECT_EQ(outcome.each[1].wrong.bytes, 0u);
  }
}

TEST(runner, cpu_driven_ways_move_every_size) {
  machine m;
  for (const auto& cpu_executor : {executor{bar, 0, 0}, executor{bar, 0, 2}, executor{engine, 0, 0}, executor{engine, 0, 2}})
    for (const std::uint64_t bytes : {std::uint64_t{4}, std::uint64_t{5}, std::uint64_t{100}, kMiddle, kLarge})
      for (const bool to_gpu : {true, false}) {
        SCOPED_TRACE(format("%s %s, %llu bytes", to_string(cpu_executor.kind), to_gpu ? "to the GPU" : "from it",
                            static_cast<unsigned long long>(bytes)));
        const bound_transfer transfer = to_gpu ? m.transfer(host_place(), gpu_place(0), cpu_executor, bytes)
                                               : m.transfer(gpu_place(0), host_place(), cpu_executor, bytes);
        expect_right(must(m.run.run({&transfer, 1}, quick())), 1, 2);
      }
}

TEST(runner, pageable_memory_goes_by_copy_engine_and_bar) {
  machine m;
  const place pageable = host_place(host_kind::pageable);
  for (const executor_kind kind : {ce, bar})
    for (const auto& [source, destination] : {std::pair{pageable, gpu_place(1)}, std::pair{gpu_place(1), pageable}}) {
      const bound_transfer transfer = m.transfer(source, destination, {kind, 1, 0}, 100'001);
      expect_right(must(m.run.run({&transfer, 1}, quick())), 1, 2);
    }
}

TEST(runner, everything_at_once) {
  machine m;
  std::vector<bound_transfer> all = {
      m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, kLarge, 0),
      m.transfer(gpu_place(0), gpu_place(1), {sm, 1, 4}, kLarge / 4, 1),
      m.transfer(gpu_place(1), host_place(), {sm, 1, 4}, kLarge / 4, 2),
  };
  all[2].measured = false;
  method settings = quick();
  settings.min_sample_ns = 1'000'000;
  expect_right(must(m.run.run(all, settings)), 3, 2);
  all.push_back(m.transfer(host_place(), gpu_place(1), {bar, 1, 0}, kLarge / 16, 3));
  all.push_back(m.transfer(gpu_place(0), host_place(), {engine, 0, 0}, kLarge / 16, 4));
  all.push_back(m.transfer(gpu_place(0), host_place(host_kind::pageable), {ce, 0, 0}, kLarge / 16, 5));
  expect_right(must(m.run.run(all, settings)), 6, 2);
}

TEST(runner, small_samples_are_lengthened_and_split_into_windows) {
  machine m;
  const bound_transfer transfer = m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 64);
  method settings = quick();
  settings.copies = 1500;  // more than one launch queue takes
  unsigned releases = 0, ends = 0;
  run_hooks hooks;
  hooks.before_release = [&] { return ++releases, status{}; };
  hooks.after_sample = [&] { return ++ends, status{}; };
  const auto plain = must(m.run.run({&transfer, 1}, settings, hooks));
  EXPECT_EQ(plain.each[0].copies, 1500u);
  EXPECT_EQ(releases, 2u);  // once a sample, however many windows it has
  EXPECT_EQ(ends, 2u);
  settings.copies = 1;
  settings.min_sample_ns = 50'000'000;
  EXPECT_GT(must(m.run.run({&transfer, 1}, settings)).each[0].copies, 1u);
}

TEST(runner, no_transfers_still_take_part_in_the_hooks) {
  machine m;
  unsigned calls = 0;
  run_hooks hooks;
  hooks.before_release = hooks.after_sample = [&] { return ++calls, status{}; };
  const auto outcome = must(m.run.run({}, quick(), hooks));
  EXPECT_TRUE(outcome.each.empty());
  EXPECT_EQ(calls, 4u);
}

TEST(runner, what_cannot_work_is_refused_with_what_could) {
  machine m;
  const auto refusal = [&](bound_transfer transfer) {
    const auto refused = m.run.run({&transfer, 1}, quick());
    if (refused) return std::string("not refused");
    EXPECT_EQ(refused.code(), EINVAL);
    return refused.error().message;
  };
  EXPECT_NE(refusal(m.transfer(gpu_place(0), gpu_place(1), {bar, 0, 0}, 64)).find("use CE or SM"), std::string::npos);
  EXPECT_NE(refusal(m.transfer(host_place(), gpu_place(1), {bar, 0, 0}, 64)).find("not GPU 0"), std::string::npos);
  EXPECT_NE(refusal(m.transfer(host_place(host_kind::pageable), gpu_place(0), {sm, 0, 0}, 64)).find("pinned"),
            std::string::npos);
  EXPECT_NE(refusal(m.transfer(host_place(), gpu_place(0), {ce, 7, 0}, 64)).find("no GPU 7"), std::string::npos);
  EXPECT_NE(refusal(m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 3)).find("4 bytes"), std::string::npos);
  auto same = m.transfer(gpu_place(0), gpu_place(0), {ce, 0, 0}, 4096);
  same.destination = same.source;
  same.destination.address += 100;
  same.bytes = 1000;
  EXPECT_NE(refusal(same).find("overlap"), std::string::npos);
  const auto one = m.transfer(host_place(), gpu_place(0), {ce, 0, 0}, 4096);
  const std::vector<bound_transfer> twice{one, one};
  EXPECT_EQ(m.run.run(twice, quick()).code(), EINVAL);
}

TEST(runner, a_hook_that_fails_ends_the_run_and_leaves_nothing_behind) {
  machine m;
  const bound_transfer transfer = m.transfer(host_place(), gpu_place(0), {sm, 0, 0}, 4096);
  run_hooks hooks;
  hooks.before_release = [] { return failure{ECONNRESET, "rank 3 is gone"}; };
  EXPECT_EQ(m.run.run({&transfer, 1}, quick(), hooks).code(), ECONNRESET);
  expect_right(must(m.run.run({&transfer, 1}, quick())), 1, 2);
}

}  // namespace
}  // namespace pl::bandwidth::test
