// SPDX-License-Identifier: Apache-2.0
// What planner*.cpp and completion.cpp share. Not for other files.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "copy/gpu_state.hpp"
#include "copy/host_pinning.hpp"
#include "copy/planner.hpp"
#include "map/backend.hpp"

namespace pl::copy {

// Longer lists of blocks would keep a channel busy for longer than short copies should wait.
inline constexpr std::uint64_t kMaxQuickBytes = std::uint64_t{1} << 20;

struct planner::sides {
  direction way = direction::to_device;
  other_side other = other_side::pageable;
  bool other_is_known = false;  // `other` is known: for host memory that costs a driver call, which is often not needed
  cu::pointer_info device;      // of the destination; for to_host of the source
  cu::pointer_info source;      // on_device only
  host_memory host;             // if other_is_known
  gpu_state* state = nullptr;   // of `device`, once it was needed

  // Whose channel moves data between two GPUs. A single copy: the destination's, because what an engine writes to its
  // own GPU needs no flush (dma_engine.cpp), which costs more than reading from the peer. Lists: the source's, which
  // writes to a peer at a higher rate and flushes once for all.
  const cu::pointer_info& list_mover() const { return other == other_side::peer_gpu ? source : device; }
  // Copies to a peer and others do not share a list, because only the channel of peers flushes what it writes there.
  bool is_listed_with(const sides& first) const {
    const auto &mover = list_mover(), &first_mover = first.list_mover();
    const bool is_peer = other == other_side::peer_gpu, is_first_peer = first.other == other_side::peer_gpu;
    return is_peer == is_first_peer && mover.context == first_mover.context &&
           mover.device_ordinal == first_mover.device_ordinal;
  }
};

// A copy without bytes: its addresses mean nothing, and rows times their size may overflow.
inline bool is_empty(const transfer& transfer) { return transfer.row_bytes == 0 || transfer.rows == 0; }

inline std::vector<transfer> without_empty(std::span<const transfer> list) {
  std::vector<transfer> kept;
  std::copy_if(list.begin(), list.end(), std::back_inserter(kept), [](const transfer& one) { return !is_empty(one); });
  return kept;
}

inline bool is_for_channels(other_side side) { return side != other_side::pageable; }

inline dma_engine::queue_kind queue_for(other_side side, bool is_quick) {
  if (side == other_side::peer_gpu) return dma_engine::queue_kind::peer;
  return is_quick ? dma_engine::queue_kind::quick : dma_engine::queue_kind::bulk;
}

inline dma_engine::sides planner::sides_for_channel(const sides& ends) {
  if (ends.way == direction::on_device) return {&ends.device, &ends.source, nullptr};
  return {&ends.device, nullptr, &ends.host};
}

// A device range as the CPU reaches it: through a registration or through the cache.
struct planner::cpu_place {
  mapping_cache::hold kept;
  char* data = nullptr;
  arch::mapping_type type = arch::mapping_type::none;
};

// Maps addresses of one kind to those of another. Copies of other memory read the slots without a lock at any time,
// also while a slot is being assigned to another range; fields must then not be mixed.
class range_slot {
 public:
  bool is_free() const noexcept { return begin_.load(std::memory_order_relaxed) == 0; }
  // The address of `pointer` on the other side, if all of the bytes lie in this range.
  char* find(std::uint64_t pointer, std::size_t bytes, arch::mapping_type& type) const noexcept {
    const std::uint32_t before = version_.load(std::memory_order_acquire);
    const std::uint64_t begin = begin_.load(std::memory_order_acquire);
    const std::uint64_t end = end_.load(std::memory_order_acquire);
    if (begin == 0 || pointer < begin || pointer >= end || bytes > end - pointer) return nullptr;
    char* const data = data_.load(std::memory_order_acquire);
    const auto its_type = type_.load(std::memory_order_acquire);
    // The slot is changing or has changed, so it is not the range of `pointer`: an application does not register or end
    // a range while it is being copied.
    if (version_.load(std::memory_order_relaxed) != before || before % 2 != 0) return nullptr;
    type = its_type;
    return data + (pointer - begin);
  }

