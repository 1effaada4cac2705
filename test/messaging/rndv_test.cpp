// SPDX-License-Identifier: Apache-2.0
// Announced messages within a node: several under way at once, and what happens where a way turns out to be closed.
#include <deque>

#include "copy/cost_table.hpp"
#include "messaging/thresholds.hpp"
#include "test/messaging/job.hpp"
#include "test/messaging/refused_call.hpp"

namespace pl::messaging {
namespace {

// Rank 0 sends a list of sizes before rank 1, which receives them, has looked at any.
int send_together(const rank_context& ctx, bool is_device, const std::vector<std::size_t>& sizes) {
  std::deque<piece> all;
  std::vector<request> in_flight;
  for (const std::size_t bytes : sizes) {
    all.emplace_back(is_device, bytes);
    if (ctx.rank == 0) all.back().set(test::random_bytes(bytes, bytes));
    if (ctx.rank == 0) in_flight.push_back(ctx.messenger->isend(1, all.back().all(), in_flight.size()));
  }
  CHECK_OK(ctx.group->barrier());
  for (std::size_t i = 0; ctx.rank == 1 && i < sizes.size(); ++i)
    in_flight.push_back(ctx.messenger->irecv(0, all[i].all(), i));
  for (auto& each : in_flight) CHECK_OK(each.wait(kTimeout));
  for (std::size_t i = 0; ctx.rank == 1 && i < sizes.size(); ++i)
    CHECK(all[i].get(sizes[i]) == test::random_bytes(sizes[i], sizes[i]));
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

// More than one list, lists of several messages, lists of one.
TEST(bulk, copies_between_gpus_that_are_queued_together) {
  for (const auto layout : {gpus::one_each, gpus::shared})
    for (const bool has_channels : {true, false}) {
      auto options = test_options();
      options.use_channels = has_channels;
      EXPECT_EQ(run_job(2, layout, options,
                        [&](const rank_context& ctx) {
                          std::vector<std::size_t> sizes(40, 50000);
                          for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] += i * 8;
                          sizes.insert(sizes.end(), {3u << 20, 100000, 2u << 20, 1u << 20});
                          if (const int line = send_together(ctx, true, sizes)) return line;
                          const auto counts = ctx.messenger->counts();
                          const std::size_t all = ctx.rank == 1 ? sizes.size() : 0;
                          CHECK(counts.dma == (has_channels ? all : 0));
                          if (layout == gpus::one_each) CHECK(counts.ipc == (has_channels ? 0 : all));
                          return 0;
                        }),
                0);
    }
}

TEST(bulk, a_bad_buffer_fails_only_its_own_message) {
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(),
                    [](const rank_context& ctx) {
                      constexpr std::size_t kBytes = 100000;
                      constexpr int kBad = 1;
                      piece source(true, kBytes), good(true, kBytes * 3);
                      source.set(test::random_bytes(kBytes, 7));
                      std::vector<request> all;
                      for (int i = 0; ctx.rank == 0 && i < 3; ++i) all.push_back(ctx.messenger->isend(1, source.all(), 1));
                      CHECK_OK(ctx.group->barrier());
                      for (unsigned i = 0; ctx.rank == 1 && i < 3; ++i) {
                        auto destination = good.part(i * kBytes, kBytes);
                        if (i == kBad) destination.address = good.address() + kBytes * 3 - 1000;
                        all.push_back(ctx.messenger->irecv(0, destination, 1));
                      }
                      for (int i = 0; i < 3; ++i) {
                        const auto done = all[static_cast<unsigned>(i)].wait(kTimeout);
                        CHECK(done.ok() == (i != kBad) && done.code() != ETIMEDOUT);
                      }
                      if (ctx.rank == 1) {
                        const auto bytes = good.get(kBytes * 3), expected = test::random_bytes(kBytes, 7);
                        CHECK(std::equal(expected.begin(), expected.end(), bytes.begin()));
                        CHECK(std::equal(expected.begin(), expected.end(), bytes.begin() + 2 * kBytes));
                      }
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

// The large ones take several looks, and the small one behind them its turn.
TEST(bulk, host_memory_is_read_in_place) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      const std::vector<std::size_t> sizes{3000001, 1u << 20, 20000, 8193};
                      if (const int line = send_together(ctx, false, sizes)) return line;
                      CHECK(ctx.messenger->counts().pulled == (ctx.rank == 1 ? sizes.size() : 0));
                      CHECK(ctx.messenger->counts().shared_ring == 0);
                      return 0;
                    }),
            0);
}

