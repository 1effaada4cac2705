// SPDX-License-Identifier: Apache-2.0
// Clients, engines and servers where threads cannot be started: an error that says so, and everything works again later.
#include "test/support/scarce_threads.hpp"

#include <atomic>

#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::operation;
using test::scarce_threads;

// What has a function needs a thread that calls it; what somebody waits for needs none.
TEST(scarce_threads_of_clients, AFunctionIsCalledWithTheReasonAndOthersGoOn) {
  store_rig rig;
  rig.start();
  const auto client = rig.open(rig.over_unix());
  const auto pool = make_pool(*client, "p");
  const auto value = random_value(100, 1);
  std::atomic<int> reported{-1};
  const auto noticed = client->make_put(pool, "a", memory_of(value), {});
  noticed->callback = [&](const operation& ended) { reported = ended.got.status; };
  const auto plain = client->make_put(pool, "b", memory_of(value), {});
  {
    const scarce_threads none;
    client->start(noticed);
    EXPECT_EQ(reported, EAGAIN);
    EXPECT_NE(noticed->got.text.find("raise the limit of processes"), std::string::npos) << noticed->got.text;
    client->start(plain);
    EXPECT_EQ(client->call_at_end(plain, [&](const operation&) { reported = 1000; }).code(), EAGAIN);
    EXPECT_TRUE(client->wait(plain));
  }
  EXPECT_EQ(plain->got.status, 0) << plain->got.text;
  EXPECT_EQ(reported, EAGAIN);
  bytes_t out(100);
  EXPECT_EQ(client->run(client->make_get(pool, "a", memory_of(out), {})).status, ENOENT) << "a refused put was sent";
  const auto again = client->make_put(pool, "a", memory_of(value), {});
  again->callback = [&](const operation& ended) { reported = ended.got.status; };
  client->start(again);
  EXPECT_TRUE(client->wait(again));
  for (int i = 0; i < 10'000 && reported != 0; ++i) usleep(1000);
  EXPECT_EQ(reported, 0);
}

// The k-th thread is missing. RocksDB, which cannot bear that, begins only where its threads can be had.
TEST(scarce_threads_of_servers, OpeningIsRefusedAndLeavesNothing) {
  store_rig rig;
  for (int left = 0; left < 20; ++left) {
    scarce_threads few(left, scarce_threads::limited::everybodys);
    const auto opened = store_server::server::open(rig.config);
    ASSERT_EQ(opened.code(), EAGAIN) << left;
    EXPECT_NE(opened.error().message.find("thread"), std::string::npos) << opened.error().message;
  }
  rig.start();
  const auto client = rig.open(rig.over_unix());
  const auto pool = make_pool(*client, "p");
  const auto value = random_value(100, 1);
  EXPECT_EQ(client->run(client->make_put(pool, "a", memory_of(value), {})).status, 0);
}

}  // namespace
}  // namespace pl::store_test