 protected:
  // Each store is a release, so that whoever sees a new field also sees the odd version before it. Precondition: the
  // planner's lock is held.
  void change(std::uint64_t begin, std::uint64_t end, char* data, arch::mapping_type type) noexcept {
    const std::uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    begin_.store(begin, std::memory_order_release);
    end_.store(end, std::memory_order_release);
    data_.store(data, std::memory_order_release);
    type_.store(type, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

 private:
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint64_t> begin_{0}, end_{0};  // begin 0: the slot is free
  std::atomic<char*> data_{nullptr};
  std::atomic<arch::mapping_type> type_{arch::mapping_type::none};
};

// Device memory and its CPU addresses.
class registered_range : public range_slot {
 public:
  // The driver's attributes of the first byte.
  const cu::pointer_info& info() const noexcept { return info_; }
  void set(const cu::pointer_info& info, std::uint64_t begin, std::uint64_t end, char* data,
           std::unique_ptr<pinned_memory> pin, const cpu_view& view) noexcept {
    pin_ = std::move(pin);
    info_ = info;
    view_ = view;
    change(begin, end, data, view.type);
  }
  void clear() noexcept {
    if (pin_ == nullptr) return;
    change(0, 0, nullptr, arch::mapping_type::none);
    pin_->unmap(view_, unmapping::by_request);
    pin_.reset();
  }

 private:
  cu::pointer_info info_;
  std::unique_ptr<pinned_memory> pin_;
  cpu_view view_;
};

// Host memory and its device addresses.
class registered_host_range : public range_slot {
 public:
  void set(std::uint64_t begin, std::uint64_t end, host_pinning pinning) noexcept {
    pinning_ = std::move(pinning);
    change(begin, end, static_cast<char*>(host_pointer(pinning_.memory().device_ptr)), arch::mapping_type::none);
  }
  void clear() noexcept {
    if (is_free()) return;
    change(0, 0, nullptr, arch::mapping_type::none);
    pinning_.end();
  }
  // The driver's information about its first byte when it was registered.
  const host_memory& info() const noexcept { return pinning_.memory(); }

 private:
  host_pinning pinning_;
};

struct planner::shared {
  static constexpr unsigned kRanges = 64;

  explicit shared(worker_pool::options pool_options) : pool(std::move(pool_options)) {}

  worker_pool pool;

  std::mutex mutex;  // guards what follows, up to the ranges
  std::unique_ptr<backend> maps;
  std::map<cu::context_t, std::unique_ptr<gpu_state>> states;
  std::vector<std::unique_ptr<gpu_state>> dead;  // of destroyed contexts; other threads may still read them
  std::vector<gpu_state*> unreleased;            // of those, which still have their memory

  std::atomic<unsigned> ranges_used{0};  // slots from here on were never used
  std::array<registered_range, kRanges> ranges;
  std::atomic<unsigned> host_ranges_used{0};
  std::array<registered_host_range, kRanges> host_ranges;

  // One for each thread, written only by it: a locked instruction after a store to the mapping would wait for that
  // store to drain.
  struct alignas(64) counter_block {
    struct counter {
      std::atomic<std::uint64_t> copies{0}, bytes{0};
    };
    std::array<counter, kMethods> taken;
  };
  std::mutex peers_mutex;
  std::set<std::pair<std::uint64_t, std::uint64_t>> peers;  // pairs of contexts (source, destination) with peer access

  std::mutex counters_mutex;
  std::vector<std::unique_ptr<counter_block>> counters;
  std::atomic<std::uint64_t> not_mapped{0}, engine_not_taken{0};

  // Asynchronous copies that need a CPU, in order.
  std::mutex queue_mutex;
  std::condition_variable queue_changed;
  struct queued_work {
    std::function<void(const status& reached)> run;  // `reached`: the outcome of the work that it waits for
    copy_engine* dma = nullptr;                      // it waits for `behind` of this engine, if not null
    copy_engine::ticket behind;
  };
  std::deque<queued_work> queue;
  std::thread runner;
  bool stop = false;

  // A service that makes contexts again and again keeps little more than a counter of each. With the mutex held.
  void release_destroyed() {
    for (auto one = states.begin(); one != states.end();) {
      const bool is_alive = one->second == nullptr || one->second->context.is_alive();
      if (!is_alive) {
        unreleased.push_back(one->second.get());
        dead.push_back(std::move(one->second));
      }
      one = is_alive ? std::next(one) : states.erase(one);
    }
    std::erase_if(unreleased, [](gpu_state* state) { return state->release_memory(); });
  }

  result<backend*> open_maps(const cu::driver_table& cuda, const std::string& name) {
    if (maps == nullptr) {
      auto opened = open_backend({&default_device_io(), &cuda}, name);
      if (!opened) return opened.error();
      maps = *std::move(opened);
    }
    return maps.get();
  }
};

}  // namespace pl::copy
