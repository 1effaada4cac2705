// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows in every kind of memory.
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kRmaWindow = 1 << 20;

// Everyone's window on the other one.
result<window::key_t> swap_keys(const rank_context& ctx, const window& mine) {
  auto all = ctx.group->all_gather(std::as_bytes(std::span(&mine.key(), 1)));
  if (!all) return std::move(all).error();
  window::key_t theirs;
  std::memcpy(&theirs, (*all)[static_cast<std::size_t>(1 - ctx.rank)].data(), sizeof theirs);
  return theirs;
}

int put_and_get(const rank_context& ctx, bool is_device, bool is_window_device) {
  piece exposed(is_window_device, kRmaWindow);
  auto mine = ctx.messenger->expose(exposed.all());
  CHECK_OK(mine);
  auto theirs = swap_keys(ctx, *mine);
  CHECK_OK(theirs);
  std::uint64_t offset = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{8}, std::size_t{5000}, std::size_t{70000}, std::size_t{400000}}) {
    piece source(is_device, bytes), back(is_device, bytes);
    source.set(test::random_bytes(bytes, bytes + static_cast<unsigned>(ctx.rank)));
    auto put = ctx.messenger->put(*theirs, offset, source.all());
    CHECK_OK(put.wait(kTimeout));
    auto got = ctx.messenger->get(*theirs, offset, back.all());
    CHECK_OK(got.wait(kTimeout));
    CHECK(back.get(bytes) == source.get(bytes));
    offset += bytes;
  }
  CHECK_OK(ctx.messenger->flush(1 - ctx.rank, kTimeout));
  CHECK(ctx.messenger->put(*theirs, kRmaWindow - 4, exposed.part(0, 8)).wait(kTimeout).code() == EINVAL);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  // A window that has ended, or never was, is refused at its origin.
  *mine = {};
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  CHECK(ctx.messenger->put(*theirs, 0, exposed.part(0, 8)).wait(kTimeout).code() == EINVAL);
  CHECK(ctx.messenger->put(*theirs, 0, exposed.part(0, 300000)).wait(kTimeout).code() == EINVAL);
  CHECK(ctx.messenger->get(*theirs, 0, exposed.part(0, 8)).wait(kTimeout).code() == EINVAL);
  CHECK(ctx.messenger->atomic(*theirs, 0, atomic_op::add, 1).wait(kTimeout).code() == EINVAL);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  return 0;
}

int every_pair_of_memories(const rank_context& ctx) {
  for (const bool is_device : {false, true})
    for (const bool is_window_device : {false, true})
      if (const int line = put_and_get(ctx, is_device, is_window_device)) return line;
  return 0;
}

TEST(remote, put_and_get_on_one_node) { EXPECT_EQ(run_job(2, gpus::one_each, test_options(), every_pair_of_memories), 0); }

TEST(remote, put_and_get_over_a_network) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::one_each, options, every_pair_of_memories), 0);
}

int count_together(const rank_context& ctx) {
  piece word(true, 64);
  word.set(std::vector<unsigned char>(64, 0));
  auto mine = ctx.messenger->expose(word.all());
  CHECK_OK(mine);
  auto theirs = swap_keys(ctx, *mine);
  CHECK_OK(theirs);
  // Both add to rank 0's word.
  const auto& at_0 = ctx.rank == 0 ? mine->key() : *theirs;
  std::uint64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    std::uint64_t before = 0;
    CHECK_OK(ctx.messenger->atomic(at_0, 8, atomic_op::add, 1, 0, &before).wait(kTimeout));
    CHECK(i == 0 || before > last);
    last = before;
  }
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  std::uint64_t sum = 0;
  CHECK_OK(ctx.messenger->atomic(at_0, 8, atomic_op::compare_swap, 400, 400, &sum).wait(kTimeout));
  CHECK(sum == 400);
  CHECK(ctx.messenger->atomic(at_0, 4, atomic_op::add, 1).wait(kTimeout).code() == EINVAL);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  return 0;
}

TEST(remote, atomics_count_every_one) { EXPECT_EQ(run_job(2, gpus::one_each, test_options(), count_together), 0); }

}  // namespace
}  // namespace pl::messaging
