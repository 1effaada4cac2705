// SPDX-License-Identifier: Apache-2.0
// The store's C interface for changes of keys. The contract is in peerlane/store.h.
#include <peerlane/store.h>

#include <deque>
#include <mutex>
#include <thread>

#include "capi/errno_guard.hpp"
#include "capi/open_store.hpp"
#include "capi/store_requests.hpp"
#include "store/client/interruption.hpp"
#include "store/client/watcher.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_store;
using pl::store_client::clock;
using pl::store_client::watcher;
using pl::store_protocol::event_kind;
using pl::store_protocol::watch_event;
using stores = pl::open_stores;

static_assert(PEERLANE_CHANGE_PUT == static_cast<int>(event_kind::put));
static_assert(PEERLANE_CHANGE_ERASED == static_cast<int>(event_kind::erased));
static_assert(PEERLANE_CHANGE_EVICTED == static_cast<int>(event_kind::evicted));
static_assert(PEERLANE_CHANGE_EXPIRED == static_cast<int>(event_kind::expired));
static_assert(PEERLANE_CHANGE_LOST == static_cast<int>(event_kind::lost));

struct open_watch {
  ~open_watch() {
    source.reset();  // it uses the store
    if (owner) --owner->watches;
  }
  std::shared_ptr<open_store> owner;
  std::unique_ptr<watcher> source;
  std::mutex busy;                        // held by the thread that waits for changes
  std::atomic<std::thread::id> inside{};  // that thread
  std::deque<watch_event> left;           // changes that no caller has taken yet
};
using watches = pl::live_handles<open_watch>;

peerlane_watch_event event_from(const watch_event& one) {
  peerlane_watch_event out{};
  out.change = static_cast<std::uint32_t>(one.kind);
  const bool is_lost = one.kind == event_kind::lost;
  if (is_lost) {
    out.lost = one.value_bytes;
    return out;
  }
  out.key = one.key.data();
  out.key_size_bytes = one.key.size();
  out.version = one.version;
  out.size_bytes = one.value_bytes;
  return out;
}

clock::time_point end_of(std::int64_t timeout_ms) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // fits into nanoseconds
  if (timeout_ms < 0 || timeout_ms > kLongest) return clock::time_point::max();
  return clock::now() + std::chrono::milliseconds(timeout_ms);
}

int report(open_watch& one, int (*each)(void*, const peerlane_watch_event*), void* context) {
  while (!one.left.empty()) {
    const watch_event now = std::move(one.left.front());
    one.left.pop_front();
    const auto event = event_from(now);
    if (const int code = each(context, &event)) return code;
  }
  return 0;
}

}  // namespace

PL_EXPORT int peerlane_store_watch_open(peerlane_store_t store, peerlane_pool_t pool, const peerlane_watch_options* given,
                                        peerlane_store_watch_t* out) {
  const pl::errno_guard keep;
  try {
    const auto one = stores::instance().find(store);
    if (!one) return fail(stores::instance().missing());
    if (out == nullptr) return fail(EINVAL, kNullPointer);
    if (const auto sized = pl::check_size(given); !sized) return fail(sized.error());
    const auto options = pl::taken(given);
    if (options.reserved != 0) return fail(EINVAL, "options->reserved must be 0");
    if (options.prefix == nullptr && options.prefix_size_bytes != 0) return fail(EINVAL, kNullPointer);
    if (options.prefix_size_bytes > pl::store_protocol::kMaxKeyBytes)
      return fail(EINVAL, "keys and prefixes have at most 4096 bytes");
    if (one->cluster) return fail(ENOTSUP, "the servers of a cluster have no watches: keys move between them");
    watcher::target asked;
    asked.pool = pool;
    asked.prefix = pl::key_of(options.prefix, options.prefix_size_bytes);
    asked.exact = options.is_key != 0;
    auto made = watcher::open(*one->store, std::move(asked));
    if (!made) return fail(made.error());
    auto kept = std::make_shared<open_watch>();
    kept->owner = one;
    ++one->watches;
    kept->source = *std::move(made);
    *out = static_cast<peerlane_store_watch_t>(watches::instance().add(std::move(kept)));
    return 0;
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_watch_next(peerlane_store_watch_t watch, int64_t timeout_ms,
                                        int (*each)(void*, const peerlane_watch_event*), void* context) {
  const pl::errno_guard keep;
  try {
    const auto one = watches::instance().find(watch);
    if (!one) return fail(watches::instance().missing());
    if (each == nullptr) return fail(EINVAL, kNullPointer);
    const std::unique_lock hold(one->busy, std::try_to_lock);
    if (!hold) return fail(EBUSY, "another thread waits for this watch's changes");
    one->inside = std::this_thread::get_id();
    struct leave {
      open_watch& one;
      ~leave() { one.inside = std::thread::id(); }
    } const left{*one};
    if (one->left.empty()) {
      const pl::store_client::no_interruption whole;
      auto events = one->source->next(end_of(timeout_ms));
      if (!events) return fail(events.error());
      if (events->empty()) return fail(ETIMEDOUT, "no key has changed yet; the watch continues");
      one->left.assign(std::make_move_iterator(events->begin()), std::make_move_iterator(events->end()));
    }
    return report(*one, each, context);
  }
  PL_NO_EXCEPTIONS
}

PL_EXPORT int peerlane_store_watch_close(peerlane_store_watch_t watch) {
  const pl::errno_guard keep;
  try {
    const auto found = watches::instance().find(watch);
    if (!found) return fail(watches::instance().missing());
    if (found->inside.load() == std::this_thread::get_id())
      return fail(EBUSY, "the function that gets a watch's changes does not close it: let it return a value first");
    const auto one = watches::instance().remove(watch);
    if (!one) return fail(watches::instance().missing());
    one->source->stop();
    const std::lock_guard hold(one->busy);  // the waiting thread has left
    return 0;
  }
  PL_NO_EXCEPTIONS
}
