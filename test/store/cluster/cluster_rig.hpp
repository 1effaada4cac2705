// SPDX-License-Identifier: Apache-2.0
// A cluster in the test's process: a real etcd, and servers that join it.
#pragma once

#include <algorithm>
#include <map>

#include "store/client/router.hpp"
#include "store/cluster/membership.hpp"
#include "test/store/cluster/etcd_process.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {

constexpr unsigned kLeaseSeconds = 2;  // etcd's shortest with its usual election timeout

// Waits until `is` holds for etcd's contents. False: not within a generous time.
inline bool wait_until(const store_cluster::etcd& client, const std::function<bool(const store_cluster::cluster_view&)>& is,
                       int seconds = 60) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto now = store_cluster::read_view(client, "default");
    if (now && is(*now)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // etcd has other things to do
  }
  return false;
}

// Each unit is on the servers on which it shall be, and these are the ones that live. Of pools of so many copies and more:
// of those with one, what a dead server has waits for it.
inline bool is_settled(const store_cluster::cluster_view& now, const std::set<std::string>& servers, unsigned copies = 1) {
  if (now.map_revision == 0 || now.alive != servers) return false;
  for (unsigned unit = (copies - 1) * store_client::kUnits; unit < store_client::kPlacements; ++unit) {
    const auto& entry = now.map.units[unit];
    auto wanted = store_cluster::wanted_on(now.map, unit), have = entry.copies;
    if (have.empty() || wanted.empty() || have.front() != wanted.front() || !entry.joining.empty()) return false;
    std::sort(wanted.begin(), wanted.end());
    std::sort(have.begin(), have.end());
    if (wanted != have) return false;
    for (const auto& one : have)
      if (!servers.contains(one)) return false;
  }
  return true;
}

class cluster_rig {
 public:
  cluster_rig() {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-cluster-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    etcd_ = std::make_unique<etcd_process>(folder_);
    EXPECT_TRUE(etcd_->wait_until_it_answers());
  }
  ~cluster_rig() {
    servers_.clear();
    etcd_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void start(const std::string& name) {
    auto& one = servers_[name];
    if (!one) one = std::make_unique<store_rig>();
    one->config.cluster = {etcd_->url()};
    one->config.name = name;
    one->config.lease_s = kLeaseSeconds;
    one->config.repair_s = 0;
    one->config.ucx = ucx;
    one->config.quotas = quotas;
    one->config.advertise = advertise;
    one->start();
  }
  // Gives its lease back, as on SIGTERM.
  void stop(const std::string& name) { servers_.at(name)->stop(); }
  // At one moment, as far as the map goes: nobody sees another one go.
  void stop_together(const std::set<std::string>& names) {
    etcd_->process().signal(SIGSTOP);
    for (const auto& name : names) stop(name);
    etcd_->process().signal(SIGCONT);
    EXPECT_TRUE(wait_until(etcd_->client(), [&](const auto& now) {
      return std::none_of(names.begin(), names.end(), [&](const auto& one) { return now.alive.contains(one); });
    }));
  }
  // The server's data folder; it must not run. Another disk in its place: an empty one, or one that was put aside.
  std::filesystem::path folder(const std::string& name) { return servers_.at(name)->config.data; }
  void put_disk_aside(const std::string& name) { std::filesystem::rename(folder(name), folder(name).string() + ".aside"); }
  void put_disk_back(const std::string& name) {
    std::filesystem::remove_all(folder(name));
    std::filesystem::rename(folder(name).string() + ".aside", folder(name));
  }
  store_rig& server(const std::string& name) { return *servers_.at(name); }
  etcd_process& etcd() { return *etcd_; }
  bool settled(const std::set<std::string>& servers) {
    return wait_until(etcd_->client(), [&](const auto& now) { return is_settled(now, servers); });
  }
  std::unique_ptr<store_client::router> open(unsigned timeout_ms = 20'000) {
    store_client::router_options options;
    for (const auto& [name, one] : servers_) options.servers.push_back(one->config.listen);
    options.timeout_ms = timeout_ms;
    auto made = store_client::router::open(options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }
  std::uint32_t make_pool(store_client::router& cluster, const std::string& name, unsigned copies) {
    store_protocol::pool_settings settings;
    settings.copies = static_cast<std::uint8_t>(copies);
    settings.level = store_protocol::durability::logged;  // disks of test machines are slow, and nobody pulls a plug
    const auto made = cluster.create_pool(name, settings);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : 0;
  }

  std::string ucx = "auto";         // of servers that start from now on
  std::vector<std::string> quotas;  // likewise
  std::string advertise;            // likewise

 private:
  std::string folder_;
  std::unique_ptr<etcd_process> etcd_;
  std::map<std::string, std::unique_ptr<store_rig>> servers_;
};

}  // namespace pl::store_test
