// SPDX-License-Identifier: Apache-2.0
// What principals hold on all servers of a cluster (docs/design/0015-quotas-of-clusters.md). Each server reports to
// etcd what it counts for principals with a cluster limit, and adds what the others have reported.
//
//   /peerlane-held/CLUSTER/NAME    what server NAME holds; it stays when the server goes
//
// The keys are separate from those that membership watches, because servers of earlier releases would read all of these
// again at each report.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "store/cluster/membership.hpp"
#include "store/engine/engine.hpp"

namespace pl::store_cluster {

class held_reports {
 public:
  static constexpr std::chrono::milliseconds kPeriod{1000};  // between two exchanges
  using log_t = std::function<void(const char* event, const std::string& text)>;

  held_reports(store::engine& counts, const membership& members, log_t log);
  // Reports what this server holds if that has changed, and reads the others' reports. Blocking. Called by start()'s
  // thread, and before start().
  status exchange();
  status start();
  void stop();
  ~held_reports() { stop(); }
  held_reports(const held_reports&) = delete;
  held_reports& operator=(const held_reports&) = delete;

 private:
  void serve();
  std::string prefix() const;
  std::string own_report() const;

  store::engine& engine_;
  const membership& members_;
  const log_t log_;
  std::string reported_;       // the last report; used by the thread alone
  bool has_reported_ = false;  // used by the thread alone
  bool has_failed_ = false;    // used by the thread alone; a failure is logged once
  std::mutex lock_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

// As in etcd. EPROTO if it is not such a text.
std::string to_text(const std::vector<store::owner_held>& held);
result<std::vector<store::owner_held>> read_held(std::string_view text);

}  // namespace pl::store_cluster
