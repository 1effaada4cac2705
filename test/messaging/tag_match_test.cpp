// SPDX-License-Identifier: Apache-2.0
// The rules of matching: order, wildcards, truncation, cancelling, probing, and how much may wait.
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

int run_pair(const std::function<int(const rank_context&)>& body, const messenger_options& options = test_options()) {
  return run_job(2, gpus::one_each, options, body);
}

TEST(matching, truncation_keeps_the_first_bytes) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              for (const bool is_device : {false, true}) {
                for (const std::size_t bytes : {std::size_t{100}, std::size_t{500000}}) {
                  piece source(is_device, bytes), destination(is_device, bytes);
                  if (ctx.rank == 0) {
                    source.set(test::random_bytes(bytes, 7));
                    CHECK_OK(ctx.messenger->send(1, source.all(), 1, kTimeout));
                    continue;
                  }
                  destination.set(std::vector<unsigned char>(bytes, 0xee));
                  const std::size_t fits = bytes / 2 + 3;
                  auto received = ctx.messenger->irecv(0, destination.part(0, fits), 1);
                  CHECK(received.wait(kTimeout).code() == EMSGSIZE);
                  CHECK(received.info().bytes == bytes && received.info().source == 0);
                  auto wanted = test::random_bytes(bytes, 7);
                  std::fill(wanted.begin() + static_cast<std::ptrdiff_t>(fits), wanted.end(), 0xee);
                  CHECK(destination.get(bytes) == wanted);
                }
              }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              return 0;
            }),
            0);
}

TEST(matching, masks_and_whole_tags) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              constexpr std::uint64_t kHigh = 0xabcd000000000000ull;
              piece data(false, 8);
              if (ctx.rank == 0) {
                for (const std::uint64_t low : {1, 2, 3})
                  CHECK_OK(ctx.messenger->send(1, data.part(0, low), kHigh | low, kTimeout));
                CHECK_OK(ctx.messenger->barrier(kTimeout));
                return 0;
              }
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              auto second = ctx.messenger->recv(0, data.all(), kHigh | 2, kWholeTag, kTimeout);
              CHECK_OK(second);
              CHECK(second->bytes == 2);
              auto first = ctx.messenger->recv(kAnySource, data.all(), kHigh, 0xffff000000000000ull, kTimeout);
              CHECK_OK(first);
              CHECK(first->bytes == 1 && first->tag == (kHigh | 1) && first->source == 0);
              auto third = ctx.messenger->recv(kAnySource, data.all(), 0, 0, kTimeout);
              CHECK_OK(third);
              CHECK(third->bytes == 3);
              return 0;
            }),
            0);
}

TEST(matching, the_earliest_receive_gets_the_message_wildcard_or_not) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              piece data(false, 64);
              if (ctx.rank == 0) {
                CHECK_OK(ctx.messenger->barrier(kTimeout));
                for (const std::size_t bytes : {1, 2, 3}) CHECK_OK(ctx.messenger->send(1, data.part(0, bytes), 5, kTimeout));
                return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
              }
              auto exact = ctx.messenger->irecv(0, data.part(0, 8), 5);
              auto any = ctx.messenger->irecv(kAnySource, data.part(8, 8), 0, 0);
              auto later = ctx.messenger->irecv(0, data.part(16, 8), 5);
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              for (request* each : {&exact, &any, &later}) CHECK_OK(each->wait(kTimeout));
              CHECK(exact.info().bytes == 1 && any.info().bytes == 2 && later.info().bytes == 3);
              return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
            }),
            0);
}

TEST(matching, cancelling) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              piece data(true, 1 << 20);
              if (ctx.rank == 1) {
                CHECK_OK(ctx.messenger->barrier(std::chrono::milliseconds::max()));
                CHECK_OK(ctx.messenger->barrier(std::chrono::milliseconds::max()));
                message_info found;
                CHECK(!ctx.messenger->probe(kAnySource, 0, 0, found));  // the withdrawn message is not here any more
                return 0;
              }
              auto received = ctx.messenger->irecv(1, data.all(), 1);
              CHECK(received.wait(1ms).code() == ETIMEDOUT);
              CHECK_OK(received.cancel());
              CHECK(received.outcome().code() == ECANCELED);
              { auto dropped = ctx.messenger->irecv(kAnySource, data.all(), 1); }
              auto rendezvous = ctx.messenger->isend(1, data.all(), 1);
              CHECK_OK(ctx.messenger->barrier(kTimeout));
              CHECK(rendezvous.cancel().code() == EBUSY);
              CHECK(rendezvous.wait(kTimeout).code() == ECANCELED);
              { auto dropped = ctx.messenger->isend(1, data.all(), 1); }
              CHECK(ctx.messenger->counts().operations == 2);
              return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
            }),
            0);
}