// The receives are posted, and rank 0 sends before rank 1 looks: short ones are read by one call, up to a long one.
int send_to_posted(const rank_context& ctx, const std::vector<std::size_t>& sizes) {
  std::deque<piece> all;
  std::vector<request> in_flight;
  for (const std::size_t bytes : sizes) {
    all.emplace_back(false, bytes);
    if (ctx.rank == 0) all.back().set(test::random_bytes(bytes, bytes));
    in_flight.push_back(ctx.rank == 0 ? ctx.messenger->isend(1, all.back().all(), in_flight.size())
                                      : ctx.messenger->irecv(0, all.back().all(), in_flight.size()));
  }
  CHECK_OK(ctx.group->barrier());
  for (auto& each : in_flight) CHECK_OK(each.wait(kTimeout));
  for (std::size_t i = 0; ctx.rank == 1 && i < sizes.size(); ++i)
    CHECK(all[i].get(sizes[i]) == test::random_bytes(sizes[i], sizes[i]));
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

std::vector<std::size_t> many_short_ones() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 60; ++i) sizes.push_back(i % 20 == 7 ? 900000 + i : 9000 + 500 * i);
  return sizes;
}

TEST(bulk, short_messages_are_read_together) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      if (const int line = send_to_posted(ctx, many_short_ones())) return line;
                      CHECK(ctx.messenger->counts().pulled == (ctx.rank == 1 ? many_short_ones().size() : 0));
                      return 0;
                    }),
            0);
}

// Rank 0 sends from host memory, rank 1 has GPU memory; all at once, so that they share the chunks.
int send_to_device(const rank_context& ctx, const std::vector<std::size_t>& sizes) {
  return send_together(ctx, ctx.rank == 1, sizes);
}

TEST(bulk, host_memory_for_a_gpu_goes_through_the_ring) {
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(),
                    [](const rank_context& ctx) {
                      const std::vector<std::size_t> sizes{3000001, 262145, 64 << 10, (64 << 10) + 1, 262144, 100000};
                      if (const int line = send_to_device(ctx, sizes)) return line;
                      CHECK(ctx.messenger->counts().pulled == 0);
                      CHECK(ctx.messenger->counts().shared_ring == (ctx.rank == 0 ? sizes.size() : 0));
                      return 0;
                    }),
            0);
}

// More threads than CPUs, chunks of several shares, a message that is cut, one to a window.
TEST(bulk, several_threads_fill_chunks_for_the_gpu) {
  auto options = test_options();
  options.chunk_bytes = 128 << 10;
  options.copy_threads = 4;
  EXPECT_EQ(run_job(2, gpus::one_each, options,
                    [](const rank_context& ctx) {
                      if (const int line = send_to_device(ctx, std::vector<std::size_t>(12, 250001))) return line;
                      constexpr std::size_t kBytes = 240000;
                      piece data(ctx.rank == 1, kBytes);
                      if (ctx.rank == 0) data.set(test::random_bytes(kBytes, 3));
                      auto exposed = ctx.messenger->expose(data.all());
                      CHECK_OK(exposed);
                      window::key_t key = exposed->key();
                      key.rank = 1;
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0) {
                        auto put = ctx.messenger->put(key, 1000, data.part(1000, kBytes - 1000));
                        CHECK_OK(put.wait(kTimeout));
                        CHECK_OK(ctx.messenger->send(1, data.part(0, 200000), 1, kTimeout));
                      } else {
                        const auto cut = ctx.messenger->recv(0, data.part(0, 100000), 1, kWholeTag, kTimeout);
                        CHECK(cut.code() == EMSGSIZE);
                        CHECK(data.get(kBytes) == test::random_bytes(kBytes, 3));
                      }
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

// From GPU memory: pageable memory of the receiver by the ring if several threads empty it, pinned memory and one thread by
// CUDA IPC.
TEST(bulk, pageable_memory_takes_the_ring_if_threads_may_empty_it) {
  for (const unsigned threads : {1u, 4u})
    for (const bool is_pinned : {false, true}) {
      auto options = test_options();
      options.copy_threads = threads;
      const bool by_ring = threads > 1 && !is_pinned;
      EXPECT_EQ(run_job(2, gpus::one_each, options,
                        [&](const rank_context& ctx) {
                          const auto& cuda = test::simulated_cuda();
                          std::vector<std::size_t> sizes(6, (3u << 20) + 5);
                          sizes.push_back(600001);
                          piece data(ctx.rank == 0, sizes[0]);
                          if (ctx.rank == 1 && is_pinned)
                            CHECK(cuda.cuMemHostRegister_v2(copy::host_pointer(data.address()), sizes[0], 0) ==
                                  cu::error_code::success);
                          for (const auto bytes : sizes) {
                            if (ctx.rank == 0) {
                              data.set(test::random_bytes(bytes, bytes));
                              CHECK_OK(ctx.messenger->send(1, data.part(0, bytes), 1, kTimeout));
                            } else {
                              CHECK_OK(ctx.messenger->recv(0, data.part(0, bytes), 1, kWholeTag, kTimeout));
                              CHECK(data.get(bytes) == test::random_bytes(bytes, bytes));
                            }
                          }
                          const auto counts = ctx.messenger->counts();
                          CHECK(counts.shared_ring == (ctx.rank == 0 && by_ring ? sizes.size() : 0));
                          CHECK(counts.ipc == (ctx.rank == 1 && !by_ring ? sizes.size() : 0));
                          if (ctx.rank == 1 && is_pinned) cuda.cuMemHostUnregister(copy::host_pointer(data.address()));
                          return 0;
                        }),
                0)
          << threads << " threads, pinned: " << is_pinned;
    }
}

class refused : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(each_errno, refused, testing::Values(EPERM, EFAULT));

TEST_P(refused, reading_in_place_gives_way_to_the_ring) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      const std::vector<std::size_t> sizes{900000, 20000, 1u << 20};
                      if (const int line = send_together(ctx, false, sizes)) return line;
                      CHECK(refuse_call(SYS_process_vm_readv, GetParam()));
                      if (const int line = send_together(ctx, false, sizes)) return line;
                      CHECK(ctx.messenger->counts().pulled == (ctx.rank == 1 ? sizes.size() : 0));
                      CHECK(ctx.messenger->counts().shared_ring == (ctx.rank == 0 ? sizes.size() : 0));
                      return 0;
                    }),
            0);
}

