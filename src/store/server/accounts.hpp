// SPDX-License-Identifier: Apache-2.0
// What each principal takes of the server, over all of its connections: a limit for one connection is none for a client that
// opens a thousand. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace pl::store_server {

struct account {
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> buffer_bytes{0};  // frames that are begun, answers that are not taken
  std::atomic<std::uint64_t> memory_bytes{0};  // of the memory tier: grants, puts under way, pins
};
using account_ref = std::shared_ptr<account>;

// One connection's part of a principal's account: given back when it goes.
class account_share {
 public:
  using counter = std::atomic<std::uint64_t> account::*;
  account_share() = default;
  account_share(account_ref of, counter what) : of_(std::move(of)), what_(what) {}
  account_share(account_share&& other) noexcept
      : of_(std::move(other.of_)), what_(other.what_), mine_(std::exchange(other.mine_, 0)) {}
  account_share& operator=(account_share&& other) noexcept {
    set(0);
    of_ = std::move(other.of_);
    what_ = other.what_;
    mine_ = std::exchange(other.mine_, 0);
    return *this;
  }
  ~account_share() { set(0); }

  void set(std::uint64_t now) noexcept {
    if (of_ == nullptr || now == mine_) return;
    (*of_.*what_).fetch_add(now - mine_, std::memory_order_relaxed);
    mine_ = now;
  }
  std::uint64_t mine() const noexcept { return mine_; }
  // Of all the principal's connections.
  std::uint64_t all() const noexcept { return of_ == nullptr ? 0 : (*of_.*what_).load(std::memory_order_relaxed); }

 private:
  account_ref of_;
  counter what_ = &account::connections;
  std::uint64_t mine_ = 0;
};

class accounts {
 public:
  account_ref find(const std::string& principal) {
    const std::lock_guard hold(lock_);
    std::erase_if(by_principal_, [](const auto& one) { return one.second.expired(); });
    auto& known = by_principal_[principal];
    auto out = known.lock();
    if (!out) known = out = std::make_shared<account>();
    return out;
  }

 private:
  std::mutex lock_;
  std::map<std::string, std::weak_ptr<account>> by_principal_;
};

}  // namespace pl::store_server
