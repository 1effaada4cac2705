// SPDX-License-Identifier: Apache-2.0
// Collectives that streams carry out: every type, operation and form, at sizes of both protocols and around their limits,
// captured and not, on memory that begins and ends anywhere; and what happens when a rank does not come.
#include "collectives/stream_collectives.hpp"

#include <array>

#include "test/collectives/element_values.hpp"
#include "test/triggered/stream_job.hpp"

namespace pl::collectives {
namespace {

using triggered::cuda;
using triggered::gpus;
using triggered::rank_session;
using namespace std::chrono_literals;
using bytes = std::vector<unsigned char>;

// Small enough that a test runs through slots and chunks several times.
stream_collectives_options tiny() {
  stream_collectives_options out;
  out.blocks = 3;
  out.slot_bytes = 512;
  out.small_bytes = 1024;
  return out;
}

int run(int size, const std::function<int(const rank_session&, stream_collectives&)>& body,
        const stream_collectives_options& wanted = tiny(), gpus layout = gpus::one_each) {
  return triggered::run_streams(size, layout, {}, [&](const rank_session& session) {
    auto opened = stream_collectives::open(*session.streams, *session.bootstrap, wanted);
    CHECK_OK(opened);
    if (const int line = body(session, **opened)) return line;
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK_OK((*opened)->close());
    return 0;
  });
}

// Memory with known bytes around what a collective may write.
class guarded_buffer {
 public:
  guarded_buffer(std::size_t size, std::size_t shift) : size_(size), shift_(shift), memory_(size + 2 * kGuard + shift) {
    test::set_device_bytes(memory_.pointer(), bytes(size + 2 * kGuard + shift, 0xa5));
  }
  std::uint64_t pointer() const { return memory_.pointer() + kGuard + shift_; }
  void set(const bytes& content) const { test::set_device_bytes(pointer(), content); }
  bytes content() const { return test::device_bytes(pointer(), size_); }
  bool is_whole() const {
    const auto before = test::device_bytes(memory_.pointer(), kGuard + shift_);
    const auto after = test::device_bytes(pointer() + size_, kGuard);
    const auto is_guard = [](unsigned char c) { return c == 0xa5; };
    return std::all_of(before.begin(), before.end(), is_guard) && std::all_of(after.begin(), after.end(), is_guard);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t size_, shift_;
  test::device_buffer memory_;
};

constexpr std::size_t kCounts[] = {1, 3, 8, 127, 128, 513, 3000, 20011};

int all_reduces(const rank_session& session, stream_collectives& all, summation terms, bool is_in_place) {
  for (const std::size_t count : kCounts) {
    const std::size_t shift = count % 2 == 1 ? size_of(terms.type) : 0;
    const guarded_buffer source(terms.bytes(count), shift), destination(terms.bytes(count), 0);
    const auto& target = is_in_place ? source : destination;
    source.set(contribution(terms, session.rank, count));
    CHECK_OK(all.all_reduce(session.stream, source.pointer(), target.pointer(), terms.bytes(count), terms));
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK(target.content() == expected(terms, all.size(), 0, count) && source.is_whole() && destination.is_whole());
    CHECK(is_in_place || source.content() == contribution(terms, session.rank, count));
  }
  return 0;
}

TEST(stream_collectives, all_reduce_of_every_type_and_operation) {
  for (const int size : {2, 3})
    EXPECT_EQ(run(size,
                  [](const rank_session& session, stream_collectives& all) {
                    for (unsigned type = 0; type < kElements; ++type)
                      for (unsigned op = 0; op < kReductions; ++op)
                        if (const int line = all_reduces(
                                session, all, {static_cast<element>(type), static_cast<reduction>(op)}, op % 2 == 0))
                          return line;
                    return 0;
                  }),
              0);
}

int reduce_scatters(const rank_session& session, stream_collectives& all, summation terms, bool is_in_place) {
  const auto rank = static_cast<std::size_t>(session.rank), ranks = static_cast<std::size_t>(all.size());
  for (const std::size_t count : kCounts) {
    const std::size_t block = terms.bytes(count);
    const guarded_buffer source(block * ranks, 0), separate(block, 0);
    source.set(contribution(terms, session.rank, count * ranks));
    const auto target = is_in_place ? source.pointer() + rank * block : separate.pointer();
    CHECK_OK(all.reduce_scatter(session.stream, source.pointer(), target, block, terms));
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK(test::device_bytes(target, block) == expected(terms, all.size(), rank * count, count));
    CHECK(source.is_whole() && separate.is_whole());
  }
  return 0;
}

TEST(stream_collectives, reduce_scatter) {
  EXPECT_EQ(run(3,
                [](const rank_session& session, stream_collectives& all) {
                  for (const auto type : {element::uint8, element::bfloat16, element::float32, element::float64})
                    for (const bool is_in_place : {false, true})
                      if (const int line = reduce_scatters(session, all, {type, reduction::sum}, is_in_place)) return line;
                  return 0;
                }),
            0);
}

bytes block_from(int source, int destination, std::size_t size) {
  return test::random_bytes(size, static_cast<std::uint64_t>(source * 64 + destination));
}

int all_gathers(const rank_session& session, stream_collectives& all, bool is_in_place) {
  const auto rank = static_cast<std::size_t>(session.rank), ranks = static_cast<std::size_t>(all.size());
  for (const std::size_t block : kCounts) {
    const guarded_buffer destination(block * ranks, block % 3), separate(block, 0);
    const auto source = is_in_place ? destination.pointer() + rank * block : separate.pointer();
    test::set_device_bytes(source, block_from(session.rank, 0, block));
    CHECK_OK(all.all_gather(session.stream, source, destination.pointer(), block));
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    bytes wanted;
    for (int source_rank = 0; source_rank < all.size(); ++source_rank) {
      const auto part = block_from(source_rank, 0, block);
      wanted.insert(wanted.end(), part.begin(), part.end());
    }
    CHECK(destination.content() == wanted && destination.is_whole());
  }
  return 0;
}

TEST(stream_collectives, all_gather) {
  EXPECT_EQ(run(3,
                [](const rank_session& session, stream_collectives& all) {
                  if (const int line = all_gathers(session, all, false)) return line;
                  return all_gathers(session, all, true);
                }),
            0);
}

TEST(stream_collectives, all_to_all) {
  EXPECT_EQ(run(3,
                [](const rank_session& session, stream_collectives& all) {
                  const auto ranks = static_cast<std::size_t>(all.size());
                  for (const std::size_t block : kCounts) {
                    const guarded_buffer source(block * ranks, 0), destination(block * ranks, block % 5);
                    bytes given, wanted;
                    for (int other = 0; other < all.size(); ++other) {
                      const auto given_part = block_from(session.rank, other, block),
                                 wanted_part = block_from(other, session.rank, block);
                      given.insert(given.end(), given_part.begin(), given_part.end());
                      wanted.insert(wanted.end(), wanted_part.begin(), wanted_part.end());
                    }
                    source.set(given);
                    CHECK_OK(all.all_to_all(session.stream, source.pointer(), destination.pointer(), block));
                    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                    CHECK(destination.content() == wanted && destination.is_whole());
                  }
                  return 0;
                }),
            0);
}

// Calls of several kinds and sizes, captured once: each launch works on what is in the memory then.
TEST(stream_collectives, in_a_graph) {
  EXPECT_EQ(run(2,
                [](const rank_session& session, stream_collectives& all) {
                  constexpr std::size_t kSmall = 100, kLarge = 5000;
                  constexpr summation kTerms{element::int32, reduction::sum};
                  const test::device_buffer small(kTerms.bytes(kSmall)), large(kTerms.bytes(kLarge));
                  cu::graph_t graph = nullptr;
                  cu::graph_exec_t exec = nullptr;
                  CHECK(cuda().cuStreamBeginCapture_v2(session.stream, cu::capture_mode::global) == 0);
                  CHECK_OK(all.all_reduce(session.stream, small.pointer(), small.pointer(), kTerms.bytes(kSmall), kTerms));
                  CHECK_OK(all.barrier(session.stream));
                  CHECK_OK(all.all_reduce(session.stream, large.pointer(), large.pointer(), kTerms.bytes(kLarge), kTerms));
                  CHECK_OK(all.all_reduce(session.stream, small.pointer(), small.pointer(), kTerms.bytes(kSmall), kTerms));
                  CHECK(cuda().cuStreamEndCapture(session.stream, &graph) == 0);
                  CHECK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
                  for (int launch = 0; launch < 20; ++launch) {
                    std::vector<int> values(kSmall, session.rank + launch), many(kLarge, 10 * session.rank + launch);
                    CHECK(cuda().cuMemcpyHtoD_v2(small.pointer(), values.data(), kTerms.bytes(kSmall)) == 0);
                    CHECK(cuda().cuMemcpyHtoD_v2(large.pointer(), many.data(), kTerms.bytes(kLarge)) == 0);
                    CHECK(cuda().cuGraphLaunch(exec, session.stream) == 0);
                    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                    CHECK(cuda().cuMemcpyDtoH_v2(values.data(), small.pointer(), kTerms.bytes(kSmall)) == 0);
                    CHECK(cuda().cuMemcpyDtoH_v2(many.data(), large.pointer(), kTerms.bytes(kLarge)) == 0);
                    CHECK(std::count(values.begin(), values.end(), 2 * (1 + 2 * launch)) == long{kSmall});
                    CHECK(std::count(many.begin(), many.end(), 10 + 2 * launch) == long{kLarge});
                  }
                  CHECK(cuda().cuGraphExecDestroy(exec) == 0 && cuda().cuGraphDestroy(graph) == 0);
                  return 0;
                }),
            0);
}

// Nothing between the calls: a rank may be a launch ahead, and slots are used anew at once.
TEST(stream_collectives, many_calls_in_a_row) {
  constexpr int kCalls = 60;
  EXPECT_EQ(
      run(3,
          [](const rank_session& session, stream_collectives& all) {
            constexpr summation kTerms{element::uint64, reduction::sum};
            constexpr std::size_t kMaxCount = 3000;
            const test::device_buffer values(kTerms.bytes(kMaxCount));
            test::set_device_bytes(values.pointer(), contribution(kTerms, session.rank, kMaxCount));
            std::vector<std::uint64_t> wanted(kMaxCount);
            for (std::size_t i = 0; i < kMaxCount; ++i) {
              for (int rank = 0; rank < 3; ++rank) wanted[i] += static_cast<std::uint64_t>(value_of(kTerms, rank, i));
            }
            CHECK_OK(all.all_reduce(session.stream, values.pointer(), values.pointer(), kTerms.bytes(kMaxCount), kTerms));
            for (int call = 0; call < kCalls; ++call) {
              const std::size_t count = call % 2 == 0 ? 64 + static_cast<std::size_t>(call) : kMaxCount;
              CHECK_OK(all.all_reduce(session.stream, values.pointer(), values.pointer(), kTerms.bytes(count), kTerms));
              for (std::size_t i = 0; i < count; ++i) wanted[i] *= 3;  // wraps
            }
            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
            std::vector<std::uint64_t> got(kMaxCount);
            CHECK(cuda().cuMemcpyDtoH_v2(got.data(), values.pointer(), kTerms.bytes(kMaxCount)) == 0);
            CHECK(got == wanted);
            return 0;
          }),
      0);
}

TEST(stream_collectives, ranks_of_one_gpu_and_a_rank_alone) {
  const auto body = [](const rank_session& session, stream_collectives& all) {
    return all_reduces(session, all, {element::float32, reduction::sum}, false);
  };
  EXPECT_EQ(run(2, body, tiny(), gpus::shared), 0);
  EXPECT_EQ(run(1, body, tiny(), gpus::shared), 0);
}

// A barrier holds back what is behind it until all have come.
TEST(stream_collectives, barrier) {
  EXPECT_EQ(run(2,
                [](const rank_session& session, stream_collectives& all) {
                  for (int turn = 0; turn < 5; ++turn) {
                    CHECK_OK(session.bootstrap->barrier());
                    if (session.rank == 1) {
                      CHECK_OK(all.barrier(session.stream));
                      usleep(20'000);
                      CHECK(cuda().cuStreamQuery(session.stream) == cu::error_code::not_ready);
                      CHECK_OK(session.bootstrap->barrier());
                    } else {
                      CHECK_OK(session.bootstrap->barrier());
                      CHECK_OK(all.barrier(session.stream));
                    }
                    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  }
                  return 0;
                }),
            0);
}

TEST(stream_collectives, refuse_wrong_arguments_and_go_on) {
  EXPECT_EQ(
      run(2,
          [](const rank_session& session, stream_collectives& all) {
            constexpr summation kTerms{element::float32, reduction::sum};
            const test::device_buffer memory(4096);
            const auto start = memory.pointer();
            unsigned char host[64] = {};
            const auto code = [](const status& done) { return done ? 0 : done.code(); };
            CHECK(code(all.all_reduce(session.stream, start, start, 6, kTerms)) == EINVAL);          // half an element
            CHECK(code(all.all_reduce(session.stream, start + 2, start + 2, 8, kTerms)) == EINVAL);  // between elements
            CHECK(code(all.all_reduce(session.stream, start, start + 4, 8, kTerms)) == EINVAL);      // overlap
            CHECK(code(all.all_reduce(session.stream, start, start, 1 << 30, kTerms)) == EINVAL);    // too long
            CHECK(code(all.all_reduce(session.stream, 64, 64, 8, kTerms)) == EINVAL);                // no memory
            const auto host_address = reinterpret_cast<std::uint64_t>(host);
            CHECK(code(all.all_reduce(session.stream, host_address, start, 8, kTerms)) == EINVAL);
            CHECK(code(all.all_gather(session.stream, start, start + 8, 64)) == EINVAL);
            CHECK(code(all.all_to_all(session.stream, start, start, 64)) == EINVAL);
            CHECK(code(all.reduce_scatter(session.stream, start, start + 4, 64, kTerms)) == EINVAL);
            CHECK_OK(all.all_reduce(session.stream, start, start, 0, kTerms));
            return all_reduces(session, all, kTerms, true);
          }),
      0);
}

// ---- Failure

stream_collectives_options impatient() {
  auto out = tiny();
  out.timeout_ns = 300'000'000;
  return out;
}

int one_rank_stays_away(const rank_session& session, std::size_t size, const std::function<int(stream_collectives&)>& act,
                        int wanted_code) {
  auto opened = stream_collectives::open(*session.streams, *session.bootstrap, impatient());
  CHECK_OK(opened);
  constexpr summation kTerms{element::float32, reduction::sum};
  const test::device_buffer memory(size);
  if (session.rank == 0) {
    CHECK_OK((*opened)->all_reduce(session.stream, memory.pointer(), memory.pointer(), size, kTerms));
    if (const int line = act(**opened)) return line;
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK((*opened)->state().code() == wanted_code);
    CHECK((*opened)->all_reduce(session.stream, memory.pointer(), memory.pointer(), size, kTerms).code() == wanted_code);
  }
  CHECK_OK((*opened)->close());
  return 0;
}

TEST(stream_collectives, a_rank_that_does_not_come_is_a_time_out) {
  for (const std::size_t size : {std::size_t{64}, std::size_t{8192}})
    EXPECT_EQ(triggered::run_streams(2, gpus::one_each, {},
                                     [&](const rank_session& session) {
                                       return one_rank_stays_away(
                                           session, size, [](auto&) { return 0; }, ETIMEDOUT);
                                     }),
              0);
}

// Calls that do not fit together: each rank waits for what the other one does not send, and nothing beyond it is written.
TEST(stream_collectives, sizes_that_differ_are_a_time_out_at_both) {
  for (const auto& [first, second] : {std::pair<std::size_t, std::size_t>{64, 128}, {64, 65536}, {8192, 65536}})
    EXPECT_EQ(triggered::run_streams(2, gpus::one_each, {},
                                     [&, sizes = std::array{first, second}](const rank_session& session) {
                                       auto opened =
                                           stream_collectives::open(*session.streams, *session.bootstrap, impatient());
                                       CHECK_OK(opened);
                                       const auto size = sizes[static_cast<std::size_t>(session.rank)];
                                       const guarded_buffer memory(size, 0);
                                       CHECK_OK((*opened)->all_reduce(session.stream, memory.pointer(), memory.pointer(),
                                                                      size, {element::int32, reduction::sum}));
                                       CHECK(cuda().cuStreamSynchronize(session.stream) == 0 && memory.is_whole());
                                       // A rank that asks for less may have got what it asked for.
                                       const auto state = (*opened)->state();
                                       CHECK(session.rank == 0 || state.code() == ETIMEDOUT);
                                       CHECK_OK((*opened)->close());
                                       return 0;
                                     }),
              0);
}

TEST(stream_collectives, dropped_without_the_others_the_memory_stays_for_them) {
  EXPECT_EQ(triggered::run_streams(2, gpus::one_each, {},
                                   [](const rank_session& session) {
                                     auto opened = stream_collectives::open(*session.streams, *session.bootstrap, tiny());
                                     CHECK_OK(opened);
                                     constexpr summation kTerms{element::int32, reduction::sum};
                                     if (const int line = all_reduces(session, **opened, kTerms, true)) return line;
                                     if (session.rank == 1) opened->reset();
                                     CHECK_OK(session.bootstrap->barrier());
                                     if (session.rank == 0) {  // its kernel writes into the region of the other one
                                       const test::device_buffer memory(64);
                                       CHECK_OK((*opened)->all_reduce(session.stream, memory.pointer(), memory.pointer(), 64,
                                                                      kTerms));
                                       (*opened)->cancel(EINTR);
                                       CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                                     }
                                     CHECK_OK(session.bootstrap->barrier());
                                     return 0;
                                   }),
            0);
}

TEST(stream_collectives, cancel_ends_a_wait) {
  for (const std::size_t size : {std::size_t{64}, std::size_t{8192}})
    EXPECT_EQ(triggered::run_streams(2, gpus::one_each, {},
                                     [&](const rank_session& session) {
                                       return one_rank_stays_away(
                                           session, size, [](stream_collectives& all) { return all.cancel(EINTR), 0; },
                                           EINTR);
                                     }),
              0);
}

TEST(stream_collectives, a_dead_rank_stops_them) {
  EXPECT_EQ(triggered::run_streams(
                2, gpus::one_each, {},
                [&](const rank_session& session) {
                  auto opened = stream_collectives::open(*session.streams, *session.bootstrap, tiny());
                  CHECK_OK(opened);
                  const test::device_buffer memory(64);
                  if (session.rank == 1) raise(SIGKILL);
                  CHECK_OK((*opened)->all_reduce(session.stream, memory.pointer(), memory.pointer(), 64,
                                                 {element::float32, reduction::sum}));
                  while ((*opened)->state()) usleep(1000);
                  CHECK((*opened)->state().code() == ECONNRESET);
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK(!(*opened)->close());
                  return 0;
                },
                1),
            0);
}

// Rank 1 dies behind the exchange of the regions' keys, before rank 0 opens its region.
class dying_group final : public messaging::bootstrap {
 public:
  explicit dying_group(const rank_session& session) : session_(session) {}
  int rank() const noexcept override { return session_.bootstrap->rank(); }
  int size() const noexcept override { return session_.bootstrap->size(); }
  result<std::vector<messaging::byte_string>> all_gather(std::span<const std::byte> mine) override {
    constexpr int kKeys = 2;  // the second exchange of the opening
    auto all = session_.bootstrap->all_gather(mine);
    if (++exchanges_ != kKeys) return all;
    if (rank() == 1) raise(SIGKILL);
    while (session_.streams->peer_state(1)) usleep(1000);
    return all;
  }

 private:
  const rank_session& session_;
  int exchanges_ = 0;
};

TEST(stream_collectives, a_rank_that_dies_during_the_opening_is_gone) {
  EXPECT_EQ(triggered::run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) {
                  dying_group group(session);
                  auto opened = stream_collectives::open(*session.streams, group, tiny());
                  CHECK(opened.code() == ECONNRESET);
                  return 0;
                },
                1),
            0);
}

TEST(stream_collectives, open_and_close_again_and_again) {
  EXPECT_EQ(triggered::run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) {
                  for (int i = 0; i < 5; ++i) {
                    auto opened = stream_collectives::open(*session.streams, *session.bootstrap, tiny());
                    CHECK_OK(opened);
                    if (const int line = all_reduces(session, **opened, {element::float16, reduction::maximum}, true))
                      return line;
                    CHECK_OK((*opened)->close());
                  }
                  return 0;
                }),
            0);
}

// The options of the ranks may differ: the least of each is everybody's.
TEST(stream_collectives, options_that_differ) {
  EXPECT_EQ(
      triggered::run_streams(2, gpus::one_each, {},
                             [](const rank_session& session) {
                               auto wanted = tiny();
                               wanted.blocks = session.rank == 0 ? 2 : 4;
                               wanted.depth = session.rank == 0 ? 8 : 2;
                               wanted.small_bytes = session.rank == 0 ? 64 : 4096;
                               auto opened = stream_collectives::open(*session.streams, *session.bootstrap, wanted);
                               CHECK_OK(opened);
                               if (const int line = all_reduces(session, **opened, {element::int16, reduction::sum}, false))
                                 return line;
                               CHECK_OK((*opened)->close());
                               return 0;
                             }),
      0);
}

}  // namespace
}  // namespace pl::collectives
