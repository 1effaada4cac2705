// SPDX-License-Identifier: Apache-2.0
// Every collective that moves bytes, by every algorithm, against what each byte should be: 1 to 5 ranks, from host and
// device memory, in place and not, at sizes around the limits of the protocols.
#include <deque>

#include "test/collectives/ranks.hpp"

namespace pl::collectives {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 1000, 70001};

class moves : public testing::TestWithParam<ranks_case> {
 protected:
  // Once for each size, and each place of the source and the destination.
  void check(collective kind, const std::function<int(const rank_of_job&, std::size_t, bool is_in_place)>& body) {
    EXPECT_EQ(run_ranks(GetParam().size, GetParam().layout,
                        [&](const rank_of_job& job) {
                          return with_each_algorithm(job, kind, [&] {
                            for (const std::size_t bytes : kSizes)
                              for (const bool is_in_place : {false, true})
                                if (const int line = body(job, bytes, is_in_place))
                                  return std::fprintf(stderr, "%zu bytes, in place %d\n", bytes, is_in_place), line;
                            return 0;
                          });
                        }),
              0);
  }
};
INSTANTIATE_TEST_SUITE_P(ranks, moves,
                         testing::Values(ranks_case{"host_1", 1, gpus::none}, ranks_case{"host_2", 2, gpus::none},
                                         ranks_case{"host_3", 3, gpus::none}, ranks_case{"host_4", 4, gpus::none},
                                         ranks_case{"host_5", 5, gpus::none}, ranks_case{"device_2", 2, gpus::one_each},
                                         ranks_case{"device_3", 3, gpus::shared}),
                         [](const auto& values) { return std::string(values.param.name); });

std::vector<unsigned char> blocks_from_all(int size, int destination, std::size_t bytes) {
  std::vector<unsigned char> out;
  for (int source = 0; source < size; ++source) out = out + block_of(source, destination, bytes);
  return out;
}
std::vector<unsigned char> blocks_to_all(int source, int size, std::size_t bytes) {
  std::vector<unsigned char> out;
  for (int destination = 0; destination < size; ++destination) out = out + block_of(source, destination, bytes);
  return out;
}

TEST_P(moves, broadcast) {
  check(collective::broadcast, [](const rank_of_job& job, std::size_t bytes, bool) {
    for (int root = 0; root < job.size; ++root) {
      piece data(job.has_gpu, bytes);
      if (job.rank == root) data.set(block_of(root, 0, bytes));
      CHECK_OK(wait(job.all->broadcast(data.all(), root)));
      CHECK(data.get(bytes) == block_of(root, 0, bytes));
    }
    return 0;
  });
}

TEST_P(moves, gather) {
  check(collective::gather, [](const rank_of_job& job, std::size_t bytes, bool is_in_place) {
    const std::size_t whole = bytes * static_cast<std::size_t>(job.size);
    for (int root = 0; root < job.size; ++root) {
      piece source(job.has_gpu, bytes), destination(job.has_gpu, whole);
      source.set(block_of(job.rank, root, bytes));
      auto own = source.all();
      if (is_in_place && job.rank == root) {
        destination.set(blocks_from_all(job.size, root, bytes));  // the others' blocks are to be overwritten by the same
        own = destination.part(bytes * static_cast<std::size_t>(root), bytes);
      }
      CHECK_OK(wait(job.all->gather(own, job.rank == root ? destination.all() : messaging::buffer{}, root)));
      if (job.rank == root) CHECK(destination.get(whole) == blocks_from_all(job.size, root, bytes));
      CHECK(source.get(bytes) == block_of(job.rank, root, bytes));
    }
    return 0;
  });
}

TEST_P(moves, scatter) {
  check(collective::scatter, [](const rank_of_job& job, std::size_t bytes, bool is_in_place) {
    const std::size_t whole = bytes * static_cast<std::size_t>(job.size);
    for (int root = 0; root < job.size; ++root) {
      piece source(job.has_gpu, whole), destination(job.has_gpu, bytes);
      if (job.rank == root) source.set(blocks_to_all(root, job.size, bytes));
      const bool is_own = is_in_place && job.rank == root;
      const auto own = is_own ? source.part(bytes * static_cast<std::size_t>(root), bytes) : destination.all();
      CHECK_OK(wait(job.all->scatter(job.rank == root ? source.all() : messaging::buffer{}, own, root)));
      if (!is_own) CHECK(destination.get(bytes) == block_of(root, job.rank, bytes));
      if (job.rank == root) CHECK(source.get(whole) == blocks_to_all(root, job.size, bytes));
    }
    return 0;
  });
}

TEST_P(moves, all_gather) {
  check(collective::all_gather, [](const rank_of_job& job, std::size_t bytes, bool is_in_place) {
    const std::size_t whole = bytes * static_cast<std::size_t>(job.size),
                      before = bytes * static_cast<std::size_t>(job.rank);
    piece source(job.has_gpu, bytes), destination(job.has_gpu, whole);
    source.set(block_of(job.rank, 0, bytes));
    if (is_in_place)
      destination.set(std::vector<unsigned char>(before) + block_of(job.rank, 0, bytes) +
                      std::vector<unsigned char>(whole - before - bytes));
    CHECK_OK(wait(job.all->all_gather(is_in_place ? destination.part(before, bytes) : source.all(), destination.all())));
    CHECK(destination.get(whole) == blocks_from_all(job.size, 0, bytes));
    return 0;
  });
}

