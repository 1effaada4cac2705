// SPDX-License-Identifier: Apache-2.0
// The UCX transport of a whole store, forced over whatever UCX finds here: who gets one, what happens when it breaks, and
// when one of the two processes is killed while values travel.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <optional>

#include "base/env.hpp"
#include "store/protocol/handshake.hpp"
#include "test/store/server/loopback_listener.hpp"
#include "test/store/server/other_process.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::ucx_mode;
using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

constexpr std::size_t kLarge = 24u << 20;

template <class True>
bool comes_true(True is_true, std::chrono::seconds most = std::chrono::seconds(20)) {
  const auto end = store_client::clock::now() + most;
  while (!is_true() && store_client::clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return is_true();
}

struct environment {
  environment(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~environment() { unsetenv(name_); }
  const char* name_;
};

store_client::client_options by_ucx(store_client::client_options options) {
  options.ucx = ucx_mode::on;
  options.use_shm = false;
  return options;
}

// Forwards a client's bytes to a store until it is cut: the store then sees the end of the connection, whatever the client
// does. UCX's bytes do not pass here.
class relay {
 public:
  explicit relay(const std::string& endpoint)
      : store_port_(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)))) {
    thread_ = std::thread([this] { carry(); });
  }
  ~relay() { cut(); }
  const std::string& endpoint() const { return endpoint_; }
  void cut() {
    cut_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  // One connection.
  void carry() {
    pollfd ready[2] = {{listener_->fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    while (!cut_ && poll(ready, 1, 10) == 0) {}
    const int client = accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC);
    const int store = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto address = loopback(store_port_);
    EXPECT_EQ(connect(store, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ready[0].fd = client;
    ready[1].fd = store;
    std::vector<char> some(65536);
    for (bool over = false; !cut_ && !over;) {
      poll(ready, 2, 10);
      for (const int first : {0, 1}) {
        if (ready[first].revents == 0) continue;
        const auto got = recv(ready[first].fd, some.data(), some.size(), 0);
        over = got <= 0 || send(ready[1 - first].fd, some.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got;
      }
    }
    for (const int one : {client, store}) close(one);
    listener_.reset();
  }
  const std::uint16_t store_port_;
  std::optional<loopback_listener> listener_{std::in_place, 4};  // until the connection has ended
  const std::string endpoint_ = listener_->endpoint();
  std::atomic<bool> cut_{false};
  std::thread thread_;
};

std::string log_of(const store_rig& rig) {
  std::ifstream file(rig.config.log);
  return {std::istreambuf_iterator<char>(file), {}};
}

class store_ucx : public testing::Test {
 protected:
  void SetUp() override {
    rig_.config.ucx = "on";
    rig_.start();
    store_ = store_rig::open(by_ucx(rig_.over_tcp()));
    ASSERT_NE(store_, nullptr);
    if (!store_->why_no_ucx().empty()) GTEST_SKIP() << store_->why_no_ucx();
    pool_ = make_pool(*store_, "p");
  }
  std::string metrics() { return store_->run(store_->make_plain(opcode::stats, 0, {})).body; }
  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

// ---- Other processes of the tests below

TEST(stream_helper, DISABLED_PutsUntilKilled) {
  store_client::client_options options;
  options.server.endpoint = env_read("PEERLANE_STORE").text;
  options.require = path::ucx;
  options.ucx = ucx_mode::on;
  const auto store = store_rig::open(options);
  const auto pool = store->open_pool("p");
  const auto value = random_value(kLarge, 9);
  bytes_t room(kLarge);
  for (;;) {
    const auto one = store->make_put(*pool, "theirs", memory_of(value), at_level(durability::volatile_));
    const auto two = store->make_get(*pool, "large", memory_of(room), {});
    store->start(std::vector{one, two});
    store->wait(one);
    store->wait(two);
  }
}

// On DIRECTORY/data; the endpoint is told in DIRECTORY/endpoint.
TEST(stream_helper, DISABLED_ServesUntilKilled) {
  const std::string directory = env_read("PEERLANE_STORE").text;
  store_server::server_config config;
  config.data = directory + "/data";
  config.log = directory + "/log";
  config.listen = "127.0.0.1:0";
  config.admins = {"tcp"};
  if (std::ifstream before(directory + "/endpoint"); before) std::getline(before, config.listen);
  config.arena_bytes = 128u << 20;
  config.chunk_bytes = 16u << 20;
  config.extent_file_bytes = 64u << 20;
  config.ucx = "on";
  auto made = store_server::server::open(config);
  ASSERT_TRUE(made) << made.error().message;
  std::ofstream(directory + "/endpoint.new") << (*made)->tcp_endpoint() << "\n";
  std::filesystem::rename(directory + "/endpoint.new", directory + "/endpoint");
  (void)(*made)->run();
}

// ---- Who gets a UCX transport

TEST_F(store_ucx, AnswersMetricsAndTheLogNameIt) {
  const auto value = random_value(kLarge, 1);
  const auto reply = put(*store_, pool_, "k", value);
  ASSERT_EQ(reply.status, 0) << reply.text;
  EXPECT_EQ(reply.result.way, path::ucx);
  EXPECT_EQ(reply.fields->ucx_transports, store_->ucx_lanes());
  EXPECT_FALSE(store_->ucx_lanes().empty());
  store_client::reply got;
  EXPECT_EQ(get(*store_, pool_, "k", kLarge, &got), value);
  EXPECT_EQ(got.fields->ucx_transports, store_->ucx_lanes());
  const auto text = metrics();
  for (const char* direction : {"in", "out"})
    EXPECT_NE(text.find("peerlane_store_value_bytes_total{path=\"ucx\",direction=\"" + std::string(direction) + "\"} " +
                        std::to_string(kLarge)),
              std::string::npos)
        << text;
  EXPECT_NE(text.find("peerlane_store_ucx_refused_total 0"), std::string::npos);
  EXPECT_NE(log_of(rig_).find("\"event\":\"ucx_joined\""), std::string::npos);
  // A wrong checksum from the caller, and a part of a value.
  store_client::put_request wrong;
  wrong.crc = reply.result.crc + 1;
  EXPECT_EQ(put(*store_, pool_, "k", value, wrong).status, EBADMSG);
  EXPECT_EQ(get(*store_, pool_, "k", kLarge), value);
  EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
}

TEST_F(store_ucx, CanBeDemanded) {
  auto options = by_ucx(rig_.over_unix());
  options.require = path::ucx;
  const auto strict = store_rig::open(options);
  ASSERT_TRUE(strict->open_pool("p"));
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}, std::size_t{3'000'000}}) {
    const auto value = random_value(bytes, bytes);
    const auto reply = put(*strict, pool_, "k", value);
    ASSERT_EQ(reply.status, 0) << reply.text;
    EXPECT_EQ(reply.result.way, path::ucx);
    store_client::reply got;
    EXPECT_EQ(get(*strict, pool_, "k", bytes, &got), value);
    EXPECT_EQ(got.result.way, path::ucx);
  }
  options.ucx = ucx_mode::off;
  const auto without_ucx = store_rig::open(options);
  ASSERT_TRUE(without_ucx->open_pool("p"));
  const auto refused = put(*without_ucx, pool_, "k", random_value(1'000'000, 1));
  EXPECT_EQ(refused.status, ENOTSUP);
  EXPECT_NE(refused.text.find("PEERLANE_STORE_UCX=off"), std::string::npos) << refused.text;
}

TEST_F(store_ucx, ValuesLongerThanMemoryGoByTheConnection) {
  const auto value = random_value(40u << 20, 3);  // more than half of the arena
  const auto reply = put(*store_, pool_, "long", value);
  ASSERT_EQ(reply.status, 0) << reply.text;
  EXPECT_EQ(reply.result.way, path::tcp);
  store_client::reply got;
  EXPECT_EQ(get(*store_, pool_, "long", value.size(), &got), value);
  EXPECT_EQ(got.result.way, path::tcp);
}

TEST_F(store_ucx, AccessListsHoldForItToo) {
  store_protocol::pool_settings settings;
  settings.access = "uid:99=rw";
  const auto admin = store_rig::open(rig_.over_unix());
  const auto closed = make_pool(*admin, "closed", settings);
  (void)closed;
  settings.access = "tcp=r";
  const auto read_only = make_pool(*admin, "read_only", settings);
  rig_.stop();
  rig_.config.admins = {"uid:" + std::to_string(geteuid())};
  rig_.start();
  ASSERT_TRUE(comes_true([&] { return store_->run(store_->make_plain(opcode::ping, 0, {})).status == 0; }));
  EXPECT_EQ(store_->open_pool("closed").code(), EACCES);
  ASSERT_TRUE(store_->open_pool("read_only"));
  ASSERT_EQ(store_->why_no_ucx(), "");
  EXPECT_EQ(put(*store_, read_only, "k", random_value(1'000'000, 1)).status, EACCES);
}

TEST_F(store_ucx, QuotasHoldForItToo) {
  rig_.stop();
  rig_.config.quotas = {"tcp bytes=2000000"};
  rig_.start();
  ASSERT_TRUE(comes_true([&] { return store_->run(store_->make_plain(opcode::ping, 0, {})).status == 0; }));
  ASSERT_EQ(store_->why_no_ucx(), "");
  const auto value = random_value(1'000'000, 1);
  for (const char* key : {"1", "2", "2"}) {
    const auto done = put(*store_, pool_, key, value);
    ASSERT_EQ(done.status, 0) << done.text;
    ASSERT_EQ(done.result.way, path::ucx);
  }
  EXPECT_EQ(put(*store_, pool_, "3", value).status, EDQUOT);
  const auto owners = rig_.server().engine().list_owners();
  ASSERT_EQ(owners.size(), 1u);
  EXPECT_EQ(owners[0].keys, 2u);
  EXPECT_EQ(owners[0].bytes, 2'000'000u);
}

TEST(store_ucx_choice, NoLibraryIsSaidAndTcpIsUsed) {
  const environment gone("PEERLANE_UCX_LIBRARY", "/nonexistent/libucp.so.0");
  store_rig rig;
  rig.config.ucx = "on";
  rig.start();
  auto options = by_ucx(rig.over_tcp());
  const auto store = store_rig::open(options);
  EXPECT_NE(store->why_no_ucx().find("/nonexistent/libucp.so.0"), std::string::npos) << store->why_no_ucx();
  const auto pool = make_pool(*store, "p");
  EXPECT_EQ(put(*store, pool, "k", random_value(1'000'000, 1)).result.way, path::tcp);
  options.require = path::ucx;
  const auto strict = store_rig::open(options);
  const auto refused = put(*strict, make_pool(*strict, "q"), "k", random_value(1'000'000, 1));
  EXPECT_EQ(refused.status, ENOTSUP);
  EXPECT_NE(refused.text.find("UCX cannot be used"), std::string::npos) << refused.text;
  EXPECT_NE(log_of(rig).find("\"event\":\"no_ucx\""), std::string::npos);
}

TEST(store_ucx_choice, UcxToTheSameHostMustBeForced) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_tcp());
  EXPECT_NE(store->why_no_ucx(), "");
  const auto pool = make_pool(*store, "p");
  EXPECT_EQ(put(*store, pool, "k", random_value(1'000'000, 1)).result.way, path::tcp);
  // The client would, the store is not told to.
  const auto eager = store_rig::open(by_ucx(rig.over_tcp()));
  EXPECT_NE(eager->why_no_ucx(), "");
}

