// SPDX-License-Identifier: Apache-2.0
// Messages of every size and kind of memory, by every way between two processes.
#include <sys/mman.h>

#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 8, 1000, 8192, 20000, 32768, 65537, 300000, 1u << 20};

// Each size both ways, from each kind of memory to each.
int exchange_all(const rank_context& ctx, bool with_device) {
  for (const bool from_device : {false, true}) {
    for (const bool to_device : {false, true}) {
      if ((from_device || to_device) && !with_device) continue;
      for (const std::size_t bytes : kSizes) {
        piece source(from_device, bytes), destination(to_device, bytes);
        const int peer = 1 - ctx.rank;
        source.set(test::random_bytes(bytes, bytes + static_cast<unsigned>(ctx.rank)));
        auto received = ctx.messenger->irecv(peer, destination.all(), bytes);
        auto sent = ctx.messenger->isend(peer, source.all(), bytes);
        CHECK_OK(sent.wait(kTimeout));
        CHECK_OK(received.wait(kTimeout));
        CHECK(received.info().bytes == bytes && received.info().source == peer && received.info().tag == bytes);
        CHECK(destination.get(bytes) == test::random_bytes(bytes, bytes + static_cast<unsigned>(peer)));
      }
    }
  }
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  return 0;
}

TEST(messages, host_only_needs_no_gpu) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(), [](const rank_context& ctx) { return exchange_all(ctx, false); }), 0);
}

TEST(messages, two_gpus_on_one_node) {
  for (const bool has_channels : {true, false}) {
    auto options = test_options();
    options.use_channels = has_channels;
    EXPECT_EQ(run_job(2, gpus::one_each, options,
                      [&](const rank_context& ctx) {
                        if (const int line = exchange_all(ctx, true)) return line;
                        const auto counts = ctx.messenger->counts();
                        CHECK((counts.dma > 0) == has_channels && (has_channels || counts.ipc > 0));
                        CHECK(counts.eager > 0 && counts.operations == 0 && counts.unexpected_bytes == 0);
                        return 0;
                      }),
              0);
  }
}

TEST(messages, two_processes_on_one_gpu) {
  for (const bool has_channels : {true, false}) {
    auto options = test_options();
    options.use_channels = has_channels;
    EXPECT_EQ(run_job(2, gpus::shared, options,
                      [&](const rank_context& ctx) {
                        if (const int line = exchange_all(ctx, true)) return line;
                        CHECK((ctx.messenger->counts().dma > 0) == has_channels);
                        return 0;
                      }),
              0);
  }
}

TEST(messages, ring_where_ipc_is_impossible) {
  auto options = test_options();
  options.use_ipc = options.use_channels = false;
  EXPECT_EQ(run_job(2, gpus::one_each, options,
                    [](const rank_context& ctx) {
                      if (const int line = exchange_all(ctx, true)) return line;
                      CHECK(ctx.messenger->counts().shared_ring > 0 && ctx.messenger->counts().ipc == 0);
                      return 0;
                    }),
            0);
}

TEST(messages, network) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::one_each, options,
                    [](const rank_context& ctx) {
                      if (const int line = exchange_all(ctx, true)) return line;
                      CHECK(ctx.messenger->counts().network_ring > 0 && !ctx.messenger->is_same_node(1 - ctx.rank));
                      return 0;
                    }),
            0);
}

// A NIC's registration may ask for the right to write; what a program may only read has none.
TEST(messages, from_memory_that_may_only_be_read) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::none, options,
                    [](const rank_context& ctx) {
                      constexpr std::size_t kBytes = 600000;
                      const auto wanted = test::random_bytes(kBytes, 3);
                      piece destination(false, kBytes);
                      void* const source = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                      CHECK(source != MAP_FAILED);
                      std::memcpy(source, wanted.data(), kBytes);
                      CHECK(mprotect(source, kBytes, PROT_READ) == 0);
                      const int peer = 1 - ctx.rank;
                      auto received = ctx.messenger->irecv(peer, destination.all(), 1);
                      auto sent = ctx.messenger->isend(peer, {reinterpret_cast<std::uint64_t>(source), kBytes}, 1);
                      CHECK_OK(sent.wait(kTimeout));
                      CHECK_OK(received.wait(kTimeout));
                      CHECK(destination.get(kBytes) == wanted);
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      return 0;
                    }),
            0);
}

TEST(messages, to_itself) {
  EXPECT_EQ(run_job(1, gpus::one_each, test_options(),
                    [](const rank_context& ctx) {
                      for (const bool is_early : {false, true}) {
                        for (const std::size_t bytes : kSizes) {
                          piece source(true, bytes), destination(true, bytes);
                          source.set(test::random_bytes(bytes, bytes));
                          request received, sent;
                          if (!is_early) received = ctx.messenger->irecv(0, destination.all(), 3);
                          sent = ctx.messenger->isend(0, source.all(), 3);
                          if (is_early) received = ctx.messenger->irecv(kAnySource, destination.all(), 3);
                          CHECK_OK(received.wait(kTimeout));
                          CHECK_OK(sent.wait(kTimeout));
                          CHECK(destination.get(bytes) == test::random_bytes(bytes, bytes));
                        }
                      }
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
