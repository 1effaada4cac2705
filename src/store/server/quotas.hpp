// SPDX-License-Identifier: Apache-2.0
// What each principal may hold in the store (docs/store-operate.md). The engine counts and refuses (engine/owners.hpp);
// this file determines the principal for which a session puts, and parses the settings.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/engine.hpp"

namespace pl::store_server {

// Parses lines such as "uid:1000 bytes=10G keys=1M": bytes in powers of 1024, keys in powers of 1000; omitted limits do
// not apply. "cluster-bytes=" and "cluster-keys=" limit what the principal holds on all servers of the cluster. "*" is
// every principal without a line of its own. EINVAL names the line.
result<std::vector<store::owner_quota>> parse_quotas(const std::vector<std::string>& lines);

// The quotas of one server. Thread-safe.
class quotas {
 public:
  // Counts values by principal if there are quotas, or if the store has done so before: earlier releases cannot open
  // such a folder (docs/store-engine.md).
  quotas(store::engine& counts, std::vector<store::owner_quota> first);
  // Replaces all quotas, for puts from now on.
  void set(const std::vector<store::owner_quota>& next);
  // 0 if no principals are counted.
  store::owner_id owner_of(std::string_view principal) const {
    return is_counting_.load(std::memory_order_relaxed) ? engine_.need_owner(principal) : 0;
  }
  // Usage of the named principal, or of all if the name is empty.
  std::vector<store::owner_info> list(std::string_view principal = {}) const;

 private:
  store::engine& engine_;
  std::atomic<bool> is_counting_{false};
};

}  // namespace pl::store_server