// ---- Processes that reach UCX's port without the session's secret

TEST_F(store_ucx, AWrongSecretWritesNothing) {
  store_client::ucx_value_stream::options options;
  options.mode = ucx_mode::on;
  auto stream = store_client::ucx_value_stream::open(std::move(options));
  ASSERT_TRUE(stream) << stream.error().message;
  auto wire = store_client::connect(rig_.over_tcp().server, 5000);
  ASSERT_TRUE(wire);
  store_client::handshake_request request;
  request.ucx = (*stream)->offer();
  const auto hello = store_client::do_handshake(**wire, request, 5000);
  ASSERT_TRUE(hello && hello->ucx);
  EXPECT_NE(hello->ucx->secret[0], 0u);
  bytes_t value(kLarge, 0x66);
  const auto refused = [&](std::uint64_t first, std::uint64_t second) {
    const std::uint64_t secret[2] = {first, second};
    auto joined = (*stream)->connect(*hello->ucx, secret);
    ASSERT_TRUE(joined);
    const auto out = std::make_shared<store_client::stream_transfer>();
    out->is_out = true;
    out->token = 1;
    out->pieces = {{value.data(), value.size()}};
    out->bytes = value.size();
    (*stream)->add(*joined, out);
    EXPECT_TRUE(comes_true([&] {
      (*stream)->progress();
      return out->bad.code != 0 && out->in_flight == 0;
    }));
    (*stream)->close(*joined);
  };
  refused(hello->ucx->secret[0], hello->ucx->secret[1]);  // its own session, which was granted nothing
  refused(hello->ucx->secret[0] + 1, hello->ucx->secret[1]);
  refused(hello->ucx->secret[0], hello->ucx->secret[1] + 1);
  EXPECT_TRUE(comes_true([&] { return metrics().find("peerlane_store_ucx_refused_total 0") == std::string::npos; }));
  EXPECT_EQ(put(*store_, pool_, "k", value).result.way, path::ucx);  // and it goes on
}

