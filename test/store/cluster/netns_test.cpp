// SPDX-License-Identifier: Apache-2.0
// Servers as processes in network namespaces around a real etcd, with clients that never rest: one server is cut off and
// comes back, one is killed and comes back, one is added, one is taken out. What the clients saw must be possible for
// registers that lose nothing: each key's history is searched for an order, with a last read of every key behind it.
//
//   bridge br0 (this process's own namespace, 10.77.0.254) -- veth -- etcd 10.77.0.10
//                                                          -- veth -- a 10.77.0.1, b .2, c .3, d .4
//
// The long form draws what happens at random: --gtest_also_run_disabled_tests --gtest_filter='*Long*'; the environment's
// PL_NETNS_SEED draws the same faults again, PL_NETNS_ROUNDS more or fewer of them than 20 rounds, PL_NETNS_LEASE_S the
// servers' --lease-s.
#include <sched.h>

#include <atomic>
#include <deque>
#include <map>
#include <random>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "test/store/cluster/cluster_rig.hpp"
#include "test/store/server/history.hpp"

namespace pl::store_test {
namespace {

using store_client::router;
using kind = event::kind;

constexpr std::size_t kSlowKept = 40, kClients = 4, kKeys = 24, kPerKey = 12;  // 48 events of a key, and the last read

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// A process with a network of its own, wired to the bridge.
class node {
 public:
  node(std::string name, const std::string& host, const std::vector<std::string>& arguments, const std::string& log)
      : name_(std::move(name)) {
    int ready[2], go[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(go, O_CLOEXEC), 0);
    process_ = std::make_unique<child_process>(arguments, log, [&] {
      char byte = 0;
      if (unshare(CLONE_NEWNET) != 0 || write(ready[1], "r", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(126);
    });
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    const std::string pid = std::to_string(process_->pid()), inside = "nsenter -t " + pid + " -n ip ";
    // A started one has the hardware address that it had: else its neighbours send to the old one until they forget it,
    // which takes them up to a minute.
    const std::string number = host.substr(host.rfind('.') + 1), octet = number.size() == 1 ? "0" + number : number;
    EXPECT_TRUE(
        run("ip link add v-" + name_ + " type veth peer name eth0 address 02:00:00:00:00:" + octet + " netns " + pid));
    EXPECT_TRUE(run("ip link set v-" + name_ + " master br0 up"));
    EXPECT_TRUE(run(inside + "addr add " + host + "/24 dev eth0"));
    EXPECT_TRUE(run(inside + "link set eth0 up"));
    EXPECT_TRUE(run(inside + "link set lo up"));
    EXPECT_EQ(write(go[1], "g", 1), 1);
    for (const int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
  }
  ~node() {
    process_.reset();
    run("ip link del v-" + name_);
  }
  void wire(bool is_up) { EXPECT_TRUE(run("ip link set v-" + name_ + (is_up ? " up" : " down"))); }
  child_process& process() { return *process_; }

 private:
  std::string name_;
  std::unique_ptr<child_process> process_;
};

// Empty: this machine can do it.
std::string why_not() {
  if (!etcd_is_there()) return kNoEtcd;
  if (geteuid() != 0) return "network namespaces need root here: run this test as root";
  if (!run("command -v ip") || !run("command -v nsenter"))
    return "ip or nsenter is missing: apt-get install iproute2 util-linux";
  if (unshare(CLONE_NEWNET) != 0) return "no network namespace can be made here: " + std::string(strerror(errno));
  if (!run("ip link set lo up") || !run("ip link add br0 type bridge") || !run("ip addr add 10.77.0.254/24 dev br0") ||
      !run("ip link set br0 up"))
    return "no bridge can be made in a network namespace here: the kernel lacks it";
  return {};
}

class wired_cluster {
 public:
  explicit wired_cluster(unsigned lease_s = kLeaseSeconds) : lease_s_(lease_s) {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-netns-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const std::string url = "http://10.77.0.10:2379", peers = "http://10.77.0.10:2380";
    etcd_ = std::make_unique<node>(
        "etcd", "10.77.0.10",
        std::vector<std::string>{kEtcd, "--data-dir", folder_ + "/etcd", "--listen-client-urls", url,
                                 "--advertise-client-urls", url, "--listen-peer-urls", peers,
                                 "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers},
        folder_ + "/etcd.log");
    EXPECT_TRUE(wait_until(database(), [](const auto&) { return true; }));
  }
  ~wired_cluster() {
    servers_.clear();
    etcd_.reset();
    if (testing::Test::HasFailure()) {
      std::fprintf(stderr, "logs are kept in %s\n", folder_.c_str());
      return;
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  store_cluster::etcd database() const { return *store_cluster::etcd::connect({kUrl}, std::chrono::milliseconds(2000)); }
  static std::string host(const std::string& name) { return "10.77.0." + std::to_string(name[0] - 'a' + 1); }
  std::string socket(const std::string& name) const { return folder_ + "/" + name + "/store.sock"; }

  void start(const std::string& name) {
    const std::string program = PL_PROGRAM;
    servers_[name] = std::make_unique<node>(name, host(name),
                                            std::vector<std::string>{program,
                                                                     "store",
                                                                     "serve",
                                                                     "--data",
                                                                     folder_ + "/" + name,
                                                                     "--listen",
                                                                     host(name) + ":7000",
                                                                     "--insecure",
                                                                     "--admins",
                                                                     "uid:0,tcp",
                                                                     "--cluster",
                                                                     kUrl,
                                                                     "--name",
                                                                     name,
                                                                     "--lease-s",
                                                                     std::to_string(lease_s_),
                                                                     "--repair-s",
                                                                     "1",
                                                                     "--arena",
                                                                     "67108864",
                                                                     "--chunk",
                                                                     "16777216"},
                                            folder_ + "/" + name + ".log");
  }
  node& server(const std::string& name) { return *servers_.at(name); }
  void kill(const std::string& name) { servers_.erase(name); }
  // Nothing is wrong with any of them. What etcd says is not enough: a server that was killed and started again is alive
  // there, and complete, until its old lease is out or it has joined anew.
  bool settled(const std::set<std::string>& names) {
    const std::uint64_t deadline = monotonic_ns() + 90'000'000'000;
    const auto well = [&](const auto& now) {
      return is_settled(now, names) &&
             std::all_of(names.begin(), names.end(), [&](const auto& one) { return goes_by(one, now.map.epoch); });
    };
    while (monotonic_ns() < deadline)
      if (wait_until(database(), well, 5)) return true;
    return false;
  }
  std::unique_ptr<router> open() const {
    store_client::router_options options;
    for (const char* name : {"a", "b", "c", "d"}) options.servers.push_back(host(name) + ":7000");
    options.try_ms = 1000;
    options.timeout_ms = 60'000;
    auto made = router::open(options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }

 private:
  // The server's own word, past its network: its lease runs, and it goes by this map.
  bool goes_by(const std::string& name, std::uint64_t epoch) const {
    store_client::client_options options;
    options.server.socket = socket(name);
    options.timeout_ms = 500;
    options.use_shm = false;
    const auto past = store_client::client::open(options);
    if (!past) return false;
    const auto reply = (*past)->run((*past)->make_plain(store_protocol::opcode::stats, 0, {}));
    return reply.status == 0 && value_in(reply.body, "peerlane_store_cluster_lease_seconds") > 0 &&
           value_in(reply.body, "peerlane_store_cluster_epoch") == static_cast<double>(epoch);
  }
  static double value_in(const std::string& metrics, const std::string& name) {
    const auto found = metrics.find("\n" + name + " ");
    return found == std::string::npos ? -1 : std::strtod(metrics.c_str() + found + name.size() + 2, nullptr);
  }

  static constexpr const char* kUrl = "http://10.77.0.10:2379";
  const unsigned lease_s_;
  std::string folder_;
  std::unique_ptr<node> etcd_;
  std::map<std::string, std::unique_ptr<node>> servers_;
};

// Clients that put, get, erase and compare until they are told to stop; in rounds of other keys, so that no history is
// longer than the checker takes.
class players {
 public:
  // `prefix`: of the keys, which must be new.
  players(wired_cluster& cluster, const std::string& pool, std::string prefix)
      : cluster_(cluster), pool_(pool), prefix_(std::move(prefix)) {
    for (std::size_t i = 0; i < kClients; ++i) threads_.emplace_back([this, i] { play(i); });
  }
  ~players() { join(); }
  // Then a last read of every key. What is not possible, in words.
  std::vector<std::string> stop() {
    join();
    const auto last = cluster_.open();
    const auto pool = last->open_pool(pool_);
    std::vector<std::string> wrong;
    for (auto& [key, events] : histories_) {
      events.push_back(read(*last, *pool, key));
      if (events.back().unknown) wrong.push_back(key + " cannot be read at the end");
      const auto reason = explain_if_impossible(events);
      if (!reason.empty()) wrong.push_back(key + ": " + reason);
    }
    return wrong;
  }
  std::uint64_t answered() const { return answered_.load(); }
  // Some more operations have been answered, of each client.
  bool go_on() {
    const std::uint64_t wanted = answered_ + 200, deadline = monotonic_ns() + 60'000'000'000;
    while (answered_ < wanted && monotonic_ns() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (answered_ >= wanted) return true;
    tell_why();
    return false;
  }

 private:
  void join() {
    stop_ = true;
    for (auto& one : threads_)
      if (one.joinable()) one.join();
  }

  // The clients' progress, for people: on stderr.
  void tell_why() {
    const auto now = store_cluster::read_view(cluster_.database(), "default");
    const std::lock_guard hold(lock_);
    for (const auto& one : slow_) std::fprintf(stderr, "  %s\n", one.c_str());
    for (const auto& [number, key] : in_flight_) {
      std::fprintf(stderr, "  client %zu is at %s", number, key.c_str());
      if (!now) continue;
      const auto& entry = now->map.units[store_client::unit_of(pool_ == "p" ? 2 : 3, key)];
      for (const auto& one : entry.copies) std::fprintf(stderr, ", on %s", one.c_str());
      for (const auto& one : entry.joining) std::fprintf(stderr, ", joining %s", one.c_str());
      std::fprintf(stderr, "\n");
    }
    if (!now) return;
    for (const auto& one : now->alive) std::fprintf(stderr, "  %s is alive\n", one.c_str());
  }

  static event read(router& store, std::uint32_t pool, const std::string& key, std::uint64_t* version = nullptr,
                    std::string* text = nullptr) {
    event one;
    one.action = kind::get;
    std::uint64_t word = 0;
    one.begin_ns = monotonic_ns();
    const auto got = store.get(pool, key, {reinterpret_cast<std::uint64_t>(&word), sizeof word, std::nullopt});
    one.end_ns = monotonic_ns();
    if (got.status == 0) one.value = word;
    else if (got.status != ENOENT) one.unknown = true;
    if (version != nullptr) *version = got.result.version;
    if (text != nullptr) *text = got.text;
    return one;
  }

  void play(std::size_t number) {
    const auto store = cluster_.open();
    const auto pool = store->open_pool(pool_);
    ASSERT_TRUE(pool) << pool.error().message;
    std::mt19937_64 random(number);
    std::uint64_t value = (number + 1) << 40;
    for (unsigned round = 0; !stop_; ++round) {
      std::map<std::string, std::vector<event>> mine;
      std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> seen;  // value and version
      for (std::size_t i = 0; i < kKeys * kPerKey && !stop_; ++i) {
        const std::string key = prefix_ + "r" + std::to_string(round) + "k" + std::to_string(i % kKeys);
        {
          const std::lock_guard hold(lock_);
          in_flight_[number] = key;
        }
        mine[key].push_back(one_operation(*store, *pool, key, random() % 10, ++value, seen[key]));
      }
      const std::lock_guard hold(lock_);
      for (auto& [key, events] : mine) histories_[key].insert(histories_[key].end(), events.begin(), events.end());
    }
  }

  event one_operation(router& store, std::uint32_t pool, const std::string& key, std::uint64_t dice, std::uint64_t value,
                      std::pair<std::uint64_t, std::uint64_t>& seen) {
    event one;
    std::string text;
    if (dice < 4 || (dice == 8 && seen.first == 0)) {
      std::uint64_t version = 0;
      one = read(store, pool, key, &version, &text);
      if (!one.unknown) seen = {one.value, version};
    } else {
      store_client::put_request options;
      one.action = dice < 7 ? kind::put : dice == 7 ? kind::put_if_absent : dice == 8 ? kind::put_if_value : kind::erase;
      if (one.action == kind::put_if_absent) options.only = {store_protocol::condition::if_absent, 0};
      if (one.action == kind::put_if_value) options.only = {store_protocol::condition::if_version, seen.second};
      one.expected = one.action == kind::put_if_value ? seen.first : 0;
      one.value = one.action == kind::erase ? 0 : value;
      one.begin_ns = monotonic_ns();
      const auto got =
          one.action == kind::erase
              ? store.erase(pool, key, options)
              : store.put(pool, key, {reinterpret_cast<std::uint64_t>(&value), sizeof value, std::nullopt}, options);
      one.end_ns = monotonic_ns();
      text = got.text;
      if (got.status == ENOENT || got.status == EEXIST || got.status == ESTALE) one.succeeded = false;
      else one.unknown = got.status != 0;
    }
    if (!one.unknown) ++answered_;
    note_if_slow(one, key, text);
    return one;
  }

  // The message for clients that make no progress.
  void note_if_slow(const event& one, const std::string& key, const std::string& text) {
    const std::uint64_t took_ms = (one.end_ns - one.begin_ns) / 1'000'000;
    if (took_ms < 500) return;
    const std::lock_guard hold(lock_);
    slow_.push_back(format("%.3f s: %s kind %d took %llu ms: %s", 1e-9 * static_cast<double>(one.end_ns), key.c_str(),
                           static_cast<int>(one.action), static_cast<unsigned long long>(took_ms), text.c_str()));
    if (slow_.size() > kSlowKept) slow_.pop_front();
  }

  wired_cluster& cluster_;
  const std::string pool_, prefix_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> answered_{0};
  std::mutex lock_;
  std::map<std::string, std::vector<event>> histories_;
  std::map<std::size_t, std::string> in_flight_;  // by client
  std::deque<std::string> slow_;                  // the last operations that took long
  std::vector<std::thread> threads_;
};

void make_pool(wired_cluster& cluster, const char* name, unsigned copies) {
  store_protocol::pool_settings settings;
  settings.copies = static_cast<std::uint8_t>(copies);
  settings.level = store_protocol::durability::logged;  // processes are killed, machines are not
  const auto made = cluster.open()->create_pool(name, settings);
  ASSERT_TRUE(made) << made.error().message;
}

// The server itself, past its network: it must not answer for keys that others serve by now.
void expect_that_it_refuses(wired_cluster& cluster, const std::string& name) {
  store_client::client_options options;
  options.server.socket = cluster.socket(name);
  options.timeout_ms = 2000;
  const auto past = store_client::client::open(options);
  ASSERT_TRUE(past) << past.error().message;
  const auto pool = (*past)->open_pool("p");
  ASSERT_TRUE(pool) << pool.error().message;
  for (int i = 0; i < 50; ++i) {
    const auto got = (*past)->run((*past)->make_plain(store_protocol::opcode::stat, *pool, "k" + std::to_string(i)));
    EXPECT_TRUE(got.status == EAGAIN || got.status == EREMOTE) << got.status << " " << got.text;
  }
}

std::optional<std::int64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const auto number = parse_integer(text);
  return number ? std::optional(*number) : std::nullopt;
}

bool left_it(const store_cluster::cluster_view& now, const std::string& name) {
  return !now.alive.contains(name) && std::none_of(now.map.units.begin() + store_client::kUnits, now.map.units.end(),
                                                   [&](const auto& entry) { return entry.has(name); });
}

TEST(store_netns, OneCutOffOneKilledOneAddedOneTakenOut) {
  if (const auto reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
  wired_cluster cluster;
  for (const char* name : {"a", "b", "c"}) cluster.start(name);
  ASSERT_TRUE(cluster.settled({"a", "b", "c"}));
  make_pool(cluster, "p", 2);
  players all(cluster, "p", "");
  EXPECT_TRUE(all.go_on());

  cluster.server("b").wire(false);
  ASSERT_TRUE(wait_until(cluster.database(), [](const auto& now) { return left_it(now, "b"); }));
  expect_that_it_refuses(cluster, "b");
  EXPECT_TRUE(all.go_on()) << "the others go on";
  cluster.server("b").wire(true);
  ASSERT_TRUE(cluster.settled({"a", "b", "c"}));

  cluster.kill("a");
  ASSERT_TRUE(wait_until(cluster.database(), [](const auto& now) { return left_it(now, "a"); }));
  EXPECT_TRUE(all.go_on());
  cluster.start("a");
  ASSERT_TRUE(cluster.settled({"a", "b", "c"}));

  cluster.start("d");
  ASSERT_TRUE(cluster.settled({"a", "b", "c", "d"}));
  const std::string program = PL_PROGRAM;
  EXPECT_TRUE(run(program + " store cluster remove c --cluster http://10.77.0.10:2379 --wait-s 60"));
  EXPECT_EQ(cluster.server("c").process().end(SIGTERM), 0);
  EXPECT_TRUE(all.go_on());
  for (const auto& wrong : all.stop()) ADD_FAILURE() << wrong;
  EXPECT_GT(all.answered(), 1000u);
}

TEST(store_netns, DISABLED_LongAndAtRandom) {
  if (const auto reason = why_not(); !reason.empty()) GTEST_SKIP() << reason;
  // The usual lease: where other programs have the CPUs, etcd does not always answer in time for the shortest one, and
  // servers that leave for that reason are faults that this test has not drawn.
  wired_cluster cluster(static_cast<unsigned>(number_in("PL_NETNS_LEASE_S").value_or(5)));
  const std::set<std::string> names = {"a", "b", "c", "d"};
  for (const auto& name : names) cluster.start(name);
  ASSERT_TRUE(cluster.settled(names));
  make_pool(cluster, "p", 2);
  make_pool(cluster, "three", 3);
  const auto given = number_in("PL_NETNS_SEED"), rounds = number_in("PL_NETNS_ROUNDS");
  const auto seed = static_cast<unsigned>(given.value_or(static_cast<std::int64_t>(monotonic_ns() & 0x7fffffff)));
  std::mt19937 random(seed);
  std::fprintf(stderr, "seed %u\n", seed);
  for (int round = 0; round < rounds.value_or(20); ++round) {
    players all(cluster, round % 2 == 0 ? "p" : "three", "n" + std::to_string(round));
    for (int fault = 0; fault < 3; ++fault) {
      const std::string name(1, static_cast<char>('a' + random() % 4));
      EXPECT_TRUE(all.go_on());
      const std::uint64_t began = monotonic_ns();
      const auto reply = [&](const char* label) {
        std::fprintf(stderr, "round %d: %s of %s at %.3f s for %.3f s\n", round, label, name.c_str(),
                     1e-9 * static_cast<double>(began), 1e-9 * static_cast<double>(monotonic_ns() - began));
      };
      if (random() % 2 == 0) {
        cluster.kill(name);
        if (random() % 2 == 0) {  // else it is back before its lease is out
          ASSERT_TRUE(wait_until(cluster.database(), [&](const auto& now) { return !now.alive.contains(name); }));
        }
        cluster.start(name);
        reply("death");
      } else {
        cluster.server(name).wire(false);
        if (random() % 2 == 0) {
          ASSERT_TRUE(wait_until(cluster.database(), [&](const auto& now) { return !now.alive.contains(name); }));
        }
        EXPECT_TRUE(all.go_on());
        reply("cut");
        cluster.server(name).wire(true);
      }
      ASSERT_TRUE(cluster.settled(names));
    }
    for (const auto& wrong : all.stop()) ADD_FAILURE() << "round " << round << ": " << wrong;
    std::fprintf(stderr, "round %d: %llu operations\n", round, static_cast<unsigned long long>(all.answered()));
  }
}

}  // namespace
}  // namespace pl::store_test
