// SPDX-License-Identifier: Apache-2.0
// Memory that is freed after its message and allocated again: new memory at an old address is new memory, whatever a process
// has cached of the old.
#include <set>

#include "test/messaging/any_memory.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

struct reuse_way {
  const char* name;
  bool use_ipc;
  messenger_options::path_t path;
};
constexpr reuse_way kReuseWays[] = {{"ipc", true, messenger_options::path_t::automatic},
                                    {"dma", true, messenger_options::path_t::automatic},
                                    {"ring", false, messenger_options::path_t::automatic},
                                    {"network", true, messenger_options::path_t::network}};

class reuse : public testing::TestWithParam<reuse_way> {};
INSTANTIATE_TEST_SUITE_P(every_way, reuse, testing::ValuesIn(kReuseWays),
                         [](const auto& values) { return std::string(values.param.name); });

struct kinds {
  memory_of source, destination;
};
constexpr kinds kKinds[] = {{memory_of::device, memory_of::device}, {memory_of::host, memory_of::host},
                            {memory_of::pinned, memory_of::pinned}, {memory_of::vmm, memory_of::vmm},
                            {memory_of::host, memory_of::device},   {memory_of::host, memory_of::vmm}};

int exchange(const rank_context& ctx, const kinds& memories, std::size_t bytes, unsigned round,
             std::set<std::uint64_t>& seen, int& reused) {
  any_memory source(memories.source, bytes), destination(memories.destination, bytes);
  for (const auto address : {source.address(), destination.address()}) reused += seen.insert(address).second ? 0 : 1;
  source.set(test::random_bytes(bytes, round * 2 + static_cast<unsigned>(ctx.rank)));
  auto received = ctx.messenger->irecv(1 - ctx.rank, destination.all(), round);
  auto sent = ctx.messenger->isend(1 - ctx.rank, source.all(), round);
  CHECK_OK(sent.wait(kTimeout));
  CHECK_OK(received.wait(kTimeout));
  CHECK(destination.get(bytes) == test::random_bytes(bytes, round * 2 + static_cast<unsigned>(1 - ctx.rank)));
  return 0;
}

TEST_P(reuse, of_every_kind_of_memory) {
  auto options = test_options();
  options.use_ipc = GetParam().use_ipc;
  options.use_channels = std::string_view(GetParam().name) == "dma";
  options.path = GetParam().path;
  EXPECT_EQ(run_job(2, gpus::one_each, options,
                    [](const rank_context& ctx) {
                      unsigned round = 0;
                      for (const auto& kind : kKinds) {
                        std::set<std::uint64_t> seen;
                        int reused = 0;
                        // The last sizes differ: an old mapping would also be too short.
                        for (const std::size_t bytes : {1u << 20, 1u << 20, 1u << 20, 3u << 20, 3u << 20, 700000u, 64u})
                          if (const int line = exchange(ctx, kind, bytes, round++, seen, reused)) return line;
                        // Else this tests nothing; the ends of a kept foreign mapping decide when device memory comes back.
                        CHECK(reused > 0);
                      }
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