// ---- What breaks

TEST_F(store_ucx, AUcxTransportThatBreaksCostsNoOperation) {
  const auto value = random_value(kLarge, 5);
  ASSERT_EQ(put(*store_, pool_, "old", value).status, 0);
  store_client::put_request absent;
  absent.only = {store_protocol::condition::if_absent, 0};
  bytes_t room(kLarge);
  const auto one = store_->make_put(pool_, "new", memory_of(value), absent);
  const auto two = store_->make_get(pool_, "old", memory_of(room), {});
  store_->start(std::vector{one, two});
  for (int i = 0; i < 20 && !store_->test(one); ++i) {}
  store_->break_ucx();
  ASSERT_TRUE(store_->wait(one) && store_->wait(two));
  EXPECT_EQ(one->got.status, 0) << one->got.text;
  EXPECT_EQ(two->got.status, 0) << two->got.text;
  EXPECT_EQ(one->got.result.way, path::tcp);
  EXPECT_EQ(room, value);
  EXPECT_EQ(get(*store_, pool_, "new", kLarge), value);
  EXPECT_NE(store_->why_no_ucx(), "");
  const auto& engine = rig_.server().engine();
  EXPECT_TRUE(comes_true([&] { return engine.stats().grants == 0 && engine.stats().pins == 0; }));
  // The next connection has one again.
  store_->break_connection();
  ASSERT_EQ(store_->run(store_->make_plain(opcode::ping, 0, {})).status, 0);
  EXPECT_EQ(put(*store_, pool_, "new", value).result.way, path::ucx);
}

