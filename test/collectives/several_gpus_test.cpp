// SPDX-License-Identifier: Apache-2.0
// Collectives whose buffers lie on different GPUs of their processes: source on one, destination on another, and each rank
// in its own way.
#include "test/messaging/several_gpus.hpp"

#include "test/collectives/ranks.hpp"

namespace pl::collectives {
namespace {

using messaging::kPlaces;
using messaging::placed;
using messaging::turning_device;

class several_gpu_collectives : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(sizes, several_gpu_collectives, testing::Values(4, 4000, 1 << 20));

// The places of all buffers: every pair at rank 0, another one at each other rank.
template <class Body>
int with_all_places(const rank_of_job& job, const Body& body) {
  turning_device device;
  for (int source = 0; source < kPlaces; ++source)
    for (int destination = 0; destination < kPlaces; ++destination) {
      device.turn();
      if (const int line = body((source + job.rank) % kPlaces, (destination + 2 * job.rank) % kPlaces)) return line;
    }
  return 0;
}

TEST_P(several_gpu_collectives, reduce_between_them) {
  EXPECT_EQ(run_ranks(3, gpus::shared,
                      [&](const rank_of_job& job) {
                        const std::size_t bytes = GetParam(), count = bytes / 4;
                        return with_all_places(job, [&](int source_place, int destination_place) {
                          placed source(source_place, bytes), destination(destination_place, bytes);
                          std::vector<std::int32_t> values(count);
                          for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i) * (job.rank + 1);
                          std::vector<unsigned char> raw(bytes);
                          std::memcpy(raw.data(), values.data(), bytes);
                          source.set(raw);
                          const summation sum{element::int32, reduction::sum};
                          CHECK_OK(wait(job.all->all_reduce(source.all(), destination.all(), sum)));
                          const auto got = destination.get(bytes);
                          std::memcpy(values.data(), got.data(), bytes);
                          for (std::size_t i = 0; i < count; ++i) CHECK(values[i] == static_cast<std::int32_t>(i) * 6);
                          return 0;
                        });
                      }),
            0);
}

TEST_P(several_gpu_collectives, move_between_them) {
  EXPECT_EQ(
      run_ranks(3, gpus::shared,
                [&](const rank_of_job& job) {
                  const std::size_t bytes = GetParam();
                  return with_all_places(job, [&](int source_place, int destination_place) {
                    placed source(source_place, bytes), gathered(destination_place, 3 * bytes);
                    source.set(block_of(job.rank, 0, bytes));
                    CHECK_OK(wait(job.all->all_gather(source.all(), gathered.all())));
                    const auto wanted = block_of(0, 0, bytes) + block_of(1, 0, bytes) + block_of(2, 0, bytes);
                    CHECK(gathered.get(3 * bytes) == wanted);
                    placed given(source_place, 3 * bytes);
                    given.set(block_of(job.rank, 0, bytes) + block_of(job.rank, 1, bytes) + block_of(job.rank, 2, bytes));
                    CHECK_OK(wait(job.all->all_to_all(given.all(), gathered.all())));
                    const auto blocks = block_of(0, job.rank, bytes) + block_of(1, job.rank, bytes);
                    CHECK(gathered.get(3 * bytes) == blocks + block_of(2, job.rank, bytes));
                    CHECK_OK(wait(job.all->broadcast(source.all(), 1)));
                    CHECK(source.get(bytes) == block_of(1, 0, bytes));
                    return 0;
                  });
                }),
      0);
}

}  // namespace
}  // namespace pl::collectives