TEST_P(moves, all_to_all) {
  check(collective::all_to_all, [](const rank_of_job& job, std::size_t bytes, bool is_in_place) {
    const std::size_t whole = bytes * static_cast<std::size_t>(job.size);
    piece source(job.has_gpu, whole), destination(job.has_gpu, whole);
    source.set(blocks_to_all(job.rank, job.size, bytes));
    CHECK_OK(wait(job.all->all_to_all(source.all(), is_in_place ? source.all() : destination.all())));
    CHECK((is_in_place ? source : destination).get(whole) == blocks_from_all(job.size, job.rank, bytes));
    return 0;
  });
}

// Rank r sends rank s bytes + 3r + s bytes, nothing where both are equal and odd. Blocks lie in reverse with gaps.
TEST_P(moves, all_to_all_v) {
  check(collective::all_to_all_v, [](const rank_of_job& job, std::size_t bytes, bool is_in_place) {
    if (is_in_place) return 0;  // below, where lengths are symmetric
    const auto length = [&](int input, int output) {
      return input == output && input % 2 == 1 ? 0 : bytes + static_cast<std::size_t>(3 * input + output);
    };
    const auto ranks = static_cast<std::size_t>(job.size);
    const std::size_t stride = bytes + 64, whole = stride * ranks;
    std::vector<std::size_t> sent(ranks), received(ranks), offsets(ranks);
    std::vector<unsigned char> given(whole, 0xee), wanted(whole, 0x11);
    for (int peer = 0; peer < job.size; ++peer) {
      const auto i = static_cast<std::size_t>(peer);
      sent[i] = length(job.rank, peer);
      received[i] = length(peer, job.rank);
      offsets[i] = stride * (ranks - 1 - i);
      for (std::size_t target = 0; target < sent[i]; ++target) given[offsets[i] + target] = byte_of(job.rank, peer, target);
      for (std::size_t target = 0; target < received[i]; ++target)
        wanted[offsets[i] + target] = byte_of(peer, job.rank, target);
    }
    piece source(job.has_gpu, whole), destination(job.has_gpu, whole);
    source.set(given);
    destination.set(std::vector<unsigned char>(whole, 0x11));
    CHECK_OK(wait(job.all->all_to_all_v(source.all(), {sent, offsets}, destination.all(), {received, offsets})));
    CHECK(destination.get(whole) == wanted);
    return 0;
  });
}

TEST(collectives, all_to_all_v_in_place) {
  EXPECT_EQ(
      run_ranks(3, gpus::none,
                [](const rank_of_job& job) {
                  const std::vector<std::size_t> lengths(3, 100), offsets{0, 100, 200};
                  piece data(false, 300);
                  data.set(blocks_to_all(job.rank, 3, 100));
                  CHECK_OK(wait(job.all->all_to_all_v(data.all(), {lengths, offsets}, data.all(), {lengths, offsets})));
                  CHECK(data.get(300) == blocks_from_all(3, job.rank, 100));
                  return 0;
                }),
      0);
}

// No rank leaves before the last one has come.
TEST_P(moves, barrier) {
  EXPECT_EQ(
      run_ranks(GetParam().size, GetParam().layout,
                [](const rank_of_job& job) {
                  for (int late = 0; late < job.size; ++late) {
                    unsigned char word = 0;
                    std::vector<messaging::request> ended_info;
                    if (job.rank == late)
                      for (int peer = 0; peer < job.size; ++peer)
                        ended_info.push_back(job.messages->isend(peer, messaging::host_buffer("x", 1), 5));
                    CHECK_OK(wait(job.all->barrier()));
                    // What the late one sent before its barrier is here, or comes without the others' help.
                    CHECK_OK(job.messages->recv(late, messaging::host_buffer(&word, 1), 5, messaging::kWholeTag, kTimeout));
                    CHECK(word == 'x');
                    for (auto& each : ended_info) CHECK_OK(each.wait(kTimeout));
                  }
                  return 0;
                }),
      0);
}

// A receive of any source and tag of the user's takes no message of a collective, and several collectives go on together.
TEST(collectives, several_at_once_beside_messages) {
  EXPECT_EQ(run_ranks(4, gpus::none,
                      [](const rank_of_job& job) {
                        unsigned char word = 0;
                        auto any = job.messages->irecv(messaging::kAnySource, messaging::host_buffer(&word, 1), 0, 0);
                        constexpr int kMany = 50;
                        std::deque<piece> pieces;
                        for (int i = 0; i < kMany; ++i) pieces.emplace_back(false, 4 * 3000);
                        std::vector<operation> begun;
                        for (int i = 0; i < kMany; ++i) {
                          auto& one = pieces[static_cast<std::size_t>(i)];
                          const std::size_t bytes = i % 2 == 0 ? 3000 : 3;
                          one.set(blocks_to_all(job.rank + i, 4, bytes));
                          auto made = i % 3 == 0 ? job.all->barrier()
                                                 : job.all->all_to_all(one.part(0, 4 * bytes), one.part(0, 4 * bytes));
                          CHECK_OK(made);
                          begun.push_back(*std::move(made));
                        }
                        for (int i = kMany - 1; i >= 0; --i) CHECK_OK(begun[static_cast<std::size_t>(i)].wait(kTimeout));
                        for (int i = 0; i < kMany; ++i) {
                          if (i % 3 == 0) continue;
                          const std::size_t bytes = i % 2 == 0 ? 3000 : 3;
                          std::vector<unsigned char> wanted;
                          for (int source = 0; source < 4; ++source) wanted = wanted + block_of(source + i, job.rank, bytes);
                          CHECK(pieces[static_cast<std::size_t>(i)].get(4 * bytes) == wanted);
                        }
                        CHECK(!any.has_ended());
                        CHECK_OK(any.cancel());
                        CHECK_OK(job.messages->barrier(kTimeout));  // a rank that leaves ends such receives
                        return 0;
                      }),
            0);
}

}  // namespace
}  // namespace pl::collectives