TEST_F(store_ucx, SpaceOfAKilledClientComesBack) {
  const auto value = random_value(kLarge, 6);
  ASSERT_EQ(put(*store_, pool_, "large", value).status, 0);
  const auto& engine = rig_.server().engine();
  for (int i = 0; i < 3; ++i) {
    other_process client("stream_helper.DISABLED_PutsUntilKilled", rig_.config.listen);
    const auto before = engine.stats().puts;
    ASSERT_TRUE(
        comes_true([&] { return engine.stats().puts > before && engine.stats().grants > 0; }, std::chrono::seconds(30)));
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
    client.end(SIGKILL);
    EXPECT_TRUE(comes_true([&] { return engine.stats().grants == 0 && engine.stats().pins == 0; })) << i;
    EXPECT_EQ(get(*store_, pool_, "large", kLarge), value);
  }
  EXPECT_EQ(put(*store_, pool_, "k", value).result.way, path::ucx);
  // Its earlier puts are whole.
  const auto theirs = get(*store_, pool_, "theirs", kLarge);
  EXPECT_EQ(theirs, random_value(kLarge, 9));
}

TEST(store_ucx_server, KilledWhileValuesTravelAndEverythingIsAppliedOnce) {
  const store_rig rig;  // for its directory; the store is another process
  const auto endpoint = [&] {
    std::string out;
    std::ifstream file(rig.directory() + "/endpoint");
    std::getline(file, out);
    return out;
  };
  auto served = std::make_unique<other_process>("stream_helper.DISABLED_ServesUntilKilled", rig.directory());
  ASSERT_TRUE(comes_true([&] { return !endpoint().empty(); }));
  store_client::client_options options;
  options.server.endpoint = endpoint();
  options.ucx = ucx_mode::on;
  options.timeout_ms = 60'000;
  const auto store = store_rig::open(options);
  ASSERT_NE(store, nullptr);
  if (!store->why_no_ucx().empty()) GTEST_SKIP() << store->why_no_ucx();
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(kLarge, 7);
  ASSERT_EQ(put(*store, pool, "old", value).status, 0);
  for (int i = 0; i < 3; ++i) {
    store_client::put_request absent;
    absent.only = {store_protocol::condition::if_absent, 0};
    bytes_t room(kLarge);
    const std::string key = "new" + std::to_string(i);
    const auto one = store->make_put(pool, key, memory_of(value), absent);
    const auto two = store->make_get(pool, "old", memory_of(room), {});
    store->start(std::vector{one, two});
    (void)store->wait(one, store_client::clock::now() + std::chrono::milliseconds(5 + 10 * i));
    served->end(SIGKILL);
    served = std::make_unique<other_process>("stream_helper.DISABLED_ServesUntilKilled", rig.directory());
    ASSERT_TRUE(store->wait(one) && store->wait(two));
    EXPECT_EQ(one->got.status, 0) << "applied twice? " << one->got.text;
    EXPECT_EQ(two->got.status, 0) << two->got.text;
    EXPECT_EQ(room, value);
    EXPECT_EQ(get(*store, pool, key, kLarge), value);
    EXPECT_EQ(store->why_no_ucx(), "") << "the new connection has a UCX transport again";
  }
}