TEST(matching, probe_and_matched_receive) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              for (const std::size_t bytes : {std::size_t{10}, std::size_t{200000}}) {
                piece data(true, bytes);
                if (ctx.rank == 0) {
                  auto first = ctx.messenger->isend(1, data.all(), 1);
                  auto second = ctx.messenger->isend(1, data.part(0, bytes / 2), 1);
                  CHECK_OK(first.wait(kTimeout));
                  CHECK_OK(second.wait(kTimeout));
                  continue;
                }
                message_info found;
                while (!ctx.messenger->probe(0, 1, kWholeTag, found)) {}
                CHECK(found.bytes == bytes && found.source == 0);
                auto taken = ctx.messenger->match(kAnySource, 1, kWholeTag);
                CHECK(!taken.is_empty() && taken.info().bytes == bytes);
                auto second = ctx.messenger->recv(0, data.all(), 1, kWholeTag, kTimeout);
                CHECK_OK(second);
                CHECK(second->bytes == bytes / 2);
                auto first = ctx.messenger->receive(std::move(taken), data.all());
                CHECK_OK(first.wait(kTimeout));
                CHECK(first.info().bytes == bytes);
              }
              return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
            }),
            0);
}

TEST(matching, a_dropped_message_is_written_nowhere) {
  EXPECT_EQ(run_pair([](const rank_context& ctx) {
              piece data(false, 8);
              if (ctx.rank == 0) {
                for (const unsigned seed : {1, 2}) {
                  data.set(test::random_bytes(8, seed));
                  CHECK_OK(ctx.messenger->send(1, data.all(), seed, kTimeout));
                }
                return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
              }
              CHECK_OK(ctx.messenger->recv(0, data.all(), 1, kWholeTag, kTimeout));
              matched_message dropped;
              while (dropped.is_empty()) dropped = ctx.messenger->match(0, 2, kWholeTag);
              dropped = {};
              CHECK(data.get(8) == test::random_bytes(8, 1));  // not through the operation that received there before
              return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
            }),
            0);
}

TEST(matching, a_flood_is_bounded_and_arrives_in_order) {
  auto options = test_options();
  options.unexpected_bytes = 256 << 10;
  constexpr unsigned kMessages = 100000;
  EXPECT_EQ(run_job(2, gpus::none, options,
                    [](const rank_context& ctx) {
                      if (ctx.rank == 0) {
                        std::vector<std::uint32_t> values(kMessages);
                        std::vector<request> sends;
                        for (unsigned i = 0; i < kMessages; ++i) {
                          values[i] = i;
                          sends.push_back(ctx.messenger->isend(1, host_buffer(&values[i], sizeof values[i]), 4));
                        }
                        CHECK(ctx.messenger->counts().waiting_sends > kMessages / 2);
                        for (auto& each : sends) CHECK_OK(each.wait(kTimeout));
                        return 0;
                      }
                      message_info found;
                      for (int i = 0; i < 2000; ++i) ctx.messenger->probe(0, 4, kWholeTag, found);
                      CHECK(ctx.messenger->counts().unexpected_bytes <= 256 << 10);
                      CHECK(ctx.messenger->counts().operations <= (256 << 10) / 64);
                      for (unsigned i = 0; i < kMessages; ++i) {
                        std::uint32_t value = 0;
                        CHECK_OK(ctx.messenger->recv(0, host_buffer(&value, sizeof value), 4, kWholeTag, kTimeout));
                        CHECK(value == i);
                      }
                      return 0;
                    }),
            0);
}

TEST(matching, many_receives_outstanding) {
  constexpr unsigned kMessages = 100000;
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      std::vector<std::uint32_t> values(kMessages);
                      std::vector<request> all;
                      if (ctx.rank == 1)
                        for (unsigned i = 0; i < kMessages; ++i)
                          all.push_back(ctx.messenger->irecv(0, host_buffer(&values[i], sizeof values[i]), i));
                      CHECK_OK(ctx.messenger->barrier(kTimeout));
                      if (ctx.rank == 0)
                        for (unsigned i = kMessages; i-- > 0;) {
                          values[i] = i;
                          all.push_back(ctx.messenger->isend(1, host_buffer(&values[i], sizeof values[i]), i));
                        }
                      for (auto& each : all) CHECK_OK(each.wait(kTimeout));
                      for (unsigned i = 0; i < kMessages; ++i) CHECK(values[i] == i);
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

TEST(matching, arguments) {
  EXPECT_EQ(run_job(1, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      char byte = 0;
                      CHECK(ctx.messenger->isend(1, host_buffer(&byte, 1), 0).wait().code() == EINVAL);
                      CHECK(ctx.messenger->isend(-1, host_buffer(&byte, 1), 0).wait().code() == EINVAL);
                      CHECK(ctx.messenger->irecv(-2, host_buffer(&byte, 1), 0).wait().code() == EINVAL);
                      CHECK(ctx.messenger->isend(0, host_buffer(nullptr, 1), 0).wait().code() == EINVAL);
                      CHECK(ctx.messenger->isend(0, device_buffer(4096, 1), 0).wait().code() == EINVAL);
                      CHECK(ctx.messenger->counts().operations == 0);
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
