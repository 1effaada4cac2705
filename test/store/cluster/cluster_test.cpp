// SPDX-License-Identifier: Apache-2.0
// Servers in this process around a real etcd: redirects, copies, slots that move under load, a server that goes and comes
// back, etcd that goes, values that are damaged.
#include <atomic>

#include "base/clock.hpp"
#include "store/cluster/catch_up.hpp"
#include "test/store/cluster/cluster_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::router;

class cluster_servers : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
  }
};

bytes_t value_of(std::uint64_t number, std::size_t bytes = 64) { return random_value(bytes, number); }

store_client::reply put(router& cluster, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  return cluster.put(pool, key, memory_of(value));
}

store_client::cluster_map store_cluster_map(cluster_rig& rig) {
  const auto now = store_cluster::read_view(rig.etcd().client(), "default");
  return now ? now->map : store_client::cluster_map{};
}

std::string read_back(router& cluster, std::uint32_t pool, const std::string& key, const bytes_t& wanted) {
  bytes_t out(wanted.size() + 1);
  const auto got = cluster.get(pool, key, memory_of(out));
  if (got.status != 0) return key + ": " + got.text;
  out.resize(got.moved_bytes);
  return out == wanted ? "" : key + " has other bytes";
}

// A value that is on its way to one server keeps the pool there, and nowhere else, and no longer than that.
TEST_F(cluster_servers, ADeletedPoolGoesWithTheLastTransfer) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  for (const char* asked : {"a", "b"}) {  // the server with the transfer, and another one
    rig.make_pool(*all, "p", 2);
    store::engine& busy = rig.server("a").server().engine();
    const auto has_pool = [&](const char* name) { return rig.server(name).server().engine().find_pool("p").ok(); };
    const auto soon = [](const std::function<bool()>& is) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return is();
    };
    ASSERT_TRUE(soon([&] { return has_pool("a") && has_pool("b"); }));
    const auto session = busy.open_session();
    const auto grant = busy.begin_put(session, busy.find_pool("p")->id, "k", 1 << 20);
    ASSERT_TRUE(grant) << grant.error().message;
    const auto direct = store_rig::open(rig.server(asked).over_tcp());
    const auto deleted = direct->run(direct->make_plain(opcode::pool_delete, 0, "p"));
    EXPECT_EQ(deleted.status, 0) << deleted.text;
    EXPECT_TRUE(soon([&] { return !has_pool("b"); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(has_pool("a"));
    EXPECT_TRUE(busy.abort(session, grant->id));
    EXPECT_TRUE(soon([&] { return !has_pool("a"); })) << "deleted by way of " << asked;
    busy.close_session(session);
  }
}

// Each server counts what lies on it for the principal that put it, also what came as a copy, and what a server was filled
// with that has lost its disk.
TEST_F(cluster_servers, CopiesCountForThePrincipalThatPutThem) {
  cluster_rig rig;
  rig.quotas = {"* bytes=1M keys=40"};  // clients of this host come by the socket
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto done = put(*all, pool, "key" + std::to_string(i), value_of(i, i % 10 == 0 ? 100'000 : 64));
    ASSERT_EQ(done.status, 0) << done.text;
    bytes += i % 10 == 0 ? 100'000 : 64;
  }
  const auto expect_counts = [&](std::uint64_t keys) {
    for (const char* name : {"a", "b"})
      for (const auto& one : rig.server(name).server().engine().list_owners()) {
        EXPECT_EQ(one.name, "uid:" + std::to_string(geteuid()));
        EXPECT_EQ(one.keys, keys) << name;
        EXPECT_EQ(one.bytes, bytes) << name;
      }
  };
  expect_counts(40);
  EXPECT_EQ(put(*all, pool, "one more", value_of(1)).status, EDQUOT);
  ASSERT_EQ(all->erase(pool, "key10").status, 0);
  bytes -= 100'000;
  expect_counts(39);
  rig.stop("b");
  rig.put_disk_aside("b");
  rig.start("b");
  ASSERT_TRUE(rig.settled({"a", "b"}));
  expect_counts(39);
  EXPECT_EQ(rig.server("b").server().engine().list_owners().size(), 1u);
}

TEST_F(cluster_servers, KeysFollowTheMapAndOtherServersNameTheOwner) {
  cluster_rig rig;
  for (const char* name : {"a", "b", "c"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  for (std::uint64_t i = 0; i < 60; ++i) {
    const auto done = put(*all, pool, "key" + std::to_string(i), value_of(i, i % 10 == 0 ? 200'000 : 64));
    ASSERT_EQ(done.status, 0) << done.text;
    EXPECT_EQ(done.result.copies, 2);
  }
  for (std::uint64_t i = 0; i < 60; ++i)
    EXPECT_EQ(read_back(*all, pool, "key" + std::to_string(i), value_of(i, i % 10 == 0 ? 200'000 : 64)), "");
  // A client that knows nothing of slots: exactly one server takes the key, the others say who.
  const auto map = all->map();
  for (const std::string key : {"key1", "key2", "key3"}) {
    int took = 0;
    for (const char* name : {"a", "b", "c"}) {
      const auto one = store_rig::open(rig.server(name).over_unix());
      const auto mine = one->open_pool("p");
      ASSERT_TRUE(mine) << mine.error().message;
      const auto got = one->run(one->make_plain(store_protocol::opcode::stat, *mine, key));
      if (got.status == 0) ++took;
      else {
        EXPECT_EQ(got.status, EREMOTE) << got.text;
        EXPECT_EQ(got.fields->epoch.value_or(0), map.epoch);
      }
      EXPECT_EQ(got.status == 0, rig.server(name).config.listen == map.endpoint_for(2, key));
    }
    EXPECT_EQ(took, 1);
  }
  // All keys, in order, once.
  const auto found = all->find(pool, {});
  ASSERT_EQ(found.status, 0) << found.text;
  const auto keys = store_protocol::decode_keys(found.body);
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->size(), 60u);
  EXPECT_TRUE(std::is_sorted(keys->begin(), keys->end(), [](const auto& a, const auto& b) { return a.key < b.key; }));
  EXPECT_EQ(all->erase(pool, "key1").status, 0);
  EXPECT_EQ(all->stat(pool, "key1").status, ENOENT);
  EXPECT_EQ(all->erase(pool, "key1").status, ENOENT);
  // Copies from somebody who does not serve the slot are refused, whatever epoch it names.
  const auto forger = store_rig::open(rig.server("a").over_unix());
  const auto value = value_of(1);
  const auto forged = forger->make_put(*forger->open_pool("p"), "key2", memory_of(value), {});
  forged->fields.copy = store_protocol::copy_terms{map.epoch, 12345, 1ull << 62, 0};
  EXPECT_EQ(forger->run(forged).status, EREMOTE);
}

TEST_F(cluster_servers, NothingIsLostWhileServersComeAndGo) {
  cluster_rig rig;
  rig.start("a");
  const auto first = rig.open();
  const auto pool = rig.make_pool(*first, "p", 2), lone = rig.make_pool(*first, "lone", 1);
  // Two copies need two servers; one needs one.
  EXPECT_EQ(put(*first, lone, "x", value_of(1)).status, 0);
  rig.start("b");
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> done{0};
  std::string problem;
  std::thread writer([&] {
    const auto mine = rig.open();
    const auto pool_id = mine->open_pool("p");
    for (std::uint64_t i = 0; !stop && pool_id; ++i) {
      const auto put_now = put(*mine, *pool_id, "key" + std::to_string(i % 500), value_of(i));
      if (put_now.status != 0) {
        problem = put_now.text;
        break;
      }
      done = i + 1;
    }
  });
  EXPECT_TRUE(rig.settled({"a", "b"}));
  rig.start("c");
  EXPECT_TRUE(rig.settled({"a", "b", "c"}));
  rig.stop("a");
  EXPECT_TRUE(wait_until(rig.etcd().client(), [](const auto& now) { return is_settled(now, {"b", "c"}, 2); }));
  rig.start("a");
  EXPECT_TRUE(rig.settled({"a", "b", "c"}));
  stop = true;
  writer.join();
  EXPECT_EQ(problem, "");
  EXPECT_GT(done, 100u);
  for (std::uint64_t i = done > 500 ? done - 500 : 0; i < done; ++i)
    EXPECT_EQ(read_back(*first, pool, "key" + std::to_string(i % 500), value_of(i)), "");
  EXPECT_EQ(read_back(*first, lone, "x", value_of(1)), "") << "moved, too";
  // The copies are the same everywhere, by version and checksum.
  const auto map = first->map();
  for (std::uint64_t key = 0; key < std::min<std::uint64_t>(done, 500); ++key) {
    const std::string name = "key" + std::to_string(key);
    std::set<std::pair<std::uint64_t, std::uint32_t>> versions;
    for (const auto& server : map.units[store_client::unit_of(2, name)].copies) {
      auto& engine = rig.server(server).server().engine();
      const auto info = engine.stat(engine.find_pool("p")->id, name);
      ASSERT_TRUE(info) << server << ": " << name;
      versions.emplace(info->version, info->crc32c);
    }
    EXPECT_EQ(versions.size(), 1u) << name;
  }
}

TEST_F(cluster_servers, ADamagedValueIsRepairedFromAnotherCopy) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  const auto good = value_of(7, 100'000);
  ASSERT_EQ(put(*all, pool, "k", good).status, 0);
  const std::string server = all->map().units[store_client::unit_of(2, "k")].copies.front();
  auto& engine = rig.server(server).server().engine();
  const auto session = engine.open_session();
  const auto value = engine.lookup(session, engine.find_pool("p")->id, "k");
  ASSERT_TRUE(value) << value.error().message;
  engine.arena().base[value->segments.front().offset_bytes + 5000] ^= std::byte{1};
  store_client::get_request options;
  options.verify = true;
  bytes_t out(good.size());
  const auto got = all->get(pool, "k", memory_of(out), options);
  EXPECT_EQ(got.status, 0) << got.text;
  EXPECT_TRUE(out == good);
  EXPECT_EQ(got.result.version, value->info.version);
  EXPECT_EQ(read_back(*all, pool, "k", good), "") << "healed, not only served";
  engine.close_session(session);
  // The only copy of a pool without others stays what it is, and says so.
  const auto lone = rig.make_pool(*all, "lone", 1);
  ASSERT_EQ(put(*all, lone, "k", good).status, 0);
  const std::string orphans = all->map().units[store_client::unit_of(1, "k")].copies.front();
  auto& other = rig.server(orphans).server().engine();
  const auto owner = other.open_session();
  const auto pinned = other.lookup(owner, other.find_pool("lone")->id, "k");
  ASSERT_TRUE(pinned);
  other.arena().base[pinned->segments.front().offset_bytes] ^= std::byte{1};
  EXPECT_EQ(all->get(lone, "k", memory_of(out), options).status, EBADMSG);
  other.close_session(owner);
}

TEST_F(cluster_servers, ARolledBackPutIsAppliedWhenRetried) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  const auto old = value_of(1), lost = value_of(2);
  ASSERT_EQ(put(*all, pool, "k", old).status, 0);
  const unsigned unit = store_client::unit_of(2, "k");
  const std::string first = all->map().units[unit].copies.front(), other = first == "a" ? "b" : "a";
  rig.stop(first);
  ASSERT_TRUE(wait_until(rig.etcd().client(), [&](const auto& now) { return is_settled(now, {other}, 2); }));
  {
    // As if it had died between its own part of a put and the other server's.
    store::engine_options options;
    options.directory = rig.folder(first);
    options.arena_bytes = options.chunk_bytes = 16u << 20;
    auto engine = store::engine::open(options);
    ASSERT_TRUE(engine) << engine.error().message;
    store::put_options request;
    request.request = {77, 1, static_cast<std::uint16_t>(unit + 1)};
    ASSERT_TRUE((*engine)->put((*engine)->find_pool("p")->id, "k", std::as_bytes(std::span(lost)), request));
  }
  rig.start(first);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  EXPECT_EQ(read_back(*all, pool, "k", old), "");
  const auto again = store_rig::open(rig.server(first).over_tcp());
  const auto one = again->make_put(*again->open_pool("p"), "k", memory_of(lost), {});
  one->fields.request_number = store_protocol::sequence{77, 1};
  const auto done = again->run(one);
  EXPECT_EQ(done.status, 0) << done.text;
  EXPECT_FALSE(done.result.repeated);
  EXPECT_EQ(read_back(*all, pool, "k", lost), "") << "it was answered as done";
}

// A client retries requests whose replies were lost. By then the keys are on other servers, which were filled meanwhile.
TEST_F(cluster_servers, ARetriedRequestGetsItsResultFromAServerFilledMeanwhile) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  constexpr std::uint64_t kKeys = 60;
  std::map<std::string, std::uint64_t> erased, made;  // versions
  const auto value = value_of(1);
  // By this server, once it has seen the map in which it has the key.
  const auto ask = [&](const std::string& server, std::uint64_t number, const auto& make) {
    const auto connection = store_rig::open(rig.server(server).over_tcp());
    const auto pool_id = *connection->open_pool("p");
    for (const std::uint64_t deadline = monotonic_ns() + 60'000'000'000;;) {
      const auto one = make(*connection, pool_id);
      one->fields.request_number = store_protocol::sequence{77, number};
      const auto done = connection->run(one);
      if ((done.status != EREMOTE && done.status != EAGAIN) || monotonic_ns() > deadline) return done;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  const auto erase_again = [&](const std::string& server, std::uint64_t i) {
    return ask(server, 2 * i + 1, [&](auto& connection, std::uint32_t pool_id) {
      return connection.make_erase(pool_id, "key" + std::to_string(i), {});
    });
  };
  const auto make_again = [&](const std::string& server, std::uint64_t i) {
    store_client::put_request options;
    options.only = {store_protocol::condition::if_absent, 0};
    return ask(server, 2 * i + 2, [&](auto& connection, std::uint32_t pool_id) {
      return connection.make_put(pool_id, "new" + std::to_string(i), memory_of(value), options);
    });
  };
  const auto server_of = [&](const std::string& key) {
    return store_cluster_map(rig).units[store_client::unit_of(2, key)].copies.front();
  };
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::string old = "key" + std::to_string(i), fresh = "new" + std::to_string(i);
    ASSERT_EQ(put(*all, pool, old, value).status, 0);
    const auto gone = erase_again(server_of(old), i), made_again = make_again(server_of(fresh), i);
    ASSERT_EQ(gone.status, 0) << gone.text;
    ASSERT_EQ(made_again.status, 0) << made_again.text;
    erased[old] = gone.result.version;
    made[fresh] = made_again.result.version;
  }
  rig.start("c");
  rig.start("d");
  ASSERT_TRUE(rig.settled({"a", "b", "c", "d"}));
  const auto all_come_again = [&](const std::set<std::string>& servers) {
    unsigned asked = 0;
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const std::string old = "key" + std::to_string(i), fresh = "new" + std::to_string(i);
      if (const auto server = server_of(old); servers.contains(server)) {
        const auto done = erase_again(server, i);
        EXPECT_EQ(done.status, 0) << server << ": " << done.text;
        EXPECT_TRUE(done.result.repeated);
        EXPECT_EQ(done.result.version, erased[old]);
        ++asked;
      }
      if (const auto server = server_of(fresh); servers.contains(server)) {
        const auto done = make_again(server, i);
        EXPECT_EQ(done.status, 0) << server << ": " << done.text;
        EXPECT_TRUE(done.result.repeated);
        EXPECT_EQ(done.result.version, made[fresh]);
        ++asked;
      }
    }
    return asked;
  };
  EXPECT_GT(all_come_again({"c", "d"}), 20u) << "some have moved";
  // Also from those that were told themselves, to one that starts with what it knew long ago.
  const auto settled_on = [&](const std::set<std::string>& names) {
    return wait_until(rig.etcd().client(), [&](const auto& now) { return is_settled(now, names, 2); });
  };
  rig.stop("a");
  ASSERT_TRUE(settled_on({"b", "c", "d"}));
  rig.stop("b");
  ASSERT_TRUE(settled_on({"c", "d"}));
  rig.start("a");
  ASSERT_TRUE(settled_on({"a", "c", "d"}));
  EXPECT_GT(all_come_again({"a"}), 10u);
}

// A copy in catch-up receives the result of a put that its source then loses. The next source must make it forget the
// result: otherwise it would confirm a put that no server has.
TEST_F(cluster_servers, ACopyForgetsResultsOfRolledBackPuts) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  // A key that c will serve as soon as it is complete.
  auto with_c = store_cluster_map(rig);
  with_c.servers["c"] = with_c.servers["a"];
  std::string key;
  for (int i = 0; key.empty(); ++i) {
    const std::string one = "key" + std::to_string(i);
    if (store_cluster::wanted_on(with_c, store_client::unit_of(2, one)).front() == "c") key = one;
  }
  const unsigned unit = store_client::unit_of(2, key);
  const std::string first = store_cluster_map(rig).units[unit].copies.front(), other = first == "a" ? "b" : "a";
  const auto old = value_of(1), lost = value_of(2);
  ASSERT_EQ(put(*all, pool, key, old).status, 0);
  auto& engine = rig.server(first).server().engine();
  const auto pool_id = engine.find_pool("p")->id;
  {
    // Its own part of a put, that the other server never gets.
    store::put_options options;
    options.request = {77, 1, static_cast<std::uint16_t>(unit + 1)};
    ASSERT_TRUE(engine.put(pool_id, key, std::as_bytes(std::span(lost)), options));
    // And a value which cannot be sent, so that the catch-up never ends.
    std::string stuck;
    for (int i = 0; stuck.empty(); ++i)
      if (store_client::unit_of(2, "s" + std::to_string(i)) == unit) stuck = "s" + std::to_string(i);
    ASSERT_EQ(put(*all, pool, stuck, value_of(3, 10'000)).status, 0);
    const auto session = engine.open_session();
    const auto value = engine.lookup(session, pool_id, stuck);
    ASSERT_TRUE(value) << value.error().message;
    engine.arena().base[value->segments.front().offset_bytes + 5000] ^= std::byte{1};
    engine.close_session(session);
  }
  rig.start("c");
  const auto knows = [&] {  // of the request that c has been told of
    bool found = false;
    (void)rig.server("c").server().engine().export_requests([&](std::uint16_t group) { return group == unit + 1; }, 1,
                                                            [&](const std::string& part) {
                                                              found = found || part.starts_with(std::string("\x4d\0", 2));
                                                              return status();
                                                            });
    return found;
  };
  const std::uint64_t deadline = monotonic_ns() + 30'000'000'000;
  bool was_reported = false;  // again and again, as the catch-up begins anew
  while (!(was_reported = knows()) && monotonic_ns() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(was_reported) << "the test tries nothing";
  ASSERT_FALSE(store_cluster_map(rig).units[unit].has("c")) << "the catch-up has ended";
  rig.stop(first);
  ASSERT_TRUE(wait_until(rig.etcd().client(), [&](const auto& now) { return is_settled(now, {other, "c"}, 2); }));
  ASSERT_EQ(store_cluster_map(rig).units[unit].copies.front(), "c");
  EXPECT_FALSE(knows());
  EXPECT_EQ(read_back(*all, pool, key, old), "");
  const auto again = store_rig::open(rig.server("c").over_tcp());
  store_client::reply done;
  for (const std::uint64_t patience = monotonic_ns() + 5'000'000'000; monotonic_ns() < patience;) {
    const auto one = again->make_put(*again->open_pool("p"), key, memory_of(lost), {});
    one->fields.request_number = store_protocol::sequence{77, 1};
    done = again->run(one);
    if (done.status != EREMOTE && done.status != EAGAIN) break;
  }
  EXPECT_EQ(done.status, 0) << done.text;
  EXPECT_FALSE(done.result.repeated);
  EXPECT_EQ(read_back(*all, pool, key, lost), "") << "it was answered as done";
}

// Changes that a primary sent on one connection before it began to fill the copy on another one.
TEST_F(cluster_servers, ChangesSentBeforeCatchUpAreRefusedAfterIt) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  rig.make_pool(*all, "p", 2);
  const auto map = store_cluster_map(rig);
  const unsigned unit = store_client::unit_of(2, "k");
  const std::string serves = map.units[unit].copies.front(), copies = serves == "a" ? "b" : "a";
  store_protocol::copy_terms terms{map.epoch, map.servers.at(serves).run, 77, 0};
  const auto earlier = store_rig::open(rig.server(copies).over_tcp());
  const auto later = store_rig::open(rig.server(copies).over_tcp());
  const auto value = value_of(1), long_value = value_of(2, 3 << 20);
  const auto send = [&](store_client::client& connection, const bytes_t& content) {
    const auto one = connection.make_put(*connection.open_pool("p"), "k", memory_of(content), {});
    ++terms.version;
    one->fields.copy = terms;
    return connection.run(one);
  };
  EXPECT_EQ(send(*earlier, value).status, 0);
  EXPECT_EQ(send(*later, value).status, 0);
  store_cluster::unit_set units;
  units.set(unit);
  const auto page = later->make_plain(store_protocol::opcode::sync_keys, *later->open_pool("p"), {}, 5000);
  page->fields.prefix = store_cluster::to_bytes(units);
  page->fields.after = "";
  page->fields.copy = terms;
  const auto begun = later->run(page);
  ASSERT_EQ(begun.status, 0) << begun.text;
  for (const auto& content : {value, long_value}) {
    const auto late = send(*earlier, content);
    EXPECT_EQ(late.status, ECONNABORTED) << late.text;
    const auto fine = send(*later, content);
    EXPECT_EQ(fine.status, 0) << fine.text;
  }
  const auto gone = earlier->make_erase(*earlier->open_pool("p"), "k", {});
  gone->fields.copy = terms;
  EXPECT_EQ(earlier->run(gone).status, ECONNABORTED);
}

TEST_F(cluster_servers, WithoutEtcdServingStopsAndNothingIsLost) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  ASSERT_EQ(put(*all, pool, "k", value_of(1)).status, 0);
  rig.etcd().process().signal(SIGSTOP);
  // Until the leases are out by the servers' own clocks; then reads are refused, too: others might serve by now.
  const auto one = rig.open(50);
  const auto again = one->open_pool("p");
  ASSERT_TRUE(again);
  const std::uint64_t deadline = monotonic_ns() + 20'000'000'000;
  int status = 0;
  do status = one->stat(*again, "k").status;
  while (status != EAGAIN && monotonic_ns() < deadline);
  EXPECT_EQ(status, EAGAIN);
  EXPECT_NE(put(*one, *again, "k", value_of(2)).status, 0);
  rig.etcd().process().signal(SIGCONT);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  EXPECT_EQ(put(*all, pool, "k2", value_of(3)).status, 0);
  EXPECT_EQ(read_back(*all, pool, "k2", value_of(3)), "");
  EXPECT_EQ(all->stat(pool, "k").status, 0);
}

}  // namespace
}  // namespace pl::store_test