// Where a store of another process listens, once it does. Empty: it does not.
std::string endpoint_in(const std::string& directory) {
  std::string endpoint;
  comes_true([&] {
    std::ifstream file(directory + "/endpoint");
    std::getline(file, endpoint);
    return !endpoint.empty();
  });
  return endpoint;
}

// The store closes the UCX transport of a client that stands still, by force, while values travel; the client then goes on,
// and UCX hears of a connection that it has closed. PL_LANE_ROUNDS: how many such clients.
TEST(store_ucx_server, OutlivesClientsThatItCutOffWhileTheyStoodStill) {
  const store_rig rig;
  other_process served("stream_helper.DISABLED_ServesUntilKilled", rig.directory());
  const std::string endpoint = endpoint_in(rig.directory());
  ASSERT_NE(endpoint, "");
  store_client::client_options options;
  options.server.endpoint = endpoint;
  options.ucx = ucx_mode::on;
  const auto store = store_rig::open(options);
  if (!store->why_no_ucx().empty()) GTEST_SKIP() << store->why_no_ucx();
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(kLarge, 8);
  ASSERT_EQ(put(*store, pool, "large", value).result.way, path::ucx);
  const auto theirs = [&] {
    const auto got = store->run(store->make_plain(opcode::stat, pool, "theirs"));
    return got.status == 0 ? got.result.version : 0;
  };
  const auto log_of_served = [&] {
    std::ifstream file(rig.directory() + "/log");
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    return "\n" + all.substr(all.size() > 600 ? all.size() - 600 : 0);
  };
  const char* const wanted = std::getenv("PL_LANE_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 5;
  for (int round = 0; round < rounds; ++round) {
    relay between(endpoint);
    const auto before = theirs();
    const other_process client("stream_helper.DISABLED_PutsUntilKilled", between.endpoint());
    ASSERT_TRUE(comes_true([&] { return theirs() != before; }));
    std::this_thread::sleep_for(std::chrono::microseconds(round * 1700 % 20'000));
    client.send(SIGSTOP);
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(round % 16));
    between.cut();
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3 * 20));
    client.send(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const auto reply = put(*store, pool, "mine", value);
    ASSERT_EQ(reply.status, 0) << "round " << round << ": " << reply.text;
    ASSERT_EQ(reply.result.way, path::ucx)
        << "round " << round << ": another client lost its UCX transport: " << store->why_no_ucx() << log_of_served();
    ASSERT_EQ(get(*store, pool, "large", kLarge), value) << "round " << round;
  }
}

TEST(store_ucx_server, ThatHangsCostsTheDeadlineAndNoMore) {
  const store_rig rig;
  other_process served("stream_helper.DISABLED_ServesUntilKilled", rig.directory());
  const std::string endpoint = endpoint_in(rig.directory());
  ASSERT_NE(endpoint, "");
  store_client::client_options options;
  options.server.endpoint = endpoint;
  options.ucx = ucx_mode::on;
  const auto store = store_rig::open(options);
  if (!store->why_no_ucx().empty()) GTEST_SKIP() << store->why_no_ucx();
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(kLarge, 8);
  ASSERT_EQ(put(*store, pool, "old", value).status, 0);
  store_client::put_request soon;
  soon.timeout_ms = 300;
  store_client::get_request soon_too;
  soon_too.timeout_ms = 300;
  {
    auto theirs = value;
    bytes_t room(kLarge);
    const auto one = store->make_put(pool, "k", memory_of(theirs), soon);
    const auto two = store->make_get(pool, "old", memory_of(room), soon_too);
    store->start(std::vector{one, two});
    (void)store->wait(one, store_client::clock::now() + std::chrono::milliseconds(5));
    served.send(SIGSTOP);
    ASSERT_TRUE(store->wait(one, store_client::clock::now() + std::chrono::seconds(15)));
    ASSERT_TRUE(store->wait(two, store_client::clock::now() + std::chrono::seconds(15)));
    EXPECT_TRUE(one->got.status == ETIMEDOUT || one->got.status == 0) << one->got.text;
    EXPECT_TRUE(two->got.status == ETIMEDOUT || two->got.status == 0) << two->got.text;
  }  // the memory is the caller's again: AddressSanitizer sees who touches it now
  served.send(SIGCONT);
  EXPECT_EQ(get(*store, pool, "old", kLarge), value);
  EXPECT_EQ(put(*store, pool, "k", value).status, 0);
}

}  // namespace
}  // namespace pl::store_test
