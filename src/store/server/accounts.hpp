// SPDX-License-Identifier: Apache-2.0
// The server resources that each principal uses over all of its connections. A limit per connection would not bind a
// client that opens a thousand of them. Thread-safe.
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
  std::atomic<std::uint64_t> buffer_bytes{0};                      // frames begun and answers not taken yet
  std::atomic<std::uint64_t> memory_bytes{0};                      // of the memory tier: grants, puts in progress, pins
  std::atomic<std::uint64_t> pinned_bytes{0};                      // the pins among them
  std::atomic<std::uint64_t> put_waited_ns{0};                     // when a put last found no room in its share
  std::atomic<std::uint64_t> device_bytes{0}, device_memories{0};  // handed over by the principal
  std::atomic<std::uint64_t> watches{0}, watch_bytes{0};           // changes that it has not taken yet
};
using account_ref = std::shared_ptr<account>;

// One connection's share of a principal's account; the destructor returns it.
class account_share {
 public:
  using counter = std::atomic<std::uint64_t> account::*;
  account_share() = default;
  account_share(account_ref account, counter kind) : account_(std::move(account)), counter_(kind) {}
  account_share(account_share&& other) noexcept
      : account_(std::move(other.account_)), counter_(other.counter_), mine_(std::exchange(other.mine_, 0)) {}
  account_share& operator=(account_share&& other) noexcept {
    set(0);
    account_ = std::move(other.account_);
    counter_ = other.counter_;
    mine_ = std::exchange(other.mine_, 0);
    return *this;
  }
  ~account_share() { set(0); }

  void set(std::uint64_t now) noexcept {
    if (account_ == nullptr || now == mine_) return;
    (*account_.*counter_).fetch_add(now - mine_, std::memory_order_relaxed);
    mine_ = now;
  }
  // May be called on any thread. Counts bytes ahead of the share: the share adds them later and then returns them.
  // Returns all(), with these bytes.
  std::uint64_t add_beside(std::uint64_t bytes) const noexcept {
    return account_ == nullptr ? 0 : (*account_.*counter_).fetch_add(bytes, std::memory_order_relaxed) + bytes;
  }
  void return_beside(std::uint64_t bytes) const noexcept {
    if (account_ != nullptr) (*account_.*counter_).fetch_sub(bytes, std::memory_order_relaxed);
  }
  std::uint64_t mine() const noexcept { return mine_; }
  // The total of all connections of the principal.
  std::uint64_t all() const noexcept {
    return account_ == nullptr ? 0 : (*account_.*counter_).load(std::memory_order_relaxed);
  }

 private:
  account_ref account_;
  counter counter_ = &account::connections;
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
