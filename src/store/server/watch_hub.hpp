// SPDX-License-Identifier: Apache-2.0
// Who watches which keys, and the changes that they have not taken yet.
//
//   engine (a lock held) --tell--> watch_hub --push--> queues of the watches that match --wake--> their sessions' threads
//
// The queues of a principal share what its account allows. A queue that would exceed it is dropped as a whole and
// counts the lost changes, which its watcher is told. A queue that holds less than its fair part is not dropped, so a
// watcher that takes nothing does not cost the principal's other watchers any change. Together they hold at most twice
// the limit. Thread-safe. Lock order: engine, hub, a watch.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/engine/types.hpp"
#include "store/protocol/watch.hpp"
#include "store/server/accounts.hpp"
#include "store/server/metrics.hpp"

namespace pl::store_server {

class key_watch {
 public:
  struct terms {
    store::pool_id pool = 0;
    std::string prefix;  // or the exact key
    bool exact = false;
    std::uint64_t most_bytes = 0;  // limit of the principal's queued changes
    std::function<void()> wake;    // called once for each arm(), on any thread; must not block
  };
  key_watch(terms given, const account_ref& principal, metrics& counters);
  ~key_watch() { --counters_.watches; }
  key_watch(const key_watch&) = delete;
  key_watch& operator=(const key_watch&) = delete;

  const terms& what() const noexcept { return terms_; }
  void push(const store::key_change& one);
  // Requests a call of wake() when there is something to take, at once if there is.
  void arm();
  void disarm();
  struct taken {
    std::string body;        // events
    bool more = false;       // more are queued
    bool has_ended = false;  // the pool was deleted: no event follows these
  };
  // Takes up to `most` events, of about `most_bytes`.
  taken take(std::uint64_t most, std::size_t most_bytes);

 private:
  static constexpr std::uint64_t kEventBytes = 64;  // memory of a queued event beside its key
  bool has_room(std::uint64_t more) const;

  const terms terms_;
  std::mutex lock_;
  account_share counted_, queued_;  // queued_ is guarded by the lock
  metrics& counters_;
  std::deque<store_protocol::watch_event> events_;
  std::uint64_t bytes_ = 0, lost_ = 0;
  bool armed_ = false, has_ended_ = false;
};
using watch_ref = std::shared_ptr<key_watch>;

class watch_hub {
 public:
  explicit watch_hub(std::uint64_t first_token) : next_token_(first_token) {}
  // As in store::engine_options::on_change.
  void tell(const store::key_change& one);
  // Returns the watch's token, which is unique over all connections and restarts.
  std::uint64_t add(const watch_ref& one);
  // No event is pushed to the watch any more.
  void remove(const watch_ref& one);

 private:
  struct hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };
  using by_text = std::unordered_map<std::string, std::vector<watch_ref>, hash, std::equal_to<>>;
  struct pool_watches {
    by_text keys;                             // watches of exact keys
    std::map<std::size_t, by_text> prefixes;  // by length: a key is looked up by its prefixes of these lengths
  };
  std::atomic<std::uint64_t> count_{0};  // number of watches: while it is 0, a change costs one load
  std::shared_mutex lock_;
  std::unordered_map<store::pool_id, pool_watches> pools_;
  std::uint64_t next_token_;
};

}  // namespace pl::store_server
