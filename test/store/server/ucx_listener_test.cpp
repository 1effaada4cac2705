// SPDX-License-Identifier: Apache-2.0
// The UCX transport's thread, asked by several others at once. No engine behind it, so ThreadSanitizer sees all of it.
#include "store/server/ucx_listener.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "arch/crc32c.hpp"

namespace pl::store_test {
namespace {

using store_client::stream_session_ptr;
using store_client::stream_transfer;
using store_client::ucx_mode;
using store_client::ucx_value_stream;

constexpr std::size_t kBytes = 3u << 20;
constexpr int kTransfers = 12;

TEST(ucx_listener, ServesSessionsOfSeveralThreadsAndEndsUnderLoad) {
  std::vector<unsigned char> arena(2 * kTransfers * kBytes), theirs(arena.size());
  for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<unsigned char>(i * 7 + i / 4096);
  store_server::metrics counters;
  auto log = store_server::event_log::open("/dev/null", store_server::event_log::level::error);
  ASSERT_TRUE(log);
  auto opened = store_server::ucx_listener::open({ucx_mode::on, arena.data(), arena.size()}, counters, *log);
  if (!opened) GTEST_SKIP() << opened.error().message;
  auto& store = **opened;
  std::atomic<int> ended{0}, failed{0}, given_up{0};

  const auto client_of = [&](int index) {
    ucx_value_stream::options options;
    options.mode = ucx_mode::on;
    auto made = ucx_value_stream::open(std::move(options));
    ASSERT_TRUE(made) << made.error().message;
    auto& stream = **made;
    std::mutex lock;
    std::optional<store_server::ucx_listener::joined_stream> is_reported;
    store.join(
        stream.offer(),
        [&](const result<store_server::ucx_listener::joined_stream>& joined) {
          const std::lock_guard hold(lock);
          if (joined) is_reported = *joined;
        },
        [] {});
    const auto known = [&] {
      const std::lock_guard hold(lock);
      return is_reported.has_value();
    };
    while (!known()) std::this_thread::yield();
    const stream_session_ptr at_store = is_reported->session;
    auto mine = stream.connect(is_reported->offer, at_store->secret);
    ASSERT_TRUE(mine) << mine.error().message;
    std::vector<std::shared_ptr<stream_transfer>> all;
    std::atomic<int> arrived{0};
    const std::size_t base = static_cast<std::size_t>(index * kTransfers) * kBytes;
    for (int i = 0; i < kTransfers; ++i) {
      const auto token = static_cast<std::uint64_t>(i + 1);
      auto* const target = arena.data() + base + static_cast<std::size_t>(i) * kBytes;
      auto* const source = theirs.data() + (target - arena.data());
      const auto expected = arch::crc32c(source, kBytes);
      store.receive(at_store, token, {{target, kBytes}}, kBytes, [&, expected](const status& outcome, std::uint32_t crc) {
        if (outcome.code() == ECANCELED || outcome.code() == ECONNABORTED) ++given_up;
        else if (!outcome || crc != expected) ++failed;
        ++ended;
        ++arrived;
      });
    }
    // A message may come before its transfer is known there, and is refused then: again, as clients ask first.
    const auto wait_until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (std::chrono::steady_clock::now() < wait_until) stream.progress();
    for (int i = 0; i < kTransfers; ++i) {
      auto out = std::make_shared<stream_transfer>();
      out->is_out = true;
      out->token = static_cast<std::uint64_t>(i + 1);
      auto* const source = theirs.data() + base + static_cast<std::size_t>(i) * kBytes;
      out->pieces = {{source, kBytes}};
      out->bytes = kBytes;
      stream.add(*mine, out);
      if (i == kTransfers - 1) store.stop(at_store, out->token);
      all.push_back(std::move(out));
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto busy = [&] {
      return arrived < kTransfers || std::any_of(all.begin(), all.end(), [](const auto& one) { return one->in_flight > 0; });
    };
    while (busy() && std::chrono::steady_clock::now() < end) stream.progress();
    EXPECT_FALSE(busy());
    store.close(at_store);
    stream.close(*mine);
  };
  std::thread other([&] { client_of(1); });
  client_of(0);
  other.join();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ended < 2 * kTransfers && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(ended, 2 * kTransfers);
  EXPECT_EQ(failed, 0);
  EXPECT_LE(given_up, 2) << "the ones that were stopped";
  opened->reset();
  for (int index = 0; index < 2; ++index) {
    const auto begin = static_cast<std::ptrdiff_t>(index * kTransfers) * static_cast<std::ptrdiff_t>(kBytes);
    EXPECT_TRUE(std::equal(arena.begin() + begin,
                           arena.begin() + begin + (kTransfers - 1) * static_cast<std::ptrdiff_t>(kBytes),
                           theirs.begin() + begin));
  }
}

}  // namespace
}  // namespace pl::store_test
