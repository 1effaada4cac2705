// SPDX-License-Identifier: Apache-2.0
// What each principal may hold in the store (docs/store-operate.md). The engine counts and refuses (engine/owners.hpp); here
// is which principal a session puts for, and the settings as people write them.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/engine.hpp"

namespace pl::store_server {

// "uid:1000 bytes=10G keys=1M": bytes in powers of 1024, keys in powers of 1000; what is not said is not limited.
// "cluster-bytes=", "cluster-keys=": of what it holds on all servers of the cluster. "*": every principal without a line of
// its own. EINVAL names the line.
result<std::vector<store::owner_quota>> parse_quotas(const std::vector<std::string>& lines);

// The quotas of a config file, all of which must be right.
result<std::vector<store::owner_quota>> read_quotas(const std::string& config_file);

// Of one server. Thread-safe.
class quotas {
 public:
  // Counts for whom values are put if there are quotas, or if the store has counted before: from then on its folder is not
  // for earlier releases (docs/store-engine.md).
  quotas(store::engine& counts, std::vector<store::owner_quota> first);
  // In place of those so far, for puts from now on.
  void set(const std::vector<store::owner_quota>& next);
  // 0: nobody's figures are kept.
  store::owner_id owner_of(std::string_view principal) const {
    return is_counting_.load(std::memory_order_relaxed) ? engine_.need_owner(principal) : 0;
  }
  // Of the named principal; of all if it is empty.
  std::vector<store::owner_info> list(std::string_view principal = {}) const;

 private:
  store::engine& engine_;
  std::atomic<bool> is_counting_{false};
};

}  // namespace pl::store_server