TEST_P(refused, reading_together_gives_way_to_the_ring) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      CHECK(refuse_call(SYS_process_vm_readv, GetParam()));
                      if (const int line = send_to_posted(ctx, many_short_ones())) return line;
                      CHECK(ctx.messenger->counts().pulled == 0);
                      CHECK(ctx.messenger->counts().shared_ring == (ctx.rank == 0 ? many_short_ones().size() : 0));
                      return 0;
                    }),
            0);
}

// Refused while a message is under way: what has been read does not matter.
TEST_P(refused, a_message_half_read_starts_again) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      constexpr std::size_t kBytes = 4u << 20;
                      piece data(false, kBytes);
                      if (ctx.rank == 0) data.set(test::random_bytes(kBytes, 5));
                      request all;
                      if (ctx.rank == 0) all = ctx.messenger->isend(1, data.all(), 1);
                      CHECK_OK(ctx.group->barrier());
                      if (ctx.rank == 1) {
                        all = ctx.messenger->irecv(0, data.all(), 1);
                        ctx.messenger->progress();
                        CHECK(ctx.messenger->counts().pulled == 1 && refuse_call(SYS_process_vm_readv, GetParam()));
                      }
                      CHECK_OK(all.wait(kTimeout));
                      CHECK(data.get(kBytes) == test::random_bytes(kBytes, 5));
                      CHECK(ctx.messenger->counts().shared_ring == (ctx.rank == 0 ? 1 : 0));
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

TEST(bulk, crossovers_follow_the_costs) {
  messenger_options without_channels;
  without_channels.use_channels = false;
  const auto built_in = thresholds::choose(without_channels, &copy::cost_table::built_in());
  EXPECT_EQ(built_in.eager_device, 4u << 10);  // measured on H200: beyond it, the resident kernel is quicker
  EXPECT_EQ(built_in.ipc_from, 4u << 10);
  EXPECT_EQ(built_in.eager_shared_gpu, 16u << 10) << "a ring of one chunk is no better";
  EXPECT_EQ(thresholds::choose({}, &copy::cost_table::built_in()).eager_shared_gpu, 2u << 10) << "by DMA channel";
  EXPECT_EQ(built_in.shared_gpu_cpu_limit, 192u << 10) << "as measured with two processes on one H100";
  messenger_options wanted;
  wanted.ipc_threshold = 64 << 10;
  const auto set = thresholds::choose(wanted, &copy::cost_table::built_in());
  EXPECT_EQ(set.ipc_from, 64u << 10);
  EXPECT_EQ(set.ipc_to_host_from, 64u << 10);
}

}  // namespace
}  // namespace pl::messaging
