// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/held_reports.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::store_cluster {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxReportBytes = 1u << 20;  // etcd accepts 1.5 MiB in one request, in base64

// A server that is away still counts with its last report; one that was removed does not.
bool counts(const cluster_map& map, const std::string& name) {
  const auto found = map.servers.find(name);
  return found != map.servers.end() && found->second.assigned_role != store_client::cluster_server::role::out;
}

}  // namespace

std::string to_text(const std::vector<store::owner_held>& held) {
  json out = json::array();
  for (const auto& one : held) out.push_back({one.name, one.keys, one.bytes});
  // A certificate's name need not be UTF-8.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

result<std::vector<store::owner_held>> read_held(std::string_view text) {
  const failure bad{EPROTO, "not a report of what principals hold"};
  const json read = json::parse(text, nullptr, false);
  if (!read.is_array()) return bad;
  std::vector<store::owner_held> out;
  for (const json& one : read) {
    if (!one.is_array() || one.size() != 3 || !one[0].is_string() || !one[1].is_number_unsigned() ||
        !one[2].is_number_unsigned())
      return bad;
    out.push_back({one[0].get<std::string>(), one[1].get<std::uint64_t>(), one[2].get<std::uint64_t>()});
  }
  return out;
}

held_reports::held_reports(store::engine& counts, const membership& members, log_t log)
    : engine_(counts), members_(members), log_(std::move(log)) {}

std::string held_reports::prefix() const { return "/peerlane-held/" + members_.options().cluster + "/"; }

// The largest holders, if there are too many for a key of etcd.
std::string held_reports::own_report() const {
  std::vector<store::owner_held> held;
  for (const auto& one : engine_.list_owners())
    if ((one.quota.cluster_bytes | one.quota.cluster_keys) != 0 && (one.keys | one.bytes) != 0)
      held.push_back({one.name, one.keys, one.bytes});
  std::string text = to_text(held);
  if (text.size() <= kMaxReportBytes) return text;
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  while (text.size() > kMaxReportBytes) {
    held.resize(held.size() / 2);
    text = to_text(held);
  }
  return text;
}

status held_reports::exchange() {
  const std::string mine = own_report();
  if (!has_reported_ || mine != reported_) {
    const auto done = members_.store().transact({}, {{prefix() + members_.options().name, mine, 0, false}});
    if (!done) return done.error();
    reported_ = mine, has_reported_ = true;
  }
  const auto all = members_.store().list(prefix());
  if (!all) return all.error();
  const view_ptr view = members_.view();
  std::map<std::string, store::owner_held> sums;
  status outcome;
  for (const auto& one : all->entries) {
    const std::string name = one.key.substr(prefix().size());
    if (name == members_.options().name || !counts(view->map, name)) continue;
    const auto held = read_held(one.value);
    if (!held) outcome = failure{held.code(), "server " + name + ": " + held.error().message};
    if (!held) continue;
    for (const auto& owner : *held) {
      store::owner_held& sum = sums[owner.name];
      sum.name = owner.name, sum.keys += owner.keys, sum.bytes += owner.bytes;
    }
  }
  std::vector<store::owner_held> elsewhere;
  for (auto& [name, sum] : sums) elsewhere.push_back(std::move(sum));
  engine_.set_held_elsewhere(elsewhere);
  return outcome;
}

status held_reports::start() {
  auto started = try_start_thread("says what principals hold", [this] { serve(); });
  if (!started) return started.error();
  thread_ = *std::move(started);
  return {};
}

void held_reports::serve() {
  std::unique_lock hold(lock_);
  while (!changed_.wait_for(hold, kPeriod, [&] { return stopping_; })) {
    hold.unlock();
    const status done = exchange();
    if (!done && !std::exchange(has_failed_, true)) log_("cluster_held_not_exchanged", done.error().message);
    if (done) has_failed_ = false;
    hold.lock();
  }
}

void held_reports::stop() {
  {
    const std::lock_guard hold(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace pl::store_cluster
