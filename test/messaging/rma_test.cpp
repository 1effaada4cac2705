// SPDX-License-Identifier: Apache-2.0
// Put, get and atomics on windows in every kind of memory.
#include "test/messaging/job.hpp"

namespace pl::link {
namespace {

constexpr std::size_t kWindow = 1 << 20;

// Everyone's window on the other one.
result<window::key_t> swap_keys(const place& at, const window& mine) {
  auto all = at.with->all_gather(std::as_bytes(std::span(&mine.key(), 1)));
  if (!all) return std::move(all).error();
  window::key_t theirs;
  std::memcpy(&theirs, (*all)[static_cast<std::size_t>(1 - at.rank)].data(), sizeof theirs);
  return theirs;
}

int put_and_get(const place& at, bool is_device, bool is_window_device) {
  piece exposed(is_window_device, kWindow);
  auto mine = at.by->expose(exposed.all());
  CHECK_OK(mine);
  auto theirs = swap_keys(at, *mine);
  CHECK_OK(theirs);
  std::uint64_t offset = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{8}, std::size_t{5000}, std::size_t{70000}, std::size_t{400000}}) {
    piece from(is_device, bytes), back(is_device, bytes);
    from.set(test::random_bytes(bytes, bytes + static_cast<unsigned>(at.rank)));
    auto put = at.by->put(*theirs, offset, from.all());
    CHECK_OK(put.wait(kPatience));
    auto got = at.by->get(*theirs, offset, back.all());
    CHECK_OK(got.wait(kPatience));
    CHECK(back.get(bytes) == from.get(bytes));
    offset += bytes;
  }
  CHECK_OK(at.by->flush(1 - at.rank, kPatience));
  CHECK(at.by->put(*theirs, kWindow - 4, exposed.part(0, 8)).wait(kPatience).code() == EINVAL);
  CHECK_OK(at.by->barrier(kPatience));
  // A window that has ended, or never was, is refused at its origin.
  *mine = {};
  CHECK_OK(at.by->barrier(kPatience));
  CHECK(at.by->put(*theirs, 0, exposed.part(0, 8)).wait(kPatience).code() == EINVAL);
  CHECK(at.by->put(*theirs, 0, exposed.part(0, 300000)).wait(kPatience).code() == EINVAL);
  CHECK(at.by->get(*theirs, 0, exposed.part(0, 8)).wait(kPatience).code() == EINVAL);
  CHECK(at.by->atomic(*theirs, 0, atomic_op::add, 1).wait(kPatience).code() == EINVAL);
  CHECK_OK(at.by->barrier(kPatience));
  return 0;
}

int every_pair_of_memories(const place& at) {
  for (const bool is_device : {false, true})
    for (const bool is_window_device : {false, true})
      if (const int line = put_and_get(at, is_device, is_window_device)) return line;
  return 0;
}

TEST(remote, put_and_get_on_one_node) { EXPECT_EQ(run_job(2, gpus::one_each, test_options(), every_pair_of_memories), 0); }

TEST(remote, put_and_get_over_a_network) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::one_each, options, every_pair_of_memories), 0);
}

int count_together(const place& at) {
  piece word(true, 64);
  word.set(std::vector<unsigned char>(64, 0));
  auto mine = at.by->expose(word.all());
  CHECK_OK(mine);
  auto theirs = swap_keys(at, *mine);
  CHECK_OK(theirs);
  // Both add to rank 0's word.
  const auto& at_0 = at.rank == 0 ? mine->key() : *theirs;
  std::uint64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    std::uint64_t before = 0;
    CHECK_OK(at.by->atomic(at_0, 8, atomic_op::add, 1, 0, &before).wait(kPatience));
    CHECK(i == 0 || before > last);
    last = before;
  }
  CHECK_OK(at.by->barrier(kPatience));
  std::uint64_t sum = 0;
  CHECK_OK(at.by->atomic(at_0, 8, atomic_op::compare_swap, 400, 400, &sum).wait(kPatience));
  CHECK(sum == 400);
  CHECK(at.by->atomic(at_0, 4, atomic_op::add, 1).wait(kPatience).code() == EINVAL);
  CHECK_OK(at.by->barrier(kPatience));
  return 0;
}

TEST(remote, atomics_count_every_one) { EXPECT_EQ(run_job(2, gpus::one_each, test_options(), count_together), 0); }

}  // namespace
}  // namespace pl::link
