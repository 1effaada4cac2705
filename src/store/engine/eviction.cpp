// SPDX-License-Identifier: Apache-2.0
#include "store/engine/eviction.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

namespace pl::store {
namespace {

using place = cached_value::place;

class lru_policy final : public eviction_policy {
 public:
  void insert(cached_value& one) override {
    one.queue = place::first;
    queue_.push(one);
  }
  void used(cached_value& one) override {
    if (one.queue == place::none) return;
    queue_.remove(one);
    queue_.push(one);
  }
  bool needs_uses() const noexcept override { return true; }
  void remove(cached_value& one) override {
    if (std::exchange(one.queue, place::none) != place::none) queue_.remove(one);
  }
  cached_value* take_victim() override {
    cached_value* const one = queue_.next_to_leave();
    if (one != nullptr) remove(*one);
    return one;
  }
  void put_back(cached_value& one) override { insert(one); }
  std::uint64_t bytes() const noexcept override { return queue_.bytes(); }
  std::size_t count() const noexcept override { return queue_.count(); }

 private:
  cached_queue queue_;
};

class s3_fifo_policy final : public eviction_policy {
 public:
  void insert(cached_value& one) override {
    one.uses.store(0, std::memory_order_relaxed);
    const auto known = ghosts_.find(hash_of(one));
    if (known != ghosts_.end()) {
      ghosts_.erase(known);
      return add(one, place::second);
    }
    add(one, place::first);
  }
  void remove(cached_value& one) override {
    const place was = std::exchange(one.queue, place::none);
    if (was != place::none) queue_of(was).remove(one);
  }
  cached_value* take_victim() override {
    while (count() != 0) {
      const bool from_small = main_.count() == 0 || small_.bytes() * kSmallPart > bytes();
      cached_value& one = *(from_small && small_.count() != 0 ? small_ : main_).next_to_leave();
      const place was = one.queue;
      remove(one);
      const auto uses = one.uses.load(std::memory_order_relaxed);
      if (was == place::first && uses > 1) {
        one.uses.store(0, std::memory_order_relaxed);
        add(one, place::second);
      } else if (was == place::second && uses > 0) {
        one.uses.store(static_cast<std::uint8_t>(uses - 1), std::memory_order_relaxed);
        add(one, place::second);
      } else {
        if (was == place::first) remember(hash_of(one));
        return &one;
      }
    }
    return nullptr;
  }
  // Somebody holds the value, so it counts as wanted: it goes to the main queue, and its hash is forgotten.
  void put_back(cached_value& one) override {
    ghosts_.erase(hash_of(one));
    add(one, place::second);
  }
  std::uint64_t bytes() const noexcept override { return small_.bytes() + main_.bytes(); }
  std::size_t count() const noexcept override { return small_.count() + main_.count(); }

 private:
  static constexpr std::uint64_t kSmallPart = 10;  // of the bytes; 5 to 20 give the same hit rate (docs/results/store)
  static constexpr std::size_t kMinGhosts = 64;
  using hash_t = std::uint64_t;
  static hash_t hash_of(const cached_value& one) { return std::hash<std::string_view>{}(one.key()); }
  cached_queue& queue_of(place target) { return target == place::first ? small_ : main_; }
  void add(cached_value& one, place target) {
    one.queue = target;
    queue_of(target).push(one);
  }
  // Remembers as many hashes as there are values. The list may contain hashes that came back meanwhile; their numbers
  // differ then.
  void remember(hash_t hash) {
    ghosts_[hash] = ++last_ghost_;
    ghost_order_.emplace_back(hash, last_ghost_);
    while (ghost_order_.size() > std::max(count(), kMinGhosts)) {
      const auto [oldest, number] = ghost_order_.front();
      ghost_order_.pop_front();
      if (const auto known = ghosts_.find(oldest); known != ghosts_.end() && known->second == number) ghosts_.erase(known);
    }
  }

  cached_queue small_, main_;
  std::unordered_map<hash_t, std::uint64_t> ghosts_;
  std::deque<std::pair<hash_t, std::uint64_t>> ghost_order_;
  std::uint64_t last_ghost_ = 0;
};

}  // namespace

const char* name_of(eviction kind) noexcept { return kind == eviction::lru ? "lru" : "s3-fifo"; }

std::optional<eviction> eviction_of(std::string_view name) noexcept {
  for (const eviction kind : {eviction::s3_fifo, eviction::lru})
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

void cached_queue::push(cached_value& one) noexcept {
  one.before = nullptr;
  one.behind = head_;
  (head_ != nullptr ? head_->before : tail_) = &one;
  head_ = &one;
  bytes_ += one.bytes;
  ++count_;
}

void cached_queue::remove(cached_value& one) noexcept {
  (one.before != nullptr ? one.before->behind : head_) = one.behind;
  (one.behind != nullptr ? one.behind->before : tail_) = one.before;
  one.before = one.behind = nullptr;
  bytes_ -= one.bytes;
  --count_;
}

std::unique_ptr<eviction_policy> eviction_policy::make(eviction kind) {
  if (kind == eviction::lru) return std::make_unique<lru_policy>();
  return std::make_unique<s3_fifo_policy>();
}

}  // namespace pl::store
