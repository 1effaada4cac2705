// SPDX-License-Identifier: Apache-2.0
// Every reduction, of every type and operation, by every algorithm, against the sum over the ranks: 1 to 5 ranks, in place
// and not.
#include "test/collectives/element_values.hpp"
#include "test/collectives/ranks.hpp"

namespace pl::collectives {
namespace {

class reductions : public testing::TestWithParam<ranks_case> {
 protected:
  void check(collective kind, const std::function<int(const rank_of_job&, summation, std::size_t, bool)>& body) {
    // 70001 elements of 8 bytes, by the ring with 2 ranks, are blocks of more than a segment.
    constexpr std::size_t kCounts[] = {0, 1, 13, 1000};
    EXPECT_EQ(run_ranks(GetParam().size, GetParam().layout,
                        [&](const rank_of_job& job) {
                          return with_each_algorithm(job, kind, [&] {
                            for (unsigned i = 0; i < kElements * kReductions; ++i) {
                              const summation terms{element{static_cast<std::uint8_t>(i / kReductions)},
                                                    reduction{static_cast<std::uint8_t>(i % kReductions)}};
                              for (const bool is_in_place : {false, true}) {
                                for (const std::size_t count : kCounts)
                                  if (const int line = body(job, terms, count, is_in_place))
                                    return tell(terms, count, is_in_place), line;
                                // Large ones for one type of each width; device_combiner_test has all types.
                                if (terms.op == reduction::sum && terms.type <= element::int64)
                                  if (const int line = body(job, terms, 150001, is_in_place))
                                    return tell(terms, 150001, is_in_place), line;
                              }
                            }
                            return 0;
                          });
                        }),
              0);
  }

 private:
  static void tell(summation terms, std::size_t count, bool is_in_place) {
    std::fprintf(stderr, "%zu %s, operation %d, in place %d\n", count, name_of(terms.type), static_cast<int>(terms.op),
                 is_in_place);
  }
};
INSTANTIATE_TEST_SUITE_P(ranks, reductions,
                         testing::Values(ranks_case{"host_1", 1, gpus::none}, ranks_case{"host_2", 2, gpus::none},
                                         ranks_case{"host_3", 3, gpus::none}, ranks_case{"host_4", 4, gpus::none},
                                         ranks_case{"host_5", 5, gpus::none}, ranks_case{"device_2", 2, gpus::one_each},
                                         ranks_case{"device_3", 3, gpus::shared}),
                         [](const auto& values) { return std::string(values.param.name); });

TEST_P(reductions, reduce) {
  check(collective::reduce, [](const rank_of_job& job, summation terms, std::size_t count, bool is_in_place) {
    const int root = static_cast<int>(count) % job.size;
    const std::size_t bytes = terms.bytes(count);
    piece source(job.has_gpu, bytes), destination(job.has_gpu, bytes);
    source.set(contribution(terms, job.rank, count));
    const bool is_root = job.rank == root;
    const auto target = !is_root ? messaging::buffer{} : is_in_place ? source.all() : destination.all();
    CHECK_OK(wait(job.all->reduce(source.all(), target, terms, root)));
    if (is_root) CHECK((is_in_place ? source : destination).get(bytes) == expected(terms, job.size, 0, count));
    if (!is_root || !is_in_place) CHECK(source.get(bytes) == contribution(terms, job.rank, count));
    return 0;
  });
}

TEST_P(reductions, all_reduce) {
  check(collective::all_reduce, [](const rank_of_job& job, summation terms, std::size_t count, bool is_in_place) {
    const std::size_t bytes = terms.bytes(count);
    piece source(job.has_gpu, bytes), destination(job.has_gpu, bytes);
    source.set(contribution(terms, job.rank, count));
    CHECK_OK(wait(job.all->all_reduce(source.all(), is_in_place ? source.all() : destination.all(), terms)));
    CHECK((is_in_place ? source : destination).get(bytes) == expected(terms, job.size, 0, count));
    if (!is_in_place) CHECK(source.get(bytes) == contribution(terms, job.rank, count));
    return 0;
  });
}

TEST_P(reductions, reduce_scatter) {
  check(collective::reduce_scatter, [](const rank_of_job& job, summation terms, std::size_t count, bool is_in_place) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(job.size));
    std::size_t total = 0, before = 0;
    for (int rank = 0; rank < job.size; ++rank) {
      if (rank == job.rank) before = total;
      total += counts[static_cast<std::size_t>(rank)] = rank == 1 ? 0 : count + static_cast<std::size_t>(rank);
    }
    const std::size_t mine = counts[static_cast<std::size_t>(job.rank)], bytes = terms.bytes(mine);
    piece source(job.has_gpu, terms.bytes(total)), destination(job.has_gpu, bytes);
    source.set(contribution(terms, job.rank, total));
    CHECK_OK(wait(job.all->reduce_scatter(
        source.all(), is_in_place ? source.part(terms.bytes(before), bytes) : destination.all(), counts, terms)));
    const auto all = source.get(terms.bytes(total));
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(terms.bytes(before));
    const auto got =
        is_in_place ? std::vector<unsigned char>(begin, begin + static_cast<std::ptrdiff_t>(bytes)) : destination.get(bytes);
    CHECK(got == expected(terms, job.size, before, mine));
    return 0;
  });
}

// Sums of floats that round: every rank has the same bits, and a second run has them again.
TEST(collectives, rounded_sums_are_reproducible) {
  EXPECT_EQ(run_ranks(5, gpus::none,
                      [](const rank_of_job& job) {
                        return with_each_algorithm(job, collective::all_reduce, [&] {
                          constexpr std::size_t kCount = 5003;
                          std::vector<float> given(kCount), sums(kCount), again(kCount), all(5 * kCount);
                          for (std::size_t i = 0; i < kCount; ++i)
                            given[i] = 1.0f / static_cast<float>(1 + i * 7 + static_cast<std::size_t>(job.rank) * 13);
                          const auto host = [](std::vector<float>& data) {
                            return messaging::host_buffer(data.data(), data.size() * sizeof(float));
                          };
                          const summation terms{element::float32, reduction::sum};
                          CHECK_OK(wait(job.all->all_reduce(host(given), host(sums), terms)));
                          CHECK_OK(wait(job.all->all_reduce(host(given), host(again), terms)));
                          CHECK(std::memcmp(sums.data(), again.data(), kCount * sizeof(float)) == 0);
                          CHECK_OK(wait(job.all->all_gather(host(sums), host(all))));
                          for (std::size_t rank = 0; rank < 5; ++rank)
                            CHECK(std::memcmp(all.data() + rank * kCount, sums.data(), kCount * sizeof(float)) == 0);
                          return 0;
                        });
                      }),
            0);
}

}  // namespace
}  // namespace pl::collectives
